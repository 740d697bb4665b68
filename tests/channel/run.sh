#!/bin/bash
# The service of docs/examples/channel-service around real Pi 1.6.0: killed with -9 at each point that matters, alone,
# and started again. A strict scripted model says what it was sent, a process of its own keeps the effects and replies.
#
# usage: run.sh [SCENARIO...]     (default: all)
#   TURNKEEP_BIN       the CLI under test; by default it is built
#   PI_LAB_DIR         where Pi and Node are, or are to be installed (see ../pi/install.sh); default: ../pi/lab
#   CHANNEL_OUT        folder for what the scenarios leave behind; default: a fresh one under TMPDIR
#   CHANNEL_JOBS       scenarios at once; default: the number of processors
#   CHANNEL_KILLS, CHANNEL_SEED   how often `random` kills, and when
# The last line is `N passed, N failed`; the exit status is 0 if none failed.
set -euo pipefail
CHANNEL=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(cd "$CHANNEL/../.." && pwd)
HERE=$ROOT/tests/pi # of lib.sh
export PI_LAB_DIR=${PI_LAB_DIR:-$HERE/lab}
if [ -n "${TURNKEEP_BIN:-}" ]; then
  REAL_TURNKEEP=$(realpath "$TURNKEEP_BIN")
else
  (cd "$ROOT" && cargo build --release --quiet)
  REAL_TURNKEEP=$(realpath "${CARGO_TARGET_DIR:-$ROOT/target}/release/turnkeep")
fi
bash "$HERE/install.sh" "$PI_LAB_DIR"
OUT=${CHANNEL_OUT:-$(mktemp -d "${TMPDIR:-/tmp}/turnkeep-channel.XXXXXX")}
mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)
JOBS=${CHANNEL_JOBS:-$(nproc)} KILLS=${CHANNEL_KILLS:-6} SEED=${CHANNEL_SEED:-1}
EXTENSION=$ROOT/docs/examples/pi/turnkeep.ts
for name in "${!CHANNEL_@}"; do unset "$name"; done
# shellcheck source=tests/pi/lib.sh
. "$HERE/lib.sh"
# Installed as a user would: the example beside the packages that it needs.
rm -rf "$OUT/app"
mkdir -p "$OUT/app"
cp -r "$ROOT/docs/examples/channel-service" "$ROOT/docs/examples/pi" "$OUT/app/"
ln -s "$PI_LAB_DIR/node_modules" "$OUT/app/node_modules"

# ---- The service and the world around it --------------------------------------------------------------------------

# open_channel STEPS [EXTENSION...]: a scripted model, the world outside, and an environment for the service.
open_channel() {
  open_scenario "$1"
  shift
  mkdir -p "$E/outside"
  touch "$E/outside/effects" "$E/outside/outbox" "$E/outside/seen"
  "$NODE" "$CHANNEL/outside.mjs" "$E/outside" >"$E/outside.out" 2>&1 &
  WORLD=$!
  until_true "the world listens" test -s "$E/outside/port"
  export OUTSIDE
  OUTSIDE=http://127.0.0.1:$(cat "$E/outside/port")
  export CHANNEL_URL=$OUTSIDE/messages CHANNEL_STATE=$E/state CHANNEL_WORK=$E/work CHANNEL_PORT=0 CHANNEL_SESSION=lab
  export CHANNEL_EXTENSIONS
  CHANNEL_EXTENSIONS=$(IFS=:; echo "$CHANNEL/tools.ts${*:+:$*}")
  TOLD=0
}
close_channel() {
  if [ -n "${SECOND:-}" ]; then end_process "$SECOND"; fi
  close_scenario
  if [ -n "${WORLD:-}" ]; then end_process "$WORLD"; fi
}
launch() { (cd "$E" && exec "$NODE" "$OUT/app/channel-service/service.ts" </dev/null >>"$E/service.out" 2>>"$E/pi.err") & }
# start: the service, its pid in PI, so that `until_true` fails at once when it has ended.
start() {
  rm -f "$E/state/port"
  launch
  PI=$!
  until_true "the service listens" test -s "$E/state/port"
  PORT=$(cat "$E/state/port")
}
# killed: only the service, and not what it started.
killed() { pi_kill; }
hold() { touch "$E/outside/hold-$1"; }
let_go() { rm -f "$E"/outside/hold-*; }

