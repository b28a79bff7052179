#!/usr/bin/env bash
# Runs the tests that need no root as an ordinary user: directly when we are one, as `nobody` when we are root.
set -euo pipefail
cd "$(dirname "$0")/.."


if [ "$(id -u)" -ne 0 ]; then
    exec cargo test --workspace --no-fail-fast
fi

# A place that the user can read and write: the target folder need not be.
stage=$(mktemp -d /var/tmp/sandcrate-unprivileged-XXXXXX)
trap 'rm -rf "$stage"' EXIT
mkdir -p "$stage/home" "$stage/bin"
chown nobody "$stage/home"
chmod 755 "$stage"
native=$(cargo test -p sandcrate-backend-native --test it --no-run --message-format=json 2>/dev/null |
    grep -o '"executable":"[^"]*"' | cut -d'"' -f4 | tail -n 1)
RUSTFLAGS='-C target-feature=+crt-static' cargo build -q -p sandcrate-probe --target-dir "${CARGO_TARGET_DIR:-target}/probe"
install -m 755 "$native" "$stage/bin/native-it"
install -m 755 "${CARGO_TARGET_DIR:-target}/probe/debug/probe" "$stage/bin/probe"
echo "as nobody: the native backend, rootless"
cd "$stage/home"
setpriv --reuid=nobody --regid=nogroup --clear-groups \
    env -i PATH="$PATH" HOME="$stage/home" SANDCRATE_PROBE="$stage/bin/probe" "$stage/bin/native-it"
