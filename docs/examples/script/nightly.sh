#!/usr/bin/env bash
# A plain script of ten steps, without a model, that may be killed anywhere and started again.
#
#   turnkeep admit nightly --delivery "$(date +%F)" --text "nightly" --resume -- ./nightly.sh
#
# Started again it replays the output of each finished step and goes on behind it. Where it is not known whether a
# step happened it stops: exit 14 before anything starts, with the `reconcile` command to type; exit 7 inside a
# script that lives on. Each step has an id of its own; in a loop, one for each round.
set -euo pipefail
cd "${WORK:?the folder to work in}"
step() { # ID TOOL CMD...
  "${TURNKEEP_BIN:-turnkeep}" step run --tool "$2" "$1" -- "${@:3}"
}

step 1-list      list    sh -c 'ls inbox'
step 2-snapshot  write   sh -c 'cat inbox/* >snapshot.txt; echo snapshot >>effects.txt'
count=$(step 3-count count sh -c 'wc -l <snapshot.txt')
step 4-report    write   sh -c "echo 'lines: $count' >report.txt; echo report >>effects.txt"
for file in a b; do
  step "5-pack-$file" write sh -c "gzip -c inbox/$file >$file.gz; echo pack-$file >>effects.txt"
done
# A step that may fail: its status is the command's own, and it is stored like any other.
step 6-probe     probe   sh -c 'test -e optional || exit 3' || echo "probe said $?"
step 7-charge    charge  sh -c 'echo charge >>effects.txt; echo "receipt 5512"'
step 8-mail      mail    sh -c 'echo mail >>effects.txt'
step 9-clean     write   sh -c 'rm -f snapshot.txt; echo clean >>effects.txt'
step 10-done     list    sh -c 'cat report.txt'
"${TURNKEEP_BIN:-turnkeep}" step settle
