# shellcheck shell=bash
# What the scripts of this directory share. Sourced, never run.

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$ROOT" || exit 1

# Colours only where a person looks at them.
if [[ -t 1 && -z "${NO_COLOR:-}" && "${TERM:-dumb}" != dumb ]]; then
    BOLD=$'\e[1m' GREEN=$'\e[32m' RED=$'\e[31m' PLAIN=$'\e[0m'
else
    BOLD='' GREEN='' RED='' PLAIN=''
fi
# Not every script that sources this file prints in colour.
export BOLD GREEN RED PLAIN

# die TEXT: ends the script with TEXT on standard error.
die() {
    printf '%s: %s\n' "${0##*/}" "$1" >&2
    exit 1
}

# cargo_test ARGS: `cargo test ARGS`; a run in which no test was executed is a failure, since a filter
# that no longer matches would otherwise pass for ever.
cargo_test() {
    local output ran
    output="$(mktemp)"
    # shellcheck disable=SC2064  # the name is wanted as it is now
    trap "rm -f '$output'" EXIT
    cargo test --locked --color never "$@" 2>&1 | tee "$output"
    ran="$(awk '/^test result:/ { ran += $4 } END { print ran + 0 }' "$output")"
    ((ran > 0)) || die "cargo test $*: no test was executed"
}
