"""The form in which a client knows only a domain: TLS, `api.DOMAIN` and `PORT-ID.DOMAIN`, by the SDKs and by LangBot's way.

Nobody resolves names for us here, so a proxy on loopback leads every name to the server; the SDKs take one as an option.
"""

import os
import socket
import subprocess
import sys
import threading

import pytest

import harness

DOMAIN = "box.example"


class Proxy:
    """Answers CONNECT to any name with a connection to one port of loopback, and notes the names."""

    def __init__(self, port: int):
        self._port = port
        self.names = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=[client], daemon=True).start()

    def _serve(self, client):
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            piece = client.recv(4096)
            if not piece:
                return
            head += piece
        self.names.add(head.split()[1].decode().split(":")[0])
        server = socket.create_connection(("127.0.0.1", self._port))
        client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        for one, other in ((client, server), (server, client)):
            threading.Thread(target=self._carry, args=[one, other], daemon=True).start()

    @staticmethod
    def _carry(one, other):
        try:
            while data := one.recv(65536):
                other.sendall(data)
        except OSError:
            pass
        finally:
            for end in (one, other):
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    def close(self):
        self._listener.close()


@pytest.fixture(scope="module")
def secured(tmp_path_factory):
    place = tmp_path_factory.mktemp("tls")
    made = subprocess.run(
        [harness.BIN, "tls", "init", "--domain", DOMAIN, "--dir", place / "tls"],
        capture_output=True,
        text=True,
        timeout=harness.PATIENCE,
    )
    assert made.returncode == 0, made.stderr
    assert f"E2B_DOMAIN={DOMAIN}\n" in made.stdout and f"SSL_CERT_FILE={place}/tls/ca.pem" in made.stdout
    config = f'[e2b]\ndomain = "{DOMAIN}"\n[server.tls]\ncert = "{place}/tls/cert.pem"\nkey = "{place}/tls/key.pem"\n'
    server = harness.Server(place, config, "--listen", "tls:127.0.0.1:0")
    proxy = Proxy(server.tls_port)
    try:
        yield server, proxy, place / "tls/ca.pem"
    finally:
        proxy.close()
        server.stop()


SCRIPT = """
import sys
from e2b_code_interpreter import Sandbox
options = {"proxy": sys.argv[1]}
sandbox = Sandbox.create(metadata={"a": "b"}, **options)
sandbox.files.write("note", "by TLS")
print(sandbox.commands.run("cat note").stdout)
print(sandbox.files.read("note"))
print(sandbox.run_code("print('code'); 6 * 7").text)
print(sandbox.get_host(8080) == f"8080-{sandbox.sandbox_id}.box.example")
again = Sandbox.connect(sandbox.sandbox_id, **options)
print([entry.name for entry in again.files.list("/home/user")])
print(sandbox.kill(), again.is_running())
"""


def run(script, secured, **env):
    server, proxy, ca = secured
    kept = {key: value for key, value in os.environ.items() if not key.startswith("E2B_")}
    env = kept | {"E2B_DOMAIN": DOMAIN, "E2B_API_KEY": server.token, "SSL_CERT_FILE": str(ca)} | env
    command = [sys.executable, "-c", script, proxy.url]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)


def test_everything_by_the_domain_alone(secured):
    ended = run(SCRIPT, secured)
    assert ended.returncode == 0, ended.stderr
    said = ended.stdout.split("\n")
    assert said[:4] == ["by TLS", "by TLS", "42", "True"] and "note" in said[4] and said[5] == "True False"
    names = secured[1].names
    assert f"api.{DOMAIN}" in names
    assert any(name.startswith("49983-") for name in names) and any(name.startswith("49999-") for name in names)


LANGBOT = """
import sys
from e2b import Sandbox
# As LangBot's own backend calls it: the address of the server is the domain.
sandbox = Sandbox.create(api_key=sys.argv[2], domain="box.example", envs={"A": "1"}, metadata={"host-mount": "[]"}, proxy=sys.argv[1])
again = Sandbox.connect(sandbox.sandbox_id, api_key=sys.argv[2], domain="box.example", proxy=sys.argv[1])
again.files.make_dir("/home/user/workspace/sub")
again.files.write("/home/user/workspace/sub/a.txt", "1")
print(again.commands.run("mkdir -p /home/user/workspace && cd /home/user/workspace && ls sub", timeout=10).stdout, end="")
print(sorted(entry.path for entry in again.files.list("/home/user/workspace", depth=16)))
print(again.kill())
"""


def test_the_calls_of_langbots_own_backend(secured):
    server = secured[0]
    ended = run(LANGBOT.replace("sys.argv[2]", repr(server.token)), secured, E2B_DOMAIN="", E2B_API_KEY="")
    assert ended.returncode == 0, ended.stderr
    listed = "['/home/user/workspace/sub', '/home/user/workspace/sub/a.txt']"
    assert ended.stdout.split("\n")[:3] == ["a.txt", listed, "True"]


def test_whoever_does_not_trust_the_authority_gets_nothing(secured):
    ended = run(SCRIPT, secured, SSL_CERT_FILE="")
    assert ended.returncode != 0 and "ertificate" in ended.stderr


def test_a_certificate_is_asked_for(tmp_path):
    ended = subprocess.run(
        [harness.BIN, "serve", "--listen", "tls:127.0.0.1:0", "--state-dir", tmp_path],
        capture_output=True,
        text=True,
        timeout=harness.PATIENCE,
    )
    assert ended.returncode == 125 and "server.tls.cert" in ended.stderr and "tls init" in ended.stderr
