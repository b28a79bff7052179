"""Fixtures: a server of its own for every test, on one transport or on both."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from harness import Server, Stdio, WebSocket  # noqa: E402


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """LangBot's handler makes folders in the working directory."""
    (tmp_path / "client-cwd").mkdir()
    monkeypatch.chdir(tmp_path / "client-cwd")


@pytest.fixture
def serve(tmp_path):
    """Starts servers; each ends by SIGTERM, in order, or the test fails."""
    servers = []

    def start(name="server", **options) -> Server:
        server = Server(tmp_path / name, **options)
        servers.append(server)
        return server.start()

    yield start
    failures = []
    for server in servers:
        try:
            server.stop()
        except AssertionError as failure:
            failures.append(str(failure))
    assert not failures, failures


@pytest.fixture(params=["ws", "stdio"])
async def connect(request, tmp_path, serve):
    """Opens LangBot's client on a server of its own; `name` tells state directories apart."""
    opened = []

    async def open_one(name="server", **options):
        if request.param == "ws":
            connection = WebSocket(serve(name, **options))
        else:
            connection = Stdio(tmp_path / name, **options)
        opened.append(connection)
        return await connection.open()

    yield open_one
    for connection in opened:
        await connection.close()


@pytest.fixture
async def box(connect):
    return await connect()
