"""Servers of npm and PyPI in boxes, by the official Python and TypeScript clients."""

import asyncio
import json
import os
import pathlib
import subprocess
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

HERE = pathlib.Path(__file__).parent
EVERYTHING = "@modelcontextprotocol/server-everything@2026.8.31"
FILESYSTEM = "@modelcontextprotocol/server-filesystem@2026.8.31"
TIME = "mcp-server-time==2026.10.19"
FETCH = "mcp-server-fetch==2026.10.24"
# A registry may be on a private network, which a box does not reach unless it is told to.
INSTALL = ["--install-network", "host"]


def wrapped(*command, flags=()):
    args = ["mcp", "run", *INSTALL, *flags, "--", *command]
    return StdioServerParameters(command=os.environ["SANDCRATE_BIN"], args=args, env=dict(os.environ))


def talk(server, conversation, errlog=sys.stderr):
    async def run():
        async with stdio_client(server, errlog=errlog) as (read, write):
            async with ClientSession(read, write, read_timeout_seconds=300) as session:
                await session.initialize()
                return await conversation(session)

    return asyncio.run(run())


def text_of(result):
    return "\n".join(part.text for part in result.content if part.type == "text")


def failed(result):
    return getattr(result, "is_error", getattr(result, "isError", None))


async def names(session):
    return {tool.name for tool in (await session.list_tools()).tools}


def test_everything_of_npm_by_the_python_client():
    async def conversation(session):
        assert "echo" in await names(session)
        assert (await session.list_prompts()).prompts
        assert (await session.list_resources()).resources
        return await session.call_tool("echo", {"message": "through the box"})

    assert "through the box" in text_of(talk(wrapped("npx", "-y", EVERYTHING), conversation))


def test_everything_of_npm_by_the_typescript_client():
    server = wrapped("npx", "-y", EVERYTHING)
    request = {
        "command": server.command,
        "args": server.args,
        "env": dict(os.environ),
        "tool": "echo",
        "arguments": {"message": "through the box"},
    }
    ended = subprocess.run(
        ["node", HERE / "client.mjs", json.dumps(request)], capture_output=True, text=True, timeout=400
    )
    assert ended.returncode == 0, ended.stderr
    answer = json.loads(ended.stdout)
    assert "echo" in answer["tools"]
    assert "through the box" in answer["result"]["content"][0]["text"]


def test_the_filesystem_server_has_what_is_shown_and_nothing_else(tmp_path):
    (tmp_path / "shown").mkdir()
    (tmp_path / "shown" / "a.txt").write_text("read me")
    (tmp_path / "secret.txt").write_text("not me")
    flags = ["-v", f"{tmp_path}/shown:/shown:ro"]

    async def conversation(session):
        listed = text_of(await session.call_tool("list_directory", {"path": "/shown"}))
        assert "a.txt" in listed
        assert "read me" in text_of(await session.call_tool("read_text_file", {"path": "/shown/a.txt"}))
        written = await session.call_tool("write_file", {"path": "/shown/b.txt", "content": "x"})
        outside = await session.call_tool("read_text_file", {"path": f"{tmp_path}/secret.txt"})
        return written, outside

    written, outside = talk(wrapped("npx", "-y", FILESYSTEM, "/shown", flags=flags), conversation)
    assert failed(written) and failed(outside)
    assert "not me" not in text_of(outside)
    assert not (tmp_path / "shown" / "b.txt").exists()


def test_a_server_of_pypi_with_native_parts_is_installed_once(tmp_path):
    async def conversation(session):
        return await session.call_tool("get_current_time", {"timezone": "UTC"})

    took, said = [], []
    for start in range(2):
        with open(tmp_path / f"stderr-{start}", "w+") as errlog:
            began = time.monotonic()
            assert "UTC" in text_of(talk(wrapped("uvx", TIME), conversation, errlog))
            took.append(time.monotonic() - began)
            errlog.seek(0)
            said.append(errlog.read())
    assert "installed" in said[0] and "install" not in said[1], said


