#!/bin/bash
# The real thing: stock Pi 1.6.0 with docs/examples/pi/turnkeep.ts against a scripted model that refuses what strict
# providers refuse. Pi is killed at the points that matter; then `recover`, then Pi goes on without another user input.
#
# usage: run.sh [SCENARIO...]     environment: TURNKEEP_BIN (default: turnkeep on PATH), PI_LAB_DIR (what install.sh
# filled; default: lab beside this file, filled on demand), OUT (default: a new folder under TMPDIR; it is kept),
# PI_JOBS (2) scenarios at once, PI_KILLS (6) and PI_SEED (1) for the scenario `random`.
# Needs bash 5, jq, npm. One line for each scenario, at the end `N passed, N failed`.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
REAL_TURNKEEP=$(command -v "${TURNKEEP_BIN:-turnkeep}") || { echo "no turnkeep: set TURNKEEP_BIN" >&2; exit 2; }
REAL_TURNKEEP=$(realpath "$REAL_TURNKEEP")
EXTENSION=$(realpath "$HERE/../../docs/examples/pi/turnkeep.ts")
OUT=$(realpath "${OUT:-$(mktemp -d)}")
PI_LAB_DIR=${PI_LAB_DIR:-$HERE/lab}
bash "$HERE/install.sh" "$PI_LAB_DIR" >&2
PI_LAB_DIR=$(realpath "$PI_LAB_DIR")
JOBS=${PI_JOBS:-2} KILLS=${PI_KILLS:-6} SEED=${PI_SEED:-1} # lib.sh unsets what might reach Pi
# shellcheck source=tests/pi/lib.sh
. "$HERE/lib.sh"

# ---- Scripts of the model -----------------------------------------------------------------------------------------

# bash_call ID COMMAND: one call as JSON.
bash_call() { jq -nc --arg id "$1" --arg command "$2" '{id: $id, name: "bash", arguments: {command: $command}}'; }
# says TEXT [CALL...]: a step that says TEXT and makes these calls.
says() {
  local text=$1
  shift
  printf '%s\n' "$@" | jq -sc --arg text "$text" '{text: $text} + if length > 0 then {calls: .} else {} end'
}
holds() { printf '%s' "$2" | jq -c --arg at "$1" '. + {hold: $at}'; } # holds AT STEP
script() { printf '%s\n' "$@" | jq -sc .; }

FAST='echo fast >>effects; echo fast-result'
# Announces itself, goes on when the test lets it, survives its agent.
SLOW='echo begin >>effects; until [ -e go ] || [ -e stop ]; do sleep 0.02; done; echo end >>effects; echo slow-result'

slow_runs() { [ "$(effects begin)" = 1 ]; }
slow_ended() { [ "$(effects end)" = 1 ]; }
let_slow_end() { # the shell of a killed Pi lives on: that is why the outcome is unknown
  touch "$E/work/go"
  until_true "the surviving shell ends" slow_ended
}

# ---- Scenarios ----------------------------------------------------------------------------------------------------

# No crash: what is journaled, in which order.
scenario_plain() {
  open_scenario "$(script "$(says 'Two calls.' "$(bash_call c1 "$FAST")" "$(bash_call c2 'echo two')")" "$(says 'Final.')")"
  same "the answer" "Final." "$(pi 'do it')"
  local order='admitted attempt entry claimed claimed result result entry entry entry settled'
  same "records, without the entries before the first model message" "$order" \
    "$(records 'select(.kind != "opened" and ((.kind == "entry" and (.entry.type != "message" or ([.entry.message.role] | inside(["system", "user"])))) | not)) | .kind' | tr -d '"' | tr '\n' ' ' | sed 's/ $//')"
  same "entries in the journal" "$(grep -vc '"type":"session"' "$(session_file)")" "$(count_records '.kind == "entry" and .entry.type != "session"')"
  same "the bytes of the entries" "" "$(comm -13 <(records 'select(.kind == "entry") | .entry' | jq -cS . | sort) <(grep -v '"type":"session"' "$(session_file)" | jq -cS . | sort))"
  sound 'Final.'
}

# Killed while the model streams its first answer.
scenario_first_stream() {
  open_scenario "$(script "$(says 'Earlier answer.')" "$(holds text "$(says 'I will now')")" "$(says 'Final.')")"
  pi 'earlier question' >"$E/pi.out"
  pi_start --session "$(session_file)" 'the question'
  until_true "the model streams" is_held
  pi_kill
  recover_outside
  same "the answer" "Final." "$(continue_outside)"
  same "what the model was sent" system,user,assistant,user "$(roles)"
  sound 'Earlier answer.' 'Final.'
}

