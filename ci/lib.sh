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
