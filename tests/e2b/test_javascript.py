"""The JavaScript SDKs, each by a suite of its own language."""

import os
import pathlib
import subprocess

import pytest

HERE = pathlib.Path(__file__).parent


@pytest.mark.parametrize("suite", ["sandbox.test.mjs", "interpreter.test.mjs"])
def test_javascript(server, suite):
    env = {**os.environ, **server.variables}
    # To a pipe the runner would speak TAP; a person reads this.
    # The SDK leaves a timer of a minute behind when a request fails, which would hold up the end.
    command = ["node", "--test", "--test-force-exit", "--test-reporter=spec", HERE / suite]
    ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    print(ended.stdout)
    assert ended.returncode == 0, ended.stdout + ended.stderr