# Killed in a parallel batch: one call finished, one runs and has had an effect already.
scenario_parallel_tools() {
  open_scenario "$(script "$(says 'Earlier answer.')" "$(says 'Two calls.' "$(bash_call fast "$FAST")" "$(bash_call slow "$SLOW")")" "$(says 'Final.')")"
  pi 'earlier question' >"$E/pi.out"
  pi_start --session "$(session_file)" 'the question'
  until_true "the fast result is journaled" has_record '.kind == "result"'
  until_true "the slow call runs" slow_runs
  pi_kill
  same "results that reached Pi's own file" 0 "$(grep -c toolResult "$(session_file)" || true)"
  recover_outside
  same "the answer" "Final." "$(continue_outside)"
  let_slow_end
  same "what the model was sent" system,user,assistant,user,assistant,tool,tool "$(roles)"
  same "the finished result" fast-result "$(told fast)"
  says_unknown slow
  same "isError of the unknown one" true "$(is_error slow)"
  same "isError of the finished one" false "$(is_error fast)"
  same "effects" "1 1 1" "$(effects fast) $(effects begin) $(effects end)"
  sound 'Earlier answer.' 'Two calls.' 'Final.'
}

# Killed while the model streams its second answer: the call is finished and stays so.
scenario_second_stream() {
  open_scenario "$(script "$(says 'One call.' "$(bash_call fast "$FAST")")" "$(holds text "$(says 'So')")" "$(says 'Final.')")"
  pi_start 'the question'
  until_true "the model streams its second answer" is_held
  pi_kill
  recover_outside
  same "the answer" "Final." "$(continue_outside)"
  same "what the model was sent" system,user,assistant,tool "$(roles)"
  same "the result" fast-result "$(told fast)"
  same "effects" 1 "$(effects fast)"
  sound 'One call.' 'Final.'
}

# Killed while a call runs that the policy calls safe. Pi cannot run it again, so the model is told, and may ask again.
scenario_safe_call() {
  open_scenario "$(script "$(says 'One call.' "$(bash_call slow "$SLOW")")" "$(says 'Again.' "$(bash_call again 'echo fast >>effects; echo "ticket: ${TURNKEEP_TICKET-none}"')")" "$(says 'Final.')")"
  set_policy '{"format":"turnkeep-policy/1","rules":[{"tool":"bash","replay":"safe"}]}'
  pi_start 'the question'
  until_true "the call runs" slow_runs
  pi_kill
  # Pi itself recovers: what the journal would let run, its loop cannot.
  same "the answer" "Final." "$(continue_inside)"
  let_slow_end
  says_unknown slow
  same "isError" true "$(is_error slow)"
  same "the ticket that a tool sees" "ticket: none" "$(told again)"
  same "times told" "1 1" "$(times_told slow) $(times_told again)"
  same "effects" "1 1" "$(effects begin) $(effects fast)"
  sound 'One call.' 'Again.' 'Final.'
}

# Killed before the claim of a call: it never ran, and the model is told so. The first of the batch is claimed, and
# whether it started is not known to the journal.
scenario_before_claim() {
  open_scenario "$(script "$(says 'Two calls.' "$(bash_call first "$FAST")" "$(bash_call second "$FAST")")" "$(says 'Final.')")"
  fault before 'claim#2'
  pi_start 'the question'
  until_true "the second claim is about to be made" test -s "$E/fault/hanging"
  pi_kill
  same "claims" 1 "$(count_records '.kind == "claimed"')"
  # Pi itself recovers: what the journal would let run, its loop cannot.
  same "the answer" "Final." "$(continue_inside)"
  says_unknown first
  says_not_run second
  same "isError" "true true" "$(is_error first) $(is_error second)"
  same "effects" 0 "$(effects fast)"
  sound 'Two calls.' 'Final.'
}

# A new session, killed behind the admission: Pi has not written its file, and recover creates it.
scenario_no_file_yet() {
  open_scenario "$(script "$(says 'Final.')")"
  fault after admit
  pi_start 'the question'
  until_true "the turn is admitted" test -s "$E/fault/hanging"
  pi_kill
  same "session files" "" "$(session_file)"
  same "requests" 0 "$(requests)"
  recover_outside
  same "the answer" "Final." "$(continue_outside)"
  same "what the model was sent" system,user "$(roles)"
  sound 'Final.'
}

