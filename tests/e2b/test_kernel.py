"""The code interpreter's kernel by itself, without a box: the program that the server runs in boxes, over its pipes."""

import base64
import json
import os
import pathlib
import queue
import subprocess
import threading
import time

import pytest

from harness import PATIENCE, until

PARTS = sorted((pathlib.Path(__file__).parents[2] / "crates/server/src/e2b/interpreter/kernel").glob("*.py"))
PROGRAM = "\n".join(part.read_text() for part in PARTS)
# A Python with IPython, matplotlib and pandas, and this machine's own without them, as most boxes have it.
RICH = os.environ["SANDCRATE_RICH_PYTHON"]
PLAIN = "/usr/bin/python3"


class Kernel:
    def __init__(self, python, place, language="python"):
        self.process = subprocess.Popen(
            [python, "-c", PROGRAM, language],
            cwd=place,
            env={"PATH": os.environ["PATH"], "HOME": str(place)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self.events = queue.Queue()
        self.count = 0
        threading.Thread(target=self._read, daemon=True).start()
        assert self.next() == {"type": "ready"}

    def _read(self):
        for line in self.process.stdout:
            # Whatever else stood on this descriptor would not parse.
            self.events.put(json.loads(line))
        self.events.put(None)

    def next(self):
        return self.events.get(timeout=PATIENCE)

    def send(self, **request):
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()

    def start(self, code, **more):
        self.count += 1
        self.send(op="execute", id=str(self.count), code=code, **more)
        assert self.next() == {"type": "number_of_executions", "execution_count": self.count}

    def rest(self):
        """Events up to the end of the execution."""
        events = []
        while (event := self.next()) != {"type": "end", "id": str(self.count)}:
            assert event is not None, "the kernel ended"
            events.append(event)
        return events

    def run(self, code, **more):
        self.start(code, **more)
        return Ran(self.rest())

    def interrupt(self):
        self.send(op="interrupt", id=str(self.count))

    def stop(self):
        self.process.stdin.close()
        self.process.wait(PATIENCE)


class Ran:
    def __init__(self, events):
        self.events = events
        self.out = "".join(event["text"] for event in events if event["type"] == "stdout")
        self.err = "".join(event["text"] for event in events if event["type"] == "stderr")
        self.results = [event for event in events if event["type"] == "result"]
        self.error = next((event for event in events if event["type"] == "error"), None)

    @property
    def text(self):
        assert self.error is None, self.error
        return next(result["text"] for result in self.results if result["is_main_result"])


@pytest.fixture
def kernel_of(tmp_path):
    kernels = []

    def make(*arguments):
        kernels.append(Kernel(*arguments[:1], tmp_path, *arguments[1:]))
        return kernels[-1]

    yield make
    for kernel in kernels:
        kernel.stop()


@pytest.fixture(params=[PLAIN, RICH], ids=["plain", "rich"])
def kernel(request, kernel_of):
    return kernel_of(request.param)


@pytest.fixture
def rich(kernel_of):
    return kernel_of(RICH)


@pytest.fixture
def bash(kernel_of):
    return kernel_of(PLAIN, "bash")


def test_a_context_keeps_its_names(kernel):
    assert kernel.run("x = 20\ndef double(n):\n    return n * 2").events == []
    assert kernel.run("double(x) + 2").text == "42"
    assert kernel.run("_ + 1").text == "43"


def test_only_the_last_expression_is_a_result(kernel):
    ran = kernel.run("1\n2\n'three'")
    assert [(result["text"], result["is_main_result"]) for result in ran.results] == [("three", True)]
    assert kernel.run("None").results == []
    assert kernel.run("5;").results == []
    assert kernel.run("y = 5").results == []
    assert kernel.run("").events == []


def test_output_of_every_kind_is_heard_in_order(kernel):
    ran = kernel.run(
        "import os, subprocess, sys\n"
        "print('printed'); os.write(1, b'written\\n'); os.system('echo by a shell')\n"
        "subprocess.run(['echo', 'by a child']); sys.stdout.buffer.write(b'raw\\n'); print('last', end='')\n"
        "print('problem', file=sys.stderr); os.system('echo worse >&2')"
    )
    assert ran.out == "printed\nwritten\nby a shell\nby a child\nraw\nlast"
    assert ran.err == "problem\nworse\n"
    assert all(abs(event["timestamp"] / 1e9 - time.time()) < 60 for event in ran.events if "timestamp" in event)


def test_output_arrives_while_the_code_runs(kernel, tmp_path):
    kernel.start("import os, time\nprint('first', end='')\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('second')")
    assert kernel.next()["text"] == "first"
    (tmp_path / "go").touch()
    assert Ran(kernel.rest()).out == "second\n"


def test_results_stand_where_they_were_made(kernel):
    ran = kernel.run("print('before'); display(1); print('after'); display(2)\n3")
    told = [(event["type"], event["text"]) for event in ran.events]
    assert told == [("stdout", "before\n"), ("result", "1"), ("stdout", "after\n"), ("result", "2"), ("result", "3")]


def test_text_is_ascii_on_the_wire_and_whole(kernel):
    kernel.start("import os\nos.write(1, b'\\xc3'); import time; time.sleep(0.1); os.write(1, b'\\xa9\\n')\n'ü\U0001f600'")
    events = kernel.rest()
    assert Ran(events).out == "é\n" and Ran(events).text == "ü\U0001f600"


def test_much_output_is_complete(kernel):
    assert kernel.run("for n in range(20000): print(n)").out == "".join(f"{n}\n" for n in range(20000))
    assert kernel.run("print('x' * 5_000_000)").out == "x" * 5_000_000 + "\n"


def test_an_error_has_a_name_a_value_and_the_users_part_of_the_traceback(kernel):
    ran = kernel.run("print('before')\ndef fail():\n    return 1 / 0\nfail()")
    assert ran.out == "before\n"
    assert (ran.error["name"], ran.error["value"]) == ("ZeroDivisionError", "division by zero")
    assert "return 1 / 0" in ran.error["traceback"] and "_evaluate" not in ran.error["traceback"]
    assert kernel.run("'still here'").text == "still here"


def test_errors_of_every_stage(kernel):
    assert kernel.run("x = = 1").error["name"] == "SyntaxError"
    assert "x = = 1" in kernel.run("x = = 1").error["traceback"]
    assert kernel.run("raise SystemExit(3)").error["name"] == "SystemExit"
    assert kernel.run("input()").error["name"] == "EOFError"
    shown = kernel.run("class Bad:\n    def __repr__(self): raise ValueError('no')\nBad()")
    assert "no" in str(shown.error) + shown.out + shown.err
    assert kernel.run("1").text == "1"


def test_top_level_await_and_tasks_between_cells(kernel):
    ran = kernel.run("import asyncio\nlog = []\nasync def later():\n    await asyncio.sleep(0.05)\n    log.append('ran')")
    assert ran.error is None
    assert kernel.run("task = None\nasync def begin():\n    global task\n    task = asyncio.create_task(later())\nawait begin()").error is None
    until("the task", lambda: kernel.run("log").text, lambda text: text == "['ran']")
    assert kernel.run("await asyncio.sleep(0, 7)").text == "7"
    assert kernel.run("asyncio.run(asyncio.sleep(0, 8))").text == "8"
    assert kernel.run("async with asyncio.timeout(1):\n    value = await asyncio.sleep(0, 9)\nvalue").text == "9"


def test_an_interrupt_ends_the_code_and_not_the_context(kernel):
    kernel.run("kept = 1")
    for code in [
        "while True: pass",
        "import time; time.sleep(600)",
        "import os; os.system('sleep 600')",
        "import subprocess; subprocess.run(['sleep', '600'])",
        "import asyncio; await asyncio.sleep(600)",
        "while True: print('x' * 1000)",
    ]:
        kernel.start(f"print('begun')\n{code}")
        while "begun" not in kernel.next()["text"]:
            pass
        kernel.interrupt()
        ran = Ran(kernel.rest())
        assert ran.error is None and "os.system" in code or ran.error["name"] == "KeyboardInterrupt", (code, ran.error)
        assert kernel.run("kept").text == "1"


def test_an_interrupt_before_the_code_began_or_after_it_ended(kernel):
    kernel.send(op="interrupt", id="1")
    assert kernel.run("while True: pass").error["name"] == "KeyboardInterrupt"
    kernel.interrupt()
    assert kernel.run("'unharmed'").text == "unharmed"


def test_a_process_that_ends_itself_ends_the_conversation(kernel):
    kernel.start("import os; os._exit(3)")
    assert kernel.next() is None
    assert kernel.process.wait(PATIENCE) == 3


def test_the_end_of_input_ends_it_with_what_it_started(kernel):
    child = kernel.run("import subprocess; p = subprocess.Popen(['sleep', '600']); p.pid").text
    kernel.process.stdin.close()
    kernel.process.wait(PATIENCE)
    until("the child to end", lambda: not pathlib.Path(f"/proc/{child}").exists() or "Z" in pathlib.Path(f"/proc/{child}/stat").read_text())


def test_the_environment_of_one_execution(kernel):
    assert kernel.run("import os; os.environ['A']", env={"A": "once"}).text == "once"
    assert kernel.run("os.environ.get('A', 'unset')").text == "unset"
    assert kernel.run("os.system('echo $A')", env={"A": "to children"}).out == "to children\n"


def test_code_that_breaks_its_own_descriptors(kernel):
    kernel.run("import os; os.close(1); os.close(2)")
    assert kernel.run("'still here'").text == "still here"


def test_forks_of_the_code_say_nothing_of_their_own(kernel):
    ran = kernel.run(
        "import os\nchild = os.fork()\nif child == 0:\n    print('from the child', flush=True)\n    display(1)\n    os._exit(0)\n"
        "os.waitpid(child, 0)[1]"
    )
    assert ran.out == "from the child\n" and [result["text"] for result in ran.results] == ["0"]


def test_the_module_is_main_and_sources_are_found(kernel):
    assert kernel.run("__name__").text == "__main__"
    assert "return 5" in kernel.run("def five():\n    return 5\nimport inspect\ninspect.getsource(five)").text
    assert kernel.run("import pickle\nclass C: pass\ntype(pickle.loads(pickle.dumps(C()))) is C").text == "True"


def test_an_object_shows_itself(kernel):
    ran = kernel.run(
        "class Shown:\n"
        "    def __repr__(self): return 'plain'\n"
        "    def _repr_html_(self): return '<b>html</b>'\n"
        "    def _repr_markdown_(self): return '**md**'\n"
        "    def _repr_latex_(self): return '$x$'\n"
        "    def _repr_svg_(self): return '<svg/>'\n"
        "    def _repr_png_(self): return b'PNG'\n"
        "    def _repr_json_(self): return {'a': [1, float('nan')]}\n"
        "Shown()"
    )
    shown = ran.results[0]
    assert shown["text"] == "plain" and shown["html"] == "<b>html</b>" and shown["markdown"] == "**md**"
    assert shown["latex"] == "$x$" and shown["svg"] == "<svg/>"
    assert base64.b64decode(shown["png"]) == b"PNG" and shown["json"] == {"a": [1, None]}


def test_a_result_that_is_too_large_is_cut(kernel):
    ran = kernel.run("'x' * 40_000_000")
    assert len(ran.text) < 1_000_000 and "bytes)" in ran.text


def test_shell_lines_and_magics(kernel, tmp_path):
    assert kernel.run("!echo by a shell line").out == "by a shell line\n"
    assert kernel.run("for n in range(2):\n    !echo indented").out == "indented\nindented\n"
    assert kernel.run("%%bash\necho one\necho two").out == "one\ntwo\n"
    (tmp_path / "sub").mkdir()
    assert kernel.run("%cd sub\nimport os\nos.getcwd()").results[-1]["text"] == str(tmp_path / "sub")
    assert kernel.run("%matplotlib inline\n'fine'").text == "fine"
    assert kernel.run("%no_such_magic").error is not None or "no_such_magic" in kernel.run("%no_such_magic").err


def test_figures(rich):
    ran = rich.run("import matplotlib.pyplot as plt\nplt.plot([1, 2, 3])\nplt.title('t')\nplt.show()\nprint('after')")
    pictures = [result for result in ran.results if "png" in result]
    assert ran.error is None and len(pictures) == 1 and ran.out.endswith("after\n") and "non-interactive" not in ran.err
    assert base64.b64decode(pictures[0]["png"]).startswith(b"\x89PNG")
    # Not shown by the code: shown when the cell ends, and once.
    ran = rich.run("figure, axes = plt.subplots()\naxes.bar([1, 2], [3, 4]);")
    assert [("png" in result, result["is_main_result"]) for result in ran.results] == [(True, False)]
    ran = rich.run("figure, axes = plt.subplots()\naxes.bar([1, 2], [3, 4])\nfigure")
    assert [("png" in result, result["is_main_result"]) for result in ran.results] == [(True, True)]
    assert rich.run("1").results == [{"type": "result", "text": "1", "is_main_result": True}]


def test_tables(rich):
    ran = rich.run("import pandas as pd\npd.DataFrame({'a': [1, 2], 'b': ['x', None], 'c': [1.5, float('nan')]})")
    table = ran.results[0]
    assert table["data"] == {"a": [1, 2], "b": ["x", None], "c": [1.5, None]}
    assert "<table" in table["html"] and "a" in table["text"]


def test_ipython_where_it_is(rich):
    ran = rich.run("from IPython.display import HTML, Markdown, display\ndisplay(HTML('<i>x</i>'))\nMarkdown('*y*')")
    assert ran.results[0]["html"] == "<i>x</i>" and not ran.results[0]["is_main_result"]
    assert ran.results[1]["markdown"] == "*y*" and ran.results[1]["is_main_result"]
    assert "loop" in rich.run("%timeit -n 1 -r 1 pass").out
    assert rich.run("files = !echo one; echo two\nfiles[1]").text == "two"


def test_bash_keeps_its_state(bash, tmp_path):
    assert bash.run("x=5; cd /; greet() { echo hello $1; }").events == []
    ran = bash.run("greet $x; pwd; echo bad >&2")
    assert (ran.out, ran.err) == ("hello 5\n/\n", "bad\n")
    assert bash.run("cat").out == ""
    assert bash.run("echo $A", env={"A": "a 'quoted' value"}).out == "a 'quoted' value\n"
    bash.run("export A='mine \"' B=1")
    assert bash.run("echo $A$B$C", env={"A": "other", "C": "3"}).out == "other13\n"
    assert bash.run("echo $A; sh -c 'echo $B'; echo ${C-unset}").out == 'mine "\n1\nunset\n'
    failed = bash.run("echo out; (exit 3)")
    assert failed.out == "out\n" and (failed.error["name"], failed.error["value"]) == ("ExitCode", "3")


def test_bash_is_interrupted_and_ends(bash):
    for code in ["sleep 600", "while true; do :; done"]:
        bash.start(f"echo begun; {code}")
        assert bash.next()["text"] == "begun\n"
        bash.interrupt()
        assert Ran(bash.rest()).error["name"] == "KeyboardInterrupt"
        assert bash.run("echo alive").out == "alive\n"
    assert bash.run("sleep 600 & exit 4").error["value"] == "4"
    assert bash.run("echo again").out == "again\n"
