"""Workspaces that are held to grants, on a machine that can hold them: `admission.py SANDCRATE`, as root.

Speaks to `sandcrate box -s` as LangBot does, one line of JSON for each message.
"""

import datetime
import json
import os
import pathlib
import shutil
import subprocess
import sys
import urllib.error
import urllib.request

INSTANCE = "instance_vm"
PORT = 5999
QUOTA_MB = 8
# The box's shell expands them. How much of 16 MiB and of 4000 files the workspace takes.
FILL_BYTES = "head -c 16M /dev/zero >f; stat -c %s f; rm f"
FILL_FILES = "i=0; while [ $i -lt 4000 ] && true >$i; do i=$((i+1)); done; echo $i; rm -f *"


class Host:
    def __init__(self, root, reported="nsjail"):
        self.root = pathlib.Path(root)
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir(parents=True)
        told = {"SANDCRATE__LANGBOT__REPORT_BACKEND_AS": reported} if reported else {}
        env = os.environ | told | {"LANGBOT_BOX_TRUSTED_INSTANCE_UUID": INSTANCE}
        command = [sys.argv[1], "box", "-s", "--host", "127.0.0.1", "--ws-control-port", str(PORT)]
        self.child = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.init(required=True, workspace_quota_mb=QUOTA_MB)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.child.stdin.close()
        try:
            assert self.child.wait(60) == 0, "it did not end well"
        finally:
            self.child.kill()
            shutil.rmtree(self.root, ignore_errors=True)

    def call(self, action, data=None, generation=None):
        request = {"seq_id": 1, "action": action, "data": data or {}}
        if generation:
            who = {"instance_uuid": INSTANCE, "workspace_uuid": "w", "placement_generation": generation}
            request["context"] = who
        self.child.stdin.write(json.dumps(request) + "\n")
        self.child.stdin.flush()
        return json.loads(self.child.stdout.readline())

    def ok(self, *args):
        reply = self.call(*args)
        assert reply["code"] == 0, (args, reply)
        return reply["data"]

    def refused(self, text, *args):
        reply = self.call(*args)
        assert reply["code"] == 1 and text in reply["message"], (args, reply)

    def init(self, **admission):
        self.ok("box_init", {"local": {"host_root": str(self.root)}, "admission": admission})

    def sh(self, cmd):
        done = self.ok("box_exec", {"session_id": "global", "cmd": cmd, "timeout_sec": 100}, 1)
        assert done["status"] == "completed", done
        return done

    def failed(self):
        readiness = self.ok("box_get_backend_info")["readiness"]
        assert len(readiness["checks"]) == 14, readiness
        failed = [name for name, holds in readiness["checks"].items() if not holds]
        print(self.root, "failed:", failed, readiness["backend"]["details"])
        assert readiness["ready"] is (not failed)
        return failed


def readyz():
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/readyz") as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def grant(revision):
    until = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=250)
    return {
        "instance_uuid": INSTANCE, "workspace_uuid": "w", "execution_generation": 1,
        "entitlement_revision": revision, "expires_at": until.isoformat(), "max_sessions": 1,
        "max_managed_processes": 0,
    }


def ready():
    with Host("/srv/langbot") as host:
        assert host.failed() == [], "this machine has all that it takes"
        assert readyz() == 200
        info = host.ok("box_get_backend_info")
        assert (info["name"], info["available"]) == ("nsjail", True), info
        host.refused("BoxAdmissionError: Sandbox admission grant is missing", "box_get_sessions", {}, 1)
        host.ok("box_upsert_sandbox_admission_grant", grant(1))
        took = host.sh(FILL_BYTES)
        assert QUOTA_MB << 19 < int(took["stdout"]) <= QUOTA_MB << 20, took
        assert "Disk quota exceeded" in took["stderr"], took
        took = host.sh(FILL_FILES)
        assert QUOTA_MB * 200 < int(took["stdout"]) <= QUOTA_MB * 256, took
        # What was there before counts as well: nothing grows outside the project.
        [workspace] = (host.root / "default/tenants").iterdir()
        host.sh("echo kept >mine")
        host.ok("box_revoke_sandbox_admission_grant", {
            "instance_uuid": INSTANCE, "workspace_uuid": "w", "entitlement_revision": 1,
        })
        host.refused("Sandbox admission grant is missing", "box_exec", {"session_id": "global", "cmd": "true"}, 1)
        assert (workspace / "mine").read_text() == "kept\n", "files outlive the right to a session"
        (workspace / "old").mkdir()
        (workspace / "old/file").write_text("x")
        host.ok("box_upsert_sandbox_admission_grant", grant(2))
        took = host.sh("cd old; cat ../mine; head -c 16M /dev/zero >>file; stat -c %s file; rm file")
        kept, size = took["stdout"].split()
        assert kept == "kept" and QUOTA_MB << 19 < int(size) <= QUOTA_MB << 20, took
        host.init(required=True)
        assert host.failed() == ["hard_workspace_quota", "inode_quota"], "no quota is asked for"
    assert not pathlib.Path("/srv/langbot").exists()


def not_ready():
    with Host("/tmp/langbot") as host:
        # No project quotas; on this kernel, no id-mapped mounts of it either, so that there is no box at all.
        assert {"hard_workspace_quota", "inode_quota"} <= set(host.failed()), "a tmpfs has no project quotas"
        assert readyz() == 503
        host.ok("box_upsert_sandbox_admission_grant", grant(1))
        host.refused("Managed sandbox isolation is not ready (failed checks: ", "box_get_sessions", {}, 1)
    with Host("/srv/langbot", reported=None) as host:
        assert "required_backend" in host.failed()
        assert readyz() == 503


ready()
not_ready()
print("grants hold")
