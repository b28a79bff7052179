"""What becomes of a sandbox, by the Python SDK's blocking client: made, found, paused, given time, ended."""

import datetime
import subprocess
import sys
import uuid

import httpx
import pytest
from e2b import (
    AuthenticationException,
    Sandbox,
    SandboxException,
    SandboxNotFoundException,
    SandboxNotRunningException,
    SandboxQuery,
    SandboxState,
    Secret,
    Template,
    Volume,
)

from harness import PATIENCE, until


@pytest.fixture
def made(server):
    """Makes sandboxes that end with the test."""
    all = []

    def make(*arguments, **options):
        all.append(Sandbox.create(*arguments, **options))
        return all[-1]

    yield make
    for sandbox in all:
        sandbox.kill()


def test_what_a_sandbox_was_made_with(made):
    sandbox = made(metadata={"purpose": "a test", "ü": "&="}, envs={"A": "1"}, timeout=120)
    assert sandbox.is_running()
    info = sandbox.get_info()
    assert info.sandbox_id == sandbox.sandbox_id and info.state == SandboxState.RUNNING
    assert info.metadata == {"purpose": "a test", "ü": "&="}
    given = info.end_at - info.started_at
    assert datetime.timedelta(seconds=120) <= given < datetime.timedelta(seconds=125)
    assert info.cpu_count >= 1 and info.memory_mb >= 1 and info.envd_version
    assert info.template_id and info.name in (None, "base")


def test_sandboxes_share_nothing(made):
    one, other = made(), made()
    one.files.write("/tmp/mine", "x")
    assert not other.files.exists("/tmp/mine")
    handle = one.commands.run("sleep 773", background=True)
    assert handle.pid not in [info.pid for info in other.commands.list()] or "773" not in str(other.commands.list())
    assert not other.commands.run("ps -e -o args | grep '[s]leep 773' || true").stdout


def test_one_context_is_one_sandbox(server):
    with Sandbox.create() as sandbox:
        assert sandbox.commands.run("echo in").stdout == "in\n"
    assert not sandbox.is_running()


def test_a_killed_sandbox_is_gone(made):
    sandbox = made()
    assert sandbox.kill()
    assert not sandbox.kill() and not Sandbox.kill(sandbox.sandbox_id)
    assert not sandbox.is_running()
    with pytest.raises(SandboxNotRunningException):
        sandbox.commands.run("true")
    with pytest.raises(SandboxNotRunningException):
        sandbox.files.read("/etc/hostname")
    with pytest.raises(SandboxNotFoundException):
        sandbox.get_info()
    with pytest.raises(SandboxNotFoundException):
        sandbox.set_timeout(10)
    with pytest.raises(SandboxNotFoundException):
        Sandbox.connect(sandbox.sandbox_id)


def test_a_command_learns_that_its_sandbox_was_killed(made):
    sandbox = made()
    handle = sandbox.commands.run("sleep 774", background=True)
    sandbox.kill()
    with pytest.raises(SandboxException):
        handle.wait()


def test_a_sandbox_ends_when_its_time_is_over(made):
    sandbox = made(timeout=300)
    sandbox.set_timeout(600)
    left = sandbox.get_info().end_at - datetime.datetime.now(datetime.timezone.utc)
    assert datetime.timedelta(seconds=590) < left <= datetime.timedelta(seconds=600)
    sandbox.set_timeout(1)
    until("the sandbox to end", lambda: not sandbox.is_running())
    with pytest.raises(SandboxNotFoundException):
        sandbox.get_info()


def test_connecting_gives_more_time_never_less(made):
    sandbox = made(timeout=100)
    first = sandbox.get_info().end_at
    Sandbox.connect(sandbox.sandbox_id, timeout=5)
    assert sandbox.get_info().end_at == first
    Sandbox.connect(sandbox.sandbox_id, timeout=500)
    assert sandbox.get_info().end_at > first


def test_another_process_connects(made):
    sandbox = made(envs={"A": "kept"})
    sandbox.files.write("note", "from the first")
    script = (
        "import sys; from e2b import Sandbox; s = Sandbox.connect(sys.argv[1]);"
        "print(s.files.read('note'), s.commands.run('echo $A').stdout, end='')"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script, sandbox.sandbox_id], capture_output=True, text=True, timeout=PATIENCE
    )
    assert (ended.stdout, ended.returncode) == ("from the first kept\n", 0), ended.stderr


def test_lists_have_pages_and_filters(made):
    mark = uuid.uuid4().hex
    ids = [made(metadata={"mark": mark, "n": str(n)}).sandbox_id for n in range(3)]
    query = SandboxQuery(metadata={"mark": mark})
    pages, listed = [], Sandbox.list(query=query, limit=2, order="asc")
    while listed.has_next:
        pages.append([info.sandbox_id for info in listed.next_items()])
    assert pages == [ids[:2], ids[2:]]
    newest = Sandbox.list(query=query, order="desc").next_items()
    assert [info.sandbox_id for info in newest] == ids[::-1]
    assert newest[0].metadata == {"mark": mark, "n": "2"}
    only = Sandbox.list(query=SandboxQuery(metadata={"mark": mark, "n": "1"})).next_items()
    assert [info.sandbox_id for info in only] == [ids[1]]
    assert not Sandbox.list(query=SandboxQuery(metadata={"mark": mark}, state=[SandboxState.PAUSED])).next_items()
    later = SandboxQuery(metadata={"mark": mark}, started_after=newest[0].started_at)
    assert ids[2] in [info.sandbox_id for info in Sandbox.list(query=later).next_items()]


