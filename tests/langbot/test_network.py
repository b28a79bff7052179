"""LangBot's `network: on`: a network of the box's own, which the public Internet is let through and nothing else."""

import json
import os
import pathlib

import pytest
from harness import Stdio

TUN = pathlib.Path("/dev/net/tun")

# What the box has, and how an attempt at a private address ends.
LOOK = """
import fcntl, json, socket, struct, time
probe = socket.socket()
request = struct.pack('16s16x', b'tun0')
address = socket.inet_ntoa(fcntl.ioctl(probe, 0x8915, request)[20:24])
begin = time.monotonic()
try:
    socket.create_connection(('10.1.2.3', 80), 20)
    error = None
except OSError as refused:
    error = type(refused).__name__
print(json.dumps({
    'devices': sorted(name for _, name in socket.if_nameindex()),
    'address': address, 'error': error, 'seconds': time.monotonic() - begin,
}))
"""


@pytest.fixture(autouse=True)
def device():
    """Boxes can have a network where this user may open the tun device."""
    if TUN.is_char_device() and os.access(TUN, os.R_OK | os.W_OK):
        return
    required = os.environ.get("SANDCRATE_TEST_REQUIRE", "").split(",")
    assert "isolated-network" not in required, f"isolated-network is required here, and {TUN} cannot be opened"
    pytest.skip(f"needs isolated-network: {TUN} cannot be opened")


async def test_network_on_gives_the_box_a_device_of_its_own(box):
    info = await box.create("on", network="on")
    assert info["network"] == "on"
    ran = await box.sh("on", "cat /proc/net/dev", network="on")
    devices = sorted(line.split(":")[0].strip() for line in ran.stdout.splitlines() if ":" in line)
    assert devices == ["lo", "tun0"], ran


async def test_network_on_refuses_a_private_address_at_once(tmp_path):
    # The whole server has no way out, so nothing is sent even if it is not refused.
    box = await Stdio(tmp_path / "alone", alone=True).open()
    try:
        ran = await box.sh("on", f"python3 - <<'END'\n{LOOK}\nEND", network="on")
        seen = json.loads(ran.stdout)
        assert seen["devices"] == ["lo", "tun0"] and seen["address"] == "192.0.0.2", seen
        assert seen["error"] is not None and seen["seconds"] < 5, seen
    finally:
        await box.close()
