"""Clients of every dialect, one version at a time: what a LangBot of each release asks of a runtime.

Run once for each version of langbot-plugin that run.sh names; what a version does not have is not asked of it.
"""

import asyncio
import datetime
import hashlib
import importlib.metadata
import io
import json
import zipfile

import pytest
import websockets
from harness import PATIENCE, Connection, Stdio, WebSocketClientController, eventually
from langbot_plugin.box import errors
from langbot_plugin.box.models import BoxManagedProcessSpec, BoxSpec

VERSION = tuple(int(part) for part in importlib.metadata.version("langbot-plugin").split("."))
TENANTS = VERSION >= (0, 5)
SKILLS = VERSION < (0, 7, 13)
ARTIFACTS = VERSION >= (0, 7, 13)
TOKEN = "0123456789abcdef0123456789abcdef"
INSTANCE = "instance_0f3c2f"

tenants_only = pytest.mark.skipif(not TENANTS, reason="this version has no workspaces")


def context(workspace="w1", generation=1, instance=INSTANCE):
    """Whom a call is for, as keyword arguments of the client; nothing in the first dialect."""
    if not TENANTS:
        return {}
    from langbot_plugin.entities.io.context import ActionContext

    known = ActionContext(instance_uuid=instance, workspace_uuid=workspace, placement_generation=generation)
    return {"action_context": known}


def control_headers(instance=INSTANCE, token=None):
    headers = {"X-LangBot-Instance-Id": instance} if TENANTS else {}
    return headers | ({"X-LangBot-Box-Control-Token": token} if token else {})


class Host(Connection):
    def __init__(self, server, **identity):
        more = {"additional_headers": control_headers(**identity)} if TENANTS else {}
        super().__init__(WebSocketClientController(server.rpc_url, self.failed, **more), server.relay)
        self.token = identity.get("token")

    def relay_of(self, session, process, workspace="w1", generation=1, **changed):
        url = self.client.get_managed_process_websocket_url(
            session, self.relay, process, **context(workspace, generation)
        )
        headers = control_headers(token=self.token)
        if TENANTS:
            headers |= {"X-LangBot-Workspace-Id": workspace, "X-LangBot-Placement-Generation": str(generation)}
        return websockets.connect(
            url, proxy=None, additional_headers=headers | changed, subprotocols=["mcp"], open_timeout=PATIENCE
        )


@pytest.fixture
async def open_host(serve):
    opened = []

    async def open_one(name="server", env=None, server=None, **identity):
        server = server or serve(name, env=env)
        host = await Host(server, **identity).open()
        host.server = server
        opened.append(host)
        return host

    yield open_one
    for host in opened:
        await host.close()


@pytest.fixture
async def host(open_host):
    return await open_host()


async def everyday(host, tmp_path):
    """What every LangBot does: init, a session on a directory of its own, commands, a process and its lines."""
    client, who = host.client, context()
    root = tmp_path / "data"
    root.mkdir(exist_ok=True)
    await client.init({"enabled": True, "backend": "", "local": {"host_root": str(root)}})
    assert (await client.get_backend_info())["available"] is True
    mounted = root / "default" / "tenants" / "w1"
    spec = BoxSpec(session_id="s", cmd="echo hi; echo err >&2; pwd; exit 3", host_path=str(mounted))
    done = await client.execute(spec, **who)
    assert (done.session_id, done.exit_code, done.stdout, done.stderr) == ("s", 3, "hi\n/workspace", "err")
    large = spec.model_copy(update={"cmd": "head -c 1200000 /dev/zero | tr '\\0' '\\001'"})
    cut = await client.execute(large, **who)
    assert cut.stdout.endswith("[raw output clipped at 1048576 bytes, 151424 bytes discarded]")
    assert len(cut.stdout) > 1 << 20
    started = await client.start_managed_process(
        "s", BoxManagedProcessSpec(process_id="p", command="cat"), **who
    )
    assert (started.session_id, started.status.value) == ("s", "running")
    [session] = await client.get_sessions(**who)
    assert session["session_id"] == "s"
    if TENANTS:
        assert session["status"] == "idle"
        status = await client.get_status(**who)
        assert (status["active_sessions"], status["managed_processes"]) == (1, 1)
        assert status["capacity"]["used"] == 1
    return client, who


