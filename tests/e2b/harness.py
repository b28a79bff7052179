"""Servers of ours with E2B's own SDKs on them.

Each server has a free loopback port, a state directory and a token of its own. The SDKs are pointed at it by environment
variables alone, as their documentation has it.
"""

import os
import pathlib
import re
import secrets
import subprocess
import time

BIN = os.environ["SANDCRATE_BIN"]
# Long enough for a loaded machine; whatever takes longer hangs.
PATIENCE = 30.0


class Server:
    """`sandcrate serve` with native boxes, and a token that is the SDKs' API key."""

    def __init__(self, place: pathlib.Path, config: str = "", *arguments: str):
        place.mkdir(parents=True, exist_ok=True)
        self.token = secrets.token_hex(16)
        self.log = place / "server.log"
        file = place / "sandcrate.toml"
        file.write_text(config)
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("SANDCRATE_", "E2B_"))}
        env = kept | {"SANDCRATE_STATE_DIR": str(place / "state"), "SANDCRATE_TOKEN": self.token}
        env["SANDCRATE__RUNTIME__BACKEND"] = "native"
        command = [BIN, "serve", "--listen", "127.0.0.1:0", "--config", str(file), *arguments]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        # Every address that was asked for is named when it is ready.
        said = until("the server to listen", self._addresses, lambda said: len(said) == command.count("--listen"))
        self.url = said["http"]
        self.tls_port = int(said["https"].rsplit(":")[-1]) if "https" in said else None

    def _addresses(self) -> dict[str, str]:
        said = self.log.read_text(errors="replace")
        assert self.process.poll() is None, said
        return {scheme: url for url, scheme in re.findall(r"listening on ((https?)://[\d.]+:\d+)", said)}

    @property
    def variables(self) -> dict[str, str]:
        """What a user of the SDKs sets."""
        return {"E2B_API_URL": self.url, "E2B_SANDBOX_URL": self.url, "E2B_API_KEY": self.token}

    def stop(self) -> None:
        """SIGTERM: it must end by itself, soon, and say that all is well."""
        self.process.terminate()
        try:
            assert self.process.wait(PATIENCE) == 0, self.log.read_text(errors="replace")
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            print(self.log.read_text(errors="replace"))


def until(what: str, ask, done=bool, patience: float = PATIENCE):
    """The first answer that will do."""
    deadline = time.monotonic() + patience
    while not done(answer := ask()):
        assert time.monotonic() < deadline, f"waited in vain for {what}; last: {answer!r}"
        time.sleep(0.02)
    return answer
