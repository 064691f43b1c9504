# shellcheck shell=bash
# Functions of the steps with the system's DPDK, besides lib.sh. Sourced, not executed.

# Other steps have programs without DPDK in target/debug.
export CARGO_TARGET_DIR="$ROOT/target/dpdk"

# Packages that use DPDK ports: the same selection for builds and tests, as in lib.sh.
WITH_DPDK=(-p dpdk-sys -p pmd-port -p pmd -p vipl-capi -p fcvi-pmd -p e2e --features dpdk)

# build_with_dpdk: builds the libraries, programs and tests.
build_with_dpdk() {
    local -a tests=(--test vdevs --test dpdk --test configs --test testpmd_floods --test hostile_frames --test ports)
    # With the tests, whose dependencies enable features.
    cargo build --locked "${WITH_DPDK[@]}" --lib --bins "${tests[@]}"
    cargo test --no-run --locked "${WITH_DPDK[@]}" --lib
}

# test_with_dpdk PACKAGE ARGS: runs tests of one package; fails if no test was executed.
test_with_dpdk() {
    run_tests_of "$1" "${WITH_DPDK[@]}" "${@:2}"
}
