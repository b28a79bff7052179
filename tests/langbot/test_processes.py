"""Managed processes and their relay where the reference goes wrong: its defects P1 to P8, and the relay's rules."""

import asyncio
import json
import urllib.error
import urllib.request

import aiohttp
import pytest
import websockets
from harness import PATIENCE, eventually, mark, processes_with, runs
from langbot_plugin.box.errors import BoxManagedProcessNotFoundError

LIST = "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline 2>/dev/null; echo; done"


async def everything(relay) -> list[str]:
    """The lines up to the close."""
    lines = []
    with pytest.raises(websockets.exceptions.ConnectionClosed):
        while True:
            lines.append(await asyncio.wait_for(relay.recv(), PATIENCE))
    return lines


@pytest.mark.parametrize("stubborn", ["", "trap '' TERM INT HUP; "], ids=["plain", "ignores-signals"])
async def test_p1_stop_ends_the_program(box, stubborn):
    await box.create("p1")
    asleep = mark()
    await box.spawn("p1", "sh", "-c", f"{stubborn}sleep {asleep}; :")
    await runs(asleep)
    await box.client.stop_managed_process("p1")
    assert asleep not in (await box.sh("p1", LIST)).stdout, "seen from a second command"
    assert processes_with(asleep) == []
    with pytest.raises(BoxManagedProcessNotFoundError):
        await box.client.get_managed_process("p1")


async def test_p1_a_new_process_of_the_same_name_replaces_the_old(box):
    await box.create("p1b")
    old, new = mark(), mark()
    await box.spawn("p1b", "sleep", old)
    info = await box.spawn("p1b", "sleep", new)
    assert (info.status.value, info.args) == ("running", [new])
    # A start is answered before the program has replaced what started it.
    await runs(new)
    listed = (await box.sh("p1b", LIST)).stdout
    assert old not in listed and new in listed
    assert (await box.client.get_status())["managed_processes"] == 1


@pytest.mark.parametrize("size", [70_000, 200_000, 900_000])
async def test_p3_a_long_line_comes_through_the_relay(box, size):
    await box.create("p3")
    script = f"head -c {size} /dev/zero | tr '\\0' x; echo; echo after; exec cat"
    await box.spawn("p3", "sh", "-c", script)
    async with box.attach("p3") as relay:
        assert await asyncio.wait_for(relay.recv(), PATIENCE) == "x" * size
        assert await asyncio.wait_for(relay.recv(), PATIENCE) == "after"
        await relay.send("y" * size)
        assert await asyncio.wait_for(relay.recv(), PATIENCE) == "y" * size


async def test_p4_a_long_line_of_stderr_stops_nothing(box):
    await box.create("p4")
    script = (
        "head -c 100000 /dev/zero | tr '\\0' z >&2; echo >&2; seq 1 200000 >&2; echo short >&2; echo out; exec cat"
    )
    await box.spawn("p4", "sh", "-c", script)
    async with box.attach("p4") as relay:
        assert await asyncio.wait_for(relay.recv(), PATIENCE) == "out", "it was not blocked by its stderr"
    info = await box.client.get_managed_process("p4")
    assert info.stderr_preview.endswith("199999\n200000\nshort") and len(info.stderr_preview) <= 4000


async def test_p5_output_of_a_process_that_ended_is_not_lost(box):
    await box.create("p5")
    await box.spawn("p5", "sh", "-c", "echo first; echo second; printf last; exit 4")
    info = await box.exited("p5")
    assert info.exit_code == 4
    async with box.attach("p5") as relay:
        assert await everything(relay) == ["first", "second", "last"]
        assert (relay.close_code, relay.close_reason) == (1000, "exited with code 4")


async def test_p5_output_before_attach_is_delivered_in_order(box):
    await box.create("p5b")
    await box.spawn("p5b", "sh", "-c", "seq 1 5000; exec cat")
    await asyncio.sleep(0.5)
    async with box.attach("p5b") as relay:
        lines = [await asyncio.wait_for(relay.recv(), PATIENCE) for _ in range(5000)]
    assert lines == [str(number) for number in range(1, 5001)]


async def test_p6_a_second_attach_is_refused_at_once(box):
    await box.create("p6")
    await box.spawn("p6", "cat")
    async with box.attach("p6") as first:
        with pytest.raises(websockets.exceptions.InvalidStatus) as refused:
            async with asyncio.timeout(5):
                await box.attach("p6")
        response = refused.value.response
        assert response.status_code == 409
        assert json.loads(response.body)["error"]["code"] == "BoxManagedProcessConflictError"
        await first.send("undisturbed")
        assert await asyncio.wait_for(first.recv(), PATIENCE) == "undisturbed"

    async def detached():
        return (await box.client.get_managed_process("p6")).attached

    await eventually("the first to be detached", detached, lambda attached: not attached)
    async with box.attach("p6") as second:
        await second.send("now")
        assert await asyncio.wait_for(second.recv(), PATIENCE) == "now"


