#!/usr/bin/env bash
# Mutation tests of the modules that everything else trusts: bash tests/mutants.sh [FILE...]
#
# cargo-mutants (cargo install --locked cargo-mutants) changes one place at a time, in a copy. First the tests beside
# the module are asked, then what they let pass goes through all tests of the library but the longest. The list of
# what passed those too is in target/mutants/mutants.out/missed.txt; there should be none. .cargo/mutants.toml names
# what no test can find, with the reason. Two hours on two processors; one file takes minutes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cargo mutants --version >/dev/null || { echo 'skipped: cargo-mutants is missing (cargo install --locked cargo-mutants)' >&2; exit 77; }
files=("$@")
[ $# -gt 0 ] || files=(src/{record,chain,scan,treefile}.rs 'src/recovery/**' 'src/tree/**' 'src/turn/**')
out=${CARGO_TARGET_DIR:-target}/mutants
rm -rf "$out" && mkdir -p "$out"
# Only the library is built, with fast dependencies and without what only a debugger reads.
export CARGO_PROFILE_DEV_DEBUG=0 CARGO_PROFILE_DEV_INCREMENTAL=true
options=(-j 2 --no-shuffle --iterate -o "$out" --cargo-arg=--lib)
options+=(--cargo-arg=--config --cargo-arg='profile.dev.package."*".opt-level=3')
for file in "${files[@]}"; do options+=(-f "$file"); done
beside=(chain:: record:: scan:: recovery:: tree:: treefile:: branch:: turn::)
cargo mutants "${options[@]}" --timeout 60 -- -- "${beside[@]}" --skip properties --skip all_combinations ||
  cargo mutants "${options[@]}" --timeout 300 -- -- --skip lies:: --skip generator_reaches