# http METHOD PATH [JSON]: CODE and ANSWER.
http() {
  local reply body=${3-}
  exec 5<>"/dev/tcp/127.0.0.1/$PORT"
  printf '%s /channel-turns%s HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: %s\r\nContent-Length: %s\r\n\r\n%s' \
    "$1" "$2" "${TYPE:-application/json}" "$(printf %s "$body" | wc -c)" "$body" >&5
  reply=$(cat <&5)
  exec 5>&-
  CODE=${reply#* } CODE=${CODE:0:3} ANSWER=${reply##*$'\n'}
}
post() { http POST "" "$(jq -nc --arg id "$1" --arg text "$2" '{id: $id, text: $text}')"; } # post ID TEXT
shown() { http GET "/$1" && jq -r "$2" <<<"$ANSWER"; }                                       # shown ID FILTER
is_shown() { [ "$(shown "$1" "$2")" = "$3" ]; }
approve() { http POST "/$1/approvals" "$2"; same "answer to an approval" 200 "$CODE"; }
# permission ID ANSWER: waits until Pi asks, and answers.
permission() {
  until_true "Pi asks for a permission" is_shown "$1" '.asks | length' 1
  http POST "/$1/permissions" "$(jq -nc --arg ask "$(shown "$1" '.asks[0].ask')" --arg answer "$2" '{ask: $ask, answer: $answer}')"
  same "answer to a permission" 200 "$CODE"
}

# What lib.sh says, of this service.
session_file() { find "$E/state/pi" -name '*.jsonl' 2>/dev/null | head -n 1; }
effects() { grep -cx "$1" "$E/outside/effects" || true; }
published() { grep -c "^$1 " "$E/outside/outbox" || true; }
outside_saw() { [ "$(grep -cx "$1" "$E/outside/seen")" -ge "${2:-1}" ]; }
is_closed() { [ "$(turnkeep inspect --delivery "$1" --json | jq -r .state)" = closed ]; }
# What a recover would wait for while no service runs.
waits_dead() { [ "$(turnkeep recover --all --json 2>/dev/null | jq -r .next.do)" = "$1" ]; }

# answered ID TEXT: the one final reply under the id, seen by the client, by the channel and again on a
# repeated post, which changes nothing.
answered() {
  until_true "$1 is closed" is_closed "$1"
  same "replies published under $1" "$1 $2" "$(grep "^$1 " "$E/outside/outbox")"
  same "what a client sees" "closed $2 sent" "$(shown "$1" '"\(.state) \(.reply) \(.delivery.state)"')"
  local before asked
  before=$(sha256sum <"$JOURNAL") asked=$(requests)
  post "$1" "$(shown "$1" .text)"
  same "the same post again" "200 $2" "$CODE $(jq -r .reply <<<"$ANSWER")"
  post "$1" "something else"
  same "another text under the same id" 409 "$CODE"
  same "turns with the id" 1 "$(count_records ".kind == \"admitted\" and .delivery == \"$1\"")"
  same "requests that repeated posts made" "$asked" "$(requests)"
  same "the journal behind repeated posts" "$before" "$(sha256sum <"$JOURNAL")"
  until_true "nothing is left in the inbox" inbox_is_empty
}
inbox_is_empty() { [ -z "$(ls "$E/state/inbox")" ]; }

# ---- Scripts of the model -----------------------------------------------------------------------------------------

charge() { jq -nc --arg id "$1" --arg who "$2" '{id: $id, name: "charge", arguments: {who: $who}}'; }
bash_call() { jq -nc --arg id "$1" --arg command "$2" '{id: $id, name: "bash", arguments: {command: $command}}'; }
# says TEXT [CALL...]: a step that says TEXT and makes these calls.
says() {
  local text=$1
  shift
  printf '%s\n' "$@" | jq -sc --arg text "$text" '{text: $text} + if length > 0 then {calls: .} else {} end'
}
holds() { printf '%s' "$2" | jq -c --arg at "$1" '. + {hold: $at}'; } # holds AT STEP
script() { printf '%s\n' "$@" | jq -sc .; }
policy() { set_policy "{\"format\":\"turnkeep-policy/1\",\"rules\":[{\"tool\":\"charge\",$1}]}"; }

# ---- Scenarios ----------------------------------------------------------------------------------------------------

