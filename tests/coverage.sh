#!/usr/bin/env bash
# Line coverage of the library by its unit tests, and by the integration tests with TURNKEEP_COVERAGE=all.
# Needs llvm-profdata and llvm-cov of the LLVM that rustc uses, or newer (Debian: llvm-22); names them in LLVM_PROFDATA
# and LLVM_COV where they are not on the PATH. Reports; nothing depends on the number.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tool() { # tool NAME: the newest of that name
  local found
  found=$(compgen -c "$1" | grep -E "^$1(-[0-9]+)?$" | sort -V | tail -n 1)
  [ -n "$found" ] || { echo "skipped: $1 is missing (apt-get install llvm-22)" >&2; exit 77; }
  echo "$found"
}
profdata=${LLVM_PROFDATA:-$(tool llvm-profdata)}
cov=${LLVM_COV:-$(tool llvm-cov)}
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/coverage
export RUSTFLAGS="-Cinstrument-coverage"
raw=$(mktemp -d)
# Processes that a test starts without the variable below leave their profile where they run.
trap 'rm -rf "$raw" default_*.profraw' EXIT
export LLVM_PROFILE_FILE="$raw/%p-%m.profraw"

which=(--lib)
skipped=()
if [ "${TURNKEEP_COVERAGE:-lib}" = all ]; then
  which+=(--test it)
  # They count system calls, and writing a profile is some.
  for name in killed refused_by_system crash_states full_disk storm; do skipped+=(--skip "$name"); done
fi
# Without the profile of the build scripts themselves.
LLVM_PROFILE_FILE=/dev/null cargo build --tests
binaries=$(cargo test "${which[@]}" --no-run --message-format=json | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p')
# A test that fails under these flags is told, and counts for what it ran.
cargo test --no-fail-fast "${which[@]}" -- --test-threads 2 "${skipped[@]}" || true

# A process that reached its limit of bytes, or was killed, leaves half a profile.
"$profdata" merge -sparse -failure-mode=all "$raw"/*.profraw -o "$raw/all.profdata"
objects=()
for binary in $binaries "$CARGO_TARGET_DIR/debug/turnkeep"; do objects+=(-object "$binary"); done
"$cov" report "${objects[@]:1}" -instr-profile="$raw/all.profdata" -ignore-filename-regex='(/registry/|/rustc/|tests?\.rs|/tests/|testkit|properties\.rs)'