# The same, recovered inside a Pi that has another session open: the command takes the session's name.
scenario_no_file_yet_inside() {
  open_scenario "$(script "$(says 'Final.')")"
  fault after admit
  pi_start 'the question'
  until_true "the turn is admitted" test -s "$E/fault/hanging"
  pi_kill
  same "the answer" "Final." "$(TURNKEEP_PI_SESSION=other pi '/turnkeep-continue lab')"
  same "what the model was sent" system,user "$(roles)"
  sound 'Final.'
}

# Killed between Pi's write of the user message and the first hook behind it: recover journals it from Pi's file.
scenario_before_first_entry() {
  open_scenario "$(script "$(says 'Earlier answer.')" "$(says 'Final.')")"
  pi 'earlier question' >"$E/pi.out"
  fault before entry
  pi_start --session "$(session_file)" 'the question'
  until_true "the entry is about to be journaled" test -s "$E/fault/hanging"
  pi_kill
  same "the question in Pi's file" 1 "$(grep -c 'the question' "$(session_file)")"
  same "entries in the journal that hold it" 0 "$(count_records '.kind == "entry" and (.entry | tostring | contains("the question"))')"
  recover_outside
  same "the answer" "Final." "$(continue_outside)"
  same "what the model was sent" system,user,assistant,user "$(roles)"
  sound 'Earlier answer.' 'Final.'
}

# Two crashes in a row; the second one in the attempt that the first recover began. Both batches use the same call id.
scenario_two_crashes() {
  open_scenario "$(script "$(says 'One call.' "$(bash_call same "$SLOW")")" "$(says 'Another.' "$(bash_call same "$FAST")")" "$(holds text "$(says 'So')")" "$(says 'Final.')")"
  pi_start 'the question'
  until_true "the call runs" slow_runs
  pi_kill
  pi_start --session "$(session_file)" /turnkeep-continue
  until_true "the model streams its third answer" is_held
  pi_kill
  let_slow_end
  same "the answer" "Final." "$(continue_inside)"
  same "what the model was sent" system,user,assistant,tool,assistant,tool "$(roles)"
  same "effects" "1 1 1" "$(effects begin) $(effects end) $(effects fast)"
  same "attempts" 3 "$(count_records '.kind == "attempt"')"
  same "turns" 1 "$(count_records '.kind == "admitted"')"
  [[ $(told same) =~ [Uu]nknown.*fast-result ]] || fail "the two results are not told in order: $(told same)"
  sound 'One call.' 'Another.' 'Final.'
}

# recover inside Pi by the command; a busy session, and one with nothing to do, are told as such.
scenario_inside() {
  open_scenario "$(script "$(says 'Two calls.' "$(bash_call fast "$FAST")" "$(bash_call slow "$SLOW")")" "$(says 'Final.')")"
  pi_start 'the question'
  until_true "the fast result is journaled" has_record '.kind == "result"'
  until_true "the slow call runs" slow_runs
  local rc=0
  pi --session "$(session_file)" /turnkeep-continue >"$E/busy.out" || rc=$?
  same "exit while its Pi lives" 4 $rc
  rc=0
  pi --session "$(session_file)" 'another prompt' >"$E/refused.out" || rc=$?
  same "exit of a prompt beside an open turn" 4 $rc
  same "it in Pi's file" 0 "$(grep -c 'another prompt' "$(session_file)" || true)"
  pi_kill
  same "the answer" "Final." "$(continue_inside)"
  let_slow_end
  same "what the model was sent" system,user,assistant,tool,tool "$(roles)"
  same "the finished result" fast-result "$(told fast)"
  says_unknown slow
  same "effects" "1 1 1" "$(effects fast) $(effects begin) $(effects end)"
  rc=0
  continue_inside >"$E/again.out" || rc=$?
  same "exit with nothing to continue" 10 $rc
  same "requests" 2 "$(requests)"
  sound 'Two calls.' 'Final.'
}

# Killed behind the final answer and before its settlement: nothing is asked of the model again.
scenario_before_settle() {
  open_scenario "$(script "$(says 'Final.')")"
  fault before settle
  pi_start 'the question'
  until_true "the turn is about to be settled" test -s "$E/fault/hanging"
  pi_kill
  continue_inside >"$E/continued.out"
  same "requests" 1 "$(requests)"
  same "settlements" 1 "$(count_records '.kind == "settled" and .status == "completed"')"
  sound 'Final.'
}