# No crash: two turns of one conversation.
scenario_plain() {
  open_channel "$(script "$(says 'One call.' "$(charge c1 ann)")" "$(says 'First.')" "$(says 'Second.')")"
  start
  post m1 'charge ann'
  same "a new post" "202 m1" "$CODE $(jq -r .id <<<"$ANSWER")"
  answered m1 'First.'
  same "the result" "charged ann: done" "$(told c1)"
  post m2 'and thank you'
  answered m2 'Second.'
  same "what the model was sent" system,user,assistant,tool,assistant,user "$(roles)"
  same "effects" 1 "$(effects ann)"
  same "the first reply" 'First.' "$(shown m1 .reply)"
  sound 'First.' 'Second.'
}

# What is refused, and leaves no trace. A text that looks like a command of Pi is a text.
scenario_http() {
  open_channel "$(script "$(says 'Final.')")"
  start
  http GET /none; same "an unknown id" 404 "$CODE"
  http POST "" '{"id":"../x","text":"t"}'; same "a bad id" 400 "$CODE"
  http POST "" '{"id":"m1"}'; same "no text" 400 "$CODE"
  http POST "" 'no json'; same "no JSON" 400 "$CODE"
  TYPE=text/plain http POST "" '{"id":"m1","text":"t"}'; same "another type" 415 "$CODE"
  http POST "" "$(head -c 1100000 /dev/zero | tr '\0' x)"; same "too long" 413 "$CODE"
  http DELETE /m1; same "another method" 405 "$CODE"
  http POST /m1/approvals '{"call":"3.0","decision":"approve","by":"me"}'; same "an approval in no turn" 404 "$CODE"
  http POST /m1/permissions '{"ask":"x","answer":"Once"}'; same "a permission that nobody asks" 404 "$CODE"
  same "requests" 0 "$(requests)"
  same "the inbox" "" "$(ls "$E/state/inbox")"
  post m1 '/turnkeep-continue "now"'
  answered m1 'Final.'
  same "what the model was asked" '/turnkeep-continue "now"' "$(last_request | jq -r '.[-1].content | if type == "string" then . else map(.text) | join("") end')"
}

# Killed behind the effect and before the result; the same id is posted before, during and after.
scenario_after_effect() {
  open_channel "$(script "$(says 'One call.' "$(charge c1 ann)")" "$(holds text "$(says 'So')")" "$(says 'Final.')")"
  killed_after_effect
}
killed_after_effect() {
  hold effect
  start
  post m1 'charge ann'
  post m1 'charge ann'
  same "the same post at once again" 200 "$CODE"
  until_true "the effect is there" outside_saw 'POST /effects held'
  post m1 'charge ann'
  same "the same post while the tool runs" "200 open null" "$CODE $(jq -r '"\(.state) \(.reply)"' <<<"$ANSWER")"
  killed
  same "results in the journal" 0 "$(count_records '.kind == "result"')"
  let_go
  start # and nothing is posted: it goes on by itself
  until_true "the model was asked again" is_held
  post m1 'charge ann'
  same "the same post during the recovered turn" "200 open" "$CODE $(jq -r .state <<<"$ANSWER")"
  post m1 'charge bob'
  same "another text during the recovered turn" 409 "$CODE"
  says_unknown c1
  same "times told" 1 "$(times_told c1)"
  killed # once more, while the model streams
  start
  answered m1 'Final.'
  same "effects" 1 "$(effects ann)"
  same "what the model was sent" system,user,assistant,tool "$(roles)"
  same "isError" true "$(is_error c1)"
  same "claims, results, unknown" "1 0 1" "$(count_records '.kind == "claimed"') $(count_records '.kind == "result"') $(count_records '.kind == "interrupted"')"
  sound 'One call.' 'Final.'
}

# The shell of a killed service lives on and ends later: unknown, and not run again.
scenario_surviving_shell() {
  open_channel "$(script "$(says 'Two calls.' "$(charge c1 ann)" "$(bash_call c2 'echo begin >>effects; until [ -e go ] || [ -e stop ]; do sleep 0.02; done; echo end >>effects')")" "$(says 'Final.')")"
  start
  post m1 'do it'
  until_true "the charge is journaled" has_record '.kind == "result"'
  until_true "the shell runs" test -s "$E/work/effects"
  killed
  start
  answered m1 'Final.'
  says_unknown c2
  same "the finished result" "charged ann: done" "$(told c1)"
  touch "$E/work/go"
  until_true "the surviving shell ends" grep -q end "$E/work/effects"
  same "effects" "1 begin end" "$(effects ann) $(tr '\n' ' ' <"$E/work/effects" | sed 's/ $//')"
  sound 'Two calls.' 'Final.'
}

