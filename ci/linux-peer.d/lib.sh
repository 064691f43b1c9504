# shellcheck shell=bash
# Paths of the Linux peer's files. Sourced after ci/lib.sh, not executed.

# Directory of vmlinux, busybox, modules/ and initramfs, outside the source tree.
PEER_PARTS="${CARGO_TARGET_DIR:-$ROOT/target}/linux-peer"

# Prints the modules in loading order, as paths below the kernel's module directory.
peer_modules() { sed '/^#/d' "$ROOT/ci/linux-peer.d/modules"; }

# Succeeds if all files of ci/linux-peer.d/fetch exist.
peer_parts_present() {
    local module
    [[ -s "$PEER_PARTS/vmlinux" && -x "$PEER_PARTS/busybox" ]] || return 1
    while read -r module; do
        [[ -s "$PEER_PARTS/modules/${module##*/}" ]] || return 1
    done < <(peer_modules)
}
