"""The life of sessions where the reference goes wrong: its defects L1 to L11, S14."""

import asyncio
import os
import signal

import pytest
from harness import BACKEND, MIB, PATIENCE, eventually, gone, mark, processes_with, runs
from langbot_plugin.box.errors import BoxError, BoxSessionNotFoundError, BoxValidationError

SHIPPED = {
    "enabled": True,
    "backend": "local",
    "local": {
        "profile": "default", "image": "", "host_root": "./data/box", "default_workspace": "",
        "skills_root": "skills", "allowed_mount_roots": ["./data/box", "/tmp"], "workspace_quota_mb": None,
    },
    "e2b": {"api_key": "", "api_url": "", "template": ""},
}


def mounts_below(directory) -> list[str]:
    with open("/proc/self/mountinfo", encoding="utf-8") as table:
        return [line for line in table if f" {directory}" in line]


async def test_l1_a_command_behind_a_timeout_runs_in_a_new_box(box):
    late = asyncio.create_task(box.sh("queue", "touch /tmp/old; sleep 30", timeout_sec=1))
    await asyncio.sleep(0.3)
    queued = await box.sh("queue", "ls /tmp/old; echo queued")
    assert (await late).status.value == "timed_out"
    assert (queued.status.value, queued.exit_code, queued.stdout) == ("completed", 0, "queued")
    assert "No such file" in queued.stderr


async def test_l2_a_command_whose_session_is_deleted_says_so(box):
    asleep = mark()
    running = asyncio.create_task(box.sh("cut", f"echo begin; sleep {asleep}; echo end"))
    await runs(asleep)
    await box.client.delete_session("cut")
    with pytest.raises(BoxSessionNotFoundError, match="session cut ended while the command ran"):
        await asyncio.wait_for(running, PATIENCE)
    assert processes_with(asleep) == [] and await box.client.get_sessions() == []


async def test_l2_the_reaper_spares_a_session_that_executes(connect):
    box = await connect(env={"SANDCRATE__RUNTIME__SESSION_TTL_SEC": "1"})
    result = await box.sh("busy", "sleep 4; echo whole")
    assert (result.status.value, result.exit_code, result.stdout) == ("completed", 0, "whole")
    await eventually("the idle session to go", box.client.get_sessions, lambda found: found == [])


async def test_l7_a_persistent_session_survives_a_killed_server(connect, tmp_path):
    box = await connect()
    written = "echo precious > /workspace/f; echo home > ~/g; echo lost > /tmp/h"
    assert (await box.sh("durable", written, persistent=True)).exit_code == 0
    assert (await box.sh("fleeting", written)).exit_code == 0
    asleep = mark()
    await box.spawn("durable", "sleep", asleep)
    os.kill(box.pid, signal.SIGKILL)
    await gone(asleep)
    if hasattr(box, "server"):
        box.server.process.wait(PATIENCE)
        box.server.start()
        again = type(box)(box.server)
    else:
        await box.process.wait()
        again = type(box)(tmp_path / "server")
    await again.open()
    try:
        back = await again.sh("durable", "cat /workspace/f ~/g; ls /tmp/h", persistent=True)
        assert (back.stdout, back.exit_code) == ("precious\nhome", 2)
        fresh = await again.sh("fleeting", "ls /workspace")
        assert (fresh.stdout, fresh.exit_code) == ("", 0), "the other left nothing"
        await again.client.delete_session("durable")
        empty = await again.sh("durable", "ls /workspace", persistent=True)
        assert (empty.stdout, empty.exit_code) == ("", 0), "deleted is deleted"
        await again.client.delete_session("durable")
    finally:
        await again.close()


async def test_l10_sigterm_leaves_nothing(connect, tmp_path):
    box = await connect()
    in_command, in_process, behind = mark(), mark(), mark()
    await box.sh("term", f"sleep {behind} >/dev/null 2>&1 & true")
    await box.spawn("term", "sh", "-c", f"trap '' TERM; sleep {in_process}")
    running = asyncio.create_task(box.sh("term", f"sleep {in_command}", timeout_sec=120))
    running.add_done_callback(lambda task: task.cancelled() or task.exception())
    marks = [in_command, in_process, behind]
    await eventually("all to run", lambda: asyncio.sleep(0, all(map(processes_with, marks))), bool)
    os.kill(box.pid, signal.SIGTERM)
    if hasattr(box, "server"):
        code = await asyncio.to_thread(box.server.process.wait, PATIENCE)
    else:
        code = await asyncio.wait_for(box.process.wait(), PATIENCE)
    assert code == 0
    assert [processes_with(text) for text in marks] == [[], [], []], "nothing runs once it has ended"
    assert mounts_below(tmp_path) == []
    running.cancel()


