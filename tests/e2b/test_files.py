"""Files, watchers and signed URLs by the Python SDK's blocking client."""

import io
import urllib.parse

import httpx
import pytest
from e2b import FileNotFoundException, FilesystemEventType, FileType, InvalidArgumentException, Sandbox, SandboxException
from e2b.sandbox.filesystem.filesystem import WriteEntry

from harness import until


@pytest.fixture(scope="module")
def sandbox(server):
    sandbox = Sandbox.create()
    yield sandbox
    sandbox.kill()


@pytest.fixture
def place(sandbox, request):
    """A directory of the test's own."""
    path = f"/home/user/{request.node.name}"
    sandbox.files.make_dir(path)
    return path


def test_text_and_bytes(sandbox, place):
    written = sandbox.files.write(f"{place}/deep/er/a.txt", "grüße\n")
    assert (written.name, written.path, written.type) == ("a.txt", f"{place}/deep/er/a.txt", FileType.FILE)
    assert sandbox.files.read(f"{place}/deep/er/a.txt") == "grüße\n"
    raw = bytes(range(256)) * 9000
    sandbox.files.write(f"{place}/raw", io.BytesIO(raw))
    assert bytes(sandbox.files.read(f"{place}/raw", format="bytes")) == raw
    assert b"".join(sandbox.files.read(f"{place}/raw", format="stream")) == raw
    sandbox.files.write(f"{place}/raw", "shorter")
    assert sandbox.files.read(f"{place}/raw") == "shorter"


def test_what_the_sdk_compresses(sandbox, place):
    sandbox.files.write(f"{place}/packed", "zip " * 1000, gzip=True)
    assert sandbox.files.read(f"{place}/packed", gzip=True) == "zip " * 1000
    assert sandbox.commands.run(f"wc -c < {place}/packed").stdout == "4000\n"


def test_multipart_as_older_clients_send_it(sandbox, place):
    sandbox.files.write(f"{place}/part", b"one part", use_octet_stream=False)
    assert sandbox.files.read(f"{place}/part") == "one part"


def test_paths_are_relative_to_the_home_directory(sandbox):
    assert sandbox.files.write("relative.txt", "x").path == "/home/user/relative.txt"
    assert sandbox.files.exists("relative.txt") and sandbox.files.exists("/home/user/relative.txt")


def test_files_belong_to_the_user_who_runs_commands(sandbox, place):
    sandbox.files.write(f"{place}/mine", "a\n")
    sandbox.commands.run(f"echo b >> {place}/mine && chmod 600 {place}/mine")
    assert sandbox.files.read(f"{place}/mine") == "a\nb\n"


def test_several_files_at_once(sandbox, place):
    entries = [WriteEntry(path=f"{place}/{n}.txt", data=f"file {n}") for n in range(5)]
    written = sandbox.files.write_files(entries)
    assert [info.path for info in written] == [f"{place}/{n}.txt" for n in range(5)]
    assert [sandbox.files.read(info.path) for info in written] == [f"file {n}" for n in range(5)]
    assert sandbox.files.write_files([]) == []


def test_lists(sandbox, place):
    sandbox.files.write(f"{place}/a.txt", "123")
    sandbox.files.write(f"{place}/dir/b.txt", "")
    sandbox.commands.run(f"ln -s a.txt {place}/link")
    found = {entry.name: entry for entry in sandbox.files.list(place)}
    assert sorted(found) == ["a.txt", "dir", "link"]
    assert found["dir"].type == FileType.DIR
    assert (found["a.txt"].type, found["a.txt"].size, found["a.txt"].path) == (FileType.FILE, 3, f"{place}/a.txt")
    assert found["link"].symlink_target == f"{place}/a.txt"
    deep = [entry.path for entry in sandbox.files.list(place, depth=2)]
    assert f"{place}/dir/b.txt" in deep
    with pytest.raises(FileNotFoundException):
        sandbox.files.list(f"{place}/none")
    with pytest.raises(InvalidArgumentException):
        sandbox.files.list(place, depth=0)


def test_information(sandbox, place):
    sandbox.files.write(f"{place}/a.txt", "12345")
    sandbox.commands.run(f"chmod 640 {place}/a.txt")
    info = sandbox.files.get_info(f"{place}/a.txt")
    assert (info.name, info.type, info.size, info.mode & 0o777) == ("a.txt", FileType.FILE, 5, 0o640)
    assert info.permissions.endswith("rw-r-----") and info.owner == "user" and info.group
    now = float(sandbox.commands.run("date +%s.%N").stdout)
    assert abs(info.modified_time.timestamp() - now) < 60
    assert sandbox.files.get_info(place).type == FileType.DIR
    sandbox.commands.run(f"mkdir {place}/dir; ln -s ./dir/../a.txt {place}/l; ln -s l {place}/ll; ln -s nowhere {place}/broken")
    for link, target, mode in [("l", "a.txt", 0o640), ("ll", "a.txt", 0o640), ("broken", "broken", 0)]:
        info = sandbox.files.get_info(f"{place}/{link}")
        assert (info.symlink_target, info.mode & 0o777) == (f"{place}/{target}", mode), link
    with pytest.raises(FileNotFoundException):
        sandbox.files.get_info(f"{place}/none")


