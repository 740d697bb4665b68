# What the scripts with scenarios share; to be sourced. Nothing here waits for a time to pass.
#
# Needs: PATIENCE, WATCHED (the name of the variable with the pid of what runs in the background), WHO (what that is).

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

# until_true WHAT COMMAND...: polls until COMMAND succeeds. Fails at once when the process in the background has ended.
until_true() {
  local what=$1 deadline=$((SECONDS + PATIENCE)) gone=
  shift
  until "$@" >/dev/null 2>&1; do
    [ -z "$gone" ] || fail "$WHO ended before: $what"
    if [ -n "${!WATCHED:-}" ] && ! jobs -rp | grep -qx "${!WATCHED}"; then gone=yes; fi
    [ $SECONDS -lt $deadline ] || fail "waited $PATIENCE s in vain: $what"
    sleep 0.02
  done
}

# same WHAT WANTED GOT
same() {
  [ "$2" = "$3" ] || fail "$1: wanted '$2', got '$3'"
}

end_process() {
  kill -9 "$1" 2>/dev/null || true
  wait "$1" 2>/dev/null || true
}