# Killed while the model streams its first answer; then at once again, behind the admission.
scenario_first_stream() {
  open_channel "$(script "$(holds text "$(says 'I will now')")" "$(says 'Final.')")"
  fault after admit
  start
  post m1 'the question'
  until_true "the turn is admitted" test -s "$E/fault/hanging"
  killed
  start
  until_true "the model streams" is_held
  killed
  start
  answered m1 'Final.'
  same "what the model was sent" system,user "$(roles)"
  sound 'Final.'
}

# Killed before the turn is admitted: the post was accepted, and is not lost.
scenario_before_admission() {
  open_channel "$(script "$(says 'Final.')")"
  fault before admit
  start
  post m1 'the question'
  same "a new post" "202 queued" "$CODE $(jq -r .state <<<"$ANSWER")"
  until_true "the turn is about to be admitted" test -s "$E/fault/hanging"
  killed
  [ ! -e "$JOURNAL" ] || fail "the turn is admitted"
  start
  post m1 'another question'
  same "another text" 409 "$CODE"
  answered m1 'Final.'
  sound 'Final.'
}

# Killed behind the answer and before its settlement: the model is not asked again.
scenario_before_settlement() {
  open_channel "$(script "$(says 'Final.')")"
  fault before settle
  start
  post m1 'the question'
  until_true "the turn is about to be settled" test -s "$E/fault/hanging"
  killed
  start
  answered m1 'Final.'
  same "requests" 1 "$(requests)"
  sound 'Final.'
}

# delivered_once FAULT HOLD: killed between reply and receipt; the channel is asked for the id, and one reply is there.
delivered_once() {
  open_channel "$(script "$(says 'Final.')")"
  if [ -n "$1" ]; then fault "$1"; fi
  if [ -n "$2" ]; then hold "$2"; fi
  start
  post m1 'the question'
  if [ -n "$1" ]; then until_true "$1" test -s "$E/fault/hanging"; else until_true "the PUT is $2" outside_saw 'PUT /messages/m1 held'; fi
  same "published so far" "$3" "$(published m1)"
  killed
  let_go
  start
  answered m1 'Final.'
  same "requests to the model" 1 "$(requests)"
  same "PUTs of the reply" "$4" "$(grep -c PUT "$E/outside/seen")"
  same "the receipt" receipt-m1-0 "$(shown m1 .delivery.receipt)"
  sound 'Final.'
}
scenario_before_begin() { delivered_once 'before deliver' '' 0 1; }
scenario_behind_begin() { delivered_once 'after deliver' '' 0 1; same "deliveries" "begun not_sent begun sent" "$(deliveries)"; }
scenario_on_its_way() { delivered_once '' before 0 2; same "deliveries" "begun not_sent begun sent" "$(deliveries)"; }
scenario_behind_publication() { delivered_once '' after 1 1; same "deliveries" "begun sent" "$(deliveries)"; }
scenario_before_receipt() { delivered_once 'before deliver#2' '' 1 1; same "deliveries" "begun sent" "$(deliveries)"; }
scenario_behind_receipt() { delivered_once 'after deliver#2' '' 1 1; same "deliveries" "begun sent" "$(deliveries)"; }
deliveries() { records 'select(.kind == "delivery") | .state' | tr -d '"' | tr '\n' ' ' | sed 's/ $//'; }

