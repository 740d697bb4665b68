#!/usr/bin/env bash
# Publishes the reply (stdin) under its stable key; what it prints is the receipt.
set -eu
echo "posted: $(cat)" >>"$DEMO/effects.txt"
echo "post for $TURNKEEP_KEY"
