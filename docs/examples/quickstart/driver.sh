#!/usr/bin/env bash
# The loop of a crash-proof agent: it may be killed at any line and started again.
# `inspect --next` says what to do, then one call per line.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
while next=$("$TURNKEEP_BIN" inspect "$TURNKEEP_SESSION" --next); do
  # shellcheck disable=SC2086
  set -- $next
  what=$1
  shift
  echo "driver: next is $what $*"
  case $what in
    call_model)
      # The "model": its first reply asks for three calls, its second one ends the turn.
      turn=$(grep -c '"kind":"message"' "$TURNKEEP_ROOT/sessions/$TURNKEEP_SESSION.jsonl" || true)
      "$TURNKEEP_BIN" step message "$here/reply-$turn.json" >/dev/null ;;
    run_calls) for ref; do "$TURNKEEP_BIN" step run "$ref" -- "$here/tool.sh" >/dev/null; done ;;
    settle) "$TURNKEEP_BIN" step settle >/dev/null ;;
    deliver) "$TURNKEEP_BIN" step deliver -- "$here/post-reply.sh" >/dev/null ;;
    *) exit 0 ;; # done, or waiting for somebody else
  esac
done
