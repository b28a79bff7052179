#!/usr/bin/env bash
# Runs the tests that need no root as an ordinary user: directly when we are one, as `nobody` when we are root.
# Then the programs are copied to a place that this user can read; the repository's own rules need no second run.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "$(id -u)" -ne 0 ]; then
    exec cargo test --workspace --no-fail-fast
fi

target=${CARGO_TARGET_DIR:-target}
stage=$(mktemp -d /var/tmp/sandcrate-unprivileged-XXXXXX)
trap 'rm -rf "$stage"' EXIT
chmod 755 "$stage"
mkdir "$stage/bin"
install -d -o nobody "$stage/home" "$stage/tmp"
RUSTFLAGS='-C target-feature=+crt-static' cargo build -q -p sandcrate-probe --target-dir "$target/probe"
install -m 755 "$target/probe/debug/probe" "$stage/bin/probe"
install -m 755 "$(tools/built-program.sh jail lib sandcrate_jail true)" "$stage/bin/jail"
install -m 755 "$(tools/built-program.sh image lib sandcrate_image true)" "$stage/bin/image"
install -m 755 "$(tools/built-program.sh backend-native test it true)" "$stage/bin/native"
install -m 755 "$(tools/built-program.sh backend-native test network true)" "$stage/bin/network"
install -m 755 "$(tools/built-program.sh cli test it true)" "$stage/bin/cli"
install -m 755 "$(tools/built-program.sh cli bin sandcrate false)" "$stage/bin/sandcrate"

as_nobody() {
    echo "as nobody: $*"
    (cd "$stage/home" && "${tun_for_all[@]}" setpriv --reuid=nobody --regid=nogroup --clear-groups \
        env -i PATH="/usr/local/bin:/usr/bin:/bin" HOME="$stage/home" TMPDIR="$stage/tmp" \
        SANDCRATE_TEST_REQUIRE="$required" SANDCRATE_PROBE="$stage/bin/probe" SANDCRATE_BIN="$stage/bin/sandcrate" "$@")
}

# Distributions let everybody open the tun device; a machine without udev lets root alone. For the tests such a machine
# gets a node of their own, in a mount namespace of their own.
tun_for_all=()
if [ -c /dev/net/tun ] && [ "$(($(stat -c '0%a' /dev/net/tun) & 6))" -ne 6 ]; then
    echo "as nobody: /dev/net/tun is root's alone here; using a node of the tests' own"
    tun_for_all=(unshare --mount sh -c
        'mount -t tmpfs -o mode=755 none /dev/net && mknod -m 666 /dev/net/tun c 10 200 && exec "$@"' sh)
fi

# Where the tests have a tun device, a box without a network is a failure.
required=box
[ -c /dev/net/tun ] && required+=,isolated-network

failed=0
as_nobody "$stage/bin/jail" || failed=1
as_nobody "$stage/bin/image" || failed=1
as_nobody "$stage/bin/native" || failed=1
as_nobody "$stage/bin/network" || failed=1
as_nobody "$stage/bin/cli" --skip layers:: --skip sizes:: --skip unsafe_code:: || failed=1
exit "$failed"
