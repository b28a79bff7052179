"""LangBot's own host code, `BoxService` and `BoxRuntimeConnector` of 4.10.1, with LangBot's shipped configuration."""

import asyncio
import importlib.resources
import json
import logging
import os
import pathlib
import shutil
import tempfile
import types

import pytest
import websockets
import yaml
from harness import BIN, MIB, PATIENCE, eventually, free_port, mark, processes_with, runs, program_of
from langbot.pkg.box.service import BoxService
from langbot.pkg.utils import platform
from langbot_plugin.box.errors import (
    BoxBackendUnavailableError,
    BoxError,
    BoxManagedProcessNotFoundError,
    BoxValidationError,
)


def shipped_box_section() -> dict:
    text = importlib.resources.files("langbot").joinpath("templates/config.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(text)["box"]


def application(box: dict) -> types.SimpleNamespace:
    """What `BoxService` looks at of LangBot's application."""
    return types.SimpleNamespace(
        logger=logging.getLogger("langbot"),
        instance_config=types.SimpleNamespace(data={"box": box, "system": {"limitation": {}}}),
        event_loop=asyncio.get_running_loop(),
    )


def query(number: int = 42, **fields):
    defaults = {"query_id": number, "pipeline_config": None, "variables": {}}
    return types.SimpleNamespace(**(defaults | fields))


# Both hold the host's `./data/box`; only the first lies in a root that the shipped configuration names by itself.
ANYWHERE = pytest.mark.parametrize("host_cwd", ["/tmp", "/var/tmp"], indirect=True)


@pytest.fixture
def host_cwd(request, monkeypatch):
    """The host's working directory. The server has another one."""
    parent = getattr(request, "param", "/tmp")
    directory = pathlib.Path(tempfile.mkdtemp(prefix="langbot-host-", dir=parent))
    monkeypatch.chdir(directory)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
async def service(serve, host_cwd):
    """The service on a server of ours, found by `box.runtime.endpoint`."""
    started = []

    async def start(server=None, **local) -> BoxService:
        server = server or serve()
        box = shipped_box_section()
        box["runtime"]["endpoint"] = f"ws://127.0.0.1:{server.port}"
        box["backend"] = local.pop("backend", box["backend"])
        box["local"] |= local
        made = BoxService(application(box))
        made.server = server
        started.append(made)
        await made.initialize()
        return made

    yield start
    for made in started:
        await made.shutdown()
        made.dispose()


@ANYWHERE
async def test_79_full_service_to_remote_runtime(service, host_cwd):
    host = await service()
    assert host.available and not host.shares_filesystem_with_box
    result = await host.execute_tool({"command": "echo service-path > out.txt; cat out.txt; pwd"}, query(42))
    duration = result.pop("duration_ms")
    assert result == {
        "session_id": "query_42", "backend": "native", "status": "completed", "ok": True, "exit_code": 0,
        "stdout": "service-path\n/workspace", "stderr": "", "stdout_truncated": False, "stderr_truncated": False,
    }
    assert 0 <= duration < 10_000
    written = host_cwd / "data/box/default/out.txt"
    assert written.read_text() == "service-path\n", "the workspace is the host's"
    assert written.stat().st_uid == os.getuid()
    assert list(host.server.cwd.iterdir()) == [], "nothing was made where the server happens to run"


async def test_parameters_of_the_tool_arrive(service):
    host = await service()
    result = await host.execute_tool(
        {"command": "echo $GREETING; pwd", "workdir": "/workspace/sub", "env": {"GREETING": "hi there"}}, query()
    )
    assert (result["ok"], result["stdout"]) == (True, "hi there\n/workspace/sub")
    result = await host.execute_tool({"command": "exit 7"}, query())
    assert (result["ok"], result["exit_code"], result["status"]) == (False, 7, "completed")
    result = await host.execute_tool({"command": "yes long | head -n 5000"}, query())
    assert result["stdout_truncated"] and len(result["stdout"]) == 4000
    result = await host.execute_tool({"command": "sleep 30", "timeout_sec": 1}, query())
    assert (result["status"], result["ok"], result["exit_code"]) == ("timed_out", False, None)
    with pytest.raises(BoxValidationError, match="cmd must not be empty"):
        await host.execute_tool({"command": "  "}, query())
    assert host.get_recent_errors()[-1]["type"] == "BoxValidationError"


async def test_launchers_have_boxes_of_their_own_and_one_workspace(service):
    host = await service()
    one = query(1, launcher_type="person", launcher_id="ann")
    two = query(2, launcher_type="group", launcher_id="room-1")
    await host.execute_tool({"command": "echo mine > /tmp/f; echo shared > f"}, one)
    result = await host.execute_tool({"command": "cat /tmp/f; cat f"}, two)
    assert result["stdout"] == "shared" and "No such file" in result["stderr"]
    assert [info["session_id"] for info in await host.get_sessions()] == ["person_ann", "group_room-1"]


async def test_status_is_healthy(service):
    host = await service()
    assert await host.get_status() == {
        "backend": {"name": "native", "available": True}, "active_sessions": 0, "managed_processes": 0,
        "session_ttl_sec": 300, "available": True, "enabled": True, "profile": "default", "recent_error_count": 0,
    }
    await host.execute_tool({"command": "true"}, query())
    assert (await host.get_status())["active_sessions"] == 1


async def test_status_says_that_the_backend_is_dead(service):
    host = await service(backend="e2b")
    status = await host.get_status()
    assert host.available and status["available"] is False
    assert status["connector_error"] == "No supported sandbox backend (Docker / nsjail / E2B) is available"
    with pytest.raises(BoxBackendUnavailableError):
        await host.execute_tool({"command": "true"}, query())


async def test_profiles_reach_the_runtime(service):
    host = await service(profile="offline_readonly", image="python:3.12")
    result = await host.execute_tool({"command": "echo no > f"}, query())
    assert result["ok"] is False and "Read-only file system" in result["stderr"]
    [info] = await host.get_sessions()
    assert (info["memory_mb"], info["cpus"], info["pids_limit"], info["host_path_mode"], info["image"]) == (
        256, 0.5, 64, "ro", "python:3.12"
    )


async def test_managed_processes_by_the_service(service):
    host = await service()
    asleep = mark()
    await host.create_session({"session_id": "mcp-shared"})
    await host.start_managed_process("mcp-shared", {"process_id": "echo", "command": "cat", "cwd": "/workspace"})
    await host.start_managed_process("mcp-shared", {"process_id": "idle", "command": "sleep", "args": [asleep]})
    assert (await host.get_managed_process("mcp-shared", "echo")).status.value == "running"
    url = host.get_managed_process_websocket_url("mcp-shared", "echo")
    async with websockets.connect(url, proxy=None, subprotocols=["mcp"]) as relay:
        call = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"x": "y" * 100_000}})
        await relay.send(call)
        assert await asyncio.wait_for(relay.recv(), PATIENCE) == call
    assert (await host.get_status())["managed_processes"] == 2
    await host.stop_managed_process("mcp-shared", "idle")
    assert processes_with(asleep) == []
    with pytest.raises(BoxManagedProcessNotFoundError):
        await host.get_managed_process("mcp-shared", "idle")
    await host.client.delete_session("mcp-shared")
    assert await host.get_sessions() == []