def test_a_server_without_a_network_answers_and_reaches_nothing():
    asked = []

    class Page(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as host:
        threading.Thread(target=host.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{host.server_port}/"
        urllib.request.urlopen(address, timeout=10).read()

        async def conversation(session):
            assert "fetch" in await names(session)
            return await session.call_tool("fetch", {"url": address})

        # By itself it would refuse such an address, and what the box holds would not be seen.
        result = talk(wrapped("uvx", FETCH, "--allow-private-ips"), conversation)
        host.shutdown()
    assert failed(result), result
    assert asked == ["/"], "nobody but this test reached the host"


ADDER = (
    "from mcp.server import MCPServer\n"
    "server = MCPServer('own')\n"
    "@server.tool()\n"
    "def add(a: int, b: int) -> int:\n"
    "    return a + b\n"
)
SDK = "mcp==2.3.0"
PYPROJECT = f'[project]\nname = "own"\nversion = "1"\nrequires-python = ">=3.11"\ndependencies = ["{SDK}"]\n'
BUILT = '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'


def adds(*command, flags=()):
    async def conversation(session):
        return await session.call_tool("add", {"a": 2, "b": 40})

    return text_of(talk(wrapped(*command, flags=flags), conversation)) == "42"


def test_a_project_of_ones_own_with_requirements(tmp_path):
    (tmp_path / "requirements.txt").write_text(f"{SDK}\n")
    (tmp_path / "server.py").write_text(f"{ADDER}server.run('stdio')\n")
    assert adds("python3", str(tmp_path / "server.py"))


def test_a_project_that_lists_what_it_needs(tmp_path):
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    (tmp_path / "server.py").write_text(f"{ADDER}server.run('stdio')\n")
    assert adds("python3", str(tmp_path / "server.py"))


def package(directory, manifest):
    """A project that is installed as a package, with a program of its own."""
    (directory / "pyproject.toml").write_text(manifest)
    (directory / "own").mkdir()
    (directory / "own/__init__.py").write_text(f"{ADDER}\ndef main():\n    server.run('stdio')\n")
    (directory / "own/__main__.py").write_text("from own import main\nmain()\n")


def test_a_project_that_is_a_package(tmp_path):
    package(tmp_path, PYPROJECT + BUILT)
    assert adds("python3", "-m", "own", flags=["--project", str(tmp_path)])


def test_a_project_with_a_setup_script(tmp_path):
    package(tmp_path, BUILT)
    (tmp_path / "setup.py").write_text(
        f"from setuptools import setup\nsetup(name='own', packages=['own'], install_requires=['{SDK}'])\n"
    )
    assert adds("python3", "-m", "own", flags=["--project", str(tmp_path)])


def test_a_project_with_a_lock_by_uv_run(tmp_path):
    package(tmp_path, PYPROJECT + '[project.scripts]\nown-server = "own:main"\n' + BUILT)
    subprocess.run(["uv", "lock", "--quiet", "--directory", str(tmp_path)], check=True)
    assert adds("uv", "--directory", str(tmp_path), "run", "own-server")


def test_a_project_of_node(tmp_path):
    (tmp_path / "package.json").write_text(
        json.dumps({"name": "own", "type": "module", "dependencies": {"@modelcontextprotocol/sdk": "1.32.2"}})
    )
    (tmp_path / "server.js").write_text(
        "import { Server } from '@modelcontextprotocol/sdk/server/index.js';\n"
        "import { StdioServerTransport } from '@modelcontextprotocol/sdk/server/stdio.js';\n"
        "import { CallToolRequestSchema, ListToolsRequestSchema } from '@modelcontextprotocol/sdk/types.js';\n"
        "const server = new Server({ name: 'own', version: '1' }, { capabilities: { tools: {} } });\n"
        "server.setRequestHandler(ListToolsRequestSchema, () =>\n"
        "  ({ tools: [{ name: 'add', inputSchema: { type: 'object' } }] }));\n"
        "server.setRequestHandler(CallToolRequestSchema, ({ params: { arguments: { a, b } } }) =>\n"
        "  ({ content: [{ type: 'text', text: String(a + b) }] }));\n"
        "await server.connect(new StdioServerTransport());\n"
    )
    assert adds("node", str(tmp_path / "server.js"))
