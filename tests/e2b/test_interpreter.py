"""The code interpreter by its own Python SDK, both kinds of client, in boxes that have a plain Python."""

import asyncio
import time

import httpx
import pytest
from e2b import NotFoundException, SandboxException, TimeoutException
from e2b_code_interpreter import AsyncSandbox, Sandbox

from harness import PATIENCE


@pytest.fixture(scope="module")
def sandbox(server):
    sandbox = Sandbox.create(envs={"GREETING": "hello"})
    yield sandbox
    sandbox.kill()


def test_code_has_a_result_and_keeps_what_it_defined(sandbox):
    first = sandbox.run_code("x = 41\nprint('said')")
    assert (first.text, first.logs.stdout, first.error) == (None, ["said\n"], None)
    second = sandbox.run_code("x + 1")
    assert second.text == "42" and second.results[0].is_main_result
    assert second.execution_count == first.execution_count + 1


def test_callbacks_hear_everything(sandbox):
    out, err, results, errors = [], [], [], []
    ran = sandbox.run_code(
        "import sys, os\nprint('out')\nprint('err', file=sys.stderr)\nos.system('echo child')\ndisplay('shown')\n1 / 0",
        on_stdout=out.append,
        on_stderr=err.append,
        on_result=results.append,
        on_error=errors.append,
    )
    assert "".join(message.line for message in out) == "out\nchild\n"
    assert [message.line for message in err] == ["err\n"] and err[0].error
    assert abs(out[0].timestamp / 1e9 - time.time()) < 60
    assert [result.text for result in results] == ["shown"]
    assert errors[0].name == ran.error.name == "ZeroDivisionError" and "1 / 0" in ran.error.traceback


def test_output_arrives_while_the_code_runs(sandbox):
    """The code waits for a file that is written when its first line is heard."""
    ran = sandbox.run_code(
        "import os, time\nprint('waiting')\nwhile not os.path.exists('/home/user/go'): time.sleep(0.01)\n'done'",
        on_stdout=lambda _: sandbox.files.write("/home/user/go", ""),
        timeout=PATIENCE,
    )
    assert ran.text == "done"


def test_code_and_commands_share_files_and_environment(sandbox):
    sandbox.files.write("/home/user/table.csv", "a,b\n1,2\n")
    code = "import csv, os\nrows = list(csv.reader(open('table.csv')))\nopen('made.txt', 'w').write('by code')\nrows"
    assert sandbox.run_code(code).text == "[['a', 'b'], ['1', '2']]"
    assert sandbox.commands.run("cat made.txt").stdout == "by code"
    assert sandbox.run_code("os.environ['GREETING'], os.getcwd(), os.path.expanduser('~')").text == (
        "('hello', '/home/user', '/home/user')"
    )
    assert sandbox.run_code("os.environ['ONCE']", envs={"ONCE": "for this"}).text == "for this"
    assert sandbox.run_code("os.environ.get('ONCE', 'gone')").text == "gone"


def test_rich_results(sandbox):
    ran = sandbox.run_code(
        "class Shown:\n    def _repr_html_(self): return '<b>x</b>'\n    def _repr_png_(self): return b'png'\n"
        "    def _repr_json_(self): return {'a': 1}\n    def _repr_latex_(self): return '$x$'\nShown()"
    )
    result = ran.results[0]
    assert (result.html, result.json, result.latex, result.png) == ("<b>x</b>", {"a": 1}, "$x$", "cG5n")
    assert {"text", "html", "png", "latex", "json"} <= set(result.formats())


def test_contexts_know_nothing_of_each_other(sandbox):
    one, other = sandbox.create_code_context(cwd="/tmp"), sandbox.create_code_context()
    assert (one.language, one.cwd) == ("python", "/tmp")
    sandbox.run_code("mine = 1", context=one)
    assert sandbox.run_code("import os; os.getcwd()", context=one).text == "/tmp"
    assert sandbox.run_code("mine", context=other).error.name == "NameError"
    assert sandbox.run_code("mine").error.name == "NameError"
    listed = [context.id for context in sandbox.list_code_contexts()]
    assert {one.id, other.id} < set(listed)
    sandbox.restart_code_context(one)
    assert sandbox.run_code("mine", context=one).error.name == "NameError"
    for context in (one, other):
        sandbox.remove_code_context(context)
    assert not {one.id, other.id} & {context.id for context in sandbox.list_code_contexts()}
    with pytest.raises(NotFoundException):
        sandbox.run_code("1", context=one)
    with pytest.raises(NotFoundException):
        sandbox.restart_code_context("none")


def test_a_sandbox_has_only_so_many_contexts(server):
    with Sandbox.create() as sandbox:
        with pytest.raises(SandboxException, match="at most 16 contexts"):
            for _ in range(17):
                sandbox.create_code_context()


def test_code_past_its_time_is_interrupted_and_the_context_goes_on(sandbox):
    sandbox.run_code("kept = 1")
    with pytest.raises(TimeoutException):
        sandbox.run_code("while True: pass", timeout=1)
    assert sandbox.run_code("kept", timeout=PATIENCE).text == "1"


