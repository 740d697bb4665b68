#!/usr/bin/env bash
# Fuzz targets, each for some seconds: bash tests/fuzz/run.sh [SECONDS] [TARGET...]
#
# First every kept input under plain `cargo test`, then libFuzzer, built as `cargo fuzz build -s none` builds it
# (stable Rust, no sanitizer), so that nothing needs to be installed. A target with a mistake in it must be caught.
# What is found is left in the target folder and printed; put it into fixtures/corpus/TARGET/ together with its mend.
# FUZZ_SEED chooses the inputs; without it they are others each time. The last line is `N passed, N failed`.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")" || exit 1
seconds=${1:-10}
seed=${FUZZ_SEED:-$((RANDOM * 32768 + RANDOM + 1))}
shift || true
names=("$@")
[ ${#names[@]} -gt 0 ] || names=(scan record history tree policy message body)
corpus=../../fixtures/corpus
out=${CARGO_TARGET_DIR:-target}
mkdir -p "$out" && out=$(cd "$out" && pwd)/fuzz || exit 1
export CARGO_TARGET_DIR=$out CARGO_TERM_COLOR=never
passed=0
failed=0

# judge WHAT COMMAND...
judge() {
  local what=$1
  shift
  if "$@"; then
    passed=$((passed + 1)) && echo "ok      $what"
  else
    failed=$((failed + 1)) && echo "FAILED  $what"
  fi
}

finish() {
  echo "$passed passed, $failed failed"
  [ "$failed" -eq 0 ]
  exit
}

echo "seed $seed"
judge 'kept inputs' cargo test --release --no-default-features --quiet
command -v c++ >/dev/null || command -v clang++ >/dev/null || {
  echo 'skipped: fuzzing, since libFuzzer needs a C++ compiler (apt-get install g++)'
  finish
}

triple=$(rustc -vV | sed -n 's/^host: //p')
# As cargo-fuzz does it; --target keeps the flags away from build scripts.
flags='-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4'
flags+=' -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table'
flags+=' -Cllvm-args=-sanitizer-coverage-trace-compares -Cllvm-args=-simplifycfg-branch-fold-threshold=0'
flags+=' --cfg fuzzing -Ccodegen-units=4'
RUSTFLAGS=$flags cargo build --release --bins --quiet --target "$triple" || {
  failed=$((failed + 1))
  finish
}

# Inputs of a target: what is kept for it, and the fixtures that are of its kind.
seeds() {
  local target=$1 to=$out/seeds/$1 file name
  rm -rf "$to" && mkdir -p "$to" || return
  cp "$corpus/$target"/* "$to"/ 2>/dev/null
  for file in ../../fixtures/*/*.jsonl; do
    name=${file#../../fixtures/}
    name=${name//\//-}
    case $target:$name in
      scan:*-journal.jsonl | history:*-journal.jsonl) cp "$file" "$to/$name" ;;
      record:*-journal.jsonl) sed -n 2p "$file" >"$to/$name" ;;
      tree:*-tree.jsonl)
        cp "$file" "$to/$name"
        [ ! -e "${file%tree.jsonl}journal.jsonl" ] ||
          { cat "$file" && echo '#journal' && cat "${file%tree.jsonl}journal.jsonl"; } >"$to/$name-journal"
        ;;
    esac
  done
  # Deep nesting is judged by tests; here it would only be slow.
  find "$to" -size +24k -delete
}

# fuzz TARGET SECONDS: a run from the seeds, in a fresh corpus.
fuzz() {
  local target=$1 work=$out/work/$1
  seeds "$target" && mkdir -p "$work" "$out/found/$target" || return
  "$out/$triple/release/$target" -seed="$seed" -max_total_time="$2" -timeout=10 -rss_limit_mb=1500 -max_len=24000 \
    -print_final_stats=1 -artifact_prefix="$out/found/$target/" "$work" "$out/seeds/$target" \
    >"$out/$target.log" 2>&1
}

for target in "${names[@]}"; do
  judge "$target, $seconds s" fuzz "$target" "$seconds"
  grep -hE 'number_of_executed_units|panicked at|Test unit written' "$out/$target.log" | sed 's/^/        /'
done

# The one that has to be caught.
caught() {
  local work=$out/work/planted
  rm -rf "$work" && mkdir -p "$work" "$out/found/planted" || return
  printf '{"format":"turnkeep-policy/1","rules":[],"limits":{"attempts":5}}' >"$work/one"
  ! "$out/$triple/release/planted" -max_total_time=60 -artifact_prefix="$out/found/planted/" "$work" \
    >"$out/planted.log" 2>&1 && grep -q 'planted: found' "$out/planted.log"
}
judge 'a planted mistake is found' caught
finish
