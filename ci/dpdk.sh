# shellcheck shell=bash
# Functions of the steps with the system's DPDK, besides lib.sh. Sourced, not executed.

# Packages that use DPDK ports: the same selection for builds and tests, as in lib.sh.
WITH_DPDK=(-p dpdk-sys -p pmd-port -p pmd -p vipl-capi -p fcvi-pmd -p e2e --features dpdk)

# build_with_dpdk: builds the libraries and programs. Later steps build them without DPDK.
build_with_dpdk() {
    # With a test, whose dependencies enable features.
    cargo build --locked "${WITH_DPDK[@]}" --lib --bins --test dpdk
}

# test_with_dpdk PACKAGE ARGS: runs tests of one package; fails if no test was executed.
test_with_dpdk() {
    run_tests_of "$1" "${WITH_DPDK[@]}" "${@:2}"
}