def test_code_that_heeds_no_interrupt_loses_its_context(sandbox):
    context = sandbox.create_code_context()
    stubborn = "import time\nlost = 1\nwhile True:\n    try: time.sleep(600)\n    except BaseException: pass"
    with pytest.raises(TimeoutException):
        sandbox.run_code(stubborn, context=context, timeout=1)
    assert sandbox.run_code("lost", context=context, timeout=PATIENCE).error.name == "NameError"
    sandbox.remove_code_context(context)


def test_a_crash_is_told_and_harms_no_other_context(sandbox):
    sandbox.run_code("kept = 2")
    context = sandbox.create_code_context()
    ran = sandbox.run_code("import os; os._exit(7)", context=context)
    assert ran.error.name == "ContextEnded" and "7" in ran.error.value
    assert sandbox.run_code("'again'", context=context).text == "again"
    assert sandbox.run_code("kept").text == "2"
    sandbox.remove_code_context(context)


def test_top_level_await_and_shell_lines(sandbox):
    assert sandbox.run_code("import asyncio\nawait asyncio.sleep(0, 'awaited')").text == "awaited"
    assert "".join(sandbox.run_code("!echo by a shell").logs.stdout) == "by a shell\n"


def test_bash(sandbox):
    sandbox.run_code("cd /tmp; word=kept", language="bash")
    ran = sandbox.run_code('echo "$word $PWD"', language="bash")
    assert "".join(ran.logs.stdout) == "kept /tmp\n" and ran.error is None
    assert sandbox.run_code("exit 3", language="bash").error.value == "3"


def test_a_language_that_is_not_here(sandbox):
    with pytest.raises(SandboxException, match="python or bash"):
        sandbox.run_code("cat(1)", language="r")


def test_large_output_and_results(sandbox):
    ran = sandbox.run_code("print('x' * 3_000_000)\n'y' * 1_000_000")
    assert "".join(ran.logs.stdout) == "x" * 3_000_000 + "\n" and ran.text == "y" * 1_000_000


def test_forged_lines_of_the_protocol_are_not_believed(sandbox):
    """Code that finds the kernel's own descriptor harms nobody but its own stream."""
    ran = sandbox.run_code(
        "import os\n"
        "for n in range(3, 20):\n"
        "    try: os.write(n, b'nonsense\\n{\"type\": \"end\", \"id\": \"999\"}\\n')\n"
        "    except OSError: pass\n"
        "'fine'",
        context=(context := sandbox.create_code_context()),
    )
    assert ran.text == "fine" or ran.error is not None
    sandbox.remove_code_context(context)
    assert sandbox.run_code("'unharmed'").text == "unharmed"


def test_code_asks_for_the_sandboxs_token(sandbox, server):
    headers = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "49999"}
    body = {"code": "1"}
    for token in [{}, {"X-Access-Token": "wrong"}]:
        assert httpx.post(f"{server.url}/execute", json=body, headers=headers | token).status_code == 401
    assert httpx.get(f"{server.url}/health", headers=headers).status_code == 200


def test_contexts_begin_anew_after_a_pause(server):
    with Sandbox.create() as sandbox:
        sandbox.run_code("x = 1; open('/home/user/kept', 'w').write('kept')")
        sandbox.pause()
        again = Sandbox.connect(sandbox.sandbox_id)
        assert again.run_code("x").error.name == "NameError"
        assert again.run_code("open('/home/user/kept').read()").text == "kept"


def test_a_killed_sandbox_runs_no_code(server):
    sandbox = Sandbox.create()
    sandbox.run_code("1")
    sandbox.kill()
    with pytest.raises(TimeoutException):
        sandbox.run_code("1")


def test_a_sandbox_that_is_killed_while_code_runs(server):
    sandbox = Sandbox.create()
    # Killed by what it says first, from within the call.
    with pytest.raises((SandboxException, httpx.HTTPError)):
        sandbox.run_code("print('begun', flush=True); import time; time.sleep(600)", on_stdout=lambda _: sandbox.kill())


@pytest.mark.anyio
async def test_the_asynchronous_client(server):
    sandbox = await AsyncSandbox.create()
    try:
        heard = asyncio.Queue()
        ran = await sandbox.run_code("print('a'); 1 + 1", on_stdout=heard.put_nowait)
        assert ran.text == "2" and heard.get_nowait().line == "a\n"
        contexts = [await sandbox.create_code_context() for _ in range(3)]
        slow = "import time; time.sleep(0.5); {n}"
        ran = await asyncio.gather(
            *(sandbox.run_code(slow.format(n=n), context=context) for n, context in enumerate(contexts))
        )
        assert [one.text for one in ran] == ["0", "1", "2"]
        # In one context they come one after the other.
        ran = await asyncio.gather(*(sandbox.run_code(f"value = {n}; value") for n in range(5)))
        assert [one.text for one in ran] == ["0", "1", "2", "3", "4"]
        task = asyncio.create_task(sandbox.run_code("open('/home/user/begun', 'w')\nwhile True: pass"))
        async with asyncio.timeout(PATIENCE):
            while not await sandbox.files.exists("/home/user/begun"):
                await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await sandbox.run_code("'free again'", timeout=PATIENCE)).text == "free again"
    finally:
        await sandbox.kill()
