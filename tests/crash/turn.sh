#!/usr/bin/env bash
# A turn that is killed, taken over and finished, and a second one behind it: every way in which turnkeep writes.
#
#     WORK=FOLDER TURNKEEP_ROOT=FOLDER/home/state TURNKEEP_POLICY=FILE bash turn.sh append|branch
#
# `turnkeep` is in the PATH. Receipts and tickets go to stdout. In `append` mode turnkeep makes the session file and
# writes it; in `branch` mode this script plays the agent, which appends to its file without ever syncing it.
set -euo pipefail
mode=$1 part=${2:-whole}
chat=$WORK/chat.jsonl
here=${BASH_SOURCE[0]}
tree=(--tree "$chat" --tree-mode "$mode")

# agent ENTRY: what the agent itself writes.
agent() { [ "$mode" = append ] || printf '%s\n' "$1" >>"$chat"; }

# The id of the last entry.
leaf() { tail -n 1 "$chat" | sed -E 's/.*"id":"([^"]*)","parentId".*/\1/'; }

header='{"type":"session","version":3,"id":"0190a000-0000-7000-8000-000000000001","timestamp":"2026-01-05T09:00:00.000Z","cwd":"/proj/demo"}'
usage='"usage":{"input":1,"output":1,"cacheRead":0,"cacheWrite":0,"totalTokens":2,"cost":{"input":0,"output":0,"cacheRead":0,"cacheWrite":0,"total":0}}'

# entry ID PARENT MESSAGE
entry() { printf '{"type":"message","id":"%s","parentId":%s,"timestamp":"2026-01-05T09:00:01.000Z","message":%s}' "$@"; }
user() { printf '{"role":"user","content":"%s","timestamp":1767603601000}' "$1"; }
# assistant STOP CONTENT
assistant() {
  printf '{"role":"assistant","content":[%s],"api":"anthropic-messages","provider":"demo","model":"demo-1",%s,"stopReason":"%s","timestamp":1767603602000}' "$2" "$usage" "$1"
}
call() { printf '{"type":"toolCall","id":"%s","name":"%s","arguments":{}}' "$1" "$2"; }
answer() {
  printf '{"role":"toolResult","toolCallId":"%s","toolName":"%s","isError":false,"content":[{"type":"text","text":"%s"}],"timestamp":1767603603000}' "$@"
}

# own ID MESSAGE: the agent writes it as an entry, and it is journaled as that.
own() {
  line=$(entry "$1" "\"$(leaf)\"" "$2")
  agent "$line"
  turnkeep step entry - <<<"$line"
}

# message ID MESSAGE
message() {
  if [ "$mode" = append ]; then turnkeep step message - <<<"$2"; else own "$1" "$2"; fi
}

# input ID TEXT: what was admitted; turnkeep writes it itself in `append` mode.
input() { [ "$mode" = append ] || own "$1" "$(user "$2")"; }

case $part in
whole)
  if [ "$mode" = append ]; then
    tree+=(--tree-header "$header")
  else
    agent "$header"
    agent "$(entry a1 null "$(user 'What changed today?')")"
    agent "$(entry a2 '"a1"' "$(assistant stop '{"type":"text","text":"Nothing."}')")"
  fi
  killed=0
  turnkeep admit s --turn t1 --delivery k1 --text 'Do it' "${tree[@]}" -- bash "$here" "$mode" first || killed=$?
  [ "$killed" = 137 ]
  # What a writer leaves that dies in mid-write.
  printf '{"seq":99,"at":"2026' >>"$TURNKEEP_ROOT/sessions/s.jsonl"
  turnkeep recover s -- bash "$here" "$mode" second
  turnkeep admit s --turn t2 --delivery k2 --text 'And now?' --tree "$chat" --tree-mode "$mode" -- bash "$here" "$mode" third
  ;;
first)
  input a3 'Do it'
  message a4 "$(assistant toolUse "$(call done bash),$(call look look),$(call held charge),$(call later bash),$(call slow bash)")"
  turnkeep step claim done
  turnkeep step result done - <<<"$(answer done bash 'it is done')"
  agent "$(entry a5 '"a4"' "$(answer done bash 'it is done')")"
  turnkeep step run look -- sh -c 'echo seen'
  turnkeep step claim held
  # The tool ends its runner once what it said was kept, so that nobody records how it went, and with its runner this
  # script ends. It waits for that: who recovers behind it must not find the runner alive.
  turnkeep step run slow -- sh -c '
    echo half of it
    until grep -q half "$TURNKEEP_ROOT"/spool/*.out; do sleep 0.01; done
    kill -9 $PPID'
  ;;
second)
  turnkeep step run later -- sh -c 'echo later'
  turnkeep step reconcile held --session s --outcome applied --by ops - <<<'it was charged'
  message b1 "$(assistant stop '{"type":"text","text":"Done."}')"
  turnkeep step settle
  turnkeep step deliver -- sh -c 'cat >/dev/null; echo receipt-1'
  ;;
third)
  input c1 'And now?'
  message c2 "$(assistant stop '{"type":"text","text":"Nothing more."}')"
  turnkeep step settle
  turnkeep step deliver --begin
  turnkeep step deliver --receipt receipt-2
  ;;
esac
