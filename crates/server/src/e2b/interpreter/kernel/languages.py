"""What runs cells: Python in this process, or a bash beside it."""

import ast
import asyncio
import base64
import importlib.util
import inspect
import linecache
import os
import re
import select
import shlex
import shutil
import subprocess
import sys
import time
import traceback
import types

# How the file of a cell is called in tracebacks.
CELL = "<cell "


def shell(command):
    """`!command` of a notebook."""
    return subprocess.run(command, shell=True, executable=shutil.which("bash") or "/bin/sh").returncode


def python_of_magics(code):
    """Rewrites a notebook's shell lines and the commonest magics, for boxes without IPython."""
    first, _, rest = code.lstrip().partition("\n")
    if first.strip() in ("%%bash", "%%sh"):
        return f"get_ipython().system({rest!r})"
    lines = []
    for line in code.split("\n"):
        indent, word = line[: len(line) - len(line.lstrip())], line.strip()
        if word.startswith("!"):
            line = f"{indent}get_ipython().system({word[1:]!r})"
        elif word.startswith(("%pip ", "%pip3 ")):
            command = f"{shlex.quote(sys.executable)} -m pip {word.split(' ', 1)[1]}"
            line = f"{indent}get_ipython().system({command!r})"
        elif word.startswith("%cd "):
            line = f"{indent}__import__('os').chdir(__import__('os').path.expanduser({word[4:].strip()!r}))"
        elif re.match(r"%%?[a-zA-Z]", word):
            magic = word.split()[0]
            line = f"{indent}raise NotImplementedError({magic + ' needs IPython, which this box does not have'!r})"
        lines.append(line)
    return "\n".join(lines)


class Python:
    """Runs cells in one module, the process's `__main__`."""

    def __init__(self, display):
        self._display = display
        self._loop = asyncio.new_event_loop()
        self._transform = python_of_magics
        module = types.ModuleType("__main__")
        module.__builtins__ = __builtins__
        sys.modules["__main__"] = module
        self._names = module.__dict__
        self._names["display"] = display.show
        stand_in = types.SimpleNamespace(system=shell)
        self._names["get_ipython"] = lambda: stand_in
        sys.meta_path.insert(0, AfterPyplot(display))
        try:
            if importlib.util.find_spec("IPython") is not None:
                self._use_ipython()
        except Exception:
            # An IPython that does not work is as good as none.
            traceback.print_exc()

    def _use_ipython(self):
        from IPython.core.displaypub import DisplayPublisher
        from IPython.core.interactiveshell import InteractiveShell
        from traitlets.config import Config

        display = self._display

        class Publisher(DisplayPublisher):
            def publish(self, data, metadata=None, **_):
                display.publish(data)

        config = Config()
        config.HistoryManager.enabled = False
        main = sys.modules["__main__"]
        instance = InteractiveShell.instance(config=config, user_module=main, display_pub_class=Publisher)
        instance.system = shell
        # IPython puts things of its own in their place; ours is where code runs.
        sys.modules["__main__"] = main
        self._transform = instance.transform_cell
        display.use_ipython(lambda item: instance.display_formatter.format(item)[0])
        from IPython.display import display as show

        self._names.update(display=show, get_ipython=lambda: instance)

    def idle(self, next_request):
        """Lets background tasks of asyncio run until there is a request."""
        asyncio.set_event_loop(self._loop)
        return self._loop.run_until_complete(next_request())

    def run(self, code, count, environment):
        """Shows the value of the last expression. Whatever the code raises comes out."""
        before = {key: os.environ.get(key) for key in environment}
        os.environ.update(environment)
        try:
            self._run(code, count)
        finally:
            for key, value in before.items():
                if value is None:
                    os.environ.pop(key, None)
                else:
                    os.environ[key] = value

    def _run(self, code, count):
        file = f"{CELL}{count}>"
        # The figures of a cell are shown anyway; a window would be of no use.
        code = re.sub(r"(?m)^(\s*)%matplotlib\b.*$", r"\1pass", code)
        try:
            tree = ast.parse(code, file)
        except SyntaxError:
            transformed = self._transform(code)
            linecache.cache[file] = (len(transformed), None, transformed.splitlines(True), file)
            tree = ast.parse(transformed, file)
        else:
            linecache.cache[file] = (len(code), None, code.splitlines(True), file)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        asyncio.set_event_loop(self._loop)
        if tree.body:
            self._evaluate(tree, file, "exec")
        if last is not None:
            value = self._evaluate(ast.Expression(last.value), file, "eval")
            if value is not None and not code.rstrip().endswith(";"):
                self._names["_"] = value
                self._display.show(value, main=True)
        self._display.figures()

    def _evaluate(self, tree, file, mode):
        program = compile(tree, file, mode, flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        value = eval(program, self._names)
        if not program.co_flags & inspect.CO_COROUTINE:
            return value
        task = self._loop.create_task(value)
        try:
            return self._loop.run_until_complete(task)
        except KeyboardInterrupt:
            task.cancel()
            self._loop.run_until_complete(asyncio.wait([task], timeout=1))
            raise


class ExitCode(Exception):
    """A cell of a shell ended with this."""


class Bash:
    """Runs cells in one bash that goes on living."""

    def __init__(self):
        self._program = shutil.which("bash")
        if self._program is None:
            raise FileNotFoundError("this box has no bash")
        self._begin()

    def _begin(self):
        self._status, write = os.pipe()
        command = [self._program, "--noprofile", "--norc"]
        self._bash = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[write])
        os.close(write)
        # An interrupt ends what bash runs, not bash.
        self._tell(f"exec 9>&{write} {write}>&-; trap : INT")

    def _tell(self, line):
        self._bash.stdin.write(line.encode() + b"\n")
        self._bash.stdin.flush()

    def idle(self, next_request):
        return asyncio.run(next_request())

    def run(self, code, count, environment):
        if self._bash.poll() is not None:
            os.close(self._status)
            self._begin()
        packed = base64.b64encode(code.encode()).decode()
        names = " ".join(shlex.quote(key) for key in environment)
        if environment:
            self._tell(f"__sandcrate_before=$(declare -p {names} 2>/dev/null)")
        for key, value in environment.items():
            self._tell(f"export {shlex.quote(key)}={shlex.quote(value)}")
        self._tell(f'eval "$(printf %s {packed} | base64 -d)" </dev/null; printf "%d\\n" $? >&9')
        if environment:
            # What the cell's own variables hid is there again.
            self._tell(f'unset {names}; eval "$__sandcrate_before"; unset __sandcrate_before')
        try:
            status = self._answer(None)
        except KeyboardInterrupt:
            # A loop of bash's own does not hear it; that bash is lost with what it knew.
            if self._answer(time.monotonic() + 1) is None:
                self._bash.kill()
                self._bash.wait()
            raise
        if status != 0:
            raise ExitCode(status)

    def _answer(self, deadline):
        """The status of the cell, or bash's own if it ended; nothing when the time is over."""
        told = b""
        while not told.endswith(b"\n"):
            if deadline is not None and time.monotonic() > deadline:
                return None
            # What bash left running may hold the pipe open, so its end is asked for too.
            if select.select([self._status], [], [], 0.05)[0]:
                piece = os.read(self._status, 64)
                if not piece:
                    return self._bash.wait()
                told += piece
            elif self._bash.poll() is not None:
                return self._bash.returncode
        return int(told)
