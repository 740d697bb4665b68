#!/usr/bin/env bash
# Power is cut at operation k of whole turns, on ext4 and xfs; and a device that runs out of room under a file system.
#
#     TURNKEEP_BIN=FILE bash tests/crash/power.sh      (TURNKEEP_SLOW=1: at every operation instead of some)
#
# The file systems are images in memory, mounted in a private mount namespace; they are shut down without a flush of
# their log and mounted anew from a new loop device. Needs root, strace, perl (for the ioctl), e2fsprogs and xfsprogs;
# where something is missing or forbidden it says so and ends with 0. The last line is `N passed, N failed`.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

skip() {
  echo "skipped: $1, so no power is cut"
  echo "0 passed, 0 failed"
  exit 0
}

if [ -z "${POWER_DIR:-}" ]; then
  [ "$(id -u)" = 0 ] || skip "this is not root"
  for tool in strace perl mkfs.ext4 mkfs.xfs losetup unshare; do
    command -v "$tool" >/dev/null || skip "there is no $tool"
  done
  unshare -m --propagation private true 2>/dev/null || skip "mount namespaces are not permitted"
  strace -o /dev/null true 2>/dev/null || skip "strace is not permitted"
  memory=/dev/shm
  [ -w "$memory" ] || memory=${TMPDIR:-/tmp}
  dir=$(mktemp -d "$memory/tk-power-XXXXXX") || skip "there is no room for images"
  trap 'rm -rf "$dir"' EXIT
  # Side by side, for two cores. Mounts end with the namespace, and loop devices with their mounts.
  parts=(ext4 xfs) running=() passed=0 failed=0
  for part in "${parts[@]}"; do
    mkdir "$dir/$part"
    POWER_DIR=$dir/$part POWER_PART=$part unshare -m --propagation private bash "${BASH_SOURCE[0]}" >"$dir/$part.log" 2>&1 &
    running+=($!)
  done
  wait "${running[@]}"
  for part in "${parts[@]}"; do
    cat "$dir/$part.log"
    read -r ok bad <"$dir/$part/count" || { echo "FAILED $part did not end"; ok=0 bad=1; }
    passed=$((passed + ok)) failed=$((failed + bad))
  done
  echo "$passed passed, $failed failed"
  [ "$failed" = 0 ]
  exit
fi

bin=$(realpath "${TURNKEEP_BIN:-$here/../../target/release/turnkeep}")
[ -x "$bin" ] || { echo "FAILED no turnkeep at $bin"; exit 1; }
dir=$POWER_DIR
mnt=$dir/mnt state=$dir/state
unset TURNKEEP_TICKET TURNKEEP_SESSION
export WORK=$mnt/work TURNKEEP_ROOT=$mnt/work/home/state TURNKEEP_POLICY=$here/policy.json
journal=$TURNKEEP_ROOT/sessions/s.jsonl
passed=0 failed=0
mkdir -p "$mnt" "$state" "$dir/bin"
# The calls before which power is cut; `exit_group` is behind the answer.
calls=write,fdatasync,fsync,ftruncate,mkdir,openat,unlink,exit_group

pass() { passed=$((passed + 1)); }
fail() {
  failed=$((failed + 1))
  echo "FAILED $1"
}

# turnkeep as the turns see it: counts its calls, writes what each does, lies, or is killed on entry to a system call.
# Power is gone with it; from then on no command does anything.
cat >"$dir/bin/turnkeep" <<WRAPPER
#!/usr/bin/env bash
[ ! -e "$state/cut" ] || exit 1
n=\$((\$(cat "$state/n") + 1))
echo \$n >"$state/n"
lie=()
case " \${LIES:-} " in *" \$n "* | " all ") lie=(-e inject=fdatasync,fsync:retval=0) ;; esac
if [ "\${RECORD:-}" ]; then
  exec strace -y -qq -o "$state/trace.\$n" -e trace=execve,$calls "$bin" "\$@"