# Killed behind a compaction inside the turn: what the compaction kept is still found on the new branch.
scenario_compacted() {
  open_scenario "$(script "$(says "$(printf 'Earlier answer, long enough to be summed up. %.0s' $(seq 200))")" \
    "$(says 'Call one.' "$(bash_call one "$FAST")" | jq -c '. + {tokens: 127900}')" "$(says 'A summary.')" \
    "$(says 'Call two.' "$(bash_call two "$SLOW")")" "$(says 'Final.')")" '{"compaction": {"keepRecentTokens": 20}}'
  pi 'earlier question' >"$E/pi.out"
  pi_start --session "$(session_file)" 'the question'
  until_true "the second call runs" slow_runs
  pi_kill
  same "compactions inside the turn" 1 "$(count_records '.entry.type == "compaction"')"
  recover_outside
  same "the answer" "Final." "$(continue_outside)"
  let_slow_end
  same "what the model was sent" system,user,user,assistant,tool,assistant,tool "$(roles)"
  same "the result from before the compaction" fast-result "$(told one)"
  says_unknown two
  sound 'Call one.' 'Call two.' 'Final.'
}

# A tool that calls tools: its calls are claimed and answered under it. Killed while the second one runs.
scenario_nested() {
  open_scenario "$(script "$(jq -nc --arg fast "$FAST" --arg slow "$SLOW" '{text: "One call.", calls: [{id: "outer", name: "twice", arguments: {commands: [$fast, $slow]}}]}')" "$(says 'Final.')")"
  MORE=(-e "$HERE/nested.ts")
  pi_start 'the question'
  until_true "the slow call runs" slow_runs
  pi_kill
  same "claims" 3 "$(count_records '.kind == "claimed"')"
  same "results" 1 "$(count_records '.kind == "result"')"
  recover_outside
  same "the answer" "Final." "$(continue_outside)"
  let_slow_end
  same "what the model was sent" system,user,assistant,tool "$(roles)"
  says_unknown outer
  same "effects" "1 1" "$(effects fast) $(effects begin)"
  sound 'One call.' 'Final.'
}

# A message that was typed while the turn ran is part of it. Pi takes such messages in rpc mode only (and on a terminal).
scenario_steered() {
  open_scenario "$(script "$(says 'One call.' "$(bash_call slow "$SLOW")")" "$(holds text "$(says 'So')")" "$(says 'Final.')")"
  rpc_start
  rpc '{"type":"prompt","message":"the question"}'
  until_true "the call runs" slow_runs
  rpc '{"type":"steer","message":"and be brief"}'
  until_true "the message is queued" grep -q 'and be brief' "$E/pi.out"
  touch "$E/work/go"
  until_true "the model streams its second answer" is_held
  pi_kill
  same "steered" 1 "$(count_records '.kind == "steered"')"
  same "the answer" "Final." "$(continue_inside)"
  same "what the model was sent" system,user,assistant,tool,user "$(roles)"
  same "effects" "1 1" "$(effects begin) $(effects end)"
  sound 'One call.' 'Final.'
}

# SIGTERM is not a crash: Pi stops its tools, says that it was aborted, and the turn is settled as cancelled.
scenario_terminated() {
  open_scenario "$(script "$(says 'One call.' "$(bash_call slow "$SLOW")")")"
  pi_start 'the question'
  until_true "the call runs" slow_runs
  kill -TERM "$PI"
  wait "$PI" || true
  PI=
  same "settlements" 1 "$(count_records '.kind == "settled" and .status == "cancelled"')"
  same "results" 1 "$(count_records '.kind == "result"')"
  same "requests" 1 "$(requests)"
  verified
}

# Two calls of one message with one id, here an empty one: their ends could not be told apart, so the second does not run.
scenario_twin_ids() {
  open_scenario "$(script "$(says 'Two calls.' "$(bash_call '' "$FAST")" "$(bash_call '' "$FAST")")")"
  pi 'the question' >"$E/pi.out" || true # the model refuses to go on from there
  same "effects" 1 "$(effects fast)"
  same "answers" "not_run result" "$(records 'select(.kind == "result" or .kind == "not_run") | .kind' | tr -d '"' | tr '\n' ' ' | sed 's/ $//')"
  same "settlements" 1 "$(count_records '.kind == "settled" and .status == "failed"')"
}

