"""Runs a command with a container engine of its own: `engine.py docker|podman COMMAND...`.

The daemon has a private socket and private data, and is gone afterwards. Its one image, by the name that LangBot asks
for, is made of programs of this host, so that no registry is needed. The command finds the engine's name in
ENGINE_UNDER_TEST and its socket where every client looks for it.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse

PATIENCE = 60.0
# LangBot's own, and the one that its tests name. Fully qualified: Podman would take a short name for one of its own.
IMAGES = ("docker.io/rockchin/langbot-sandbox", "docker.io/library/alpine")
PROGRAMS = (
    "sh cat ls head tail wc seq sleep mkdir chmod ln touch printf env date id tr rm mv cp yes true false pwd echo test "
    "setsid dd stat kill python3 [ sort uname du readlink base64 sed grep bash timeout cut"
).split()


def libraries(program: str) -> set[str]:
    told = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    return {word for word in told.split() if word.startswith("/") and not word.endswith(":")}


def build(root: pathlib.Path, guest: str) -> None:
    """A root with a shell, coreutils and python, and the libraries that our own program may need."""
    for directory in "usr/bin usr/sbin usr/lib usr/lib64 etc tmp proc sys dev root run workspace".split():
        (root / directory).mkdir(parents=True, exist_ok=True)
    for link in ("bin", "sbin", "lib", "lib64"):
        (root / link).symlink_to(f"usr/{link}")
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n")
    needed = libraries(guest)
    for program in PROGRAMS:
        found = shutil.which(program, path="/usr/bin:/bin:/usr/sbin:/sbin")
        assert found, f"{program} is not on this host"
        shutil.copy(os.path.realpath(found), root / "usr/bin" / program)
        needed |= libraries(found)
    stdlib = subprocess.run(
        ["/usr/bin/python3", "-c", "import sysconfig; print(sysconfig.get_path('stdlib'))"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()
    skipped = shutil.ignore_patterns("test", "*-packages", "__pycache__", "idlelib", "tkinter", "ensurepip", "config-*")
    shutil.copytree(stdlib, root / stdlib.lstrip("/"), ignore=skipped, symlinks=False, ignore_dangling_symlinks=True)
    for library in needed:
        target = root / library.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(os.path.realpath(library), target)


class Engine:
    def __init__(self, kind: str, directory: pathlib.Path):
        self.kind, self.directory = kind, directory
        self.socket = directory / "engine.sock"
        self.process: subprocess.Popen | None = None
        (directory / "tmp").mkdir()

    def podman(self) -> list[str]:
        return ["podman", "--root", str(self.directory / "root"), "--runroot", str(self.directory / "run")]

    def environment(self) -> dict[str, str]:
        return os.environ | {
            "CONTAINERS_CONF": str(self.directory / "containers.conf"),
            "TMPDIR": str(self.directory / "tmp"),
        }

    def start(self) -> None:
        address = f"unix://{self.socket}"
        if self.kind == "docker":
            at = {name: str(self.directory / name) for name in ("data", "exec", "pid")}
            command = ["dockerd", "--bridge=none", "--iptables=false", "--host", address]
            command += ["--data-root", at["data"], "--exec-root", at["exec"], "--pidfile", at["pid"]]
        else:
            settings = '[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
            (self.directory / "containers.conf").write_text(settings)
            command = [*self.podman(), "system", "service", "--time=0", address]
        with (self.directory / "log").open("wb") as log:
            self.process = subprocess.Popen(
                command, cwd=self.directory, env=self.environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        until = time.monotonic() + PATIENCE
        while self.ask("GET", "/_ping").returncode != 0:
            log = (self.directory / "log").read_text(errors="replace")
            assert self.process.poll() is None and time.monotonic() < until, f"{self.kind} does not come up: {log}"
            time.sleep(0.05)

    def ask(self, method: str, path: str, *arguments: str) -> subprocess.CompletedProcess:
        command = ["curl", "-sS", "-f", "-X", method, "--unix-socket", str(self.socket), *arguments]
        return subprocess.run([*command, f"http://engine/v1.40{path}"], capture_output=True, check=False)

    def import_image(self, tar: pathlib.Path) -> None:
        for image in IMAGES:
            query = urllib.parse.urlencode({"fromSrc": "-", "repo": image, "tag": "latest"})
            done = self.ask("POST", f"/images/create?{query}", "-H", "Content-Type: application/x-tar", "-T", str(tar))
            assert done.returncode == 0, done.stderr

    def left(self) -> list:
        listed = self.ask("GET", "/containers/json?all=true")
        return [container["Names"] for container in json.loads(listed.stdout)]

    def stop(self) -> None:
        if self.kind == "podman":
            subprocess.run([*self.podman(), "rm", "-a", "-f", "-t", "0"], env=self.environment(), capture_output=True)
        if self.process is not None:
            self.process.terminate()
            self.process.wait(PATIENCE)
        if self.kind == "podman":
            subprocess.run([*self.podman(), "system", "reset", "-f"], env=self.environment(), capture_output=True)
        mounts = pathlib.Path("/proc/self/mountinfo").read_text().splitlines()
        points = [line.split(" ")[4] for line in mounts]
        for point in sorted((point for point in points if point.startswith(f"{self.directory}/")), reverse=True):
            subprocess.run(["umount", "-l", point], check=False)


def main(kind: str, command: list[str]) -> int:
    # Short, as Podman wants it.
    with tempfile.TemporaryDirectory(prefix="sandcrate-lb-", dir="/var/tmp") as scratch:
        directory = pathlib.Path(scratch)
        build(directory / "root-fs", os.environ["SANDCRATE_BIN"])
        tar = directory / "root.tar"
        subprocess.run(["tar", "-C", str(directory / "root-fs"), "-cf", str(tar), "."], check=True)
        (directory / "engine").mkdir()
        engine = Engine(kind, directory / "engine")
        try:
            engine.start()
            engine.import_image(tar)
            variable = {"docker": "DOCKER_HOST", "podman": "CONTAINER_HOST"}[kind]
            told = {"ENGINE_UNDER_TEST": kind, variable: f"unix://{engine.socket}"}
            code = subprocess.run(command, env=os.environ | told, check=False).returncode
            left = engine.left()
            assert not left, f"containers are left: {left}"
            return code
        finally:
            engine.stop()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