def test_existence_directories_and_removal(sandbox, place):
    assert not sandbox.files.exists(f"{place}/new")
    assert sandbox.files.make_dir(f"{place}/new/inner")
    assert not sandbox.files.make_dir(f"{place}/new/inner")
    assert sandbox.files.exists(f"{place}/new/inner")
    sandbox.files.write(f"{place}/new/inner/file", "")
    sandbox.files.remove(f"{place}/new")
    assert not sandbox.files.exists(f"{place}/new")


def test_renaming(sandbox, place):
    sandbox.files.write(f"{place}/old", "kept")
    moved = sandbox.files.rename(f"{place}/old", f"{place}/new")
    assert (moved.name, moved.path) == ("new", f"{place}/new")
    assert sandbox.files.read(f"{place}/new") == "kept" and not sandbox.files.exists(f"{place}/old")
    with pytest.raises(FileNotFoundException):
        sandbox.files.rename(f"{place}/old", f"{place}/newer")


def test_what_is_not_there_and_what_is_no_file(sandbox, place):
    with pytest.raises(FileNotFoundException):
        sandbox.files.read(f"{place}/none")
    with pytest.raises(SandboxException):
        sandbox.files.read(place)
    with pytest.raises(SandboxException):
        sandbox.files.write(place, "a directory is in the way")


def events(watcher, *wanted):
    """Everything that the watcher tells, up to the moment when it told all that is wanted."""
    seen = []

    def ask():
        seen.extend((event.type, event.name) for event in watcher.get_new_events())
        return set(wanted) <= set(seen)

    until(f"{wanted} among {seen}", ask)
    return seen


def test_a_watcher_is_asked(sandbox, place):
    watcher = sandbox.files.watch_dir(place)
    assert watcher.get_new_events() == []
    sandbox.files.write(f"{place}/a", "1")
    events(watcher, (FilesystemEventType.CREATE, "a"), (FilesystemEventType.WRITE, "a"))
    seen = []
    for command, kind, name in [
        (f"echo 23 > {place}/a", FilesystemEventType.WRITE, "a"),
        (f"chmod 600 {place}/a", FilesystemEventType.CHMOD, "a"),
        # What looks are compared for cannot be told from a removal.
        (f"mv {place}/a {place}/b", FilesystemEventType.REMOVE, "a"),
        (f"rm {place}/b", FilesystemEventType.REMOVE, "b"),
        (f"mkdir {place}/deep; touch {place}/deep/c", FilesystemEventType.CREATE, "deep"),
    ]:
        sandbox.commands.run(command)
        seen += events(watcher, (kind, name))
    assert not [name for _, name in seen if name == "deep/c"]
    watcher.stop()
    with pytest.raises(SandboxException):
        watcher.get_new_events()


def test_a_watcher_of_a_whole_tree(sandbox, place):
    sandbox.files.make_dir(f"{place}/before")
    watcher = sandbox.files.watch_dir(place, recursive=True)
    sandbox.files.write(f"{place}/before/a", "1")
    events(watcher, (FilesystemEventType.CREATE, "before/a"), (FilesystemEventType.WRITE, "before/a"))
    watcher.stop()
    with pytest.raises(FileNotFoundException):
        sandbox.files.watch_dir(f"{place}/none")


def test_files_of_the_kernel_have_an_end(sandbox):
    assert sandbox.files.read("/proc/sys/kernel/ostype") == "Linux\n"
    assert sandbox.files.read("/proc/self/status").count("Name:") == 1


@pytest.mark.parametrize("size", [10, 3 << 20])
def test_a_refused_upload_says_why(sandbox, place, size):
    """Also to a client that is still sending."""
    sandbox.files.make_dir(f"{place}/dir")
    for _ in range(10):
        with pytest.raises(InvalidArgumentException, match="directory"):
            sandbox.files.write(f"{place}/dir", b"x" * size)


@pytest.mark.parametrize("named", [True, False])
def test_signed_urls(sandbox, place, server, named):
    """The address of a sandbox that shares its host with others names none: the signature tells whose it is."""
    sandbox.files.write(f"{place}/down", "by url")
    headers = {"E2b-Sandbox-Id": sandbox.sandbox_id} if named else {}
    got = httpx.get(sandbox.download_url(f"{place}/down"), headers=headers)
    assert (got.status_code, got.text) == (200, "by url")
    got = httpx.get(sandbox.download_url(f"{place}/down", use_signature_expiration=60), headers=headers)
    assert (got.status_code, got.text) == (200, "by url")
    put = httpx.post(sandbox.upload_url(f"{place}/up"), headers=headers, files={"file": ("up", b"posted")})
    assert put.status_code == 200, put.text
    assert sandbox.files.read(f"{place}/up") == "posted"


def test_urls_that_are_not_signed_for_this(sandbox, place):
    sandbox.files.write(f"{place}/down", "secret")
    headers = {"E2b-Sandbox-Id": sandbox.sandbox_id}
    for url in [
        sandbox.download_url(f"{place}/down").replace("v1_", "v1_x"),
        sandbox.download_url(f"{place}/down", use_signature_expiration=-10),
        # Signed for another path, and for the other operation.
        sandbox.download_url(f"{place}/other").replace(urllib.parse.quote("other"), "down"),
        sandbox.upload_url(f"{place}/down"),
        sandbox.download_url(f"{place}/down").split("&signature")[0],
    ]:
        for sent in (headers, {}):
            answer = httpx.get(url, headers=sent)
            assert answer.status_code == 401 and "secret" not in answer.text, url
