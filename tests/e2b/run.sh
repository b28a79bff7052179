#!/usr/bin/env bash
# E2B's own SDKs, unmodified, against our server: Python (both kinds of client) and JavaScript, and the code interpreters
# on top of them; and the interpreter's kernel by itself.
#
#   run.sh BIN [pytest arguments]
#
# The SDKs are installed once and kept in $SANDCRATE_VENVS (target/e2b-clients), named by the hash of the lists of
# versions that made them. The tests speak with nothing but loopback.
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
[[ $# -ge 1 ]] || { echo "usage: run.sh BIN [pytest arguments]" >&2; exit 2; }
SANDCRATE_BIN=$(realpath -e -- "$1")
shift
export SANDCRATE_BIN
clients=$(realpath -m -- "${SANDCRATE_VENVS:-${CARGO_TARGET_DIR:-$here/../../target}/e2b-clients}")
source "$here/../clients.sh"

python=$(made python "$here/requirements.txt" make_python)/bin/python
SANDCRATE_NODE_CLIENT=$(made node "$here/package.json" make_node)
SANDCRATE_RICH_PYTHON=$(made rich "$here/requirements-kernel.txt" make_python)/bin/python
export SANDCRATE_NODE_CLIENT SANDCRATE_RICH_PYTHON PYTHONDONTWRITEBYTECODE=1

work=$(mktemp -d /tmp/sandcrate-e2b-XXXXXX)
trap 'rm -rf "$work"' EXIT
cd "$work"
"$python" -m pytest -q -p no:cacheprovider --basetemp "$work/pytest" "$here" "$@"
