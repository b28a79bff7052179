"""The scenarios of LangBot's own tests that reach the runtime, by LangBot's own client over both transports.

Each is named by its number in the list of the reference's 87 tests and by the reference's own name.
"""

import asyncio
import datetime

import pytest
from harness import BACKEND, mark, processes_with, runs
from langbot_plugin.box.errors import (
    BoxBackendUnavailableError,
    BoxManagedProcessNotFoundError,
    BoxSessionConflictError,
    BoxSessionNotFoundError,
)

IMAGE = "alpine:latest"
INFO_KEYS = [
    "session_id", "backend_name", "backend_session_id", "image", "network", "host_path", "host_path_mode",
    "mount_path", "persistent", "cpus", "memory_mb", "pids_limit", "read_only_rootfs", "workspace_quota_mb",
    "created_at", "last_used_at",
]


async def test_10_box_runtime_reuses_request_session(box):
    first = await box.sh("req-reuse", "echo one > /tmp/kept; echo $PPID", workdir="/tmp")
    [before] = await box.client.get_sessions()
    second = await box.sh("req-reuse", "cat /tmp/kept", workdir="/tmp")
    [after] = await box.client.get_sessions()
    assert (first.exit_code, second.exit_code, second.stdout) == (0, 0, "one")
    assert before["backend_session_id"] == after["backend_session_id"], "one box, two commands"


