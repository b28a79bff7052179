"""Becomes `sandcrate box` where LangBot starts its own Box runtime.

LangBot's launch line is fixed: `python -m langbot_plugin.cli.__init__ box -s --ws-control-port N`. The line in
`sandcrate_langbot.pth` brings every start of this Python here whose first argument is `box`; whatever is not the `box`
sub-command of langbot-plugin goes on as if this were not installed. Nothing of LangBot is imported or changed.
"""

import os
import pathlib
import shutil
import sys

PROGRAM = "SANDCRATE_BIN"
MODULES = ("langbot_plugin.cli.__init__", "langbot_plugin.cli")
SCRIPT = "lbp"
# As the shell and `sandcrate` have them: not found, and a failure of our own.
NOT_FOUND = 127
FAILED = 125


def is_box(argv: list[str], whole: list[str], scripts: pathlib.Path) -> bool:
    """Whether this is langbot-plugin's `box`. `argv` is `sys.argv` before the program runs, `whole` the command line
    with Python's own options, `scripts` where this Python's scripts lie."""
    if argv[1:2] != ["box"]:
        return False
    if argv[0] == "-m":
        # All behind the module's name are its arguments, so this is its place: `-m NAME` or `-mNAME`.
        return whole[len(whole) - len(argv)].removeprefix("-m") in MODULES
    script = pathlib.Path(argv[0])
    return script.name == SCRIPT and script.parent.resolve() == scripts.resolve()


def program() -> str | None:
    """The binary: the one that SANDCRATE_BIN names, else that on PATH."""
    named = os.environ.get(PROGRAM)
    return shutil.which(named) if named else shutil.which("sandcrate")


def take_over() -> None:
    if not is_box(sys.argv, sys.orig_argv, pathlib.Path(sys.executable).parent):
        return
    binary = program()
    if binary is None:
        named = os.environ.get(PROGRAM)
        missing = f"{PROGRAM}={named} cannot be executed" if named else "`sandcrate` is not on PATH"
        fail(NOT_FOUND, f"{missing}; set {PROGRAM}, or `pip uninstall sandcrate-langbot` for LangBot's own runtime")
    try:
        os.execv(binary, ["sandcrate", *sys.argv[1:]])
    except OSError as error:
        fail(FAILED, f"{binary}: {error.strerror}")


def fail(code: int, problem: str) -> None:
    # Python turns an exception of a .pth line into a warning and goes on: LangBot's own runtime would start, unasked.
    os.write(2, f"sandcrate-langbot: {problem}\n".encode())
    os._exit(code)