# The channel cannot look anything up: a person says what became of the reply, and the next turn does not wait for that.
scenario_no_lookup() {
  open_channel "$(script "$(says 'First.')" "$(says 'Second.')" "$(says 'Third.')" "$(says 'Fourth.')")"
  touch "$E/outside/no-lookup"
  hold after
  start
  post m1 'one'
  until_true "the PUT is held" outside_saw 'PUT /messages/m1 held'
  killed
  let_go
  start
  post m2 'two'
  answered m2 'Second.'
  same "what the first one waits for" "settled First. reconcile_delivery begun" "$(shown m1 '"\(.state) \(.reply) \(.next.do) \(.delivery.state)"')"
  same "replies under m1" 1 "$(published m1)"
  turnkeep step deliver --receipt seen-by-me --by me --session "lab:$(turn_of m1)" >"$E/receipt"
  answered m1 'First.'
  hold before
  post m3 'three'
  until_true "the PUT is held" outside_saw 'PUT /messages/m3 held'
  killed
  let_go
  start
  until_true "the channel was asked" outside_saw 'GET /messages/m3'
  same "replies under m3" 0 "$(published m3)"
  turnkeep step deliver --not-sent --by me --session "lab:$(turn_of m3)" >"$E/receipt"
  answered m3 'Third.'
  # The service that began it lives: a person then has to say why that does not matter.
  touch "$E/outside/refuse"
  post m4 'four'
  until_true "the channel was asked" outside_saw 'GET /messages/m4'
  rm "$E/outside/refuse"
  local rc=0
  turnkeep step deliver --not-sent --by me --session "lab:$(turn_of m4)" >"$E/receipt" || rc=$?
  same "exit of a person's word beside the living service" 4 $rc
  turnkeep step deliver --not-sent --by me --session "lab:$(turn_of m4)" --force --why 'it was refused' >"$E/receipt"
  answered m4 'Fourth.'
  sound 'First.' 'Second.' 'Third.' 'Fourth.'
}
turn_of() { turnkeep inspect --delivery "$1" --json | jq -r .turn; }

# The channel is down: asked again later, and the reply is published once it is up.
scenario_channel_down() {
  open_channel "$(script "$(says 'First.')" "$(says 'Second.')")"
  touch "$E/outside/refuse"
  start
  post m1 'one'
  until_true "it was refused twice" outside_saw 'PUT /messages/m1' 2
  post m2 'two'
  until_true "the second one was refused" outside_saw 'PUT /messages/m2'
  rm "$E/outside/refuse"
  answered_all m1 m2
  answered m1 'First.'
  answered m2 'Second.'
  sound 'First.' 'Second.'
}

# A tool that wants a person's approval: asked for, given, denied.
scenario_approval() {
  open_channel "$(script "$(says 'One call.' "$(charge c1 ann)")" "$(says 'Another.' "$(charge c2 bob)")" "$(says 'Final.')")"
  policy '"replay":"never","approval":"required"'
  start
  post m1 'charge both'
  until_true "an approval is asked for" is_shown m1 '.next.do' ask
  same "the call" "charge ann" "$(shown m1 '.calls[0] | "\(.tool) \(.args.who)"')"
  same "effects before the approval" 0 "$(effects ann)"
  approve m1 "{\"call\":\"$(ref_of c1)\",\"decision\":\"approve\",\"by\":\"me\"}"
  until_true "an approval is asked for" is_shown m1 '.calls[1].do' ask
  approve m1 "{\"call\":\"$(ref_of c2)\",\"decision\":\"deny\",\"by\":\"me\",\"reason\":\"not him\"}"
  answered m1 'Final.'
  same "effects" "1 0" "$(effects ann) $(effects bob)"
  same "the first result" "charged ann: done" "$(told c1)"
  [[ $(told c2) == *"denied"* ]] || fail "the model was not told of the denial: $(told c2)"
  sound 'One call.' 'Another.' 'Final.'
}