async def finish(client, who):
    await client.stop_managed_process("s", "p", **who)
    with pytest.raises(errors.BoxManagedProcessNotFoundError, match="session s has no"):
        await client.get_managed_process("s", "p", **who)
    await client.delete_session("s", **who)
    with pytest.raises(errors.BoxSessionNotFoundError, match="session s not found"):
        await client.delete_session("s", **who)


async def test_everyday(host, tmp_path):
    client, who = await everyday(host, tmp_path)
    async with host.relay_of("s", "p") as relay:
        assert relay.subprotocol == "mcp"
        message = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"pad": "é" * 40_000}})
        for _ in range(3):
            await relay.send(message)
        for _ in range(3):
            assert await asyncio.wait_for(relay.recv(), PATIENCE) == message, "a line is a message"
    await finish(client, who)


@pytest.mark.skipif(VERSION < (0, 7), reason="over stdio the newest and 0.4.2 are tried")
async def test_everyday_over_stdio(tmp_path):
    known = {"LANGBOT_BOX_TRUSTED_INSTANCE_UUID": INSTANCE, "LANGBOT_BOX_CONTROL_TOKEN": TOKEN}
    child = await Stdio(tmp_path / "stdio", env=known).open()
    try:
        client, who = await everyday(child, tmp_path)
        await finish(client, who)
    finally:
        await child.close()


@tenants_only
async def test_workspaces_are_apart_and_generations_follow(host):
    client = host.client
    await client.execute(BoxSpec(session_id="s", cmd="echo one > /tmp/mine"), **context("w1"))
    assert await client.get_sessions(**context("w2")) == []
    other = await client.execute(BoxSpec(session_id="s", cmd="cat /tmp/mine"), **context("w2"))
    assert other.exit_code != 0, "the same name is another box"
    await client.start_managed_process(
        "s", BoxManagedProcessSpec(process_id="p", command="cat"), **context("w1")
    )
    waiting = asyncio.create_task(
        client.execute(BoxSpec(session_id="s", cmd="sleep 200", timeout_sec=250), **context("w1"))
    )
    async with host.relay_of("s", "p") as relay:
        await relay.send("x")
        assert await asyncio.wait_for(relay.recv(), PATIENCE) == "x"
        assert await client.get_sessions(**context("w1", 2)) == []
        with pytest.raises(errors.BoxError, match="Stale Box placement generation"):
            await asyncio.wait_for(waiting, PATIENCE)
        with pytest.raises(websockets.ConnectionClosedOK):
            await asyncio.wait_for(relay.recv(), PATIENCE)
    with pytest.raises(errors.BoxError, match="Stale Box placement generation"):
        await client.get_sessions(**context("w1", 1))
    assert len(await client.get_sessions(**context("w2"))) == 1


@tenants_only
async def test_whoever_does_not_belong_here_is_refused(open_host, serve):
    server = serve("secret", env={"LANGBOT_BOX_CONTROL_TOKEN": TOKEN})
    host = await open_host(server=server, token=TOKEN)
    for headers in [
        {},
        control_headers(),
        control_headers(token=TOKEN[::-1]),
        control_headers("another", TOKEN),
        {"X-LangBot-Box-Control-Token": TOKEN, "X-LangBot-Instance-Id": " "},
    ]:
        with pytest.raises(websockets.InvalidStatus) as refused:
            async with websockets.connect(server.rpc_url, proxy=None, additional_headers=headers):
                pass
        assert refused.value.response.status_code == 401, headers
    client = host.client
    with pytest.raises(errors.BoxError, match="does not match the trusted instance"):
        await client.get_sessions(**context(instance="another"))
    with pytest.raises(errors.BoxError, match="requires a trusted Workspace context"):
        await client.get_sessions()
    await client.create_session(BoxSpec(session_id="s"), **context())
    await client.start_managed_process(
        "s", BoxManagedProcessSpec(process_id="p", command="cat"), **context()
    )
    for changed in [
        {"X-LangBot-Placement-Generation": "2"},
        {"X-LangBot-Placement-Generation": "01"},
        {"X-LangBot-Workspace-Id": "w2"},
        {"X-LangBot-Instance-Id": "another"},
        {"X-LangBot-Box-Control-Token": TOKEN[::-1]},
    ]:
        with pytest.raises(websockets.InvalidStatus) as refused:
            async with host.relay_of("s", "p", **changed):
                pass
        assert refused.value.response.status_code == 401, changed


