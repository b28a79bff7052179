"""Commands and terminals by the Python SDK's blocking client."""

import pytest
from e2b import CommandExitException, NotFoundException, PtySize, Sandbox, TimeoutException

from harness import until


@pytest.fixture
def sandbox(server):
    sandbox = Sandbox.create(envs={"GREETING": "hello"})
    yield sandbox
    sandbox.kill()


def test_a_command_has_output_and_the_sandboxs_environment(sandbox):
    ended = sandbox.commands.run('echo "$GREETING"; echo problem >&2')
    assert (ended.stdout, ended.stderr, ended.exit_code) == ("hello\n", "problem\n", 0)


def test_a_commands_own_environment_and_directory_come_first(sandbox):
    ended = sandbox.commands.run('echo "$GREETING $OTHER"; pwd', envs={"GREETING": "hi", "OTHER": "there"}, cwd="/tmp")
    assert ended.stdout == "hi there\n/tmp\n"


def test_a_command_starts_in_the_home_directory(sandbox):
    assert sandbox.commands.run('pwd; echo "$HOME $USER"').stdout == "/home/user\n/home/user user\n"


def test_output_arrives_while_the_command_runs(sandbox):
    heard = []
    handle = sandbox.commands.run("echo first; read line; echo second $line >&2", background=True, stdin=True)
    for out, err, _ in handle:
        heard.append((out, err))
        if out == "first\n":
            # The command cannot go on before it hears this, and this is sent only after its first line was heard.
            handle.send_stdin("word\n")
    assert heard == [("first\n", None), (None, "second word\n")]


def test_callbacks_hear_both_streams(sandbox):
    out, err = [], []
    command = "for n in 1 2 3; do echo o$n; echo e$n >&2; done"
    ended = sandbox.commands.run(command, on_stdout=out.append, on_stderr=err.append)
    assert "".join(out) == ended.stdout == "o1\no2\no3\n"
    assert "".join(err) == ended.stderr == "e1\ne2\ne3\n"


def test_text_split_between_two_messages_stays_whole(sandbox):
    ended = sandbox.commands.run("printf '\\xc3'; sleep 0.2; printf '\\xa9'")
    assert ended.stdout == "é"


def test_an_exit_code_is_an_exception(sandbox):
    with pytest.raises(CommandExitException) as raised:
        sandbox.commands.run("echo out; echo err >&2; exit 9")
    assert (raised.value.exit_code, raised.value.stdout, raised.value.stderr) == (9, "out\n", "err\n")


def test_much_output_is_complete(sandbox):
    ended = sandbox.commands.run("head -c 3000000 /dev/zero | tr '\\0' x")
    assert ended.stdout == "x" * 3_000_000


def test_input_until_its_end(sandbox):
    handle = sandbox.commands.run("tr a-z A-Z", background=True, stdin=True)
    sandbox.commands.send_stdin(handle.pid, "by pid\n")
    handle.send_stdin("by handle\n")
    handle.close_stdin()
    assert handle.wait().stdout == "BY PID\nBY HANDLE\n"


def test_input_as_a_stream(sandbox):
    handle = sandbox.commands.run("cat", background=True, stdin=True)
    sandbox.commands.stream_input(handle.pid, ["one\n", b"two\n"])
    handle.close_stdin()
    assert handle.wait().stdout == "one\ntwo\n"


def test_input_that_is_not_asked_for_is_empty(sandbox):
    assert sandbox.commands.run("cat").stdout == ""


def test_commands_are_listed_and_killed(sandbox):
    handle = sandbox.commands.run("sleep 771", background=True, envs={"MARK": "yes"}, cwd="/tmp")
    info = next(info for info in sandbox.commands.list() if info.pid == handle.pid)
    assert info.cmd == "/bin/bash" and info.args == ["-l", "-c", "sleep 771"]
    assert info.envs["MARK"] == "yes" and info.cwd == "/tmp"
    assert sandbox.commands.kill(handle.pid)
    with pytest.raises(CommandExitException):
        handle.wait()
    assert handle.pid not in [info.pid for info in sandbox.commands.list()]
    assert not sandbox.commands.kill(handle.pid)


def test_a_command_is_heard_again_after_a_disconnect(sandbox):
    handle = sandbox.commands.run("read line; echo heard $line; exit 3", background=True, stdin=True)
    handle.disconnect()
    again = Sandbox.connect(sandbox.sandbox_id).commands.connect(handle.pid)
    again.send_stdin("this\n")
    with pytest.raises(CommandExitException) as raised:
        again.wait()
    assert (raised.value.exit_code, raised.value.stdout) == (3, "heard this\n")


def test_nothing_is_connected_to_a_process_that_is_not_there(sandbox):
    with pytest.raises(NotFoundException):
        sandbox.commands.connect(99_999)
    with pytest.raises(NotFoundException):
        sandbox.commands.send_stdin(99_999, "x")


def test_a_command_past_its_time_is_ended(sandbox):
    with pytest.raises(TimeoutException):
        sandbox.commands.run("sleep 772", timeout=0.5)
    until("the command to end", lambda: "772" not in str([info.args for info in sandbox.commands.list()]))


def test_a_program_that_is_not_there(sandbox):
    with pytest.raises(CommandExitException) as raised:
        sandbox.commands.run("no-such-program")
    assert raised.value.exit_code == 127


def test_a_terminal_has_a_size_and_takes_another(sandbox):
    terminal = sandbox.pty.create(PtySize(rows=24, cols=80), cwd="/tmp", envs={"MARK": "in-terminal"})
    sandbox.pty.send_stdin(terminal.pid, b"stty size; echo $MARK $TERM; read go; stty size; exit 4\n")
    heard, resized = b"", False
    for _, _, data in terminal:
        heard += data or b""
        if not resized and b"in-terminal xterm" in heard:
            resized = True
            sandbox.pty.resize(terminal.pid, PtySize(rows=40, cols=120))
            sandbox.pty.send_stdin(terminal.pid, b"\n")
    with pytest.raises(CommandExitException) as raised:
        terminal.wait()
    assert raised.value.exit_code == 4
    assert b"24 80" in heard and b"40 120" in heard


def test_a_terminal_is_connected_to_and_killed(sandbox):
    terminal = sandbox.pty.create(PtySize(rows=24, cols=80))
    terminal.disconnect()
    again = sandbox.pty.connect(terminal.pid)
    sandbox.pty.send_stdin(terminal.pid, b"echo a''gain\n")
    heard = b""
    for _, _, data in again:
        heard += data or b""
        if b"again" in heard:
            break
    assert sandbox.pty.kill(terminal.pid)
    until("the terminal to end", lambda: terminal.pid not in [info.pid for info in sandbox.commands.list()])
