#!/usr/bin/env bash
# The scenarios of the official conformance tool that concern our box server, against `/mcp/box`.
#
#   conformance.sh BIN
#
# What npm gives is fetched once, by the versions below, and kept in $SANDCRATE_MCP_TOOLS (target/mcp-tools).
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
[[ $# -eq 1 ]] || { echo "usage: conformance.sh BIN" >&2; exit 2; }
bin=$(realpath -e -- "$1")
tools=$(realpath -m -- "${SANDCRATE_MCP_TOOLS:-${CARGO_TARGET_DIR:-$here/../../target}/mcp-tools}")

# Node comes along because the tool wants a newer one than Debian has.
packages=(@modelcontextprotocol/conformance@0.1.16 node@22.23.3)

# Of the tool's 32 scenarios those that ask nothing of a server but the protocol. The others want tools, prompts and
# resources of its own example server, or features that we do not have: logging, completion, prompts, subscriptions.
scenarios=(server-initialize ping tools-list resources-list server-sse-polling server-sse-multiple-streams dns-rebinding-protection)

node=$tools/node-$(printf '%s\n' "${packages[@]}" | sha256sum | cut -c1-16)
if [[ ! -e $node/complete ]]; then
    rm -rf "$node"
    mkdir -p "$node"
    (cd "$node" && npm init -y >/dev/null && npm install --no-audit --no-fund --loglevel=error "${packages[@]}" >&2)
    touch "$node/complete"
fi
PATH=$node/node_modules/node/bin:$PATH

state=$(mktemp -d)
SANDCRATE_STATE_DIR=$state "$bin" serve --listen 127.0.0.1:0 2>"$state/said" &
server=$!
trap 'kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; rm -rf "$state"' EXIT
url=
for _ in $(seq 200); do
    url=$(grep -o 'http://127[0-9.:]*' "$state/said" | head -1) && [[ -n $url ]] && break
    sleep 0.05
done
[[ -n $url ]] || { cat "$state/said" >&2; exit 1; }
cd "$state"
for scenario in "${scenarios[@]}"; do
    if node "$node/node_modules/.bin/conformance" server --url "$url/mcp/box" --scenario "$scenario" >"$state/out" 2>&1; then
        echo "ok: conformance $scenario"
    else
        cat "$state/out"
        echo "failed: conformance $scenario" >&2
        exit 1
    fi
done
