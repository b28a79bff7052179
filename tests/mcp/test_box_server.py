"""Our box server as the official Python SDK sees it: over stdio, and over Streamable HTTP.

The program is $SANDCRATE_BIN; $SANDCRATE_NODE_CLIENT is a directory with the TypeScript SDK. Each test has a server of its own, and checks that its box is gone after it.
"""

import json
import os
import pathlib
import re
import secrets
import subprocess
import time
import urllib.request
from contextlib import asynccontextmanager

import anyio
import httpx2
import pytest
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

BIN = os.environ["SANDCRATE_BIN"]
TOOLS = ["exec", "read", "write", "edit", "glob", "grep", "session_list", "session_reset"]
PATIENCE = 60

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def state(tmp_path):
    return {**os.environ, "SANDCRATE_STATE_DIR": str(tmp_path / "state")}


def stdio(state, *flags):
    return StdioServerParameters(command=BIN, args=["mcp", "serve", *flags], env=state)


class Server:
    """`sandcrate serve` on a free port, with a token."""

    def __init__(self, state):
        self.token = secrets.token_hex(16)
        env = {**state, "SANDCRATE_TOKEN": self.token}
        self.process = subprocess.Popen(
            [BIN, "serve", "--listen", "127.0.0.1:0"], env=env, stderr=subprocess.PIPE, text=True
        )
        for line in self.process.stderr:
            if found := re.search(r"listening on (http://[\d.:]+)", line):
                self.url = found[1]
                return
        raise AssertionError("the server did not start")

    def sessions(self):
        request = urllib.request.Request(f"{self.url}/v1/sessions", headers={"Authorization": f"Bearer {self.token}"})
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return json.load(answer)["sessions"]

    def until_empty(self):
        deadline = time.monotonic() + PATIENCE
        while self.sessions():
            assert time.monotonic() < deadline, "a box is left"
            time.sleep(0.05)

    @asynccontextmanager
    async def client(self, query="", **options):
        headers = {"Authorization": f"Bearer {self.token}"}
        async with httpx2.AsyncClient(headers=headers, timeout=PATIENCE) as http:
            async with Client(streamable_http_client(f"{self.url}/mcp/box{query}", http_client=http), **options) as client:
                yield client


@pytest.fixture
def server(state):
    server = Server(state)
    yield server
    server.process.terminate()
    assert server.process.wait(PATIENCE) == 0


async def work(client):
    """What a coding agent does, in one go."""
    assert [tool.name for tool in (await client.list_tools()).tools] == TOOLS
    assert "/workspace" in client.instructions
    await client.call_tool("write", {"path": "/workspace/a.py", "content": "print(6 * 7)\n"})
    ran = await client.call_tool("exec", {"command": "python3 a.py"})
    assert not ran.is_error and ran.content[0].text == "42\n[exit code 0]"
    assert ran.structured_content["exit_code"] == 0 and ran.structured_content["stdout"] == "42"
    edited = await client.call_tool("edit", {"path": "/workspace/a.py", "old_string": "6", "new_string": "8"})
    assert not edited.is_error
    found = await client.call_tool("grep", {"pattern": "8"})
    assert found.content[0].text == "/workspace/a.py:1: print(8 * 7)\n"
    failed = await client.call_tool("exec", {"command": "echo no >&2; exit 3"})
    assert failed.is_error and failed.structured_content["exit_code"] == 3
    assert failed.structured_content["stderr"] == "no"
    much = await client.call_tool("exec", {"command": "seq 100000"})
    assert much.structured_content["stdout_truncated"] and len(much.structured_content["stdout"]) == 4000
    late = await client.call_tool("exec", {"command": "sleep 60", "timeout_sec": 1})
    assert late.is_error and late.structured_content["status"] == "timed_out"
    wrong = await client.call_tool("exec", {})
    assert wrong.is_error and "`command`" in wrong.content[0].text
    with pytest.raises(MCPError):
        await client.call_tool("format_disk", {})

    resources = (await client.list_resources()).resources
    assert [resource.name for resource in resources] == ["a.py"]
    contents = (await client.read_resource(resources[0].uri)).contents
    assert contents[0].text == "print(8 * 7)\n"
    templates = (await client.list_resource_templates()).resource_templates
    assert templates[0].uri_template.endswith("/workspace/{+path}")


async def test_stdio(state):
    async with Client(stdio(state)) as client:
        assert client.server_info.name == "sandcrate"
        await work(client)


async def test_stdio_with_the_handshake_of_older_clients(state):
    async with Client(stdio(state), mode="legacy") as client:
        await work(client)


async def test_http(server):
    async with server.client(mode="legacy") as client:
        await work(client)
        assert len(server.sessions()) == 1
    server.until_empty()


async def test_http_as_a_new_client_finds_it(server):
    """`server/discover` first; without a name for the box the revisions with sessions are spoken."""
    async with server.client() as client:
        await work(client)
        assert client.protocol_version < "2026-07-28"
    server.until_empty()


async def test_http_with_a_named_box_needs_no_session(server):
    async with server.client("?session=demo") as client:
        await work(client)
        assert client.protocol_version >= "2026-07-28"
    assert [session["session_id"] for session in server.sessions()] == ["demo"]


async def test_a_stranger_is_refused(server):
    server.token, right = "0" * 32, server.token
    with pytest.raises(BaseException) as refused:
        async with server.client(mode="legacy"):
            pass
    assert refused.value is not None
    server.token = right
    assert server.sessions() == []


async def test_clients_do_not_see_each_other(server):
    async with server.client(mode="legacy") as one, server.client(mode="legacy") as other:
        await one.call_tool("exec", {"command": "echo mine > a"})
        seen = await other.call_tool("exec", {"command": "cat a"})
        assert seen.is_error and "No such file" in seen.structured_content["stderr"]
    server.until_empty()


async def test_progress_and_cancellation(state):
    async with Client(stdio(state)) as client:
        words = []

        async def progress(done, total, message):
            words.append((done, total, message))

        await client.call_tool("exec", {"command": "sleep 3", "timeout_sec": 20}, progress_callback=progress)
        assert words and words[0][1] == 20 and "running" in words[0][2]
        with anyio.move_on_after(1.5):
            await client.call_tool("exec", {"command": "sleep 777", "timeout_sec": 100})
        with anyio.fail_after(30):
            left = await client.call_tool("exec", {"command": "ps -e -o args | grep -c '[s]leep 777'"})
        assert left.structured_content["stdout"] == "0"


def test_the_typescript_sdk():
    script = pathlib.Path(__file__).with_name("box_server.mjs")
    done = subprocess.run(["node", script, BIN], cwd=os.environ["SANDCRATE_NODE_CLIENT"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count("ok: ") == 3, done.stdout + done.stderr