# approved_and_killed FOR: approved, claimed, effect, killed, started again. The policy lets the call run again.
approved_and_killed() {
  open_channel "$(script "$(says 'One call.' "$(charge c1 ann)")" "$(says 'Final.')")"
  policy '"replay":"safe","approval":"required"'
  hold effect
  start
  post m1 'charge ann'
  until_true "an approval is asked for" is_shown m1 '.next.do' ask
  approve m1 "{\"call\":\"$(ref_of c1)\",\"decision\":\"approve\",\"by\":\"me\"$1}"
  until_true "the effect is there" outside_saw 'POST /effects held'
  killed
  let_go
}
# Spent by the claim: asked for again, and nothing runs before.
scenario_approval_spent() {
  approved_and_killed ''
  start
  until_true "an approval is asked for again" is_shown m1 '.next.do' ask
  post m1 'charge ann'
  same "the same post meanwhile" "200 open" "$CODE $(jq -r .state <<<"$ANSWER")"
  same "effects so far" 1 "$(effects ann)"
  killed # while it waits
  start
  until_true "an approval is asked for once more" is_shown m1 '.next.do' ask
  same "effects so far" 1 "$(effects ann)"
  approve m1 "{\"call\":\"$(ref_of c1)\",\"decision\":\"approve\",\"by\":\"me\"}"
  answered m1 'Final.'
  same "effects" 2 "$(effects ann)"
  same "approvals" 2 "$(count_records '.kind == "approval"')"
  same "what the model was told" "charged ann: done" "$(told c1)"
  sound 'One call.' 'Final.'
}
# Standing: not asked for again.
scenario_approval_standing() {
  approved_and_killed ',"for":3600'
  start
  answered m1 'Final.'
  same "effects" 2 "$(effects ann)"
  same "approvals" 1 "$(count_records '.kind == "approval"')"
  sound 'One call.' 'Final.'
}
# waiting_and_killed: killed while an approval is asked for.
waiting_and_killed() {
  open_channel "$(script "$(says 'One call.' "$(charge c1 ann)")" "$(says 'Final.')")"
  policy '"replay":"never","approval":"required"'
  start
  post m1 'charge ann'
  until_true "an approval is asked for" is_shown m1 '.next.do' ask
  killed
}
# Run out: asked for again. Then given, to a service that finds a call which never started.
scenario_approval_expired() {
  waiting_and_killed
  turnkeep step approve "$(ref_of c1)" --by me --for 1 --session lab >"$E/receipt"
  until_true "the approval has run out" waits_dead ask
  start
  until_true "an approval is asked for again" is_shown m1 '.next.do' ask
  same "effects before the approval" 0 "$(effects ann)"
  approve m1 "{\"call\":\"$(ref_of c1)\",\"decision\":\"approve\",\"by\":\"me\",\"for\":60}"
  answered m1 'Final.'
  same "effects" 1 "$(effects ann)"
  same "claims" 1 "$(count_records '.kind == "claimed"')"
  sound 'One call.' 'Final.'
}
# Given while no service ran, and not spent yet: it stands.
scenario_approval_unspent() {
  waiting_and_killed
  turnkeep step approve "$(ref_of c1)" --by me --session lab >"$E/receipt"
  start
  answered m1 'Final.'
  same "effects" 1 "$(effects ann)"
  same "approvals" 1 "$(count_records '.kind == "approval"')"
  sound 'One call.' 'Final.'
}

# Pi's own permissions live in its process alone. Told "Always", killed, started again: asked for again.
scenario_permission() {
  open_channel "$(script "$(says 'One call.' "$(charge c1 ann)")" "$(says 'Another.' "$(charge c2 bob)")" "$(says 'Again.' "$(charge c3 bob)")" "$(says 'Final.')")" "$CHANNEL/permission.ts"
  start
  post m1 'charge both'
  until_true "Pi asks" is_shown m1 '.asks[0].title' 'Charge ann?'
  same "effects before the permission" 0 "$(effects ann)"
  killed # while it is asked: the call never started
  start
  until_true "Pi asks for the call that never started" is_shown m1 '.asks[0].title' 'Charge ann?'
  permission m1 Once
  until_true "Pi asks for the next one" is_shown m1 '.asks[0].title' 'Charge bob?'
  hold effect
  permission m1 Always
  until_true "the effect is there" outside_saw 'POST /effects held'
  killed
  let_go
  start
  until_true "Pi asks again" is_shown m1 '.asks[0].title' 'Charge bob?'
  says_unknown c2
  same "effects so far" 1 "$(effects bob)"
  permission m1 No
  answered m1 'Final.'
  same "effects" "1 1" "$(effects ann) $(effects bob)"
  [[ $(told c3) == *"Blocked by user"* ]] || fail "the model was not told of the refusal: $(told c3)"
  sound 'One call.' 'Another.' 'Again.' 'Final.'
}
# "Always" covers the rest of the turn in one process, so asking again is the restart's doing.
scenario_permission_always() {
  open_channel "$(script "$(says 'One call.' "$(charge c1 ann)")" "$(says 'Another.' "$(charge c2 bob)")" "$(says 'Final.')")" "$CHANNEL/permission.ts"
  start
  post m1 'charge both'
  permission m1 Always
  answered m1 'Final.'
  same "effects" "1 1" "$(effects ann) $(effects bob)"
}
# A call that the policy lets run again: permission is asked for, refused, and what became of the first run stays unknown.
scenario_permission_rerun() {
  open_channel "$(script "$(says 'One call.' "$(charge c1 ann)")" "$(says 'Final.')")" "$CHANNEL/permission.ts"
  policy '"replay":"safe"'
  hold effect
  start
  post m1 'charge ann'
  permission m1 Once
  until_true "the effect is there" outside_saw 'POST /effects held'
  killed
  let_go
  start
  permission m1 No
  answered m1 'Final.'
  same "effects" 1 "$(effects ann)"
  says_unknown c1
  sound 'One call.' 'Final.'
}