def test_a_paused_sandbox_keeps_its_files(made):
    mark = uuid.uuid4().hex
    sandbox = made(metadata={"mark": mark}, envs={"A": "kept"})
    sandbox.files.write("note", "before")
    assert sandbox.pause()
    assert sandbox.get_info().state == SandboxState.PAUSED
    assert not sandbox.is_running()
    assert not sandbox.pause()
    paused = Sandbox.list(query=SandboxQuery(metadata={"mark": mark}, state=[SandboxState.PAUSED])).next_items()
    assert [info.sandbox_id for info in paused] == [sandbox.sandbox_id]
    again = Sandbox.connect(sandbox.sandbox_id)
    assert again.sandbox_id == sandbox.sandbox_id and again.is_running()
    assert again.files.read("note") == "before"
    assert again.commands.run("echo $A").stdout == "kept\n"
    assert again.get_info().state == SandboxState.RUNNING


def test_a_paused_sandbox_is_killed(made):
    sandbox = made()
    sandbox.pause()
    assert sandbox.kill()
    with pytest.raises(SandboxNotFoundException):
        Sandbox.connect(sandbox.sandbox_id)


def test_a_sandbox_that_is_paused_instead_of_ended(made):
    sandbox = made(timeout=60, lifecycle={"on_timeout": "pause"})
    sandbox.files.write("note", "kept")
    sandbox.set_timeout(1)
    until("the sandbox to be paused", lambda: sandbox.get_info().state == SandboxState.PAUSED)
    assert Sandbox.connect(sandbox.sandbox_id).files.read("note") == "kept"


def test_metrics(made):
    sandbox = made()
    sandbox.commands.run("true")
    metric = until("a measurement", sandbox.get_metrics)[-1]
    assert metric.cpu_count >= 1 and metric.mem_total > metric.mem_used >= 0
    assert metric.disk_total >= metric.disk_used >= 0 and metric.cpu_used_pct >= 0
    age = datetime.datetime.now(datetime.timezone.utc) - metric.timestamp
    assert abs(age) < datetime.timedelta(seconds=60)
    before = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(hours=1)
    assert sandbox.get_metrics(start=before)
    assert sandbox.get_metrics(start=before, end=before + datetime.timedelta(minutes=1)) == []


def test_an_unknown_template(server):
    with pytest.raises(SandboxException) as raised:
        Sandbox.create("no-such-template")
    assert raised.value.status_code == 404 and "no-such-template" in str(raised.value)


def test_a_wrong_key(server):
    for call in [
        lambda: Sandbox.create(api_key="e2b_wrong"),
        lambda: Sandbox.list(api_key="e2b_wrong").next_items(),
        lambda: Sandbox.kill("anything", api_key="e2b_wrong"),
    ]:
        with pytest.raises(AuthenticationException):
            call()


def test_a_sandbox_asks_for_its_own_token(made, server):
    one, other = made(), made()
    one.files.write("/tmp/secret", "secret")
    for headers in [{}, {"X-Access-Token": "wrong"}, {"X-Access-Token": other._envd_access_token}]:
        answer = httpx.get(
            f"{server.url}/files",
            params={"path": "/tmp/secret"},
            headers={"E2b-Sandbox-Id": one.sandbox_id, "E2b-Sandbox-Port": "49983", **headers},
        )
        assert answer.status_code == 401 and "secret" not in answer.text, headers


def test_a_port_of_the_sandbox_by_its_host_name(made, server):
    sandbox = made()
    sandbox.files.write("site/index.html", "served in the box")
    sandbox.commands.run("python3 -m http.server 8123 --directory site", background=True)
    host = sandbox.get_host(8123)
    assert host.startswith(f"8123-{sandbox.sandbox_id}.")
    tokens = {"E2B-Traffic-Access-Token": sandbox.traffic_access_token} if sandbox.traffic_access_token else {}
    ask = lambda: httpx.get(f"{server.url}/", headers={"Host": host, **tokens})
    answer = until("the port to answer", ask, lambda answer: answer.status_code == 200)
    assert answer.text == "served in the box"


def test_no_network_when_it_is_not_allowed(made):
    sandbox = made(allow_internet_access=False)
    devices = sandbox.commands.run("tail -n +3 /proc/net/dev").stdout
    assert [line.split(":")[0].strip() for line in devices.splitlines()] == ["lo"]


def test_what_is_missing_says_so(made):
    """None of these is taken for done."""
    sandbox = made()
    for call, words in [
        (sandbox.create_snapshot, "no snapshots"),
        (sandbox.fork, "no snapshots"),
        (lambda: Volume.create("v"), "no volumes"),
        (lambda: Secret.create("s", "x"), "secrets are not kept"),
        (lambda: Template.build(Template().from_image("debian"), "t"), "templates are not built"),
        (lambda: sandbox.files.write("m", "x", metadata={"a": "b"}), "metadata of files"),
        (lambda: sandbox.commands.run("id", user="root"), "no user `root`"),
    ]:
        with pytest.raises(Exception, match=words):
            call()


def test_git_by_the_sdk(made):
    git = made().git
    git.init("/home/user/repo")
    assert git.status("/home/user/repo").file_status == []