@pytest.mark.skipif(VERSION < (0, 4, 12), reason="this version bounds no single process")
async def test_memory_of_one_process(host):
    client, who = host.client, context()
    await client.create_session(BoxSpec(session_id="s", memory_mb=256), **who)
    eat = "head -c 120000000 /dev/zero | tail | wc -c >&2"

    async def ended(process_id, **fields):
        spec = BoxManagedProcessSpec(process_id=process_id, command="sh", args=["-c", eat], **fields)
        await client.start_managed_process("s", spec, **who)
        return await eventually(
            f"process {process_id} to exit",
            lambda: client.get_managed_process("s", process_id, **who),
            lambda info: info.status.value == "exited",
        )

    assert (await ended("plain")).stderr_preview.endswith("120000000"), "the session's bound alone"
    bounded = await ended("bounded", memory_mb=48)
    assert "120000000" not in bounded.stderr_preview, bounded
    alive = await client.execute(BoxSpec(session_id="s", cmd=eat, memory_mb=256), **who)
    assert alive.stderr == "120000000", "and its neighbours are not bounded by it"
    with pytest.raises(errors.BoxValidationError, match="memory_mb"):
        await ended("negative", memory_mb=-1)


@tenants_only
async def test_limits_of_the_host(host):
    client = host.client
    await client.init({"limits": {"max_sessions": 1}})
    await client.create_session(BoxSpec(session_id="a"), **context("w1"))
    with pytest.raises(errors.BoxCapacityExceededError, match=r"capacity reached \(1\)"):
        await client.create_session(BoxSpec(session_id="b"), **context("w2"))


CHECKS = [
    "configuration", "required_backend", "workspace_mount", "backend_available", "cgroup_v2", "namespace_isolation",
    "mount_isolation", "network_isolation", "hard_workspace_quota", "hard_read_only_mount_quota",
    "bounded_ephemeral_storage", "inode_quota", "session_cap", "managed_process_cap",
]


def grant(revision, generation=1, seconds=200):
    from langbot_plugin.box.models import SandboxAdmissionGrant

    expires_at = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=seconds)
    return SandboxAdmissionGrant(
        instance_uuid=INSTANCE, workspace_uuid="w1", execution_generation=generation,
        entitlement_revision=revision, expires_at=expires_at, max_sessions=1, max_managed_processes=0,
    )


@tenants_only
@pytest.mark.parametrize("reported", [None, "nsjail"])
async def test_grants(open_host, tmp_path, reported):
    """Sessions are had where the machine holds what is promised, and refused with the name of the check elsewhere."""
    from langbot_plugin.box.models import SandboxAdmissionRevocation

    env = {"SANDCRATE__RUNTIME__BACKEND": "native"}
    host = await open_host(env=env | ({"SANDCRATE__LANGBOT__REPORT_BACKEND_AS": reported} if reported else {}))
    client, who = host.client, context()
    policy = {"required": True, "workspace_quota_mb": 16}
    await client.init({"local": {"host_root": str(tmp_path / "data")}, "admission": policy})
    info = await client.get_backend_info()
    readiness = info["readiness"]
    assert list(readiness["checks"]) == CHECKS
    failed = [name for name, holds in readiness["checks"].items() if not holds]
    assert info["name"] == (reported or "native")
    assert (info["available"], readiness["ready"]) == ((not failed),) * 2
    if reported:
        assert sorted(readiness["backend"]["details"]) == sorted(failed), "each says why"
        assert not {"namespace_isolation", "mount_isolation", "network_isolation"} & set(failed), readiness
    else:
        assert "required_backend" in failed and "report_backend_as" in readiness["error"]
    receipt = await client.upsert_sandbox_admission_grant(grant(1))
    assert (receipt["installed"], receipt["workspace_uuid"]) == (True, "w1")
    spec = BoxSpec(session_id="global", cmd="echo hi", memory_mb=4096)
    if failed:
        with pytest.raises(errors.BoxReadinessError, match=f"failed checks: {', '.join(failed)}"):
            await client.execute(spec, **who)
    else:
        done = await client.execute(spec, **who)
        assert (done.session_id, done.backend_name, done.stdout) == ("global", "nsjail", "hi")
        [session] = await client.get_sessions(**who)
        assert session["memory_mb"] == 512, "the policy's"
        with pytest.raises(errors.BoxAdmissionError, match="does not permit managed processes"):
            await client.start_managed_process("global", BoxManagedProcessSpec(command="cat"), **who)
    with pytest.raises(errors.BoxAdmissionError, match="lifetime exceeds the configured maximum"):
        await client.upsert_sandbox_admission_grant(grant(2, seconds=400))
    revocation = SandboxAdmissionRevocation(instance_uuid=INSTANCE, workspace_uuid="w1", entitlement_revision=3)
    assert (await client.revoke_sandbox_admission_grant(revocation))["revoked"] is True
    with pytest.raises(errors.BoxAdmissionError, match="revision was revoked"):
        await client.upsert_sandbox_admission_grant(grant(3))
    if not failed:
        with pytest.raises(errors.BoxAdmissionError, match="grant is missing"):
            await client.execute(spec, **who)


