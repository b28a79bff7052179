"""Sizes, frames and concurrency: where LangBot's client and its own server disagree, ours has to suit the client."""

import asyncio
import enum
import hashlib
import json
import random
import time

import pytest
import websockets
from harness import MIB, PATIENCE
from langbot_plugin.entities.io.errors import ActionCallError

PING = json.dumps({"seq_id": 77, "action": "__ping", "data": {}})
PONG = '{"seq_id": 77, "code": 0, "message": "success", "data": {}, "chunk_status": "continue"}'


class Action(enum.Enum):
    """Actions by their names on the wire, for what the client has no method for."""

    NOPE = "box_nope"
    GET_SESSION = "box_get_session"


def here_document(size: int) -> tuple[str, str]:
    """A command of more than `size` bytes that prints the hash of its own body, and that hash."""
    lines = random.Random(size)
    body = "".join(f"{lines.getrandbits(256):064x} 'quoted' $HOME \\ 好\n" for _ in range(size // 86 + 1))
    assert len(body.encode()) >= size
    return f"sha256sum <<'END'\n{body}END\n", hashlib.sha256(body.encode()).hexdigest()


@pytest.mark.parametrize("size", [200_000, 3_000_000])
async def test_a_large_request_arrives_whole(box, size):
    """T1: the client cuts requests over 64 KiB into several messages."""
    command, expected = here_document(size)
    result = await box.sh("large", command, timeout_sec=120)
    assert (result.exit_code, result.stderr, result.stdout) == (0, "", f"{expected}  -")


async def test_requests_around_the_cut_arrive_whole(box):
    """One piece, exactly one piece, one piece and a byte, exactly two."""
    for size in (65_000, 65_535, 65_536, 65_537, 131_071, 131_072, 131_073):
        request = {"seq_id": 1, "action": "box_get_session", "data": {"session_id": ""}}
        padding = size - len(json.dumps(request))
        with pytest.raises(ActionCallError, match="BoxSessionNotFoundError: session q+ not found|BoxValidationError"):
            # The seq id that the client will use has its own length; the sizes around cover the difference.
            await box.handler.call_action(Action.GET_SESSION, {"session_id": "q" * padding})


async def test_a_reply_of_one_mebibyte_arrives_whole(box):
    """T2: a reply over 1 MiB in one message ends the client's connection."""
    result = await box.sh("mib", f"head -c {MIB} /dev/zero | tr '\\0' a")
    assert result.stdout == "a" * MIB and result.exit_code == 0
    result = await box.sh("mib", f"head -c {MIB + 1} /dev/zero | tr '\\0' a")
    assert result.stdout == "a" * MIB + f"\n... [raw output clipped at {MIB} bytes, 1 bytes discarded]"
    assert (await box.sh("mib", "echo still here")).stdout == "still here"


async def test_a_reply_of_chinese_characters_arrives_whole(box):
    """Six bytes each once escaped: more than 2 MiB on the wire."""
    result = await box.sh("cjk", "yes 好 | head -n 400000 | tr -d '\\n'")
    clipped = f"\n... [raw output clipped at {MIB} bytes, {1_200_000 - MIB} bytes discarded]"
    assert result.stdout == "好" * (MIB // 3) + "\ufffd" + clipped
    assert (await box.sh("cjk", "echo still here")).stdout == "still here"


async def test_both_streams_are_clipped_each_by_itself(box):
    command = "head -c 3000000 /dev/zero | tr '\\0' b; head -c 2000000 /dev/zero | tr '\\0' c >&2"
    result = await box.sh("both", command)
    assert result.stdout == "b" * MIB + f"\n... [raw output clipped at {MIB} bytes, {3_000_000 - MIB} bytes discarded]"
    assert result.stderr == "c" * MIB + f"\n... [raw output clipped at {MIB} bytes, {2_000_000 - MIB} bytes discarded]"


async def test_large_replies_do_not_mix(box):
    async def one(letter):
        result = await box.sh(f"mix-{letter}", f"head -c 900000 /dev/zero | tr '\\0' {letter}")
        assert result.stdout == letter * 900_000

    await asyncio.gather(*(one(letter) for letter in "abcdefgh"))


async def test_sessions_run_side_by_side(box):
    names = [f"side-{number}" for number in range(10)]
    await asyncio.gather(*(box.create(name) for name in names))
    began = time.monotonic()
    results = await asyncio.gather(*(box.sh(name, f"sleep 2; echo {name}") for name in names))
    assert [result.stdout for result in results] == names
    assert time.monotonic() - began < 8, "ten times two seconds, side by side"


async def test_commands_of_one_session_run_in_turn(box):
    await box.create("turn")
    command = "mkdir /tmp/turn || echo taken; echo {0} >> /tmp/order; sleep 0.05; rmdir /tmp/turn"
    results = await asyncio.gather(*(box.sh("turn", command.format(number)) for number in range(10)))
    assert [(result.stdout, result.stderr, result.exit_code) for result in results] == [("", "", 0)] * 10
    order = (await box.sh("turn", "cat /tmp/order")).stdout.split()
    assert order == [str(number) for number in range(10)], "in the order of their requests"


async def test_questions_do_not_wait_for_commands(box):
    await box.create("slow")
    running = asyncio.create_task(box.sh("slow", "sleep 3; echo done"))
    await asyncio.sleep(0.5)
    began = time.monotonic()
    await box.client.get_status()
    assert [info["session_id"] for info in await box.client.get_sessions()] == ["slow"]
    await box.client.get_session("slow")
    assert time.monotonic() - began < 2
    assert (await running).stdout == "done"


async def test_an_unknown_action_is_an_error(box):
    with pytest.raises(ActionCallError, match="^ValueError: Action box_nope not found$"):
        await box.handler.call_action(Action.NOPE, {})


MALFORMED = ['{"seq_id":1,', "hello", "[1,2]", "5", "", '{"seq_id":5,"data":{}}', "\ufeff" + PING,
             '{"seq_id":1,"code":"x"}', "{" * 5000, "[" * 200_000]


@pytest.mark.parametrize("frame", MALFORMED, ids=[text[:12] or "empty" for text in MALFORMED])
async def test_a_malformed_message_costs_nobody_the_connection(serve, frame):
    server = serve()
    async with websockets.connect(server.rpc_url, proxy=None) as raw:
        await raw.send(frame)
        await raw.send(PING)
        replies = []
        while PONG not in replies:
            replies.append(await asyncio.wait_for(raw.recv(), PATIENCE))
        errors = [json.loads(reply) for reply in replies[:-1]]
        assert all(list(error) == ["seq_id", "code", "message", "data", "chunk_status"] for error in errors)
        assert all(error["code"] == 1 and error["data"] == {} for error in errors), errors


async def test_a_binary_message_costs_nobody_the_connection(serve):
    """T6."""
    server = serve()
    async with websockets.connect(server.rpc_url, proxy=None) as raw:
        await raw.send(PING.encode())
        await raw.send(PING)
        replies = [await asyncio.wait_for(raw.recv(), PATIENCE)]
        while replies[-1] != PONG:
            replies.append(await asyncio.wait_for(raw.recv(), PATIENCE))
        assert len(replies) <= 2


@pytest.mark.parametrize("connect", ["stdio"], indirect=True)
@pytest.mark.parametrize(
    "line",
    [b"hello", b"", b"{oops}", b'{"type":"chunk_data","data":"zzz","offset":0}', b"x" * 200_000,
     b'{"seq_id":1,"action":"__ping","data":{"p":"' + b"y" * 200_000 + b'"}}', b'{"seq_id":1,"action":"\xff\xfe"}'],
    ids=["text", "empty", "braces", "stray-chunk", "long", "long-json", "not-utf8"],
)
async def test_a_malformed_line_costs_nobody_the_connection(connect, line):
    """T5: one over-long line, or one that is not UTF-8, ends the reference's server."""
    box = await connect()
    box.process.stdin.write(line + b"\n")
    await box.process.stdin.drain()
    assert (await box.sh("after", "echo alive")).stdout == "alive"


@pytest.mark.parametrize("connect", ["stdio"], indirect=True)
async def test_commands_cannot_read_the_control_channel(connect):
    """S5: in the reference a command reads the host's next requests."""
    box = await connect()
    thief = asyncio.create_task(box.sh("thief", "cat; sleep 1; cat; echo rc=$?"))
    for _ in range(20):
        await box.client.get_status()
        await asyncio.sleep(0.05)
    assert (await thief).stdout == "rc=0"


@pytest.mark.parametrize("connect", ["stdio"], indirect=True)
async def test_with_stdio_control_nobody_else_gets_the_control_channel(connect):
    """S1: the reference serves the whole protocol on its relay's port too."""
    box = await connect()
    with pytest.raises(websockets.exceptions.InvalidStatus) as refused:
        await websockets.connect(f"ws://127.0.0.1:{box.port}/rpc/ws", proxy=None)
    assert refused.value.response.status_code in (401, 403, 404)


async def test_a_page_of_another_origin_is_refused(serve):
    server = serve()
    with pytest.raises(websockets.exceptions.InvalidStatus) as refused:
        await websockets.connect(server.rpc_url, proxy=None, origin="https://evil.example")
    assert refused.value.response.status_code in (401, 403)


async def test_b10_a_command_means_what_its_text_says(box):
    async def outcome(command, **more):
        result = await box.sh("text", command, **more)
        return result.stdout, result.exit_code

    assert await outcome("true || echo never") == ("", 0)
    assert await outcome("false || echo always") == ("always", 0)
    assert await outcome("# nothing but a comment") == ("", 0)
    assert await outcome("cat <<END\none\nEND\n") == ("one", 0)
    assert await outcome("cd /nowhere 2>/dev/null || pwd") == ("/workspace", 0)
    assert (await outcome("echo 'unbalanced"))[1] == 2
    assert await outcome("echo still here") == ("still here", 0)
