"""Managed servers behind the gateway, by the official Python and TypeScript clients; and a managed process by LangBot's way.

The program is $SANDCRATE_BIN; $SANDCRATE_NODE_CLIENT is a directory with the TypeScript SDK, $SANDCRATE_RELAY_PYTHON a Python
with the `mcp` package that LangBot has, whose client still speaks WebSocket.
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

import httpx2
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client

HERE = pathlib.Path(__file__).parent
BIN = os.environ["SANDCRATE_BIN"]
PATIENCE = 300
TIME = "mcp-server-time==2026.10.19"
EVERYTHING = "@modelcontextprotocol/server-everything@2026.8.31"

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Server:
    """`sandcrate serve` on a free port, with a token and two servers of the registries."""

    def __init__(self, place):
        self.token = secrets.token_hex(16)
        file = place / "sandcrate.toml"
        # A registry may be on a private network, which a box does not reach unless it is told to.
        file.write_text(f"""
[network]
host = "allow"
[mcp]
deny = ["everything__get-env"]
[mcp.servers.time]
command = "uvx"
args = ["{TIME}"]
box = {{install_network = "host"}}
[mcp.servers.everything]
command = "npx"
args = ["-y", "{EVERYTHING}"]
box = {{install_network = "host"}}
""")
        env = {**os.environ, "SANDCRATE_STATE_DIR": str(place / "state"), "SANDCRATE_TOKEN": self.token}
        command = [BIN, "serve", "--listen", "127.0.0.1:0", "--config", file]
        self.process = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if found := re.search(r"listening on (http://[\d.:]+)", line):
                self.url = found[1]
                return
        raise AssertionError("the server did not start")

    def ask(self, path, body=None):
        headers = {"Authorization": f"Bearer {self.token}"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, headers=headers)
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return json.load(answer)

    def until_connected(self, *names):
        deadline = time.monotonic() + PATIENCE
        for name in names:
            while (info := self.ask(f"/v1/mcp/servers/{name}")["runtime_info"])["status"] != "connected":
                assert info["status"] != "error" and time.monotonic() < deadline, info
                time.sleep(0.2)

    @asynccontextmanager
    async def client(self, path, **options):
        headers = {"Authorization": f"Bearer {self.token}"}
        async with httpx2.AsyncClient(headers=headers, timeout=PATIENCE) as http:
            async with Client(streamable_http_client(self.url + path, http_client=http), **options) as client:
                yield client


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("gateway"))
    try:
        server.until_connected("time", "everything")
        yield server
    finally:
        server.process.terminate()
    assert server.process.wait(60) == 0


def names(listed):
    return {tool.name for tool in listed.tools}


async def work(client):
    tools = names(await client.list_tools())
    assert {"time__get_current_time", "everything__echo"} <= tools
    assert "everything__get-env" not in tools
    told = await client.call_tool("time__get_current_time", {"timezone": "UTC"})
    assert not told.is_error and "UTC" in told.content[0].text
    echoed = await client.call_tool("everything__echo", {"message": "through the gateway"})
    assert "through the gateway" in echoed.content[0].text
    denied = await client.call_tool("everything__get-env", {})
    assert denied.is_error and "not allowed here" in denied.content[0].text
    with pytest.raises(MCPError, match="Tool not found"):
        await client.call_tool("time__no_such_tool", {})


async def test_all_servers_by_the_python_client(server):
    async with server.client("/mcp") as client:
        await work(client)


async def test_all_servers_with_the_handshake_of_older_clients(server):
    async with server.client("/mcp", mode="legacy") as client:
        await work(client)


async def test_one_server_alone_has_its_own_names(server):
    async with server.client("/mcp/time") as client:
        assert names(await client.list_tools()) == {"get_current_time", "convert_time"}
        assert not (await client.call_tool("get_current_time", {"timezone": "UTC"})).is_error


async def test_prompts_and_resources_go_through(server):
    async with server.client("/mcp") as client:
        prompts = {prompt.name for prompt in (await client.list_prompts()).prompts}
        assert prompts and all(name.startswith("everything__") for name in prompts), prompts
        simple = next(name for name in prompts if "simple" in name)
        assert (await client.get_prompt(simple)).messages
        resources = (await client.list_resources()).resources
        assert resources and all(str(found.uri).startswith("box:everything/") for found in resources)
        read = await client.read_resource(str(resources[0].uri))
        assert str(read.contents[0].uri) == str(resources[0].uri)
    async with server.client("/mcp/everything") as client:
        assert simple.removeprefix("everything__") in {p.name for p in (await client.list_prompts()).prompts}
        assert (await client.read_resource(str(resources[0].uri).removeprefix("box:everything/"))).contents


async def test_progress_goes_through(server):
    heard = []

    async def hear(progress, total, message):
        heard.append(progress)

    async with server.client("/mcp", mode="legacy") as client:
        tool = next(name for name in names(await client.list_tools()) if "long-running" in name)
        result = await client.call_tool(tool, {"duration": 1, "steps": 2}, progress_callback=hear)
        assert not result.is_error
    assert heard and heard == sorted(heard)


def test_all_servers_by_the_typescript_client(server):
    request = json.dumps({"url": server.url, "token": server.token})
    ended = subprocess.run(["node", HERE / "gateway.mjs", request], capture_output=True, text=True, timeout=PATIENCE)
    assert ended.returncode == 0, ended.stderr
    answer = json.loads(ended.stdout)
    assert "time__get_current_time" in answer["tools"] and answer["changed"]
    assert "through the gateway" in answer["result"]["content"][0]["text"]


RELAY = """
import asyncio, sys
from mcp import ClientSession
from mcp.client.websocket import websocket_client

async def main(url):
    async with websocket_client(url) as (read, write):
        async with ClientSession(read, write) as session:
            await session.initialize()
            print(sorted(tool.name for tool in (await session.list_tools()).tools))

asyncio.run(main(sys.argv[1]))
"""


def test_a_managed_process_by_langbot_s_relay(tmp_path):
    """LangBot starts its servers as managed processes and speaks with them over the relay's WebSocket."""
    process = subprocess.Popen(
        [BIN, "serve", "--listen", "127.0.0.1:0"],
        env={**os.environ, "SANDCRATE_STATE_DIR": str(tmp_path / "state")},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        url = next(found[1] for line in process.stderr if (found := re.search(r"listening on http://([\d.:]+)", line)))
        script = (HERE / "small_server.py").read_text()

        def post(path, body):
            request = urllib.request.Request(f"http://{url}{path}", data=json.dumps(body).encode())
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)

        post("/v1/sessions/mcp-shared", {})
        post("/v1/sessions/mcp-shared/processes", {"process_id": "u1", "command": "python3", "args": ["-c", script]})
        relay = f"ws://{url}/v1/sessions/mcp-shared/managed-process/u1/ws"
        python = os.environ["SANDCRATE_RELAY_PYTHON"]
        ended = subprocess.run([python, "-c", RELAY, relay], capture_output=True, text=True, timeout=60)
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout == "['echo']\n"
    finally:
        process.terminate()
        assert process.wait(60) == 0
