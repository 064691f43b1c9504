# shellcheck shell=bash
# Where the parts of the Linux peer are. Sourced behind ci/lib.sh, never run.

# What is made here: vmlinux, busybox, modules/, initramfs. Never in the tree.
PEER_PARTS="${CARGO_TARGET_DIR:-$ROOT/target}/linux-peer"

# The modules in the order of their loading, as paths below the kernel's own.
peer_modules() { sed '/^#/d' "$ROOT/ci/linux-peer.d/modules"; }

# Is everything there that ci/linux-peer.d/fetch brings?
peer_parts_present() {
    local module
    [[ -s "$PEER_PARTS/vmlinux" && -x "$PEER_PARTS/busybox" ]] || return 1
    while read -r module; do
        [[ -s "$PEER_PARTS/modules/${module##*/}" ]] || return 1
    done < <(peer_modules)
}
