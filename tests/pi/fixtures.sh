#!/bin/bash
# Writes fixtures/pi-sessions/*.jsonl: session files as real Pi 1.6.0 writes them, without the extension. Paths of this
# machine become /home/user/project and /opt/pi; nothing else is changed, so the lines are Pi's own bytes.
# Ids and times are new in each run: run this only to add a shape, and commit only that file.
#
# usage: fixtures.sh NAME...     environment: PI_LAB_DIR as in run.sh
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
TO=$(realpath "$HERE/../..")/fixtures/pi-sessions
PI_LAB_DIR=${PI_LAB_DIR:-$HERE/lab}
bash "$HERE/install.sh" "$PI_LAB_DIR" >&2
PI_LAB_DIR=$(realpath "$PI_LAB_DIR")
OUT=$(realpath "$(mktemp -d)")
REAL_TURNKEEP=/bin/false
# An extension that does nothing: these files are Pi's alone.
EXTENSION=$OUT/nothing.ts
echo 'export default function () {}' >"$EXTENSION"
# shellcheck source=tests/pi/lib.sh
. "$HERE/lib.sh"

GATE='touch started; until [ -e stop ]; do sleep 0.02; done; echo late'
started() { [ -e "$E/work/started" ]; }

# Two turns of text, with reasoning, non-ASCII text and a separator that JSON.stringify leaves as it is.
fixture_plain() {
  open_scenario '[{"reasoning": "A greeting.", "text": "Grüße: 你好 👋 \u2028 and a line\nbreak."}, {"text": "A \"quoted\" \\ second answer."}]'
  pi 'Say hello in three scripts' >/dev/null
  pi --session "$(session_file)" $'And again?\tWith a tab.' >/dev/null
}

# One batch: two results, a failing command, an unknown tool, arguments that do not fit. Then write, read and edit.
fixture_parallel() {
  open_scenario "$(jq -nc '[
    {text: "Five calls.", calls: [
      {id: "call_slow", name: "bash", arguments: {command: "sleep 0.2; echo slow"}},
      {id: "call_fast", name: "bash", arguments: {command: "echo fast"}},
      {id: "call_fail", name: "bash", arguments: {command: "echo oops >&2; exit 3"}},
      {id: "call_none", name: "nosuchtool", arguments: {a: 1}},
      {id: "call_bad", name: "bash", arguments: {cmd: "x"}}]},
    {calls: [{id: "call_write", name: "write", arguments: {path: "a.txt", content: "one\ntwo\n"}}]},
    {calls: [{id: "call_edit", name: "edit", arguments: {path: "a.txt", edits: [{oldText: "two", newText: "zwei"}]}},
      {id: "call_read", name: "read", arguments: {path: "a.txt"}}]},
    {text: "Done."}]')"
  pi 'Try five things' >/dev/null
}

# The context is compacted inside the second turn, behind its first call.
fixture_compaction() {
  open_scenario "$(jq -nc '[
    {text: ("A first answer that is long enough to be summed up. " * 200)},
    {text: "Call one.", tokens: 127900, calls: [{id: "call_1", name: "bash", arguments: {command: "echo r1"}}]},
    {text: "Summary of what was said."},
    {text: "Call two.", calls: [{id: "call_2", name: "bash", arguments: {command: "echo r2"}}]},
    {text: "Final."}]')" '{"compaction": {"keepRecentTokens": 14}}'
  pi 'first question' >/dev/null
  pi --session "$(session_file)" 'second question' >/dev/null
  grep -q '"type":"compaction"' "$(session_file)" || fail "nothing was compacted"
}

# SIGTERM while one call of two runs: both results are errors and an aborted answer ends the turn; then a new turn.
fixture_aborted() {
  open_scenario "$(jq -nc --arg gate "$GATE" '[
    {text: "Two calls.", calls: [{id: "call_1", name: "bash", arguments: {command: "echo one"}}, {id: "call_2", name: "bash", arguments: {command: $gate}}]},
    {text: "After the abort."}]')"
  pi_start 'do it'
  until_true "the call runs" started
  kill -TERM "$PI"
  wait "$PI" || true
  PI=
  pi --session "$(session_file)" 'and now?' >/dev/null
}

# SIGKILL at the same place: the file ends with the calls.
fixture_killed() {
  open_scenario "$(jq -nc --arg gate "$GATE" '[
    {text: "Two calls.", calls: [{id: "call_1", name: "bash", arguments: {command: "echo one"}}, {id: "call_2", name: "bash", arguments: {command: $gate}}]}]')"
  pi_start 'do it'
  until_true "the call runs" started
  pi_kill
}

for name; do
  E=$OUT/$name
  mkdir -p "$E" "$TO"
  (
    trap close_scenario EXIT
    "fixture_$name"
    sed -e "s|$E/work|/home/user/project|g; s|$PI_LAB_DIR/node_modules/@earendil-works/pi-coding-agent|/opt/pi|g; s|$E|/home/user|g" "$(session_file)" >"$TO/$name.jsonl"
  ) || { sed 's/^/pi.err: /' "$E/pi.err" >&2; exit 1; }
  jq -e . "$TO/$name.jsonl" >/dev/null
  if grep -oE '/(tmp|root|work|builds|var)/[^" ]*' "$TO/$name.jsonl"; then fail "$name: a path of this machine is left"; fi
  echo "$TO/$name.jsonl: $(wc -l <"$TO/$name.jsonl") lines"
done
