"""Runs a command with a second Sandcrate whose boxes are used by E2B's API: `far.py COMMAND...`.

The command finds `e2b` in ENGINE_UNDER_TEST, and the endpoint and its key where every client of E2B looks for them. So
what LangBot's client asks of the server under test goes two hops: from that server to this one, and into a native box.
"""

from __future__ import annotations

import json
import os
import pathlib
import secrets
import subprocess
import sys
import tempfile
import urllib.request

os.environ["ENGINE_UNDER_TEST"] = "e2b"
from harness import Server  # noqa: E402  It reads what was set.

# A root that can be written, so that places are made where they are asked for, as in E2B's own templates.
TEMPLATES = ("base", "alpine:latest")


class Peer(Server):
    """Native boxes behind E2B's API."""

    def __init__(self, root: pathlib.Path):
        super().__init__(root)
        self.token = secrets.token_hex(16)
        config = root / "sandcrate.toml"
        config.write_text("".join(f'[e2b.templates."{name}"]\nread_only_rootfs = false\n' for name in TEMPLATES))
        self.env |= {
            "SANDCRATE_CONFIG": str(config), "SANDCRATE_TOKEN": self.token, "SANDCRATE__RUNTIME__BACKEND": "native",
        }

    def left(self) -> list:
        request = urllib.request.Request(f"{self.relay}/v2/sandboxes", headers={"X-API-Key": self.token})
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)


def main(command: list[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="sandcrate-far-", dir="/var/tmp") as scratch:
        peer = Peer(pathlib.Path(scratch)).start()
        try:
            told = {"E2B_API_KEY": peer.token, "E2B_API_URL": peer.relay}
            code = subprocess.run(command, env=os.environ | told, check=False).returncode
            left = peer.left()
            assert not left, f"sandboxes are left: {left}"
            return code
        finally:
            peer.stop()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
