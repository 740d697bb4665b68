#!/bin/bash
# Stands in front of the real CLI and passes everything on to it, but for one fault that the file
# $FAULT_DIR/fault names (so that it can change while Pi runs):
#   fail KIND      that command fails, now and ever after, and the real CLI never sees it
#   before KIND    that command hangs before the real CLI is called
#   after KIND     that command hangs after the real CLI has ended
# KIND is admit, inspect, recover, or a kind of step; KIND#N is its Nth occurrence (hang) or from the Nth on (fail).
# A command that hangs writes its pid to $FAULT_DIR/hanging, so that the test can wait for it and end it.
kind=$1
if [ "$kind" = step ]; then
  kind=$2
  [ "$kind" = --ticket ] && kind=$4
fi
read -r what where 2>/dev/null <"$FAULT_DIR/fault" || what=
nth=1
case $where in *'#'*) nth=${where#*#} where=${where%#*} ;; esac
hit=no
if [ -n "$what" ] && [ "$kind" = "$where" ]; then
  echo "$kind" >>"$FAULT_DIR/seen"
  seen=$(wc -l <"$FAULT_DIR/seen")
  if [ "$seen" -eq "$nth" ] || { [ "$what" = fail ] && [ "$seen" -gt "$nth" ]; }; then hit=$what; fi
fi
hang() {
  echo $$ >"$FAULT_DIR/hanging.new"
  mv "$FAULT_DIR/hanging.new" "$FAULT_DIR/hanging"
  exec sleep 600
}
case $hit in
  fail) echo "injected failure at $kind" >&2; exit 9 ;;
  before) hang ;;
  after) "$REAL_TURNKEEP" "$@"; hang ;;
  no) exec "$REAL_TURNKEEP" "$@" ;;
esac