elif [ "\${CUT_COMMAND:-0}" = \$n ]; then
  strace -qq -o /dev/null -e trace=execve,$calls "\${lie[@]}" -e "inject=\$CUT_CALL:signal=KILL:when=\$CUT_AT" "$bin" "\$@"
  rc=\$?
  [ \$rc != 137 ] || "$dir/bin/cut"
  exit \$rc
elif [ \${#lie[@]} -gt 0 ]; then
  exec strace -qq -o /dev/null -e trace=execve,$calls "\${lie[@]}" "$bin" "\$@"
fi
exec "$bin" "\$@"
WRAPPER
# Shuts the file system down without a flush of its log: EXT4_IOC_SHUTDOWN and XFS_IOC_GOINGDOWN are _IOR('X', 125, u32).
cat >"$dir/bin/cut" <<CUT
#!/usr/bin/env bash
touch "$state/cut"
perl -e 'my \$f; my \$flag = pack("L", 2); open(\$f, "<", \$ARGV[0]) && ioctl(\$f, 0x8004587d, \$flag) or die "\$!"' "$mnt"
CUT
chmod +x "$dir/bin/turnkeep" "$dir/bin/cut"

make() { # make FS: an empty image of that kind
  case $1 in
  ext4) truncate -s 16M "$dir/$1.img" && mkfs.ext4 -q -F "$dir/$1.img" ;;
  xfs) truncate -s 300M "$dir/$1.img" && mkfs.xfs -q -f "$dir/$1.img" ;;
  esac
}

attach() { mount -o loop "$dir/img" "$mnt"; }

# A copy of the empty image, mounted.
fresh() {
  cp --sparse=always "$dir/$1.img" "$dir/img" && attach && mkdir -m 700 "$WORK" && sync -f "$WORK"
}

# The machine is on again. Without a new loop device the old one's cache would show what is not on the disk.
again() {
  umount "$mnt"
  for _ in $(seq 100); do [ -n "$(losetup -j "$dir/img")" ] || break; sleep 0.01; done
  attach
}

play() { # play MODE: the turns, until they end or power is cut; what was told is kept elsewhere
  rm -f "$state/cut"
  echo 0 >"$state/n"
  PATH=$dir/bin:$PATH bash "$here/turn.sh" "$1" >"$state/told" 2>"$state/said"
}

# How many of the records that were acknowledged are not in the journal.
lost() {
  grep -o '"hash":"[0-9a-f]*"' "$state/told" | sort -u >"$state/hashes"
  [ -s "$state/hashes" ] || { echo 0; return; }
  echo $(($(wc -l <"$state/hashes") - $(grep -aosFf "$state/hashes" "$journal" | sort -u | wc -l)))
}

