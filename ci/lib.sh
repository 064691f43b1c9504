# shellcheck shell=bash
# Functions of the scripts of this directory. Sourced, not executed.

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$ROOT" || exit 1

# Colours only on a terminal.
if [[ -t 1 && -z "${NO_COLOR:-}" && "${TERM:-dumb}" != dumb ]]; then
    BOLD=$'\e[1m' GREEN=$'\e[32m' RED=$'\e[31m' PLAIN=$'\e[0m'
else
    BOLD='' GREEN='' RED='' PLAIN=''
fi
# Exported, since not every script that sources this file uses them (shellcheck).
export BOLD GREEN RED PLAIN

# die TEXT: prints TEXT on standard error and exits with status 1.
die() {
    printf '%s: %s\n' "${0##*/}" "$1" >&2
    exit 1
}

# lower_priority: for steps that mostly compile while other steps test. Only a little lower: beside other load they must end.
lower_priority() {
    renice --priority 5 --pid $$ >/dev/null
}

# compile_beside_tests DIRECTORY: the same, with a target directory of the step's own, since Cargo locks one while it builds.
compile_beside_tests() {
    lower_priority
    export CARGO_TARGET_DIR="$ROOT/target/$1"
}

# build_workspace: builds all targets for tests. Steps select the whole workspace for builds and tests, since Cargo unifies
# the features of third-party crates over the selected packages: another selection would build most crates again.
build_workspace() {
    cargo build --workspace --all-targets --locked
}

# build_release: builds the programs in the release profile; cargo_test with the same packages reuses the build.
build_release() {
    cargo build --release --locked -p vibench -p fcvi-pmd
}

# cargo_test ARGS: runs `cargo test ARGS`; fails if no test was executed, since a filter that no longer
# matches would otherwise always pass.
cargo_test() {
    local output ran
    output="$(mktemp)"
    # shellcheck disable=SC2064  # expand the name now
    trap "rm -f '$output'" EXIT
    cargo test --locked --color never "$@" 2>&1 | tee "$output"
    ran="$(awk '/^test result:/ { ran += $4 } END { print ran + 0 }' "$output")"
    ((ran > 0)) || die "cargo test $*: no test was executed"
}

# run_tests_of PACKAGE ARGS: the same, but runs only tests of this package. ARGS select the packages to build.
run_tests_of() {
    export TEST_PACKAGE="$1"
    cargo_test --config "target.'cfg(all())'.runner = ['$ROOT/ci/package-runner']" "${@:2}"
}

# test_package PACKAGE ARGS: runs tests of one package in the build of the whole workspace.
test_package() {
    run_tests_of "$1" --workspace "${@:2}"
}