# A session file that a shell driver had written for it, from messages whose content is a string, empty or not there:
# stock Pi goes on with it.
scenario_strings() {
  open_scenario "$(script "$(says 'Final.')")"
  local file=$E/sessions/chat.jsonl ticket call='{"type":"toolCall","id":"c1","name":"bash","arguments":{}}' content
  ticket=$(cd "$E/work" && turnkeep admit lab --text 'the question' --owner-pid none --tree "$file" --tree-mode append)
  say() { turnkeep step --ticket "$ticket" "$@" >>"$E/steps.out" || fail "step $1 exited $?"; }
  say message - <<<"{\"role\":\"assistant\",\"content\":[$call],\"stopReason\":\"toolUse\"}"
  say claim c1
  say result c1 - <<<'{"role":"toolResult","toolCallId":"c1","toolName":"bash","content":"made","isError":false}'
  for content in '"content":"done",' '"content":"",' '"content":null,' ''; do
    say message - <<<"{\"role\":\"assistant\",$content\"stopReason\":\"stop\"}"
  done
  say settle --status failed
  same "contents that are no array" "" "$(jq -c 'select(.message.role == "assistant" or .message.role == "toolResult") | .message.content | select(type != "array")' "$file")"
  same "the answer" "Final." "$(TURNKEEP_PI_SESSION=other pi --session "$file" 'go on')"
  same "what the model was sent" system,user,assistant,tool,assistant,user "$(roles)"
  same "the result" made "$(told c1)"
  sound done 'Final.'
}

# A tool that does not exist and arguments that do not fit: answered as not run, and the turn goes on.
scenario_unknown_tool() {
  open_scenario "$(script "$(jq -nc '{text: "Two calls.", calls: [{id: "none", name: "nosuchtool", arguments: {}}, {id: "bad", name: "bash", arguments: {cmd: "x"}}]}')" "$(says 'Final.')")"
  same "the answer" "Final." "$(pi 'the question')"
  same "answers" 2 "$(count_records '.kind == "not_run"')"
  same "claims" 0 "$(count_records '.kind == "claimed"')"
  sound 'Two calls.' 'Final.'
}

# A message that was cut off at the token limit: Pi runs none of its calls, nor does the journal let it.
scenario_cut_off() {
  open_scenario "$(script "$(says 'One call.' "$(bash_call cut "$FAST")" | jq -c '. + {finish: "length"}')" "$(says 'Final.')")"
  same "the answer" "Final." "$(pi 'the question')"
  same "answers" 1 "$(count_records '.kind == "not_run" and .why == "cut_off"')"
  same "effects" 0 "$(effects fast)"
  sound 'One call.' 'Final.'
}

# The policy wants a person's approval: the tool does not run, the model is told, the turn goes on.
scenario_approval() {
  open_scenario "$(script "$(says 'One call.' "$(bash_call asks "$FAST")")" "$(says 'Final.')")"
  set_policy '{"format":"turnkeep-policy/1","rules":[{"tool":"bash","replay":"never","approval":"required"}]}'
  same "the answer" "Final." "$(pi 'the question')"
  same "effects" 0 "$(effects fast)"
  same "claims" 0 "$(count_records '.kind == "claimed"')"
  [[ $(told asks) == *"exited 11"* ]] || fail "the model was not told why: $(told asks)"
  sound 'One call.' 'Final.'
}

# Pi tries a failed request again: that is the same run, so the same turn and attempt. Then one that it gives up.
scenario_retried() {
  open_scenario '[{"status": 500}, {"text": "Final."}, {"status": 400}]' '{"retry": {"enabled": true, "maxRetries": 2, "baseDelayMs": 1}}'
  same "the answer" "Final." "$(pi 'the question')"
  same "turns and attempts" "1 1" "$(count_records '.kind == "admitted"') $(count_records '.kind == "attempt"')"
  sound 'Final.'
  local rc=0
  pi --session "$(session_file)" 'another question' >"$E/pi.out" || rc=$?
  same "exit" 1 $rc
  same "settlements" "1 1" "$(count_records '.kind == "settled" and .status == "completed"') $(count_records '.kind == "settled" and .status == "failed"')"
}

