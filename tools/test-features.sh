#!/usr/bin/env bash
# Prints the features that this machine has, comma-separated: a test that needs one of them must not be skipped.
set -euo pipefail
features=()
for program in python3 node npm git gcc bash make perl sqlite3 uv busybox nsjail; do
    command -v "$program" >/dev/null && features+=("$program")
done
[ "$(id -u)" -eq 0 ] && features+=(root)
# Boxes can have a network where there is a tun device for them.
[ -c /dev/net/tun ] && [ -r /dev/net/tun ] && [ -w /dev/net/tun ] && features+=(isolated-network)
# The daemons of container engines need root.
if [ "$(id -u)" -eq 0 ]; then
    command -v dockerd >/dev/null && features+=(docker)
    command -v podman >/dev/null && features+=(podman)
fi
(IFS=,; echo "${features[*]}")