# A second post while the first turn is open waits behind it, through a crash, and is answered in its turn.
scenario_queue() {
  open_channel "$(script "$(says 'One call.' "$(charge c1 ann)")" "$(says 'First.')" "$(says 'Second.')" "$(says 'Third.')")"
  hold effect
  start
  post m1 'one'
  until_true "the effect is there" outside_saw 'POST /effects held'
  post m3 'two'
  same "the second post" "202 queued" "$CODE $(jq -r .state <<<"$ANSWER")"
  post m2 'three'
  post m3 'two'
  same "the second post again" "200 queued" "$CODE $(jq -r .state <<<"$ANSWER")"
  post m3 'else'
  same "another text under its id" 409 "$CODE"
  killed
  let_go
  start
  answered_all m1 m3 m2
  same "the replies in order" "m1 First. m3 Second. m2 Third." "$(tr '\n' ' ' <"$E/outside/outbox" | sed 's/ $//')"
  same "effects" 1 "$(effects ann)"
  sound 'One call.' 'First.' 'Second.' 'Third.'
}
answered_all() { local id; for id; do until_true "$id is closed" is_closed "$id"; done; }

# A second service on the same state does nothing and ends; of two that start at once behind a crash, one goes on.
scenario_twice() {
  open_channel "$(script "$(says 'One call.' "$(charge c1 ann)")" "$(says 'Final.')")"
  hold effect
  start
  post m1 'charge ann'
  until_true "the effect is there" outside_saw 'POST /effects held'
  local before rc=0
  before=$(sha256sum <"$JOURNAL")
  launch
  SECOND=$!
  wait "$SECOND" || rc=$?
  SECOND=
  same "exit of the second service" 4 $rc
  same "the journal" "$before" "$(sha256sum <"$JOURNAL")"
  same "the first service" m1 "$(shown m1 .id)"
  killed
  let_go
  rm "$E/state/port"
  launch
  PI=$!
  launch
  SECOND=$!
  local all=("$PI" "$SECOND") gone=
  PI=
  rc=0
  wait -n -p gone "${all[@]}" || rc=$?
  same "exit of one of the two" 4 $rc
  if [ "$gone" = "${all[0]}" ]; then PI=${all[1]}; else PI=${all[0]}; fi
  SECOND=
  until_true "the other one listens" test -s "$E/state/port"
  PORT=$(cat "$E/state/port")
  answered m1 'Final.'
  same "attempts" 2 "$(count_records '.kind == "attempt"')"
  same "effects" 1 "$(effects ann)"
  sound 'One call.' 'Final.'
}

# A model that fails for good: the turn ends without a reply, nothing is published, and the next one is served.
scenario_model_fails() {
  open_channel '[{"status": 400}, {"text": "Second."}]'
  start
  post m1 'one'
  until_true "m1 is closed" is_closed m1
  same "what a client sees" "closed null null" "$(shown m1 '"\(.state) \(.reply) \(.delivery.state)"')"
  same "replies under m1" 0 "$(published m1)"
  post m2 'two'
  answered m2 'Second.'
}

# Killed behind random numbers of records. Before each kill there is one post more, and all earlier ones are posted again
# by a client that never knows what became of them.
scenario_random() {
  local id kill answers=() target
  RANDOM=$SEED
  open_channel "$(jq -nc --argjson call "$(charge c%T who%T)" '{rounds: [{text: "Working on %T.", calls: [$call]}, {text: "Final %T."}]}')"
  set_policy '{"format":"turnkeep-policy/1","rules":[{"tool":"charge","replay":"never"}],"limits":{"attempts":1000}}'
  for ((kill = 1; kill <= KILLS; kill++)); do
    target=$(($(length) + RANDOM % 14))
    start
    for ((id = 1; id <= kill; id++)); do post "m$id" "question $id"; done
    until_true "there are $target records" has_length_or_replies $target $kill
    killed
    echo "kill $kill at record $(length): $(records .kind | tail -n 1), requests: $(requests), replies: $(wc -l <"$E/outside/outbox")"
  done
  start
  for ((id = 1; id <= KILLS; id++)); do answered_all "m$id"; done
  for ((id = 1; id <= KILLS; id++)); do
    answered "m$id" "Final $id."
    answers+=("Final $id.")
  done
  same "replies" "$KILLS" "$(wc -l <"$E/outside/outbox")"
  for ((id = 1; id <= KILLS; id++)); do
    echo "who$id: $(effects "who$id") effects, told: $(told "c$id" | head -c 60)"
    case $(told "c$id") in
      "charged who$id: done") same "effects of who$id" 1 "$(effects "who$id")" ;;
      *[Uu]nknown*) [ "$(effects "who$id")" -le 1 ] || fail "who$id was charged twice" ;;
      *) same "effects of who$id, told as not run" 0 "$(effects "who$id")" ;;
    esac
  done
  sound "${answers[@]}"
}
length() { wc -l 2>/dev/null <"$JOURNAL" || echo 0; }
has_length_or_replies() { [ "$(length)" -ge "$1" ] || [ "$(wc -l <"$E/outside/outbox")" -ge "$2" ]; }

