"""The conversation with the host: one request after another, and interrupts between them. It is started with the argument
`python` or `bash`."""

import asyncio
import json
import os
import signal
import sys
import threading
import traceback


class Kernel:
    """The conversation with the host."""

    def __init__(self, language):
        self.channel = Channel()
        self.output = Output(self.channel)
        self._requests = []
        self._arrived = threading.Lock()
        self._waiting = None
        self._running = None
        self._cancelled = None
        self._count = 0
        # Whatever a cell starts is interrupted with it, as by a terminal.
        if os.getpgrp() != os.getpid():
            os.setpgid(0, 0)
        signal.signal(signal.SIGINT, self._on_interrupt)
        self._language = Bash() if language == "bash" else Python(Display(self.channel, self.output))

    def serve(self):
        threading.Thread(target=self._read, daemon=True).start()
        self.channel.send({"type": "ready"})
        while True:
            self._execute(self._language.idle(self._next))

    async def _next(self):
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        with self._arrived:
            if self._requests:
                return self._requests.pop(0)
            self._waiting = (loop, future)
        return await future

    def _read(self):
        for line in self.channel.requests:
            request = json.loads(line)
            with self._arrived:
                if request["op"] == "interrupt":
                    if self._running == request["id"]:
                        os.killpg(0, signal.SIGINT)
                    else:
                        # It may be for the request that is about to run.
                        self._cancelled = request["id"]
                    continue
                if self._waiting is None:
                    self._requests.append(request)
                    continue
                (loop, future), self._waiting = self._waiting, None
            loop.call_soon_threadsafe(future.set_result, request)
        # The host is gone; so are we, and what we started.
        os.killpg(0, signal.SIGKILL)

    def _on_interrupt(self, *_):
        if self._running is None:
            return
        if self.channel.sending:
            self.channel.interrupted = True
            return
        raise KeyboardInterrupt

    def _execute(self, request):
        self._count += 1
        self.channel.send({"type": "number_of_executions", "execution_count": self._count})
        failure = self._run(request)
        self.output.drain()
        if failure is not None:
            self.channel.send(described(failure))
        self.channel.send({"type": "end", "id": request["id"]})

    def _run(self, request):
        """What the code raised; an interrupt too, up to the last moment."""
        try:
            try:
                with self._arrived:
                    self._running = request["id"]
                    if self._cancelled == self._running:
                        raise KeyboardInterrupt
                environment = {str(key): str(value) for key, value in (request.get("env") or {}).items()}
                self._language.run(request["code"], self._count, environment)
            finally:
                self._running = None
        except BaseException as error:
            return error
        return None


def described(error):
    """An error with the part of its traceback that is the user's."""
    frames = error.__traceback__
    while frames is not None and not frames.tb_frame.f_code.co_filename.startswith(CELL):
        frames = frames.tb_next
    if frames is None and isinstance(error, (SyntaxError, ExitCode)):
        lines = traceback.format_exception_only(type(error), error)
    else:
        lines = traceback.format_exception(type(error), error, frames)
    try:
        value = str(error)
    except Exception:
        value = "an error that cannot be shown"
    text = "".join(lines)
    return {"type": "error", "name": type(error).__name__, "value": value[:MAX_CHUNK], "traceback": text[-MAX_CHUNK:]}


if __name__ == "__main__":
    Kernel(sys.argv[1] if len(sys.argv) > 1 else "python").serve()
