"""`sandcrate-langbot` in an environment of LangBot's: `box` is ours, and everything else is LangBot's as before."""

import os
import pathlib
import subprocess
import sys

import pytest
from harness import BIN, PATIENCE

SCRIPTS = pathlib.Path(sys.executable).parent
# Not `--help`: that depends on the name of the program.
OURS = ["box", "--no-such-flag"]


def run(*command: str, **env: str) -> subprocess.CompletedProcess:
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env={**os.environ, **env})


def expected() -> tuple[int, str]:
    done = run(BIN, *OURS)
    assert "--no-such-flag" in done.stderr
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "launch",
    [
        [sys.executable, "-m", "langbot_plugin.cli.__init__"],
        [sys.executable, "-u", "-X", "dev", "-mlangbot_plugin.cli.__init__"],
        [sys.executable, str(SCRIPTS / "lbp")],
        [str(SCRIPTS / "lbp")],
    ],
)
def test_box_is_ours(launch):
    done = run(*launch, *OURS)
    assert (done.returncode, done.stderr) == expected(), done


def test_the_program_is_found_on_path_too(tmp_path):
    (tmp_path / "sandcrate").symlink_to(BIN)
    launch = [sys.executable, "-m", "langbot_plugin.cli.__init__", *OURS]
    done = run(*launch, SANDCRATE_BIN="", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert (done.returncode, done.stderr) == expected(), done


@pytest.mark.parametrize("arguments", [["--help"], ["rt", "--help"], ["nonsense"], [], ["ver", "box"]])
def test_other_sub_commands_are_langbots(arguments):
    launch = [sys.executable, "-m", "langbot_plugin.cli.__init__"]
    # Without site there is no shim; the packages are put on the path by hand.
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    with_shim, without = run(*launch, *arguments), run(launch[0], "-S", *launch[1:], *arguments, PYTHONPATH=packages)
    assert (with_shim.returncode, with_shim.stdout, with_shim.stderr) == (
        without.returncode, without.stdout, without.stderr
    )


def test_other_programs_do_not_notice(tmp_path):
    script = tmp_path / "lbp"
    script.write_text("import sys; print(sys.argv[1:], 'sandcrate_langbot' in sys.modules)")
    assert run(sys.executable, str(script), "box", "-s").stdout == "['box', '-s'] True\n", "looked at, and left alone"
    assert run(sys.executable, str(script), "boxes").stdout == "['boxes'] False\n", "not even looked at"
    done = run(sys.executable, "-c", "import sys; print(sys.argv)", "box", "-m", "langbot_plugin.cli.__init__", "box")
    assert done.stdout == "['-c', 'box', '-m', 'langbot_plugin.cli.__init__', 'box']\n"


@pytest.mark.parametrize("missing", ["/no/such/program", __file__])
def test_without_a_program_nothing_starts(missing):
    """LangBot's own runtime instead of ours would run commands with less isolation than the operator asked for."""
    done = run(sys.executable, "-m", "langbot_plugin.cli.__init__", "box", "-s", SANDCRATE_BIN=missing)
    assert (done.returncode, done.stdout) == (127, "")
    assert done.stderr == (
        f"sandcrate-langbot: SANDCRATE_BIN={missing} cannot be executed; set SANDCRATE_BIN, or `pip uninstall "
        "sandcrate-langbot` for LangBot's own runtime\n"
    )


def test_a_program_that_is_none_is_named(tmp_path):
    broken = tmp_path / "sandcrate"
    broken.write_bytes(b"\x7fELF")
    broken.chmod(0o755)
    done = run(sys.executable, "-m", "langbot_plugin.cli.__init__", "box", "-s", SANDCRATE_BIN=str(broken))
    assert (done.returncode, done.stderr) == (125, f"sandcrate-langbot: {broken}: Exec format error\n")