async def test_23_box_runtime_rejects_host_mount_conflict_in_same_session(box, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    await box.client.init({"local": {"allowed_mount_roots": [str(tmp_path)]}})
    assert (await box.sh("mounts", "echo here > f", host_path=str(one))).exit_code == 0
    assert (one / "f").read_text() == "here\n"
    with pytest.raises(BoxSessionConflictError, match=f"mounts already exists with host_path={one}"):
        await box.sh("mounts", "true", host_path=str(two))
    assert list(two.iterdir()) == []


async def test_24_box_runtime_rejects_resource_limit_conflict_in_same_session(box):
    await box.sh("limits", "true", cpus=1.0)
    with pytest.raises(BoxSessionConflictError, match=r"limits already exists with cpus=1\.0"):
        await box.sh("limits", "true", cpus=2.0)


async def test_43_runtime_get_status_reports_backend_and_sessions(box):
    expected = {"backend": {"name": BACKEND, "available": True}, "active_sessions": 0, "managed_processes": 0,
                "session_ttl_sec": 300}
    assert await box.client.get_status() == expected
    await box.sh("counted", "true")
    assert await box.client.get_status() == expected | {"active_sessions": 1}


async def test_44_runtime_get_sessions_returns_session_info(box):
    await box.sh("listed", "true", image=IMAGE, memory_mb=256, cpus=0.5)
    [info] = await box.client.get_sessions()
    assert list(info) == INFO_KEYS
    assert info["session_id"] == "listed" and info["image"] == IMAGE and info["backend_name"] == BACKEND
    assert (info["memory_mb"], info["cpus"], info["network"], info["persistent"]) == (256, 0.5, "off", False)
    created, used = (datetime.datetime.fromisoformat(info[key]) for key in ("created_at", "last_used_at"))
    age = datetime.datetime.now(datetime.timezone.utc) - created
    assert created <= used and age < datetime.timedelta(minutes=1)


async def test_45_runtime_get_backend_info_when_no_backend(connect):
    nothing = {"name": None, "available": False}
    told_by_environment = await connect(env={"LANGBOT_BOX_CONFIG": '{"backend": "e2b"}'})
    assert await told_by_environment.client.get_backend_info() == nothing
    told_by_init = await connect("other")
    await told_by_init.client.init({"backend": "e2b"})
    assert await told_by_init.client.get_backend_info() == nothing
    assert (await told_by_init.client.get_status())["backend"] == nothing


async def test_49_rpc_client_execute(box):
    result = await box.sh("exec", "echo out; echo err >&2; exit 3")
    assert (result.session_id, result.backend_name, result.status.value) == ("exec", BACKEND, "completed")
    assert (result.exit_code, result.stdout, result.stderr) == (3, "out", "err")
    assert 0 <= result.duration_ms < 10_000


async def test_50_rpc_client_get_sessions(box):
    assert await box.client.get_sessions() == []
    for name in ("first", "second", "third"):
        await box.sh(name, "true")
    names = [info["session_id"] for info in await box.client.get_sessions()]
    assert names == ["first", "second", "third"], "in order of creation"


async def test_51_rpc_client_get_status(box):
    assert list(await box.client.get_status()) == [
        "backend", "active_sessions", "managed_processes", "session_ttl_sec"
    ]


async def test_52_rpc_client_get_backend_info(box):
    assert await box.client.get_backend_info() == {"name": BACKEND, "available": True}


async def test_53_rpc_client_delete_session(box):
    asleep = mark()
    await box.sh("doomed", f"sleep {asleep} >/dev/null 2>&1 & true")
    await runs(asleep)
    await box.client.delete_session("doomed")
    assert await box.client.get_sessions() == []
    assert processes_with(asleep) == [], "what it left in the background ended with it"


async def test_54_rpc_client_delete_session_raises_not_found(box):
    with pytest.raises(BoxSessionNotFoundError, match="session nobody not found"):
        await box.client.delete_session("nobody")


async def test_55_rpc_client_create_session(box):
    info = await box.create("made", image=IMAGE)
    assert list(info) == INFO_KEYS
    assert (info["session_id"], info["backend_name"]) == ("made", BACKEND)
    assert (await box.create("made", image=IMAGE))["backend_session_id"] == info["backend_session_id"]


async def test_56_rpc_client_exec_raises_conflict_error(box):
    await box.sh("net", "true")
    with pytest.raises(BoxSessionConflictError, match="Box session net already exists with network=off"):
        await box.sh("net", "true", network="on")


async def test_74_exec_simple_command(box):
    result = await box.sh("int-simple", "echo hello-box", workdir="/tmp", image=IMAGE)
    assert (result.status.value, result.exit_code, result.stdout) == ("completed", 0, "hello-box")


async def test_75_session_persists_files(box):
    await box.sh("int-persist", "echo 'hello from file' > /tmp/f", workdir="/tmp")
    assert (await box.sh("int-persist", "cat /tmp/f", workdir="/tmp")).stdout == "hello from file"
    other = await box.sh("int-other", "cat /tmp/f", workdir="/tmp")
    assert other.exit_code != 0, "another session has another /tmp"


async def test_76_timeout_kills_command(box):
    asleep = mark()
    result = await box.sh("int-timeout", f"echo partial; sleep {asleep}", timeout_sec=3, workdir="/tmp")
    assert (result.status.value, result.exit_code) == ("timed_out", None)
    assert (result.stdout, result.stderr) == ("partial", "Command timed out after 3 seconds.")
    assert 3000 <= result.duration_ms < 5000
    assert await box.client.get_sessions() == [] and processes_with(asleep) == []


async def test_77_offline_cannot_reach_network(box):
    result = await box.sh("int-offline", "bash -c 'exec 3<>/dev/tcp/1.1.1.1/80'", workdir="/tmp")
    assert result.exit_code != 0 and "Network is unreachable" in result.stderr
    interfaces = await box.sh("int-offline", "tail -n +3 /proc/net/dev | cut -d: -f1", workdir="/tmp")
    assert interfaces.stdout.strip() == "lo"
    port = box.relay.rsplit(":", 1)[1]
    ours = await box.sh("int-offline", f"bash -c 'exec 3<>/dev/tcp/127.0.0.1/{port}'", workdir="/tmp")
    assert ours.exit_code != 0 and "refused" in ours.stderr, "the runtime's own port is not the box's"


async def test_78_backend_unavailable_returns_error(connect):
    box = await connect(env={"LANGBOT_BOX_CONFIG": '{"backend": "e2b"}'})
    for call in (box.sh("x", "true"), box.create("x")):
        with pytest.raises(BoxBackendUnavailableError, match="LangBot Box backend unavailable"):
            await call
    await box.client.init({"backend": "local"})
    assert (await box.sh("x", "echo back")).stdout == "back"


async def test_80_managed_process_start_and_query(box):
    await box.create("mcp-int-lifecycle", image=IMAGE, workdir="/tmp")
    loop = "while true; do sleep 1; done"
    started = await box.spawn("mcp-int-lifecycle", "sh", "-c", loop, cwd="/tmp")
    queried = await box.client.get_managed_process("mcp-int-lifecycle")
    for info in (started, queried):
        assert (info.status.value, info.command, info.args, info.cwd) == ("running", "sh", ["-c", loop], "/tmp")
        assert info.exit_code is None and info.exited_at is None and not info.attached
    assert (await box.client.get_status())["managed_processes"] == 1


async def test_81_ws_stdio_attach_echo(box):
    await box.create("mcp-int-ws")
    await box.spawn("mcp-int-ws", "cat", cwd="/tmp")
    async with box.attach("mcp-int-ws") as relay:
        for line in ("hello from test", "again", "你好"):
            await relay.send(line)
            assert await asyncio.wait_for(relay.recv(), 5) == line
        assert (await box.client.get_managed_process("mcp-int-ws")).attached


async def test_82_delete_session_cleans_up(box):
    asleep = mark()
    await box.create("mcp-int-cleanup")
    await box.spawn("mcp-int-cleanup", "sleep", asleep, cwd="/tmp")
    await box.client.delete_session("mcp-int-cleanup")
    with pytest.raises(BoxSessionNotFoundError, match="session mcp-int-cleanup not found"):
        await box.client.get_session("mcp-int-cleanup")
    with pytest.raises(BoxSessionNotFoundError):
        await box.client.get_managed_process("mcp-int-cleanup")
    assert processes_with(asleep) == []


async def test_83_get_session_returns_details(box):
    await box.create("mcp-int-get", image=IMAGE)
    info = await box.client.get_session("mcp-int-get")
    assert list(info) == INFO_KEYS and info["image"] == IMAGE
    await box.spawn("mcp-int-get", "sleep", mark(), cwd="/tmp")
    await box.spawn("mcp-int-get", "cat", process_id="second")
    info = await box.client.get_session("mcp-int-get")
    assert list(info) == INFO_KEYS + ["managed_processes", "managed_process"]
    assert info["managed_process"]["status"] == "running"
    assert sorted(info["managed_processes"]) == ["default", "second"]
    assert info["managed_processes"]["default"] == info["managed_process"]


async def test_84_process_exit_detected(box):
    await box.create("mcp-int-exit")
    await box.spawn("mcp-int-exit", "sh", "-c", "exit 0", cwd="/tmp")
    async with asyncio.timeout(2):
        info = await box.exited("mcp-int-exit")
    assert info.exit_code == 0 and info.exited_at is not None


async def test_85_orphan_cleanup_preserves_own_containers(connect):
    box = await connect()
    asleep = mark()
    await box.create("mine")
    await box.spawn("mine", "sleep", asleep)
    other = await connect("other")
    assert (await other.client.get_status())["active_sessions"] == 0
    assert (await box.client.get_status())["active_sessions"] == 1
    assert (await box.client.get_managed_process("mine")).status.value == "running"
    await runs(asleep)
    assert (await box.sh("mine", "echo alive")).stdout == "alive"


async def test_86_runtime_start_managed_process_tracks_status(box):
    await box.create("tracked")
    info = await box.spawn("tracked", "cat", "-u", "-", process_id="p1", env={"B": "1", "A": "secret"})
    assert (info.session_id, info.process_id, info.status.value) == ("tracked", "p1", "running")
    assert (info.command, info.args, info.env_keys) == ("cat", ["-u", "-"], ["A", "B"])
    assert (await box.client.get_managed_process("tracked", "p1")).started_at == info.started_at
    with pytest.raises(BoxManagedProcessNotFoundError, match="no managed process with process_id=default"):
        await box.client.get_managed_process("tracked")


async def test_87_runtime_does_not_reap_session_with_running_managed_process(connect):
    box = await connect(env={"SANDCRATE__RUNTIME__SESSION_TTL_SEC": "2"})
    assert (await box.client.get_status())["session_ttl_sec"] == 2
    await box.create("idle")
    await box.create("busy")
    await box.create("kept", persistent=True)
    await box.spawn("busy", "sleep", mark())
    await asyncio.sleep(4.5)
    names = [info["session_id"] for info in await box.client.get_sessions()]
    assert names == ["busy", "kept"], "the idle one went by itself, on a timer"
    await box.client.stop_managed_process("busy")
    await asyncio.sleep(4.5)
    assert [info["session_id"] for info in await box.client.get_sessions()] == ["kept"]
    await box.client.delete_session("kept")