async def test_p7_exited_comes_with_its_code(box):
    await box.create("p7")
    for code in range(1, 20):
        await box.spawn("p7", "sh", "-c", f"exit {code}", process_id=str(code))
        info = await box.exited("p7", str(code))
        assert info.exit_code == code and info.exited_at is not None and info.exited_at >= info.started_at
    await box.spawn("p7", "sh", "-c", "read line; exit 30", process_id="relayed")
    async with box.attach("p7", "relayed") as relay:
        await relay.send("go")
        await everything(relay)
    info = await box.client.get_managed_process("p7", "relayed")
    assert (info.status.value, info.exit_code) == ("exited", 30), "straight after the relay closed"


async def test_p8_the_close_says_how_the_process_ended(box):
    await box.create("p8")
    await box.spawn("p8", "sh", "-c", "echo a; sleep 0.5; echo b; printf nonl; exit 3")
    async with box.attach("p8") as relay:
        assert await everything(relay) == ["a", "b", "nonl"]
        assert (relay.close_code, relay.close_reason) == (1000, "exited with code 3")
    await box.spawn("p8", "cat", process_id="stopped")
    async with box.attach("p8", "stopped") as relay:
        await box.client.stop_managed_process("p8", "stopped")
        assert await everything(relay) == []
        # Its input was closed and it was told to end: whichever it heeded first.
        ways = ("stopped", "exited with code 0", "exited with code 143")
        assert relay.close_code == 1000 and relay.close_reason in ways
    await box.spawn("p8", "cat", process_id="deleted")
    async with box.attach("p8", "deleted") as relay:
        await box.client.delete_session("p8")
        assert await everything(relay) == []
        assert (relay.close_code, relay.close_reason) == (1000, "session deleted")


async def test_p9_a_process_has_the_mounts_of_its_session(box, tmp_path):
    shared, extra = tmp_path / "shared", tmp_path / "extra"
    shared.mkdir()
    extra.mkdir()
    (extra / "tool").write_text("found\n")
    await box.client.init({"local": {"allowed_mount_roots": [str(tmp_path)]}})
    mount = {"host_path": str(extra), "mount_path": "/workspace/.skills/x", "mode": "rw"}
    await box.create("p9", host_path=str(shared), extra_mounts=[mount])
    await box.spawn("p9", "sh", "-c", "cat /workspace/.skills/x/tool; pwd; exec cat", cwd="/tmp")
    async with box.attach("p9") as relay:
        assert [await asyncio.wait_for(relay.recv(), PATIENCE) for _ in range(2)] == ["found", "/tmp"]


async def test_lines_pass_the_relay_as_they_are(box):
    await box.create("lines")
    await box.spawn("lines", "cat")
    async with box.attach("lines", subprotocols=["mcp"]) as relay:
        assert relay.subprotocol == "mcp"
        for sent, received in (
            ("two\nlines", ["two", "lines"]), ("", [""]), ("trail  \r\n", ["trail  \r", ""]), ("你好 🌍", ["你好 🌍"])
        ):
            await relay.send(sent)
            assert [await asyncio.wait_for(relay.recv(), PATIENCE) for _ in received] == received
        await relay.send(b"binary is ignored\n")
        await relay.send("after")
        assert await asyncio.wait_for(relay.recv(), PATIENCE) == "after"


async def test_the_relay_works_with_aiohttp_as_the_reference_tests_it(box):
    await box.create("aio")
    await box.spawn("aio", "cat")
    async with aiohttp.ClientSession() as http, http.ws_connect(box.attach_url("aio")) as relay:
        await relay.send_str("hello")
        message = await relay.receive(5)
        assert (message.type, message.data) == (aiohttp.WSMsgType.TEXT, "hello")
    async with aiohttp.ClientSession() as http, http.ws_connect(f"{box.relay}/v1/sessions/aio/managed-process/ws") as relay:
        await relay.send_str("by the old route")
        assert (await relay.receive(5)).data == "by the old route"


async def test_refusals_of_the_relay_are_typed(box):
    await box.create("typed")

    def get(path: str):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{box.relay}/v1/sessions/{path}/ws", timeout=PATIENCE)
        return refused.value.code, json.loads(refused.value.read())

    for path, code, message in (
        ("nope/managed-process", "BoxSessionNotFoundError", "session nope not found"),
        ("a%2Fb/managed-process/x", "BoxSessionNotFoundError", "session a/b not found"),
        ("typed/managed-process/zzz", "BoxManagedProcessNotFoundError",
         "session typed has no managed process with process_id=zzz"),
    ):
        status, body = await asyncio.to_thread(get, path)
        assert (status, body) == (400, {"error": {"code": code, "message": message}})


async def test_a_command_that_cannot_run_is_reported_as_exited(box):
    await box.create("bad")
    await box.spawn("bad", "no-such-program")
    info = await box.exited("bad")
    assert info.exit_code == 127 and "no-such-program" in info.stderr_preview
