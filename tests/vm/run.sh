#!/usr/bin/env bash
# Owns one VM test run: boots Debian's kernel under qemu without KVM, with the
# content of BINDIR at /opt/sandcrate (read-only, owners as on the host), and
# runs /opt/sandcrate/run-tests there as root.
#
#   run.sh [--keep] [--timeout SECONDS] BINDIR
#
# Prints the guest's output live and exits with run-tests' code. 124 says that
# the time limit passed, 125 that the guest stopped without a result; both are
# explained on stderr. --keep leaves the run's folder (disk, output, console).
# A guest whose kernel locks up is booted once more: the emulation of several
# CPUs does that, rarely, and it says nothing of what is tested.
#
# The guest has 2 CPUs, 2 GiB, no network, cgroup v2 with all controllers, an
# ext4 root with project quotas, and a user `tester` (1000) without subuids.
# Files are kept in $SANDCRATE_VM_CACHE, else in vm/ of cargo's target folder.
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
cache=$(realpath -m "${SANDCRATE_VM_CACHE:-${CARGO_TARGET_DIR:-$here/../../target}/vm}")
readonly here cache
readonly exit_timeout=124 exit_no_result=125

keep=no
timeout_seconds=1500
run_dir=
qemu_pid=

usage() {
    echo "usage: run.sh [--keep] [--timeout SECONDS] BINDIR" >&2
    exit 2
}

say() {
    echo "vm: $*" >&2
}

clean_up() {
    if [[ -n $qemu_pid ]]; then
        kill "$qemu_pid" 2>/dev/null || true
        wait "$qemu_pid" 2>/dev/null || true
    fi
    if [[ $keep == yes && -n $run_dir ]]; then
        say "kept $run_dir"
    elif [[ -n $run_dir ]]; then
        rm -rf "$run_dir"
    fi
}

# Makes the run's own root disk. The lock keeps another run from rebuilding the
# base while it is copied.
prepare_root_disk() {
    exec 9>"$cache/lock"
    flock 9
    "$here/build-base.sh" "$cache/base" 9>&- >&2
    cp --reflink=auto --sparse=always "$cache/base/root.ext4" "$run_dir/root.ext4"
    ln "$cache"/base/{vmlinuz,initramfs} "$run_dir/"
    exec 9>&-
}

prepare_tests_disk() {
    local bindir=$1 kib files
    kib=$(du --summarize --apparent-size --block-size=1K "$bindir" | cut -f1)
    files=$(find "$bindir" | wc -l)
    mke2fs -qF -t ext4 -L vm-tests -m 0 -O ^has_journal -N $((files + 64)) \
        -E root_owner=0:0 -d "$bindir" "$run_dir/tests.ext4" $((kib + kib / 8 + files * 5 + 8192))k >/dev/null
}

# Its input is a pipe that never ends: at an end of input, qemu would close the
# guest's port.
boot() {
    local status=0 input
    mkfifo "$run_dir/input"
    exec {input}<>"$run_dir/input"
    timeout --foreground --kill-after=10 "$timeout_seconds" \
        qemu-system-x86_64 \
        -accel tcg,thread=multi -M pc -cpu max -smp 2 -m 2048 \
        -nodefaults -no-user-config -no-reboot -display none -nic none \
        -kernel "$run_dir/vmlinuz" -initrd "$run_dir/initramfs" \
        -append 'console=ttyS0 loglevel=5 panic=-1 oops=panic watchdog_thresh=30 softlockup_panic=1' \
        -drive "if=virtio,format=raw,cache=unsafe,file=$run_dir/root.ext4" \
        -drive "if=virtio,format=raw,readonly=on,file=$run_dir/tests.ext4" \
        -serial "file:$run_dir/console.log" \
        -chardev "stdio,id=output,signal=off,logfile=$run_dir/output.log" \
        -device virtio-serial-pci -device virtserialport,chardev=output,name=vm-tests \
        <&"$input" &
    qemu_pid=$!
    wait "$qemu_pid" || status=$?
    qemu_pid=
    return "$status"
}

# Prints the code that the guest reported in its last line, if it did.
guest_code() {
    tail -n 1 "$run_dir/output.log" 2>/dev/null | sed -nE 's/^VM-TESTS-EXIT: ([0-9]+)$/\1/p'
}

fail() {
    local code=$1
    shift
    say "$*; the console's last lines:"
    tail -n 30 "$run_dir/console.log" >&2 || true
    exit "$code"
}

prepare() {
    run_dir=$(mktemp -d "$cache/run.XXXXXX")
    prepare_root_disk
    prepare_tests_disk "$1"
}

main() {
    local bindir=$1 status=0 code
    if [[ ! -x $bindir/run-tests ]]; then
        say "$bindir has no executable run-tests"
        exit 2
    fi
    mkdir -p "$cache"
    trap clean_up EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    prepare "$bindir"
    boot || status=$?
    if [[ -z $(guest_code) ]] && grep -q 'soft lockup' "$run_dir/console.log"; then
        say "the guest's kernel locked up; booting once more"
        clean_up
        status=0
        prepare "$bindir"
        boot || status=$?
    fi
    code=$(guest_code)
    if [[ -n $code ]]; then
        exit "$code"
    elif ((status == 124 || status == 137)); then
        fail "$exit_timeout" "no result within $timeout_seconds s"
    fi
    fail "$exit_no_result" "the guest stopped without a result (qemu: $status)"
}

while (($# > 0)); do
    case $1 in
    --keep) keep=yes ;;
    --timeout)
        (($# > 1)) || usage
        timeout_seconds=$2
        shift
        ;;
    -*) usage ;;
    *) break ;;
    esac
    shift
done
(($# == 1)) || usage
main "$1"
