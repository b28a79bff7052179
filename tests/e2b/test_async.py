"""The Python SDK's asynchronous client: the flows whose wire differs from the blocking one's, and many at once."""

import asyncio

import pytest
from e2b import AsyncSandbox, CommandExitException, FilesystemEventType, PtySize, SandboxNotFoundException

from harness import PATIENCE

pytestmark = pytest.mark.anyio


@pytest.fixture
async def sandbox(server):
    sandbox = await AsyncSandbox.create(envs={"GREETING": "hello"})
    yield sandbox
    await sandbox.kill()


async def heard(queue, wanted):
    """Everything put into the queue until all that is wanted was there."""
    seen = []
    async with asyncio.timeout(PATIENCE):
        while not set(wanted) <= set(seen):
            seen.append(await queue.get())
    return seen


async def test_commands(sandbox):
    out, err = [], []
    ended = await sandbox.commands.run(
        'echo "$GREETING"; echo problem >&2', on_stdout=out.append, on_stderr=err.append
    )
    assert (ended.stdout, ended.stderr) == ("hello\n", "problem\n") == ("".join(out), "".join(err))
    with pytest.raises(CommandExitException) as raised:
        await sandbox.commands.run("exit 9")
    assert raised.value.exit_code == 9


async def test_a_command_in_the_background(sandbox):
    handle = await sandbox.commands.run("tr a-z A-Z", background=True, stdin=True)
    await sandbox.commands.send_stdin(handle.pid, "shout\n")
    await sandbox.commands.close_stdin(handle.pid)
    assert (await handle.wait()).stdout == "SHOUT\n"
    sleeper = await sandbox.commands.run("sleep 775", background=True)
    assert sleeper.pid in [info.pid for info in await sandbox.commands.list()]
    assert await sleeper.kill()
    with pytest.raises(CommandExitException):
        await sleeper.wait()


async def test_files(sandbox):
    await sandbox.files.write("dir/a.txt", "text")
    assert await sandbox.files.read("dir/a.txt") == "text"
    pieces = [piece async for piece in await sandbox.files.read("dir/a.txt", format="stream")]
    assert b"".join(pieces) == b"text"
    assert [entry.name for entry in await sandbox.files.list("dir")] == ["a.txt"]
    await sandbox.files.rename("dir/a.txt", "dir/b.txt")
    assert await sandbox.files.exists("dir/b.txt")
    await sandbox.files.remove("dir")
    assert not await sandbox.files.exists("dir")


async def test_a_watcher_tells_by_itself(sandbox):
    await sandbox.files.make_dir("watched/inner")
    told, ended = asyncio.Queue(), asyncio.Event()
    watcher = await sandbox.files.watch_dir(
        "watched",
        on_event=lambda event: told.put_nowait((event.type, event.name)),
        on_exit=lambda _: ended.set(),
        recursive=True,
    )
    await sandbox.files.write("watched/inner/a", "1")
    await heard(told, [(FilesystemEventType.CREATE, "inner/a"), (FilesystemEventType.WRITE, "inner/a")])
    await sandbox.files.remove("watched/inner/a")
    await heard(told, [(FilesystemEventType.REMOVE, "inner/a")])
    await watcher.stop()
    async with asyncio.timeout(PATIENCE):
        await ended.wait()


async def test_a_terminal(sandbox):
    said = asyncio.Queue()
    terminal = await sandbox.pty.create(PtySize(rows=24, cols=80), on_data=said.put_nowait)
    await sandbox.pty.resize(terminal.pid, PtySize(rows=40, cols=120))
    await sandbox.pty.send_stdin(terminal.pid, b"stty size; exit 4\n")
    with pytest.raises(CommandExitException) as raised:
        await terminal.wait()
    assert raised.value.exit_code == 4
    text = b"".join(said.get_nowait() for _ in range(said.qsize()))
    assert b"40 120" in text


async def test_many_at_once(server):
    async def one(number):
        sandbox = await AsyncSandbox.create(metadata={"number": str(number)})
        try:
            ended = await sandbox.commands.run(f"echo {number}")
            return ended.stdout, (await sandbox.get_info()).metadata["number"]
        finally:
            await sandbox.kill()

    assert await asyncio.gather(*map(one, range(12))) == [(f"{n}\n", str(n)) for n in range(12)]


async def test_many_commands_at_once_in_one_sandbox(sandbox):
    async def one(number):
        return (await sandbox.commands.run(f"sleep 0.2; echo {number}")).stdout

    assert await asyncio.gather(*map(one, range(20))) == [f"{n}\n" for n in range(20)]


async def test_connecting_pausing_and_ending(sandbox):
    await sandbox.files.write("note", "kept")
    assert await sandbox.pause()
    again = await AsyncSandbox.connect(sandbox.sandbox_id)
    assert await again.files.read("note") == "kept"
    assert await again.kill()
    assert not await again.is_running()
    with pytest.raises(SandboxNotFoundException):
        await AsyncSandbox.connect(sandbox.sandbox_id)
