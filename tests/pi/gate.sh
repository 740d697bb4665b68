#!/bin/bash
# Stands in front of the real CLI and passes everything on to it, but for one fault that the file
# $FAULT_DIR/fault names (so that it can change while Pi runs):
#   once KIND      that command fails this one time
#   fail KIND      that command fails, now and ever after, and the real CLI never sees it
#   before KIND    that command hangs before the real CLI is called
#   after KIND     that command hangs after the real CLI has ended
# KIND is admit, inspect, recover, a kind of step, or any; KIND#N is its Nth occurrence (hang) or from the Nth on (fail).
# A command that hangs writes its pid to $FAULT_DIR/hanging, so that the test can wait for it and end it.
# Each command's kind is noted in $FAULT_DIR/seen. Behind each recover the journal and the session file are verified;
# what is wrong is added to $UNSOUND.
kind=$1
if [ "$kind" = step ]; then
  kind=$2
  [ "$kind" = --ticket ] && kind=$4
fi
read -r what where 2>/dev/null <"$FAULT_DIR/fault" || what=
nth=1
case $where in *'#'*) nth=${where#*#} where=${where%#*} ;; esac
hit=no
echo "$kind" >>"$FAULT_DIR/seen"
if [ -n "$what" ] && { [ "$where" = any ] || [ "$kind" = "$where" ]; }; then
  if [ "$where" = any ]; then seen=$(wc -l <"$FAULT_DIR/seen"); else seen=$(grep -cx "$kind" "$FAULT_DIR/seen"); fi
  if [ "$seen" -eq "$nth" ] || { [ "$what" = fail ] && [ "$seen" -gt "$nth" ]; }; then hit=$what; fi
fi
hang() {
  echo $$ >"$FAULT_DIR/hanging.new"
  mv "$FAULT_DIR/hanging.new" "$FAULT_DIR/hanging"
  exec sleep 600
}
real() {
  "$REAL_TURNKEEP" "$@"
  local rc=$?
  if [ "$kind" = recover ] && [ -e "$TURNKEEP_ROOT/sessions/lab.jsonl" ]; then
    "$REAL_TURNKEEP" verify --with-tree lab >"$FAULT_DIR/verify.out" 2>&1 || { echo "verify --with-tree behind recover exited $?:"; cat "$FAULT_DIR/verify.out"; } >>"$UNSOUND"
  fi
  return $rc
}
case $hit in
  fail | once) echo "injected failure at $kind" >&2; exit 9 ;;
  before) hang ;;
  after) real "$@"; hang ;;
  no) if [ "$kind" = recover ]; then real "$@"; else exec "$REAL_TURNKEEP" "$@"; fi ;;
esac
