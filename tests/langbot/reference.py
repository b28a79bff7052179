"""Runs a command beside LangBot's own runtime: `reference.py COMMAND...`, with the interpreter that has it.

Its boxes are containers of the engine that `engine.py` gives. The command finds its address in
SANDCRATE_REFERENCE_ENDPOINT.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time

PATIENCE = 60.0


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def main(command: list[str]) -> int:
    port = free_port()
    server = [sys.executable, "-m", "langbot_plugin.cli.__init__", "box", "--host", "127.0.0.1", "--ws-control-port", str(port)]
    known = os.environ | {"LANGBOT_BOX_CONFIG": json.dumps({"backend": "docker"})}
    with tempfile.TemporaryFile() as log:
        running = subprocess.Popen(server, env=known, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            until = time.monotonic() + PATIENCE
            while True:
                assert running.poll() is None and time.monotonic() < until, "LangBot's runtime does not listen"
                with socket.socket() as client:
                    if client.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.05)
            endpoint = {"SANDCRATE_REFERENCE_ENDPOINT": f"ws://127.0.0.1:{port}"}
            code = subprocess.run(command, env=os.environ | endpoint, check=False).returncode
        finally:
            running.terminate()
            try:
                running.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                running.kill()
        if code != 0:
            log.seek(0)
            print("--- log of LangBot's runtime", log.read().decode(errors="replace")[-8000:], sep="\n")
        return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