async def test_a_quota_of_the_host_is_kept(service, host_cwd):
    host = await service(workspace_quota_mb=5)
    slowly = "for i in $(seq 60); do head -c 1048576 /dev/zero >> big || exit 9; sleep 0.05; done"
    # The runtime ends the command; the host then finds more than it allows, and deletes the session.
    with pytest.raises(BoxValidationError, match="workspace quota exceeded after execution"):
        await host.execute_tool({"command": slowly}, query())
    assert (host_cwd / "data/box/default/big").stat().st_size < 60 * MIB
    assert await host.get_sessions() == []
    with pytest.raises(BoxValidationError, match="workspace quota exceeded before execution"):
        await host.execute_tool({"command": "true"}, query())


async def test_the_host_reconnects_to_a_server_that_was_killed(service):
    host = await service()
    asleep = mark()
    result = await host.execute_tool({"command": f"echo before > f; (sleep {asleep} >/dev/null 2>&1 &) ; echo ok"}, query())
    assert result["stdout"] == "ok"
    await runs(asleep)
    host.server.kill()

    async def available():
        return host.available

    await eventually("the host to notice", available, lambda up: not up, 10)
    with pytest.raises(BoxError, match="not available"):
        await host.execute_tool({"command": "true"}, query())
    host.server.start()
    await eventually("the host to come back", available, bool, 30)
    assert processes_with(asleep) == [], "the killed server's boxes are gone"
    assert await host.get_sessions() == []
    result = await host.execute_tool({"command": "cat f"}, query())
    assert (result["ok"], result["stdout"]) == (True, "before")