# ---- Planted bugs: the checks above must see them -----------------------------------------------------------------

# must_fail WORDS COMMAND...: COMMAND fails, and for this reason.
must_fail() {
  local words=$1 rc=0
  shift
  set +e
  (set -eE; trap close_channel EXIT; "$@") >"$E/planted.log" 2>&1
  rc=$?
  set -e
  [ $rc -ne 0 ] || fail "the planted bug was not seen"
  grep -qF -- "$words" "$E/planted.log" || fail "seen for another reason: $(cat "$E/planted.log")"
}
# A policy that calls the charge safe although it is not: it happens twice.
scenario_planted_policy() {
  planted_policy() {
    open_channel "$(script "$(says 'One call.' "$(charge c1 ann)")" "$(holds text "$(says 'So')")" "$(says 'Final.')")"
    policy '"replay":"safe"'
    killed_after_effect
  }
  must_fail "FAILED: the model was not told that the outcome of c1 is unknown: charged ann: done" planted_policy
  same "effects" 2 "$(effects ann)"
}
# A journal that acknowledges claims and keeps none: after the crash the call seems never to have started.
scenario_planted_claim() {
  planted_claim() {
    open_channel "$(script "$(says 'One call.' "$(charge c1 ann)")" "$(holds text "$(says 'So')")" "$(says 'Final.')")"
    # shellcheck disable=SC2016
    printf '%s\n' '#!/bin/bash' 'for word; do [ "$word" != claim ] || { echo "{\"seq\":1}"; exit 0; }; done' 'exec "$REAL_TURNKEEP" "$@"' >"$E/lying.sh"
    chmod +x "$E/lying.sh"
    export TURNKEEP_BIN=$E/lying.sh
    killed_after_effect
  }
  must_fail "Pi ended before: the model was asked again" planted_claim
  same "effects" 2 "$(effects ann)"
}
# A channel that says "not there" of what is there: two replies.
scenario_planted_lookup() {
  planted_lookup() {
    mkdir -p "$E/outside"
    touch "$E/outside/lying-lookup"
    delivered_once '' after 1 1
  }
  must_fail "FAILED: replies published under m1: wanted 'm1 Final.', got 'm1 Final.
m1 Final.'" planted_lookup
}
# A journal that forgets delivery ids: a repeated post becomes a second turn.
scenario_planted_forgetting() {
  planted_forgetting() {
    open_channel "$(script "$(says 'One.')" "$(says 'Two.')")"
    # shellcheck disable=SC2016
    printf '%s\n' '#!/bin/bash' 'args=()' 'while [ $# -gt 0 ]; do' \
      'if [ "$1" = --delivery ] && [ "${args[0]}" = admit ]; then args+=("$1" "$2-$RANDOM"); shift 2; else args+=("$1"); shift; fi' 'done' \
      'exec "$REAL_TURNKEEP" "${args[@]}"' >"$E/forgetful.sh"
    chmod +x "$E/forgetful.sh"
    TURNKEEP_BIN=$E/forgetful.sh start
    post m1 'one'
    until_true "the turn is over" has_record '.kind == "settled"'
    answered m1 'One.'
  }
  must_fail "Pi ended before: m1 is closed" planted_forgetting
}

# ---- Running them -------------------------------------------------------------------------------------------------

run_scenarios "${BASH_SOURCE[0]}" close_channel "$@"
