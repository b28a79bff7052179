"""Servers of ours with LangBot's own client on them.

Each server has a free loopback port, a state directory and a working directory of its own. Nothing here speaks the
protocol: `ActionRPCBoxClient`, `Handler` and the two controllers are LangBot's, called as its host calls them.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import pathlib
import signal
import socket
import subprocess
import time

import websockets
from langbot_plugin.box.client import ActionRPCBoxClient
from langbot_plugin.box.models import BoxManagedProcessSpec, BoxSpec
from langbot_plugin.runtime.io.controllers.stdio.client import StdioClientController
from langbot_plugin.runtime.io.controllers.ws.client import WebSocketClientController
from langbot_plugin.runtime.io.handler import Handler

BIN = os.environ["SANDCRATE_BIN"]
# What boxes are made on, where `engine.py` or `far.py` runs us; else they are native.
ENGINE = os.environ.get("ENGINE_UNDER_TEST")
BACKEND = ENGINE or "native"
# Long enough for a loaded machine; whatever takes longer hangs.
PATIENCE = 30.0
MIB = 1 << 20

_marks = itertools.count(1)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(state: pathlib.Path, extra: dict[str, str] | None = None) -> dict[str, str]:
    """The caller's environment without anything that configures us or LangBot, and what this server is told."""
    foreign = ("SANDCRATE_", "LANGBOT_BOX_", "BOX__") + (() if ENGINE == "e2b" else ("E2B_",))
    kept = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
    chosen = {"SANDCRATE__RUNTIME__BACKEND": ENGINE} if ENGINE else {}
    return kept | {"SANDCRATE_STATE_DIR": str(state)} | chosen | (extra or {})