async def test_a_host_that_starts_first_finds_the_server_later(service, serve):
    server = serve()
    server.stop()
    host = await service(server)
    assert not host.available
    server.start()

    async def available():
        return host.available

    await eventually("the host to connect", available, bool, 30)
    assert (await host.execute_tool({"command": "echo up"}, query()))["stdout"] == "up"


@ANYWHERE
async def test_the_host_launches_us_over_stdio(host_cwd, tmp_path, monkeypatch):
    """The connector starts `<python> -m langbot_plugin.cli.__init__ box -s --ws-control-port N`, with its own Python and
    with `sandcrate-langbot` installed there."""
    monkeypatch.setenv("SANDCRATE_STATE_DIR", str(tmp_path / "state"))
    # The connector takes a container's host for one that has its runtime in another container.
    monkeypatch.setattr(platform, "get_platform", lambda: "linux")
    host = BoxService(application(shipped_box_section()))
    connector = host._runtime_connector
    connector._relay_port = free_port()
    connector.ws_relay_base_url = f"http://127.0.0.1:{connector._relay_port}"
    await host.initialize()
    try:
        assert host.available and host.shares_filesystem_with_box, host._connector_error
        assert program_of(connector._subprocess.pid) == os.path.realpath(BIN)
        result = await host.execute_tool({"command": "echo by stdio > f; cat f"}, query())
        assert (result["ok"], result["stdout"]) == (True, "by stdio")
        assert (host_cwd / "data/box/default/f").read_text() == "by stdio\n"
        await host.create_session({"session_id": "mcp"})
        await host.start_managed_process("mcp", {"command": "cat"})
        async with websockets.connect(host.get_managed_process_websocket_url("mcp"), proxy=None) as relay:
            await relay.send("relayed")
            assert await asyncio.wait_for(relay.recv(), PATIENCE) == "relayed"
        assert (await host.get_status())["available"] is True
    finally:
        process = connector._subprocess
        connector.dispose()
        assert await asyncio.wait_for(process.wait(), PATIENCE) == 0, "terminated, it ends well"


async def test_skills_live_in_the_host_s_own_directory(service, host_cwd):
    """The host computes the same directory; where files are shared it drops skills whose directory it does not see."""
    host = await service()
    made = await host.create_skill({"name": "tool", "instructions": "Use it.\n"})
    assert pathlib.Path(made["package_root"]) == (host_cwd / "data/box/skills/tool").resolve()
    assert [skill["name"] for skill in await host.list_skills()] == ["tool"]
    await host.write_skill_file("tool", "run.sh", "echo from the skill\n")
    assert (host_cwd / "data/box/skills/tool/run.sh").read_text() == "echo from the skill\n"
    await host.delete_skill("tool")
    assert await host.list_skills() == []
