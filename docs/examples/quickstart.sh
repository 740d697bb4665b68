#!/usr/bin/env bash
# A turn, a crash and a recovery, with no agent but this script: no Node, no Pi, no jq.
#
# A driver (docs/examples/quickstart/driver.sh) answers one message. Its "model" is a file of canned replies; its
# tools append lines to a file, so that you can count what really happened. The driver is killed with -9 in the
# middle of a tool, and started again by `turnkeep recover`.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

if [ -z "${TURNKEEP_BIN:-}" ]; then
  echo "building turnkeep (a few minutes the first time) ..."
  cargo build --quiet --release --manifest-path "$here/../../Cargo.toml"
  TURNKEEP_BIN=$here/../../target/release/turnkeep
  [ -z "${CARGO_TARGET_DIR:-}" ] || TURNKEEP_BIN=$CARGO_TARGET_DIR/release/turnkeep
fi
export TURNKEEP_BIN
export DEMO=${DEMO:-$(mktemp -d)}
export TURNKEEP_ROOT=$DEMO/state TURNKEEP_POLICY=$here/quickstart/policy.json
unset TURNKEEP_TICKET TURNKEEP_SESSION
mkdir -p "$DEMO"
: >"$DEMO/effects.txt"
say() { printf '\n== %s\n' "$*"; }

say "1. A message comes in. admit records it, then becomes the driver."
set +e
"$TURNKEEP_BIN" admit room-42 --delivery msg-981 --tree "$DEMO/chat.jsonl" --tree-mode append \
  --text "Read the order, charge it, mail the receipt" -- "$here/quickstart/driver.sh" &
driver=$!
set -e

say "2. The driver reads the order and begins to charge. In the middle of it, driver and turnkeep are killed with -9."
until [ -e "$DEMO/charging" ]; do
  kill -0 "$driver" || { echo "the driver ended too early" >&2; exit 1; }
  sleep 0.02
done
kill -9 "$driver" "$(cat "$DEMO/charging")"
{ wait "$driver"; } 2>/dev/null || true
# Both are gone once nobody is waited for any more.
until [ "$("$TURNKEEP_BIN" inspect room-42 --next)" = recover ]; do sleep 0.02; done
touch "$DEMO/go-on" # the tool itself lives on, and finishes: nobody records that

say "3. What is known now? (inspect never writes)"
"$TURNKEEP_BIN" inspect room-42

say "4. recover decides about each call, and becomes the driver again. Nobody types anything."
"$TURNKEEP_BIN" recover room-42 -- "$here/quickstart/driver.sh"

say "5. What really happened, counted outside: one read, one charge, one mail, one reply"
cat "$DEMO/effects.txt"

say "6. What the agent was told (its session file, a Pi session tree)"
cut -c 1-150 "$DEMO/chat.jsonl"

say "7. The same message once more is no new turn: exit 10, and the stored reply"
code=0
"$TURNKEEP_BIN" admit room-42 --delivery msg-981 --text "Read the order, charge it, mail the receipt" || code=$?
[ "$code" = 10 ]

say "8. The journal and the tree are sound"
"$TURNKEEP_BIN" verify room-42 --with-tree
say "Everything is in $DEMO"
