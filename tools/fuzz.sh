#!/usr/bin/env bash
# Fuzzes every decoder for a while: those of fuzz/fuzz_targets, or the named ones.
#
#   fuzz.sh [SECONDS [TARGET...]]
#
# Needs no nightly toolchain and no cargo-fuzz: the compiler is told itself to count edges for libFuzzer. What is found
# stays in fuzz/corpus, what breaks in fuzz/artifacts; both are left out of the repository.
set -euo pipefail
cd "$(dirname "$0")/../fuzz"

seconds=${1:-60}
shift || true
targets=("$@")
[[ ${#targets[@]} -gt 0 ]] || for file in fuzz_targets/*.rs; do targets+=("$(basename "$file" .rs)"); done

passes='-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters'
passes+=' -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares'
export RUSTC_BOOTSTRAP=1 RUSTFLAGS="$passes --cfg fuzzing -Cdebug-assertions -Coverflow-checks -Ccodegen-units=1 -Zsanitizer=address"
host=$(rustc -vV | sed -n 's/^host: //p')
cargo build --release --target "$host" --bins
for target in "${targets[@]}"; do
    mkdir -p "corpus/$target" "artifacts/$target"
    echo "fuzzing $target for $seconds s"
    "target/$host/release/$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
        -artifact_prefix="artifacts/$target/" "corpus/$target"
done
