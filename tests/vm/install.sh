#!/usr/bin/env bash
# Owns the Debian packages that the VM tests need on the host. Idempotent: it
# leaves apt alone when they are all there. Run as root, once per machine.
set -euo pipefail

readonly packages=(
    busybox-static  # the initramfs
    cpio            # the initramfs
    e2fsprogs       # the disk images
    kmod            # module dependencies
    mmdebstrap      # the guest's root
    qemu-system-x86 # the machine
    util-linux      # flock
)
readonly kernel=linux-image-cloud-amd64 # downloaded by build-base.sh, never installed

installed() {
    [[ $(dpkg-query --show --showformat='${db:Status-Status}' "$1" 2>/dev/null) == installed ]]
}

missing() {
    local package
    for package in "${packages[@]}"; do
        installed "$package" || echo "$package"
    done
}

main() {
    local wanted
    mapfile -t wanted < <(missing)
    if ((${#wanted[@]} == 0)) && apt-cache show "$kernel" >/dev/null 2>&1; then
        return
    fi
    export DEBIAN_FRONTEND=noninteractive
    apt-get -o DPkg::Lock::Timeout=300 update
    if ((${#wanted[@]} > 0)); then
        apt-get -o DPkg::Lock::Timeout=300 install --yes --no-install-recommends "${wanted[@]}"
    fi
}

main