# What is wrong with what power left, if anything; 0 if nothing.
judge() { # judge MODE
  local rc first lost lenient=0
  lost=$(lost)
  [ "$lost" = 0 ] || { echo "$lost of the records that were acknowledged are lost"; return 1; }
  # A tool speaks only behind its claim.
  while read -r word ref; do
    if grep -qx "$word" "$state/told"; then
      grep -aqs "\"kind\":\"claimed\".*\"ref\":\"$ref\"" "$journal" || { echo "the claim of $ref is lost"; return 1; }
    fi
  done <<<$'seen 4.1\nlater 4.3\nhalf.of.it 4.4'
  if [ ! -e "$journal" ]; then
    "$bin" recover s >/dev/null 2>&1
    rc=$?
    [ $rc = 8 ] || { echo "without a journal recover exits $rc"; return 1; }
    return 0
  fi
  "$bin" verify s --with-tree >"$state/verify" 2>&1
  rc=$?
  case $rc in 0 | 13) ;; *) echo "verify exits $rc: $(cat "$state/verify")"; return 1 ;; esac
  "$bin" recover s --owner-pid $$ --json >"$state/recovered" 2>&1
  first=$?
  case $first in 0 | 10 | 14) ;; *) echo "recover exits $first: $(cat "$state/recovered")"; return 1 ;; esac
  # A tool that was started is not started again, unless it is safe.
  if grep -o '"decisions":\[[^]]*' "$state/recovered" | grep -qE '"ref":"4\.[034]"[^}]*"decision":"rerun"'; then
    echo "a call that may have run is run again"
    return 1
  fi
  if grep -qx 'half of it' "$state/told" && grep -qE '"ref":"4\.4"[^}]*"decision":"run"' "$state/recovered"; then
    echo "a call that was started is run again"
    return 1
  fi
  [ "$(lost)" = 0 ] || { echo "recover lost a record"; return 1; }
  find "$WORK" -type f -exec sha256sum {} + | sort >"$state/before"
  "$bin" recover s --owner-pid $$ --json >"$state/recovered" 2>&1
  rc=$?
  case $rc in "$first" | 14) ;; *) echo "the second recover exits $rc: $(cat "$state/recovered")"; return 1 ;; esac
  find "$WORK" -type f -exec sha256sum {} + | sort | cmp -s "$state/before" - || { echo "the second recover wrote"; return 1; }
  "$bin" verify s --with-tree >"$state/verify" 2>&1
  rc=$?
  # What the agent never synced need not come back while its turn waits for a person.
  [ "$1" = append ] || lenient=13
  case $rc in 0 | $lenient) ;; *) echo "verify exits $rc behind recover: $(cat "$state/verify")"; return 1 ;; esac
}

