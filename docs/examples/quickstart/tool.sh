#!/usr/bin/env bash
# All the tools of the demo. The arguments come on stdin; the effect is a line in a file.
set -eu
cat >/dev/null
echo "$TURNKEEP_TOOL" >>"$DEMO/effects.txt"
case $TURNKEEP_TOOL in
  charge)
    echo "charging 9.95 ..."
    echo "$PPID" >"$DEMO/charging.new" && mv "$DEMO/charging.new" "$DEMO/charging" # who runs us
    # Long enough to be killed in the middle of it.
    for _ in $(seq 500); do [ ! -e "$DEMO/go-on" ] || break; sleep 0.02; done
    echo "charged" ;;
  *) echo "$TURNKEEP_TOOL: ok" ;;
esac