# A delivery key: the same prompt under it is not answered twice, and the reply is there for whoever publishes it.
scenario_delivery() {
  open_scenario "$(script "$(says 'Earlier answer.')" "$(says 'Middle answer.')" "$(says 'Final.')")"
  pi 'earlier question' >"$E/pi.out"
  TURNKEEP_DELIVERY=msg-1 pi --session "$(session_file)" 'the question' >"$E/pi.out"
  local rc=0 before
  before=$(sha256sum <"$(session_file)")
  TURNKEEP_DELIVERY=msg-1 pi --session "$(session_file)" 'the question' >"$E/pi.out" || rc=$?
  same "exit of the repeat" 10 $rc
  same "requests" 2 "$(requests)"
  same "Pi's file" "$before" "$(sha256sum <"$(session_file)")"
  # Its owner is gone with Pi: whoever publishes takes the turn over first, here this shell ...
  local ticket
  same "what is left to do" recover "$(turnkeep inspect lab --next)"
  ticket=$(turnkeep recover lab --owner-pid $$)
  same "Pi's file behind a recover of a settled turn" "$before" "$(sha256sum <"$(session_file)")"
  same "what is left to do then" deliver "$(turnkeep inspect lab --next)"
  turnkeep step --ticket "$ticket" deliver -- tee "$E/published" >"$E/receipt"
  same "what was published" "Middle answer." "$(cat "$E/published")"
  same "delivery" "begun sent" "$(records 'select(.kind == "delivery") | .state' | tr -d '"' | tr '\n' ' ' | sed 's/ $//')"
  rc=0
  turnkeep step --ticket "$ticket" deliver -- tee "$E/twice" >"$E/receipt" 2>"$E/twice.err" || rc=$?
  same "exit of a second publisher" 10 $rc
  [ ! -e "$E/twice" ] || fail "the reply was published twice"
  # ... and there the command that publishes.
  TURNKEEP_DELIVERY=msg-2 pi --session "$(session_file)" 'another question' >"$E/pi.out"
  turnkeep recover lab -- "$REAL_TURNKEEP" step deliver -- tee "$E/published" >"$E/receipt"
  same "what was published" "Final." "$(cat "$E/published")"
  sound 'Earlier answer.' 'Middle answer.' 'Final.'
}

# fails_closed FAULT REQUESTS EFFECTS LEFT: the journal fails at one point. Pi ends with an error, and no more happened
# than REQUESTS and EFFECTS say. Then the journal works again: LEFT is `again` (the turn goes on) or `nothing` (there is none).
fails_closed() {
  open_scenario "$(script "$(says 'One call.' "$(bash_call fast "$FAST")")" "$(says 'Final.')" "$(says 'Final.')")"
  local rc=0
  fault "$1"
  pi 'the question' >"$E/pi.out" || rc=$?
  [ $rc -ne 0 ] || fail "Pi ended with 0"
  grep -q 'injected failure' "$E/pi.err" || fail "the failure was not shown: $(cat "$E/pi.err")"
  same "requests" "$2" "$(requests)"
  same "effects" "$3" "$(effects fast)"
  no_fault
  case $4 in
    again) continue_inside >"$E/continued.out" || fail "continuing exited $?" ;;
    nothing) pi 'the question' >"$E/pi.out" || fail "the next prompt exited $?" ;;
  esac
  sound 'Final.'
}
scenario_fails_at_input() { fails_closed 'fail inspect' 0 0 nothing; same "session files" 1 "$(find "$E/sessions" -name '*.jsonl' | wc -l)"; }
scenario_fails_at_admit() {
  open_scenario "$(script "$(says 'Final.')")"
  local rc=0
  fault fail admit
  pi 'the question' >"$E/pi.out" || rc=$?
  [ $rc -ne 0 ] || fail "Pi ended with 0"
  grep -q 'injected failure at admit' "$E/pi.err" || fail "the failure was not shown"
  same "requests" 0 "$(requests)"
}
scenario_fails_at_entry() { fails_closed 'fail entry' 0 0 again; same "effects" 1 "$(effects fast)"; }
scenario_fails_at_claim() { fails_closed 'fail claim' 1 0 again; same "effects" 0 "$(effects fast)"; }
scenario_fails_at_result() { fails_closed 'fail result' 1 1 again; same "effects" 1 "$(effects fast)"; }
scenario_fails_at_settle() { fails_closed 'fail settle' 2 1 again; same "requests" 2 "$(requests)"; }

# Pi's file then has the error of a call that the journal knows nothing of. A Pi that is started anew cannot tell whether
# its tool ran, so a person has to say so.
scenario_fails_at_intent() {
  open_scenario "$(script "$(says 'One call.' "$(bash_call fast "$FAST")")" "$(says 'Final.')")"
  local rc=0
  fault fail 'entry#2'
  pi 'the question' >"$E/pi.out" || rc=$?
  same "exit" 1 $rc
  same "requests" 1 "$(requests)"
  no_fault
  : >"$E/pi.err"
  rc=0
  continue_inside >"$E/continued.out" || rc=$?
  [ $rc -ne 0 ] || fail "Pi ended with 0" # with 1: its last answer is an aborted one, and that is then its exit code
  grep -q 'recover lab exited 6' "$E/pi.err" || fail "the refusal was not shown: $(cat "$E/pi.err")"
  grep -q -- 'turnkeep recover lab --close-calls --owner-pid none --force --why' "$E/pi.err" || fail "the way out was not shown: $(cat "$E/pi.err")"
  same "attempts" 1 "$(count_records '.kind == "attempt"')"
  recover_outside --force --why 'no tool ran while the journal was gone'
  same "the answer" "Final." "$(continue_outside)"
  same "what the model was sent" system,user,assistant,tool "$(roles)"
  says_not_run fast
  same "isError" true "$(is_error fast)"
  same "effects" 0 "$(effects fast)"
  sound 'One call.' 'Final.'
}

