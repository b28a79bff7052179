#!/usr/bin/env bash
# Owns what every VM run shares: the kernel, the initramfs and the base disk
# image. `build-base.sh DIR` leaves them in DIR as vmlinuz, initramfs and
# root.ext4, and does nothing when DIR was made from these same scripts for the
# same Debian release. Delete DIR to fetch newer packages.
#
# The root is a fresh Debian of the host's own release, so that binaries linked
# on the host find their libraries. It is made as root, because the image keeps
# the owners of the files.
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
readonly here

readonly kernel_package=linux-image-cloud-amd64
readonly image_size=4G # sparse: the room the tests have to write to
# ext4 is built into the kernel. Other modules are in the guest's /lib/modules.
readonly boot_modules=(virtio_pci virtio_blk virtio_console overlay loop quota_v2)
readonly guest_packages=(
    e2fsprogs iproute2 kmod libcap2-bin libstdc++6 login mount passwd procps
    python3 quota uidmap util-linux
)

suite() {
    # shellcheck source=/dev/null
    (. /etc/os-release && echo "$VERSION_CODENAME")
}

stamp() {
    suite
    (cd "$here" && sha256sum build-base.sh guest/init guest/initramfs-init)
}

# Unpacks the kernel package to $1. It is not installed: nothing on the host
# should boot it.
unpack_kernel() {
    local dir=$1 package
    package=$(LC_ALL=C apt-cache depends "$kernel_package" |
        awk '$1 == "Depends:" && $2 ~ /^linux-image-/ { print $2; exit }')
    if [[ -z $package ]]; then
        echo "build-base.sh: apt knows no $kernel_package: run install.sh" >&2
        return 1
    fi
    mkdir "$dir"
    (cd "$dir" && apt-get -qq -o APT::Sandbox::User=root download "$package")
    dpkg-deb --extract "$dir"/*.deb "$dir"
    depmod --basedir "$dir" "$(kernel_release "$dir")"
}

kernel_release() {
    basename "$1"/lib/modules/*
}

# Prints the files of the boot modules and what they depend on, in load order.
module_files() {
    local kernel=$1 release module
    release=$(kernel_release "$kernel")
    for module in "${boot_modules[@]}"; do
        modprobe --dirname "$kernel" --set-version "$release" --show-depends "$module"
    done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }'
}

build_initramfs() {
    local kernel=$1 tree=$2 image=$3 file
    mkdir -p "$tree"/{bin,dev,modules,newroot,proc,sys}
    install -m 755 /bin/busybox "$tree/bin/busybox"
    install -m 755 "$here/guest/initramfs-init" "$tree/init"
    while read -r file; do
        cp "$file" "$tree/modules/"
        basename "$file" >>"$tree/modules/order"
    done < <(module_files "$kernel")
    (cd "$tree" && find . | cpio --quiet --create --format=newc --owner=0:0) | gzip -1 >"$image"
}

build_root() {
    local kernel=$1 root=$2 packages
    # shellcheck disable=SC2016 # the hook's shell expands $1
    local add_user='chroot "$1" useradd --create-home --uid 1000 --shell /bin/bash tester'
    packages=$(IFS=,; echo "${guest_packages[*]}")
    mmdebstrap --quiet --mode=root --format=directory --variant=essential \
        --include="$packages" \
        --aptopt='APT::Sandbox::User "root"' \
        --dpkgopt='path-exclude=/usr/share/man/*' \
        --dpkgopt='path-exclude=/usr/share/doc/*' \
        --dpkgopt='path-exclude=/usr/share/info/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' \
        --customize-hook="$add_user" \
        "$(suite)" "$root" </dev/null
    : >"$root/etc/subuid"
    : >"$root/etc/subgid"
    rm -f "$root/etc/resolv.conf"
    echo sandcrate-vm >"$root/etc/hostname"
    echo '127.0.0.1 localhost sandcrate-vm' >"$root/etc/hosts"
    mkdir -p "$root/opt/sandcrate"
    install -m 755 "$here/guest/init" "$root/usr/sbin/vm-init"
    cp -a "$kernel/lib/modules" "$root/usr/lib/"
}

# mke2fs does not count the files it copies in; e2fsck corrects the usage and
# says so with code 1.
build_image() {
    mke2fs -qF -t ext4 -L vm-root -m 0 -O project,quota -E quotatype=prjquota \
        -d "$1" "$2" "$image_size"
    e2fsck -fy "$2" >/dev/null 2>&1 || (($? == 1))
    e2fsck -fn "$2" >/dev/null 2>&1
}

build() {
    local work=$1 kernel=$1/kernel
    unpack_kernel "$kernel"
    cp "$kernel"/boot/vmlinuz-* "$work/vmlinuz"
    build_initramfs "$kernel" "$work/initramfs-tree" "$work/initramfs"
    build_root "$kernel" "$work/root"
    build_image "$work/root" "$work/root.ext4"
    rm -rf "$kernel" "$work/initramfs-tree" "$work/root"
    stamp >"$work/stamp"
}

main() {
    local base=$1
    if [[ -e $base/stamp && $(stamp) == "$(<"$base/stamp")" ]]; then
        return
    fi
    if ((EUID != 0)); then
        echo "build-base.sh: the base image can only be made as root" >&2
        return 1
    fi
    echo "build-base.sh: making the base image in $base" >&2
    rm -rf "$base" "$base.new"
    mkdir -p "$base.new"
    build "$base.new"
    mv "$base.new" "$base"
}

if (($# != 1)); then
    echo "usage: build-base.sh DIR" >&2
    exit 2
fi
main "$1"
