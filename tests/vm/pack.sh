#!/usr/bin/env bash
# Owns what goes into the guest: `pack.sh OUT` builds the test programs and
# fills OUT, a BINDIR of run.sh, with
#
#   run-tests     guest/run-tests, which runs the others
#   native-it     the native backend's suite: conformance, attacks, leaks
#   jail-unit     the unit tests of `jail`, some of them on the real cgroup tree
#   sandcrate     the binary
#   probe         the attack program, static
#   admission.py  a LangBot that holds its workspaces to grants
#
# The programs are those of `cargo test --workspace`, feature for feature, so
# that neither builds anything for the other a second time. The guest is a
# Debian of the host's own release, so their libraries are there.
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
root=$(realpath "$here/../..")
target=$(realpath -m "${CARGO_TARGET_DIR:-$root/target}")
readonly here root target

# In a target folder of its own, because of its flags; the native backend's
# tests share it.
build_probe() {
    (cd "$root" && RUSTFLAGS='-C target-feature=+crt-static' \
        cargo build --quiet --package sandcrate-probe --target-dir "$target/probe")
}

# Prints the program of a crate: `program CRATE KIND NAME TEST`.
program() {
    "$root/tools/built-program.sh" "$@"
}

# Without what only a debugger reads: it is most of the size.
place() {
    local file=$1 name=$2
    strip --strip-debug -o "$out/$name" "$file"
    chmod 755 "$out/$name"
}

main() {
    local native_it jail_unit sandcrate
    build_probe
    native_it=$(program backend-native test it true)
    jail_unit=$(program jail lib sandcrate_jail true)
    sandcrate=$(program cli bin sandcrate false)
    mkdir -p "$out"
    place "$native_it" native-it
    place "$jail_unit" jail-unit
    place "$sandcrate" sandcrate
    place "$target/probe/debug/probe" probe
    install -m 755 "$here/guest/run-tests" "$out/run-tests"
    install -m 644 "$here/guest/admission.py" "$out/admission.py"
}

if (($# != 1)); then
    echo "usage: pack.sh OUT" >&2
    exit 2
fi
readonly out=$1
main