# owes FAULT: Pi runs into the fault and ends; what it owed the journal it has given it before.
owes() {
  open_scenario "$(script "$(says 'Two calls.' "$(bash_call fast "$FAST")" "$(bash_call other "$FAST")")" "$(says 'Final.')")"
  local rc=0
  fault "$1"
  pi 'the question' >"$E/pi.out" || rc=$?
  same "exit" 1 $rc
  same "requests" 1 "$(requests)"
  no_fault
  same "entries in the journal" "$(grep -vc '"type":"session"' "$(session_file)")" "$(count_records '.kind == "entry" and .entry.type != "session"')"
  same "the answer" "Final." "$(continue_inside)"
  same "what the model was sent" system,user,assistant,tool,tool "$(roles)"
  sound 'Two calls.' 'Final.'
}
# The failure is over when the run ends: then the journal gets what it lacks, and nobody has to judge.
scenario_owes_intents() {
  owes 'once entry#2'
  same "answers" 2 "$(count_records '.kind == "not_run"')"
  says_not_run fast
  says_not_run other
  same "effects" 0 "$(effects fast)"
}
# The second claim fails: the first call is claimed, yet does not run, and the model is told so of both.
scenario_owes_claim() {
  owes 'once claim#2'
  same "claims and answers" "1 2" "$(count_records '.kind == "claimed"') $(count_records '.kind == "not_run"')"
  says_not_run fast
  says_not_run other
  same "effects" 0 "$(effects fast)"
}
scenario_owes_result() {
  owes 'once result'
  same "results" 2 "$(count_records '.kind == "result"')"
  same "effects and results" "2 fast-result" "$(effects fast) $(told fast)"
}

# The journal fails and works again while one and the same Pi lives: the command goes on in it, under the owner that it is.
scenario_continues_itself() { continues_itself 'fail claim'; }
# The same where the journal does not even have the intent: what Pi owes is journaled before the recover.
scenario_heals_itself() { continues_itself 'fail entry#2'; }
continues_itself() {
  open_scenario "$(script "$(says 'One call.' "$(bash_call fast "$FAST")")" "$(says 'Final.')")"
  rpc_start
  fault "$1"
  rpc '{"type":"prompt","message":"the question"}'
  until_true "the run is stopped" grep -q '"type":"agent_settled"' "$E/pi.out"
  same "effects" 0 "$(effects fast)"
  no_fault
  rpc '{"type":"prompt","message":"/turnkeep-continue"}'
  until_true "the turn is settled" has_record '.kind == "settled"'
  rpc_end
  says_not_run fast
  same "effects" 0 "$(effects fast)"
  same "turns" 1 "$(count_records '.kind == "admitted"')"
  same "answers" 1 "$(count_records '.kind == "not_run"')"
  sound 'One call.' 'Final.'
}