@pytest.mark.skipif(not SKILLS, reason="this version keeps skills in the host")
async def test_skills(host, tmp_path):
    client, who = host.client, context()
    root = tmp_path / "data"
    await client.init({"local": {"host_root": str(root)}})
    made = await client.create_skill({"name": "mine", "description": "d", "instructions": "do"}, **who)
    assert made["name"] == "mine"
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("two/SKILL.md", "---\nname: two\ndescription: from a zip\n---\n\nbody\n")
        archive.writestr("two/run.sh", "echo ran\n")
    installed = await client.install_skill_zip(packed.getvalue(), "two.zip", **who)
    assert [skill["name"] for skill in installed] == ["two"]
    listed = {skill["name"]: skill["package_root"] for skill in await client.list_skills(**who)}
    assert sorted(listed) == ["mine", "two"]
    mount = {"host_path": listed["two"], "mount_path": "/workspace/.skills/two", "mode": "ro"}
    spec = BoxSpec(session_id="s", cmd="sh /workspace/.skills/two/run.sh", extra_mounts=[mount])
    assert (await client.execute(spec, **who)).stdout == "ran"
    if TENANTS:
        assert await client.list_skills(**context("w2")) == []
        assert "/tenants/ws-" in listed["mine"]


@pytest.mark.skipif(not ARTIFACTS, reason="this version has no mounts named by their content")
async def test_artifacts_join_a_live_session(host, tmp_path):
    client, who = host.client, context()
    root = tmp_path / "data"
    tree = root / "skill"
    (tree / "bin").mkdir(parents=True)
    (tree / "SKILL.md").write_text("# hi é\n")
    (tree / "bin/run.sh").write_text("#!/bin/sh\necho ran\n")
    await client.init({"local": {"host_root": str(root)}})
    files = [
        {"path": path, "size": len(data), "sha256": hashlib.sha256(data).hexdigest(), "executable": path != "SKILL.md"}
        for path in ("SKILL.md", "bin/run.sh")
        for data in [(tree / path).read_bytes()]
    ]
    manifest = {"algorithm": "sha256-tree-v1", "files": files, "total_bytes": sum(file["size"] for file in files)}
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    digest = hashlib.sha256(text.encode()).hexdigest()
    (root / "skill.json").write_text(json.dumps(manifest))

    def spec(cmd, digest=None):
        mounts = [] if digest is None else [{
            "host_path": str(tree), "mount_path": f"/opt/langbot-artifacts/{digest}", "mode": "ro",
            "content_digest": f"sha256:{digest}", "manifest_path": str(root / "skill.json"),
        }]
        return BoxSpec(session_id="s", cmd=cmd, extra_mounts=mounts)

    await client.execute(spec("echo kept > /tmp/kept"), **who)
    use = f"cd /opt/langbot-artifacts/{digest} && cat SKILL.md && ./bin/run.sh && cat /tmp/kept && ! touch x"
    used = await client.execute(spec(use, digest), **who)
    assert (used.exit_code, used.stdout) == (0, "# hi é\nran\nkept"), used
    (tree / "SKILL.md").write_text("changed")
    assert (await client.execute(spec(f"cat /opt/langbot-artifacts/{digest}/SKILL.md"), **who)).stdout == "# hi é"
    with pytest.raises(errors.BoxError, match="does not match content_digest"):
        await client.execute(spec("true", "0" * 64), **who)
    analysis = await client.get_storage_analysis(**who)
    assert analysis["active_sessions"] == 1
    assert {entry["key"] for entry in analysis["directories"]} >= {"workspace", "session_temp"}
    [temp] = [entry for entry in analysis["directories"] if entry["key"] == "session_temp"]
    assert (temp["exists"], temp["size_bytes"], temp["file_count"]) == (True, 5, 1)
