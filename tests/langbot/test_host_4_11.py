"""LangBot's own host code of 4.11.2 with its shipped configuration: `BoxService`, `BoxRuntimeConnector`, the runner's Box API
and the skill store. Of the rest of LangBot only what these look at is here, by stand-ins."""

import asyncio
import base64
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
from langbot.pkg.api.http.context import ExecutionContext
from langbot.pkg.box.export_errors import BoxExportError
from langbot.pkg.box.runner import RunnerBoxService
from langbot.pkg.box.service import BoxService
from langbot.pkg.provider.tools.loaders import skill as skill_loader
from langbot.pkg.utils import platform
from langbot_plugin.api.entities.builtin.platform import message as platform_message
from langbot_plugin.box import errors
from langbot_plugin.box.tenancy import box_namespace
from langbot_plugin.skill_store import SkillStore, skill_namespace

INSTANCE = "instance_0f3c2f"
TOKEN = "0123456789abcdef0123456789abcdef"


def shipped_box_section() -> dict:
    text = importlib.resources.files("langbot").joinpath("templates/config.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(text)["box"]


class Workspaces:
    """Stands in for LangBot's table of workspaces: whose they are, and which generation is the newest."""

    instance_uuid = INSTANCE

    def __init__(self):
        self.generations = {}

    async def get_execution_binding(self, workspace: str, expected_generation: int):
        newest = self.generations.setdefault(workspace, 1)
        assert expected_generation == newest, "the test itself is behind"
        return types.SimpleNamespace(
            instance_uuid=INSTANCE, workspace_uuid=workspace, placement_generation=newest
        )


def application(box: dict) -> types.SimpleNamespace:
    """What `BoxService` looks at of LangBot's application."""
    return types.SimpleNamespace(
        logger=logging.getLogger("langbot"),
        instance_config=types.SimpleNamespace(data={"box": box, "system": {"limitation": {}}}),
        event_loop=asyncio.get_running_loop(),
        workspace_service=Workspaces(),
        deployment=types.SimpleNamespace(mode="oss", multi_workspace_enabled=False),
    )


def context(workspace="w1", generation=1) -> ExecutionContext:
    return ExecutionContext(INSTANCE, workspace, generation)


def query(number=42, workspace="w1", generation=1):
    return types.SimpleNamespace(
        query_id=number, instance_uuid=INSTANCE, workspace_uuid=workspace, placement_generation=generation,
        variables={}, message_chain=None,
    )


async def bound(host, reuse_key="chat", query_of=None, **options):
    """A query with a Box, as a runner gets one."""
    asked = query_of or query()
    where = context(asked.workspace_uuid, asked.placement_generation)
    runner = RunnerBoxService(host)
    box = await runner.acquire(where, {"reuse_key": reuse_key, "options": options}, asked)
    await runner.bind(where, asked, f"run-{asked.query_id}", box["id"])
    return asked


@pytest.fixture
def host_cwd(monkeypatch):
    """The host's working directory. The server has another one."""
    directory = pathlib.Path(tempfile.mkdtemp(prefix="langbot-host-", dir="/var/tmp"))
    monkeypatch.chdir(directory)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
async def service(serve, host_cwd, monkeypatch):
    """The service on a server of ours, found by `box.runtime.endpoint`."""
    started = []
    monkeypatch.delenv("LANGBOT_BOX_CONTROL_TOKEN", raising=False)

    async def start(server=None, token=None, limits=None, **local) -> BoxService:
        server = server or serve()
        box = shipped_box_section()
        box["runtime"]["endpoint"] = f"ws://127.0.0.1:{server.port}"
        box["backend"] = local.pop("backend", box["backend"])
        box["limits"] |= limits or {}
        box["local"] |= local
        if token:
            monkeypatch.setenv("LANGBOT_BOX_CONTROL_TOKEN", token)
        made = BoxService(application(box))
        made.server = server
        started.append(made)
        await made.initialize()
        return made

    yield start
    for made in started:
        await made.shutdown()


def tenant_directory(host_cwd, workspace="w1") -> pathlib.Path:
    return host_cwd / "data/box/default/tenants" / box_namespace(BoxService._action_context(context(workspace)))


async def test_a_run_has_a_box_and_its_tool(service, host_cwd):
    host = await service()
    assert host.available and not host.shares_filesystem_with_box
    asked = await bound(host)
    result = await host.execute_tool({"command": "echo service-path > out.txt; cat out.txt; pwd"}, asked)
    assert 0 <= result.pop("duration_ms") < 10_000
    session = result.pop("session_id")
    assert session.startswith("runner-")
    assert result == {
        "backend": "native", "status": "completed", "ok": True, "exit_code": 0, "stdout": "service-path\n/workspace",
        "stderr": "", "stdout_truncated": False, "stderr_truncated": False,
    }
    written = tenant_directory(host_cwd) / "out.txt"
    assert written.read_text() == "service-path\n", "the workspace is the host's"
    assert written.stat().st_uid == os.getuid()
    assert list(host.server.cwd.iterdir()) == [], "nothing was made where the server happens to run"
    result = await host.execute_tool(
        {"command": "echo $GREETING; pwd; exit 7", "workdir": "/workspace/sub", "env": {"GREETING": "hi there"}}, asked
    )
    assert (result["ok"], result["exit_code"], result["stdout"]) == (False, 7, "hi there\n/workspace/sub")
    result = await host.execute_tool({"command": "yes long | head -n 5000"}, asked)
    assert result["stdout_truncated"] and len(result["stdout"]) == 4000
    with pytest.raises(errors.BoxValidationError, match="cmd must not be empty"):
        await host.execute_tool({"command": " "}, asked)
    assert host.get_recent_errors(context())[-1]["type"] == "BoxValidationError"
    result = await host.execute_tool({"command": "sleep 30", "timeout_sec": 1}, asked)
    assert (result["status"], result["ok"], result["exit_code"]) == ("timed_out", False, None)


async def test_sessions_and_status_are_the_workspaces_own(service):
    host = await service(limits={"max_sessions": 3})
    runner = RunnerBoxService(host)
    one, two = await bound(host), await bound(host, query_of=query(7, "w2"))
    await host.execute_tool({"command": "echo mine > /tmp/f; echo mine > f"}, one)
    result = await host.execute_tool({"command": "cat /tmp/f f"}, two)
    assert result["stdout"] == "" and result["stderr"].count("No such file") == 2, "the same key, another workspace"
    [info] = await host.get_sessions(context())
    assert (info["status"], info["network"], info["memory_mb"], info["cpus"]) == ("idle", "on", 512, 1.0)
    status = await host.get_status(context())
    assert (status["backend"]["name"], status["backend"]["available"]) == ("native", True)
    assert (status["available"], status["enabled"], status["profile"]) == (True, True, "default")
    assert (status["active_sessions"], status["managed_processes"], status["session_ttl_sec"]) == (1, 0, 300)
    assert status["limits"]["max_sessions"] == 3
    assert await runner.status(context()) == {
        "enabled": True, "available": True, "limit": 3, "used": 1, "remaining": 1, "required_reuse_key": None, "reason": None,
    }
    assert (await host.get_backend_status())["available"] is True
    await host.create_session(context(), {"session_id": "third"})
    with pytest.raises(errors.BoxCapacityExceededError, match=r"capacity reached \(3\)"):
        await host.create_session(context("w3"), {"session_id": "fourth"})
    with pytest.raises(errors.BoxValidationError, match="Box not found"):
        await runner.bind(context("w2"), query(9, "w2"), "run-9", "third")


async def test_status_says_that_the_backend_is_dead(service):
    host = await service(backend="e2b")
    status = await host.get_status(context())
    assert host.available and status["available"] is False
    assert status["connector_error"].startswith("No supported sandbox backend")
    with pytest.raises(errors.BoxBackendUnavailableError):
        await bound(host)


async def test_managed_processes_and_their_relay(service):
    host = await service()
    asleep = mark()
    await host.create_session(context(), {"session_id": "mcp/shared"})
    await host.start_managed_process(
        context(), "mcp/shared", {"process_id": "echo", "command": "cat", "cwd": "/workspace"}
    )
    await host.start_managed_process(
        context(), "mcp/shared", {"process_id": "idle", "command": "sleep", "args": [asleep]}
    )
    assert (await host.get_managed_process(context(), "mcp/shared", "echo")).status.value == "running"
    url, headers = await host.get_managed_process_websocket_connection(context(), "mcp/shared", "echo")
    async with websockets.connect(url, proxy=None, additional_headers=headers, subprotocols=["mcp"]) as relay:
        calls = [json.dumps({"jsonrpc": "2.0", "id": n, "method": "x", "params": "é" * 50_000}) for n in range(3)]
        for call in calls:
            await relay.send(call)
        for call in calls:
            assert await asyncio.wait_for(relay.recv(), PATIENCE) == call
    foreign = headers | {"X-LangBot-Workspace-Id": "w2"}
    with pytest.raises(websockets.InvalidStatus) as refused:
        async with websockets.connect(url, proxy=None, additional_headers=foreign):
            pass
    assert refused.value.response.status_code == 401
    assert (await host.get_status(context()))["managed_processes"] == 2
    await host.stop_managed_process(context(), "mcp/shared", "idle")
    assert processes_with(asleep) == []
    with pytest.raises(errors.BoxManagedProcessNotFoundError):
        await host.get_managed_process(context(), "mcp/shared", "idle")
    analysis = await host.get_storage_analysis(context())
    assert (analysis["active_sessions"], analysis["managed_processes"]) == (1, 1)


async def test_an_activated_skill_joins_the_runs_box(service, host_cwd):
    """The host keeps skills, pins a revision of one, and sends it along as a directory that is named by its content."""
    host = await service()
    store = SkillStore(str(host_cwd / "data/box/skills")).scoped(skill_namespace(INSTANCE, "w1"))
    made = store.create_skill({"name": "tool", "description": "d", "instructions": "Use it.\n"})
    store.write_skill_file("tool", "run.sh", "echo from the skill, é\n", base_revision=made["revision"])
    asked = await bound(host)
    await host.execute_tool({"command": "echo kept > /tmp/kept"}, asked)
    pinned = store.get_skill_snapshot("tool")
    skill_loader.register_activated_skill(asked, pinned)
    mounts = skill_loader.build_execution_mounts(host.ap, asked)
    at = skill_loader.get_virtual_skill_mount_path("tool", pinned["revision"])
    use = {"command": f"sh {at}/run.sh; cat /tmp/kept; touch {at}/x"}
    result = await host.execute_tool(use, asked, read_only_mounts=mounts)
    assert result["stdout"] == "from the skill, é\nkept", result
    assert "Read-only file system" in result["stderr"]
    store.write_skill_file("tool", "run.sh", "echo changed\n", base_revision=pinned["revision"])
    again = await host.execute_tool(use, asked, read_only_mounts=mounts)
    assert again["stdout"] == "from the skill, é\nkept", "a revision stays what it was"
    forged = [mounts[0] | {"content_digest": f"sha256:{'0' * 64}", "mount_path": f"/opt/langbot-artifacts/{'0' * 64}"}]
    with pytest.raises(errors.BoxError, match="does not match content_digest"):
        await host.execute_tool({"command": "true"}, asked, read_only_mounts=forged)


async def test_files_go_in_and_out_of_a_run(service, host_cwd):
    host = await service()
    runner = RunnerBoxService(host)
    asked = query()
    sent = base64.b64encode(bytes(range(256)) * 4096)
    asked.message_chain = platform_message.MessageChain(
        [platform_message.File(name="in.bin", base64=sent.decode())]
    )
    await bound(host, query_of=asked)
    await host.execute_tool({"command": "true"}, asked)
    [item] = (await runner.import_attachments(asked, None))["items"]
    assert (item["name"], item["size"]) == ("in.bin", MIB)
    out = "/workspace/outbox/run-42/out.bin"
    script = f"mkdir -p outbox/run-42; cp {item['path']} {out}; echo secret > /tmp/other.txt"
    assert (await host.execute_tool({"command": script}, asked))["ok"]
    # By what a command writes, which has a bound; the host reads in its last line that it was cut.
    with pytest.raises(BoxExportError, match='"limit":1048576,"actual":1398'):
        await runner.export_files(asked, [out])
    assert (await host.execute_tool({"command": f"truncate -s 500000 {out}"}, asked))["ok"]
    exported = await runner.export_files(asked, [out, "/tmp/other.txt"])
    assert sorted((item["name"], item["size"]) for item in exported["items"]) == [("other.txt", 7), ("out.bin", 500_000)]
    assert not (tenant_directory(host_cwd) / "outbox/run-42/out.bin").exists(), "what was handed over is cleared"


async def test_a_quota_of_the_host_is_kept(service, host_cwd):
    host = await service(workspace_quota_mb=5)
    asked = await bound(host)
    slowly = "for i in $(seq 60); do head -c 1048576 /dev/zero >> big || exit 9; sleep 0.05; done"
    # The runtime ends the command; the host then finds more than it allows, and deletes the session.
    with pytest.raises(errors.BoxValidationError, match="workspace quota exceeded after execution"):
        await host.execute_tool({"command": slowly}, asked)
    assert (tenant_directory(host_cwd) / "big").stat().st_size < 60 * MIB
    assert await host.get_sessions(context()) == []


async def test_a_newer_generation_ends_the_older_ones_boxes(service):
    host = await service()
    asleep = mark()
    asked = await bound(host)
    await host.execute_tool({"command": f"(sleep {asleep} >/dev/null 2>&1 &) ; echo kept > f"}, asked)
    await runs(asleep)
    host.ap.workspace_service.generations["w1"] = 2
    assert await host.get_sessions(context(generation=2)) == []
    assert processes_with(asleep) == []
    asked = await bound(host, query_of=query(43, generation=2))
    assert (await host.execute_tool({"command": "cat f"}, asked))["stdout"] == "kept", "files outlive generations"
    with pytest.raises(errors.BoxError, match="Stale Box placement generation"):
        await host.client.get_sessions(action_context=host._action_context(context()))


async def test_the_host_reconnects_to_a_server_that_was_killed(service, serve):
    server = serve("secret", env={"LANGBOT_BOX_CONTROL_TOKEN": TOKEN})
    host = await service(server, token=TOKEN)
    asleep = mark()
    asked = await bound(host)
    result = await host.execute_tool({"command": f"echo before > f; (sleep {asleep} >/dev/null 2>&1 &) ; echo ok"}, asked)
    assert result["stdout"] == "ok"
    await runs(asleep)
    server.kill()

    async def available():
        return host.available

    await eventually("the host to notice", available, lambda up: not up, 10)
    with pytest.raises(errors.BoxError, match="not available"):
        await host.execute_tool({"command": "true"}, asked)
    server.start()
    await eventually("the host to come back", available, bool)
    assert processes_with(asleep) == [], "the killed server's boxes are gone"
    assert await host.get_sessions(context()) == []
    result = await host.execute_tool({"command": "cat f"}, asked)
    assert (result["ok"], result["stdout"]) == (True, "before")


@pytest.mark.parametrize("token", [None, TOKEN[::-1]])
async def test_a_host_without_the_token_is_not_served(service, serve, token):
    server = serve("secret", env={"LANGBOT_BOX_CONTROL_TOKEN": TOKEN})
    host = await service(server, token=token)
    assert not host.available and "401" in host._connector_error
    with pytest.raises(errors.BoxError, match="not available"):
        await bound(host)


async def test_another_instance_is_not_served(service, serve):
    server = serve("pinned", env={"LANGBOT_BOX_TRUSTED_INSTANCE_UUID": "another"})
    host = await service(server)
    assert not host.available and "401" in host._connector_error


async def test_the_host_launches_us_over_stdio(host_cwd, tmp_path, monkeypatch):
    """The connector starts `<python> -m langbot_plugin.cli.__init__ box -s --ws-control-port N` with a token and its
    instance in the environment, with its own Python and with `sandcrate-langbot` installed there."""
    monkeypatch.setenv("SANDCRATE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.delenv("LANGBOT_BOX_CONTROL_TOKEN", raising=False)
    # The connector takes a container's host for one that has its runtime in another container.
    monkeypatch.setattr(platform, "get_platform", lambda: "linux")
    host = BoxService(application(shipped_box_section()))
    connector = host._runtime_connector
    connector._relay_port = free_port()
    connector.ws_relay_base_url = f"http://127.0.0.1:{connector._relay_port}"
    await host.initialize()
    try:
        assert host.available and host.shares_filesystem_with_box, host._connector_error
        process = connector._subprocess
        assert program_of(process.pid) == os.path.realpath(BIN)
        asked = await bound(host)
        result = await host.execute_tool({"command": "echo by stdio > f; cat f"}, asked)
        assert (result["ok"], result["stdout"]) == (True, "by stdio")
        assert (tenant_directory(host_cwd) / "f").read_text() == "by stdio\n"
        long = await host._execute_spec_payload_result({"cmd": "head -c 300000 /dev/zero | tr '\\0' '\\\\'"}, asked)
        assert long.stdout == "\\" * 300_000, "in chunks"
        await host.create_session(context(), {"session_id": "mcp"})
        await host.start_managed_process(context(), "mcp", {"command": "cat"})
        url, headers = await host.get_managed_process_websocket_connection(context(), "mcp")
        async with websockets.connect(url, proxy=None, additional_headers=headers) as relay:
            await relay.send("relayed")
            assert await asyncio.wait_for(relay.recv(), PATIENCE) == "relayed"
        assert (await host.get_status(context()))["available"] is True
    finally:
        await host.shutdown()
    assert process.returncode == 0, "at the end of its input it ends well"
