"""The code interpreter inside a box: one process, one context. The files of this directory are joined in the order of their
names and run as one program by the box's own Python; only the standard library is needed.

It reads requests as JSON lines on its standard input and answers with JSON lines on its standard output:

    {"op": "execute", "id": "1", "code": "...", "env": {}}    events, then {"type": "end", "id": "1"}
    {"op": "interrupt", "id": "1"}                            KeyboardInterrupt in that execution, if it still runs

Events are those of E2B's code interpreter: number_of_executions, stdout, stderr, result, error. The first line of all is
{"type": "ready"}. The main thread runs code; one thread reads requests, one forwards output. Text is sent as ASCII, so that
a client may cut the stream anywhere.

This file: the conversation's two descriptors, and descriptors 1 and 2, which are pipes to the forwarding thread, so that
whatever writes there, a subprocess too, is heard and cannot disturb the protocol.
"""

import codecs
import io
import json
import os
import select
import sys
import threading
import time

# One piece of output.
MAX_CHUNK = 64 << 10
# A line of output that has no end yet is held back for so long, so that what is printed in pieces arrives as one.
PATIENCE = 0.02


class Channel:
    """The protocol's two descriptors, taken away from where user code would find them by accident."""

    def __init__(self):
        self.requests = os.fdopen(os.dup(0), "rb")
        self._out = os.dup(1)
        self._pid = os.getpid()
        self._lock = threading.Lock()
        # An interrupt waits for the end of a line, which would otherwise stay half written.
        self.sending = False
        self.interrupted = False
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)

    def send(self, event):
        # A fork of user code has no part in the conversation.
        if os.getpid() != self._pid:
            return
        line = json.dumps(event, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        main = threading.current_thread() is threading.main_thread()
        try:
            self.sending |= main
            with self._lock:
                while line:
                    line = line[os.write(self._out, line) :]
        finally:
            self.sending &= not main
        if main and self.interrupted:
            self.interrupted = False
            raise KeyboardInterrupt


class Output:
    """Descriptors 1 and 2, forwarded as events by a thread of its own."""

    def __init__(self, channel):
        self._channel = channel
        self._pipes = {}
        for number, name in ((1, "stdout"), (2, "stderr")):
            read, write = os.pipe()
            # The writing end stays open too: user code may close its own and there is still no end of file.
            os.dup2(write, number)
            os.set_blocking(read, False)
            self._pipes[read] = [name, codecs.getincrementaldecoder("utf-8")("replace"), ""]
        self._wake_read, self._wake_write = os.pipe()
        self._drained = threading.Event()
        self._pid = os.getpid()
        self.open_streams()
        threading.Thread(target=self._forward, daemon=True).start()

    @staticmethod
    def open_streams():
        for number, name in ((1, "stdout"), (2, "stderr")):
            raw = io.FileIO(number, "w", closefd=False)
            stream = io.TextIOWrapper(raw, encoding="utf-8", errors="replace", write_through=True)
            stream.mode = "w"
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)

    def drain(self):
        """Returns when everything written so far was sent."""
        if os.getpid() != self._pid:
            return
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:
                pass
        self._drained.clear()
        os.write(self._wake_write, b".")
        self._drained.wait()

    def _forward(self):
        try:
            self._forward_all()
        finally:
            # Without output there is no use in going on, and somebody may wait for it.
            os._exit(70)

    def _forward_all(self):
        while True:
            held = any(pipe[2] for pipe in self._pipes.values())
            ready, _, _ = select.select([*self._pipes, self._wake_read], [], [], PATIENCE if held else None)
            asked = self._wake_read in ready
            if asked:
                os.read(self._wake_read, 1)
                # More than a pipe holds; what goes on writing is not waited for.
                for _ in range(64):
                    if not any([self._take(read) for read in self._pipes]):
                        break
            else:
                for read in ready:
                    self._take(read)
            for pipe in self._pipes.values():
                if pipe[2] and (asked or not ready or pipe[2].endswith("\n")):
                    self._send(pipe)
            if asked:
                self._drained.set()

    def _take(self, read):
        pipe = self._pipes[read]
        try:
            data = os.read(read, MAX_CHUNK)
        except BlockingIOError:
            return False
        pipe[2] += pipe[1].decode(data)
        if len(pipe[2]) >= MAX_CHUNK:
            self._send(pipe)
        return bool(data)

    def _send(self, pipe):
        name, _, text = pipe
        pipe[2] = ""
        self._channel.send({"type": name, "text": text, "timestamp": time.time_ns()})
