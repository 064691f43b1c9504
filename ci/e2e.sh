# shellcheck shell=bash
# Functions of the end-to-end steps, besides lib.sh. Sourced, not executed.

# Becomes root: an ordinary user restarts the script as root of a new user, network and mount namespace.
# usage: as_root_of_namespaces "$@"
as_root_of_namespaces() {
    ((EUID == 0)) && return
    unshare --user --map-root-user --net --mount true ||
        die "network namespaces need root, or unprivileged user namespaces (sysctl kernel.unprivileged_userns_clone, user.max_user_namespaces)"
    exec unshare --user --map-root-user --net --mount "$0" "$@"
}

# e2e_test NAME...: runs files of e2e/tests. One test at a time in each step: each starts up to ten processes.
e2e_test() {
    local name
    local -a files=()
    build_workspace
    for name in "$@"; do
        files+=(--test "$name")
    done
    test_package e2e "${files[@]}" -- --nocapture --test-threads=1
}