# Killed at PI_KILLS moments: before or behind a random call of the CLI, or a random while behind the first one. Each time
# Pi goes on, recovered inside or outside of it, by chance too; where the turn had ended, with the next question.
scenario_random() {
  local calls=() answers=() call kill moment while
  RANDOM=$SEED
  for call in 1a 1b 2a 2b; do # %T: the number of the question
    calls+=("$(bash_call "c%T-$call" "echo begin-c%T-$call >>effects; sleep 0.1; echo end-c%T-$call >>effects; echo result-c%T-$call")")
  done
  open_scenario "$(printf '%s\n' "${calls[@]}" | jq -sc '{rounds: [{text: "First %T.", calls: .[:2]}, {text: "Second %T.", calls: .[2:]}, {text: "Final %T."}]}')"
  set_policy '{"format":"turnkeep-policy/1","rules":[{"tool":"bash","replay":"never"}],"limits":{"attempts":1000}}'
  for ((kill = 1; kill <= KILLS; kill++)); do
    prepare_to_go_on
    moment=$((RANDOM % 3)) while=$((RANDOM % 1000)) call=$((RANDOM % 14 + 1))
    case $moment in
      0) fault before "any#$call" ;;
      1) fault after "any#$call" ;;
    esac
    go_on
    if [ $moment -lt 2 ]; then
      ended_or test -s "$E/fault/hanging"
    else
      ended_or test -s "$E/fault/seen"
      ended_or is_past $((${EPOCHREALTIME/[.,]/} + while * 1000))
    fi
    echo "kill $kill: $(cat "$E/fault/fault" 2>/dev/null || echo "$while ms"), seen: $(tr '\n' ' ' <"$E/fault/seen" 2>/dev/null || true)"
    kill -9 "$PI" 2>/dev/null || true
    pi_is_gone
  done
  for ((kill = 1; kill <= 5; kill++)); do # a CLI call that outlived its Pi may cost one more try
    prepare_to_go_on
    go_on
    wait "$PI" || true
    PI=
    if [ "$(turnkeep inspect lab --next)" = done ]; then break; fi
  done
  no_effect_twice
  for ((kill = 1; kill <= $(count_records '.kind == "admitted"'); kill++)); do answers+=("Final $kill."); done
  sound "${answers[@]}"
}
is_past() { [ "${EPOCHREALTIME/[.,]/}" -ge "$1" ]; }
# ended_or COMMAND...: polls until COMMAND succeeds or Pi has ended.
ended_or() {
  local deadline=$((SECONDS + PATIENCE))
  until "$@" 2>/dev/null || ! jobs -rp | grep -qx "$PI"; do
    [ $SECONDS -lt $deadline ] || fail "waited $PATIENCE s in vain: $*"
    sleep 0.01
  done
}
# What Pi is to do next, in GO; a recover that is not Pi's own is made here.
prepare_to_go_on() {
  local file todo
  no_fault
  GO=()
  TICKET=
  file=$(session_file)
  if [ -n "$file" ]; then GO=(--session "$file"); fi
  todo=$(turnkeep inspect lab --next 2>/dev/null) || todo=done # there is no session yet
  if [ "$todo" = done ]; then
    GO+=('the question')
  else
    if [ $((RANDOM % 2)) = 0 ]; then recover_outside; fi
    GO+=('/turnkeep-continue lab')
  fi
}
go_on() { TURNKEEP_TICKET=$TICKET pi_start "${GO[@]}"; }
# Each command ran at most once and only behind a claim, each stored success was one run, and the model was told no more.
no_effect_twice() {
  local id told
  until_true "the surviving shells end" eval '[ "$(grep -c ^begin "$E/work/effects")" = "$(grep -c ^end "$E/work/effects")" ]'
  same "effects that happened twice" "" "$(sort "$E/work/effects" | uniq -d)"
  records 'select(.calls) | .calls[] | {key: .ref, value: .id}' | jq -s 'from_entries' >"$E/ids.json"
  records 'select(.kind == "claimed") | .ref' | jq -r --slurpfile ids "$E/ids.json" '$ids[0][.]' | sort -u >"$E/claimed"
  same "effects without a claim" "" "$(sed -n 's/^begin-//p' "$E/work/effects" | sort -u | comm -23 - "$E/claimed")"
  for id in $(records 'select(.kind == "result" and (.error | not)) | .ref' | jq -r --slurpfile ids "$E/ids.json" '$ids[0][.]'); do
    same "effects of $id, which has a result" "1 1" "$(effects "begin-$id") $(effects "end-$id")"
  done
  for id in $(jq -r '.[]' "$E/ids.json"); do
    told=$(context | jq -r --arg id "$id" 'select(.role == "toolResult" and .toolCallId == $id) | "\(.isError) \([.content[].text] | join(""))"' | tr '\n' ' ')
    echo "$id: $(effects "begin-$id") effects, told: ${told:0:60}"
    case $told in
      "false result-$id "*) same "effects of $id, told as done" 1 "$(effects "begin-$id")" ;;
      "true "*[Uu]nknown*) grep -qx "$id" "$E/claimed" || fail "$id was never claimed and told as unknown: $told" ;;
      "true "*) same "effects of $id, told as '$told'" 0 "$(effects "begin-$id")" ;;
      *) fail "the model was not told what became of $id: $told" ;;
    esac
  done
}

# ---- Running them -------------------------------------------------------------------------------------------------

run_scenarios "${BASH_SOURCE[0]}" close_scenario "$@"