# The points of a whole run: COMMAND CALL AT, for calls that touch the image before another program takes over.
points() {
  local n
  for ((n = 1; n <= $(cat "$state/n"); n++)); do
    awk -v n="$n" -v work="$WORK" '
      { call = $0; sub(/\(.*/, "", call); count[call]++ }
      call == "execve" && count[call] > 1 { exit }
      call == "execve" { next }
      call == "openat" && !/O_CREAT/ { next }
      call == "exit_group" || index($0, work) { print n, call, count[call] }' "$state/trace.$n"
  done
}

power() { # power FS MODE EVERY: every so many points
  local fs=$1 mode=$2 every=$3 command call at all=0 cut=0 why
  fresh "$fs" || { fail "$fs: no image"; return; }
  RECORD=1 play "$mode" || { fail "$fs $mode: the turns do not end: $(cat "$state/said")"; umount "$mnt"; return; }
  points >"$dir/points"
  umount "$mnt"
  while read -r command call at <&3; do
    all=$((all + 1))
    [ $((all % every)) = 0 ] || continue
    fresh "$fs" || { fail "$fs: no image"; return; }
    CUT_COMMAND=$command CUT_CALL=$call CUT_AT=$at play "$mode"
    if [ ! -e "$state/cut" ]; then
      fail "$fs $mode: command $command was not killed at $call $at: $(tail -n 3 "$state/said")"
    else
      cut=$((cut + 1))
      again
      if why=$(judge "$mode"); then pass; else fail "$fs $mode, power cut at $call $at of command $command: $why"; fi
    fi
    umount "$mnt"
  done 3<"$dir/points"
  echo "$fs $mode: power cut at $cut of $all points"
  [ "$all" -gt 100 ] || fail "$fs $mode: only $all points"
}

# Syncs that answer 0 and do nothing must be found: in all commands, and in one (the claim of `held`).
lies() { # lies FS COMMANDS WHAT LAST: power is cut behind command LAST
  local why
  fresh "$1" || { fail "$1: no image"; return; }
  LIES=$2 CUT_COMMAND=$4 CUT_CALL=exit_group CUT_AT=1 play append
  [ -e "$state/cut" ] || fail "$1: power was not cut"
  again
  if why=$(judge append); then
    fail "$1: $3 was not found"
  else
    pass
    echo "$1: $3 is found: $why"
  fi
  umount "$mnt"
}

# A device that runs out of room under an ext4 that has room: a real write-back error, told by the first fdatasync
# and by no second one.
thin=$dir/thin
used() { df -k --output=used "$thin" | tail -n 1; }
# A loop device takes a short write of its file for a whole one, and so would lie; of one page there is no short write.
thin_pages() {
  local loop
  loop=$(losetup -nO NAME -j "$thin/img")
  limit=/sys/block/${loop##*/}/queue/max_sectors_kb
  limit_was=$(cat "$limit") && echo 4 >"$limit"
}
thin_begin() {
  mkdir -p "$thin"
  mount -t tmpfs -o size=64m tmpfs "$thin" && truncate -s 64M "$thin/img" &&
    mkfs.ext4 -q -F -b 4096 -J size=4 -E lazy_itable_init=0,lazy_journal_init=0 "$thin/img" &&
    mount -o loop "$thin/img" "$mnt" && mkdir -m 700 "$WORK" && thin_pages || return 1
  # Once around the file system's own journal, or that one would be what finds no room.
  perl -MIO::Handle -e 'open(my $f, ">", "$ARGV[0]/pad") or die $!; for (1..600) { chmod 0600 + $_ % 2, $f; $f->sync or die $! }' \
    "$mnt" || return 1
  : >"$state/told"
  ticket=$("$bin" admit s --turn t1 --text 'Do it' --owner-pid none) && sync -f "$mnt" || return 1
  # Room for a few blocks and no more.
  mount -o "remount,size=$(($(used) + 40))k" "$thin"
}
thin_room() { mount -o remount,size=64m "$thin"; }
thin_whole() { echo "$limit_was" >"$limit"; }
thin_again() {
  thin_whole
  umount "$mnt"
  for _ in $(seq 100); do [ -n "$(losetup -j "$thin/img")" ] || break; sleep 0.01; done
  mount -o loop "$thin/img" "$mnt"
}
thin_end() {
  umount "$mnt"
  umount "$thin"
}
# note [STRACE WORDS]: one record of some blocks; its receipt is kept elsewhere
note() {
  head -c 10000 /dev/zero | tr '\0' x |
    strace -qq -o "$state/trace" -e trace=write,fdatasync,fsync,close,ftruncate "$@" "$bin" step --ticket "$ticket" note - \
      >"$state/answer" 2>"$state/said"
  local rc=$?
  cat "$state/answer" >>"$state/told"
  return $rc
}
# Every call on a descriptor whose sync failed, but to cut it and to close it.
behind_the_error() {
  awk '
    / = -1 E(IO|NOSPC)/ && /^f(data)?sync\(/ { fd = $0; gsub(/^[a-z]*\(|\).*/, "", fd); bad[fd] = 1; next }
    { fd = $0; gsub(/^[a-z0-9]*\(|[,)].*/, "", fd) }
    /^close\(/ { delete bad[fd]; next }
    (fd in bad) && /^(f(data)?sync|write)\(/' "$state/trace"
}

writeback() {
  local rc=0 n what=thin
  thin_begin || { fail "$what: no image"; return; }
  for n in $(seq 200); do
    note || { rc=$?; break; }
  done
  if [ $rc = 9 ] && grep -qE 'Input/output error|No space left' "$state/said" && [ ! -s "$state/answer" ]; then
    pass
  else
    fail "$what: note $n exits $rc and says $(cat "$state/answer" "$state/said")"
  fi
  if grep -qE 'fdatasync.* = -1 (EIO|ENOSPC)' "$state/trace"; then pass; else fail "$what: no sync failed: $(tail -n 5 "$state/trace")"; fi
  if [ -z "$(behind_the_error)" ]; then pass; else fail "$what: used behind its error: $(behind_the_error)"; fi
  echo "$what: the device is full at note $n: $(head -n 1 "$state/said")"
  # No room still: nothing is acknowledged that does not stand.
  note
  rc=$?
  if [ $rc = 0 ] || { [ $rc = 9 ] && [ ! -s "$state/answer" ]; }; then pass; else fail "$what: then exit $rc: $(cat "$state/said")"; fi
  thin_room
  if note; then pass; else fail "$what: with room again, exit $?: $(cat "$state/said")"; fi
  thin_again || fail "$what: not mounted again"
  if [ "$(lost)" = 0 ]; then pass; else fail "$what: $(lost) of $(wc -l <"$state/told") acknowledged records are lost"; fi
  "$bin" verify s >"$state/verify" 2>&1
  rc=$?
  case $rc in 0 | 13) pass ;; *) fail "$what: verify exits $rc: $(cat "$state/verify")" ;; esac
  thin_end
}

# A command to which the error is not told loses what it acknowledges; this must be found.
writeback_untold() {
  local n
  thin_begin || { fail "thin: no image"; return; }
  for n in $(seq 40); do
    note -e inject=fdatasync,fsync:retval=0 || break
  done
  sync -f "$mnt" 2>/dev/null
  thin_room
  thin_again
  if [ -s "$state/told" ] && [ -e "$journal" ] && { [ "$(lost)" != 0 ] || ! "$bin" verify s >/dev/null 2>&1; }; then
    pass
    echo "thin: an error that is not told is found: $(lost) of $(wc -l <"$state/told") acknowledged records are lost"
  else
    fail "thin: an error that is not told was not found"
  fi
  thin_end
}

# A writer that syncs again where a sync failed, and believes the second answer: it shows that the kernel tells an error
# once, which the plays above rest on, and that what it acknowledges is lost, while what was synced at once is not.
second_sync() {
  local n whole what='thin: a second sync'
  thin_begin || { fail "$what: no image"; return; }
  perl -MIO::Handle -e '
    my ($file, $machine) = @ARGV;
    my $fdatasync = {x86_64 => 75, aarch64 => 83}->{$machine};
    open(my $f, ">", $file) or die $!;
    sub synced { defined $fdatasync ? syscall($fdatasync, fileno $f) == 0 : $f->sync }
    for my $n (1 .. 200) {
      my $record = sprintf "record %03d %s\n", $n, "x" x 10000;
      syswrite($f, $record) == length $record or die $!;
      next if synced();
      print "$n: $!, then ", (synced() ? 0 : $!), "\n";
      exit;
    }' "$WORK/retried" "$(uname -m)" >"$state/syncs" 2>&1
  thin_room
  thin_again || fail "$what: not mounted again"
  if grep -qE '^[0-9]+: (Input/output error|No space left on device), then 0$' "$state/syncs"; then
    pass
    n=$(sed 's/:.*//' "$state/syncs")
    whole=$(perl -ne '$n++ if /^record \d+ x{10000}$/; END { print $n + 0 }' "$WORK/retried")
    if [ "$whole" = $((n - 1)) ]; then pass; else fail "$what: $whole records are whole, the sync of $n failed"; fi
    echo "$what: $(cat "$state/syncs"), and $whole records are there"
  else
    fail "$what: the error is not told once: $(cat "$state/syncs")"
  fi
  thin_end
}

if [ "$POWER_PART" = ext4 ]; then
  second_sync
  writeback
  writeback_untold
fi
fs=$POWER_PART every=4
[ -z "${TURNKEEP_SLOW:-}" ] || every=1
if make "$fs"; then
  power "$fs" append $every
  last=$(awk 'END { print $1 }' "$dir/points")
  power "$fs" branch $every
  lies "$fs" all "a disk that never syncs" "$last"
  lies "$fs" 6 "one command that does not sync" 6
else
  fail "$fs: no image"
fi
echo "$passed $failed" >"$dir/count"
