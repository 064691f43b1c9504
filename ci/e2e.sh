# shellcheck shell=bash
# What the end-to-end steps share, beside lib.sh. Sourced, never run.

# Run as root, in a user namespace of our own when we are not it; then the step starts once more from its begin.
# usage: as_root_of_namespaces "$@"
as_root_of_namespaces() {
    ((EUID == 0)) && return
    unshare --user --map-root-user --net --mount true ||
        die "network namespaces need root, or unprivileged user namespaces (sysctl kernel.unprivileged_userns_clone, user.max_user_namespaces)"
    exec unshare --user --map-root-user --net --mount "$0" "$@"
}

# e2e_test NAME...: runs files of e2e/tests over programs that are built already. One test at a time: each
# starts up to ten processes, and times some of them.
e2e_test() {
    local name
    local -a files=()
    for name in "$@"; do
        files+=(--test "$name")
    done
    cargo_test -p e2e "${files[@]}" -- --nocapture --test-threads=1
}