class Server:
    """`sandcrate serve`: started, killed, and started again on the same port and state."""

    def __init__(self, root: pathlib.Path, env: dict[str, str] | None = None):
        root.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.state = root / "state"
        self.cwd = root / "server-cwd"
        self.cwd.mkdir(exist_ok=True)
        self.log = root / "server.log"
        self.env = environment(self.state, env)
        self.process: subprocess.Popen | None = None

    @property
    def rpc_url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/rpc/ws"

    @property
    def relay(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> Server:
        command = [BIN, "serve", "--listen", f"127.0.0.1:{self.port}", "--state-dir", str(self.state)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd=self.cwd, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        wait_for_port(self.port, self.process)
        return self

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)

    def stop(self) -> None:
        """SIGTERM: it must end by itself, soon, and say that all is well."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            assert self.process.wait(PATIENCE) == 0, "the server did not end well"
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"the server did not end within {PATIENCE} s of SIGTERM") from None
        finally:
            print(f"--- log of the server on port {self.port}\n{self.log.read_text(errors='replace')}")


def wait_for_port(port: int, process) -> None:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        ended = process.poll() if isinstance(process, subprocess.Popen) else process.returncode
        assert ended is None, f"the server ended with {ended} before it listened"
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise AssertionError(f"nothing listens on port {port}")


class Connection:
    """LangBot's client on one transport."""

    def __init__(self, controller, relay: str):
        self.client = ActionRPCBoxClient(logger=logging.getLogger("langbot"))
        self.relay = relay
        self.controller = controller
        self.handler: Handler | None = None
        self._ready = asyncio.Event()
        self._failure: Exception | None = None
        self._task: asyncio.Task | None = None

    async def open(self) -> Connection:
        async def connected(connection):
            self.handler = Handler(connection)
            self.client.set_handler(self.handler)
            self._ready.set()
            await self.handler.run()

        self._task = asyncio.create_task(self.controller.run(connected))
        self._task.add_done_callback(lambda _: self._ready.set())
        await asyncio.wait_for(self._ready.wait(), PATIENCE)
        assert self.handler is not None, f"no connection: {self._failure}"
        return self

    async def failed(self, _controller, error) -> None:
        self._failure = error

    async def close(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    # Shorthands. What they send is made by LangBot's models and client.

    async def sh(self, session: str, cmd: str, **fields):
        return await self.client.execute(BoxSpec(session_id=session, cmd=cmd, **fields))

    async def create(self, session: str, **fields) -> dict:
        return await self.client.create_session(BoxSpec(session_id=session, **fields))

    async def spawn(self, session: str, command: str, *args: str, process_id: str = "default", **fields):
        spec = BoxManagedProcessSpec(process_id=process_id, command=command, args=list(args), **fields)
        return await self.client.start_managed_process(session, spec)

    def attach_url(self, session: str, process_id: str = "default") -> str:
        return self.client.get_managed_process_websocket_url(session, self.relay, process_id)

    def attach(self, session: str, process_id: str = "default", **options):
        return websockets.connect(self.attach_url(session, process_id), proxy=None, **options)

    async def exited(self, session: str, process_id: str = "default"):
        """The record of a process as soon as it says `exited`."""
        return await eventually(
            f"process {process_id} to exit",
            lambda: self.client.get_managed_process(session, process_id),
            lambda info: info.status.value == "exited",
        )


class WebSocket(Connection):
    def __init__(self, server: Server):
        super().__init__(WebSocketClientController(server.rpc_url, self.failed), server.relay)
        self.server = server

    @property
    def pid(self) -> int:
        return self.server.process.pid


def in_empty_network() -> list[str]:
    """Runs what follows where there is loopback and nothing else: whatever is let out by mistake goes nowhere."""
    ordinary = os.geteuid() != 0
    user = ["--user", "--map-current-user", "--keep-caps"] if ordinary else []
    drop = "setpriv --ambient-caps=-all --inh-caps=-all " if ordinary else ""
    return ["unshare", *user, "--net", "sh", "-c", f'ip link set lo up && exec {drop}"$0" "$@"']


class Stdio(Connection):
    """`sandcrate box -s` as a child, as LangBot's host starts its runtime."""

    def __init__(self, root: pathlib.Path, env: dict[str, str] | None = None, alone: bool = False):
        root.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.state = root / "state"
        cwd = root / "server-cwd"
        cwd.mkdir(exist_ok=True)
        arguments = ["box", "-s", "--host", "127.0.0.1", "--ws-control-port", str(self.port)]
        program, *first = [*in_empty_network(), BIN] if alone else [BIN]
        controller = StdioClientController(program, [*first, *arguments], environment(self.state, env), str(cwd))
        super().__init__(controller, f"http://127.0.0.1:{self.port}")

    async def open(self) -> Stdio:
        await super().open()
        # The relay is for managed processes; it listens by the time that the first request is answered.
        await self.client.initialize()
        return self

    @property
    def process(self):
        return self.controller.process

    @property
    def pid(self) -> int:
        return self.process.pid

    async def close(self) -> None:
        """End of input: it must end by itself, soon, and say that all is well."""
        if self.process.returncode is None:
            self.process.stdin.close()
            try:
                code = await asyncio.wait_for(self.process.wait(), PATIENCE)
                assert code == 0, f"`box -s` ended with {code}"
            except asyncio.TimeoutError:
                self.process.kill()
                raise AssertionError(f"`box -s` did not end within {PATIENCE} s of its input's end") from None
        await super().close()


async def eventually(what: str, ask, done, patience: float = PATIENCE):
    until = time.monotonic() + patience
    while True:
        answer = await ask()
        if done(answer):
            return answer
        assert time.monotonic() < until, f"waited in vain for {what}; last: {answer}"
        await asyncio.sleep(0.02)


def mark() -> str:
    """A number of seconds that no other process on this machine sleeps."""
    return f"86400.{os.getpid()}{next(_marks):04}"


def processes_with(text: str) -> list[int]:
    """Processes of this machine, boxes included, that have the text in an argument of their own."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if text.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


def program_of(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/exe")


async def runs(text: str) -> None:
    """Until there is such a process: what a shell starts in the background has its arguments a moment later."""
    await eventually(f"a process with {text}", lambda: asyncio.sleep(0, processes_with(text)), bool)


async def gone(text: str) -> None:
    async def ask():
        return processes_with(text)

    await eventually(f"processes with {text} to end", ask, lambda found: not found)
