#!/usr/bin/env bash
# Prints the path of a program that `cargo test --workspace` makes, and makes it when it is not there.
#
#   built-program.sh CRATE KIND NAME TEST        crates/CRATE; bin, lib or test; the target's name; true or false
#
# Always the whole workspace, feature for feature: a build of one package would compile its dependencies again.
set -euo pipefail
cd "$(dirname "$0")/.."

(($# == 4)) || { echo "usage: built-program.sh CRATE KIND NAME TEST" >&2; exit 2; }
found=$(cargo test --quiet --workspace --no-run --message-format=json-render-diagnostics |
    jq --raw-output --arg manifest "/crates/$1/Cargo.toml" --arg kind "$2" --arg name "$3" --argjson test "$4" '
        select(.reason == "compiler-artifact" and .executable != null and .profile.test == $test
            and .target.name == $name and (.target.kind | index($kind))
            and (.manifest_path | endswith($manifest))) | .executable')
if [[ ! -x $found ]]; then
    echo "built-program.sh: the build made no $2 $3 of crates/$1" >&2
    exit 1
fi
echo "$found"