async def test_l11_init_is_idempotent_and_tolerant(box):
    await box.client.init(SHIPPED)
    await box.sh("alive", "echo kept > /tmp/f")
    await box.client.init(SHIPPED)
    await box.client.init({})
    await box.client.init(SHIPPED | {"unknown": {"deep": [1]}, "e2b": None})
    await box.client.init({"backend": None, "local": {"host_root": None, "allowed_mount_roots": None, "image": None}})
    await box.client.init({"local": {"allowed_mount_roots": "/tmp/a, /tmp/b"}})
    assert (await box.sh("alive", "cat /tmp/f")).stdout == "kept"
    assert await box.client.get_backend_info() == {"name": BACKEND, "available": True}


async def test_init_never_opens_what_must_stay_closed(box):
    """S2, S3: neither a root nor an extra mount reaches the system's own directories."""
    await box.client.init({"local": {"allowed_mount_roots": ["/"]}})
    for path in ("/", "/etc", "/root/x/../y", "/var/run/docker.sock", "/proc", "/usr", "/var"):
        with pytest.raises(BoxValidationError):
            await box.sh("closed", "true", host_path=path)
    with pytest.raises(BoxValidationError):
        extra = {"host_path": "/etc", "mount_path": "/data", "mode": "ro"}
        await box.sh("closed", "cat /data/shadow", workdir="/tmp", extra_mounts=[extra])


async def test_mounts_work_as_asked_for(box, tmp_path):
    shared, extra = tmp_path / "shared", tmp_path / "extra"
    shared.mkdir()
    extra.mkdir()
    (extra / "seen").write_text("yes\n")
    await box.client.init({"local": {"allowed_mount_roots": [str(tmp_path)]}})
    result = await box.sh("rw", "echo new > f; pwd", host_path=str(shared))
    assert (result.exit_code, result.stdout, (shared / "f").read_text()) == (0, "/workspace", "new\n")
    owner = (shared / "f").stat()
    assert (owner.st_uid, owner.st_gid) == (shared.stat().st_uid, shared.stat().st_gid)
    result = await box.sh("ro", "cat f; echo no > f", host_path=str(shared), host_path_mode="ro")
    # At an E2B endpoint a directory is a copy.
    refusal = "Permission denied" if BACKEND == "e2b" else "Read-only file system"
    assert result.exit_code != 0 and result.stdout == "new" and refusal in result.stderr
    result = await box.sh("none", "ls -A", host_path=str(shared), host_path_mode="none")
    assert (result.exit_code, result.stdout) == (0, "")
    mount = {"host_path": str(extra), "mount_path": "/data", "mode": "ro"}
    result = await box.sh("extra", "cat /data/seen; touch /data/n", workdir="/tmp", extra_mounts=[mount])
    assert result.stdout == "yes" and refusal in result.stderr and result.exit_code != 0


async def test_s14_a_workspace_quota_is_enforced(box):
    result = await box.sh("quota", "head -c 20971520 /dev/zero > big; echo rc=$?; wc -c < big", workspace_quota_mb=5)
    code, size = result.stdout.split("\n")
    assert code != "rc=0" and int(size) <= 5 * MIB, result
    after = await box.sh("quota", "rm -f big; echo small > f; cat f", workspace_quota_mb=5)
    assert (after.stdout, after.exit_code) == ("small", 0)


async def test_s14_a_quota_on_a_shared_directory_ends_what_exceeds_it(box, tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    await box.client.init({"local": {"allowed_mount_roots": [str(tmp_path)]}})
    slowly = "for i in $(seq 100); do head -c 1048576 /dev/zero >> big || exit 9; sleep 0.05; done; echo all"
    try:
        result = await box.sh("soft", slowly, host_path=str(shared), workspace_quota_mb=5)
        assert result.exit_code != 0 and "all" not in result.stdout, result
    except BoxError as error:
        assert "quota" in str(error), error
    assert (shared / "big").stat().st_size < 60 * MIB


async def test_shutdown_ends_sessions_and_the_server_goes_on(box):
    await box.create("plain")
    await box.create("kept", persistent=True)
    handler = box.handler
    await box.client.shutdown()
    box.client.set_handler(handler)
    assert [info["session_id"] for info in await box.client.get_sessions()] == ["kept"]
    assert (await box.sh("plain", "echo again")).stdout == "again"
    await box.client.delete_session("kept")


async def test_ids_are_any_text(box):
    for name in ("Weird/Session:ID 漢 with spaces", "../../../etc", "a" * 256, ".", "-rf"):
        assert (await box.sh(name, "echo in")).stdout == "in", name
        assert (await box.client.get_session(name))["session_id"] == name
        await box.client.delete_session(name)
    assert await box.client.get_sessions() == []
