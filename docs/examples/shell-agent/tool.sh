#!/usr/bin/env bash
# The tools of the agent. The arguments stand on stdin; what is printed is what the model is told.
# What each does, for the model: tools.json. Which of them may run again after a crash: policy.json.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
args=$(cat)
argument() {
  jq -er --arg name "$1" '.[$name] | strings' <<<"$args" || { echo "an argument $1 is needed, a string" >&2 && exit 1; }
}

case $TURNKEEP_TOOL in
  read) path=$(argument path) && cat -- "$path" ;;
  bash) command=$(argument command) && timeout "${AGENT_TOOL_SECONDS:-120}" bash -c "$command" ;;
  send_message) text=$(argument text) && printf '%s' "$text" | "$here/post.sh" "${AGENT_OUTBOX:-outbox.jsonl}" ;;
  *) echo "there is no tool $TURNKEEP_TOOL" >&2 && exit 1 ;;
esac
