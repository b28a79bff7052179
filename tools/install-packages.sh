#!/usr/bin/env bash
# Installs what the tests and benchmarks need on Debian. Does nothing for an ordinary user, or when all is there.
set -euo pipefail
cd "$(dirname "$0")/.."

programs=(python3:python3 pip3:python3-pip git:git gcc:gcc make:make perl:perl node:nodejs npm:npm bwrap:bubblewrap
    mke2fs:e2fsprogs setsid:util-linux ps:procps su:util-linux jq:jq strip:binutils curl:curl ip:iproute2
    openssl:openssl dockerd:docker.io podman:podman runc:runc conmon:conmon busybox:busybox-static)

missing=()
for pair in "${programs[@]}"; do
    PATH="$PATH:/usr/sbin:/sbin" command -v "${pair%%:*}" >/dev/null || missing+=("${pair##*:}")
done
python3 -c 'import venv, ensurepip' 2>/dev/null || missing+=(python3-venv)

if [ "$(id -u)" -ne 0 ]; then
    [ "${#missing[@]}" -eq 0 ] || echo "not root: these packages stay uninstalled: ${missing[*]}" >&2
    exit 0
fi
if [ "${#missing[@]}" -gt 0 ]; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get -o DPkg::Lock::Timeout=300 update -qq
    apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends "${missing[@]}"
fi
# uv is on PyPI only; Debian's pip wants to be told that it may.
command -v uv >/dev/null || python3 -m pip install -q uv 2>/dev/null ||
    python3 -m pip install -q --break-system-packages uv || echo "uv cannot be installed: its test will be skipped" >&2
tests/vm/install.sh
