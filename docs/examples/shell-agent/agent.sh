#!/usr/bin/env bash
# A whole agent of bash, curl, jq and turnkeep, for any endpoint that speaks OpenAI's chat completions.
# It may be killed at any line: started again, `inspect --next` says what to do, and nothing else is remembered.
# It is started by `turnkeep admit` or `turnkeep recover`, whose process it becomes; see README.md.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
: "${OPENAI_BASE_URL:?such as https://api.openai.com/v1}" "${OPENAI_API_KEY:?}" "${OPENAI_MODEL:?}"
: "${TURNKEEP_SESSION:?start me with: turnkeep admit SESSION … -- $0}"
system=${AGENT_SYSTEM:-"You are a careful assistant. A call whose outcome is unknown may have happened: look, do not repeat it."}

# No file stands in between: half an answer, or an error, is no message, and `step message` refuses it.
ask_model() {
  turnkeep inspect "$TURNKEEP_SESSION" --context --format openai-chat |
    jq -c --arg model "$OPENAI_MODEL" --arg system "$system" --argjson stream "${AGENT_STREAM:-false}" \
      --slurpfile tools "$here/tools.json" '{model: $model, stream: $stream, tools: $tools[0],
        messages: ([{role: "system", content: $system}] + .)}' |
    curl -sS --fail-with-body --max-time "${AGENT_SECONDS:-600}" -H 'Content-Type: application/json' \
      -H @<(printf 'Authorization: Bearer %s\n' "$OPENAI_API_KEY") --data-binary @- \
      "${OPENAI_BASE_URL%/}/chat/completions" |
    turnkeep step message - >/dev/null
}

failures=0
while next=$(turnkeep inspect "$TURNKEEP_SESSION" --next) || exit; do
  read -r -d '' -a words <<<"$next" || true # what to do, then one call per line
  case ${words[0]} in
    call_model)
      if ask_model; then failures=0 && continue; fi
      failures=$((failures + 1))
      [ "$failures" -lt "${AGENT_TRIES:-4}" ] || { echo "agent: the model cannot be asked" >&2; exit 1; }
      sleep $((failures * failures)) ;;
    run_calls) for ref in "${words[@]:1}"; do turnkeep step run "$ref" -- "$here/tool.sh" >/dev/null; done ;;
    settle) turnkeep step settle >/dev/null ;;
    deliver) turnkeep step deliver -- "$here/post.sh" "${AGENT_REPLIES:-replies.jsonl}" >/dev/null ;;
    done) exit 0 ;;
    *) echo "agent: waiting: $next (turnkeep inspect $TURNKEEP_SESSION)" >&2 && exit 0 ;;
  esac
done
