#!/usr/bin/env bash
# Real MCP servers in boxes, driven by the official SDKs: servers of npm and PyPI through `sandcrate mcp run`, through the
# gateway, and by the relay.
#
#   run.sh BIN [pytest arguments]
#
# The clients are installed once and kept in $SANDCRATE_VENVS (target/mcp-clients), named by the hash of the lists of
# versions that made them. What the servers need is installed in every run, in boxes: that is part of what is tested.
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
[[ $# -ge 1 ]] || { echo "usage: run.sh BIN [pytest arguments]" >&2; exit 2; }
SANDCRATE_BIN=$(realpath -e -- "$1")
shift
export SANDCRATE_BIN
clients=$(realpath -m -- "${SANDCRATE_VENVS:-${CARGO_TARGET_DIR:-$here/../../target}/mcp-clients}")

source "$here/../clients.sh"

python=$(made python "$here/requirements.txt" make_python)/bin/python
SANDCRATE_NODE_CLIENT=$(made node "$here/package.json" make_node)
SANDCRATE_RELAY_PYTHON=$(made relay "$here/requirements-relay.txt" make_python)/bin/python
export SANDCRATE_NODE_CLIENT SANDCRATE_RELAY_PYTHON PYTHONDONTWRITEBYTECODE=1

work=$(mktemp -d /tmp/sandcrate-mcp-XXXXXX)
trap 'rm -rf "$work"' EXIT
cd "$work"
export SANDCRATE_STATE_DIR=$work/state XDG_CACHE_HOME=$work/cache
"$python" -m pytest -q -p no:cacheprovider --basetemp "$work/pytest" "$here" "$@"
