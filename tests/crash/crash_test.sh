#!/usr/bin/env bash
# crash_test.sh <save_loop> train|behind [kills] [seed]: a trainer that saves all the time, by save or
# behind the training, is killed at random moments, and meets disks that are full. Whatever was saved
# before loads, with the values that were saved, and the trainer goes on from there.
set -eu
program=$1
train=$2
kills=${3:-50}
seed=${4:-$(date +%s)}
RANDOM=$((seed % 32768))
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
echo "$train: $kills kills, seed $seed"

# Every checkpoint loads, the latest is of step $1 or later, and all else is a checkpoint in the making.
check() {
  local entry
  "$program" check "$folder/run" "$1" || { echo "after step $1, kill $kill of seed $seed" && exit 1; }
  for entry in "$folder"/run/* "$folder"/run/.[!.]*; do
    case ${entry##*/} in
      step-???????????? | .step-????????????.partial | .step-????????????.removed*) ;;
      '*' | '.[!.]*' | .lock) ;;
      *) echo "left behind: $entry" && exit 1 ;;
    esac
  done
}

saved=0 unfinished=0
for kill in $(seq "$kills"); do
  "$program" "$train" "$folder/run" 1000000 >"$folder/log" 2>"$folder/errors" &
  process=$!
  sleep "0.$(printf %03d $((50 + RANDOM % 350)))"
  kill -9 $process 2>/dev/null || { cat "$folder/errors" && exit 1; }
  wait $process 2>/dev/null || true
  last=$(tail -n 1 "$folder/log") # a line is written at once, so none is cut off
  saved=${last:-$saved}
  if ls -d "$folder"/run/.step-* >/dev/null 2>&1; then unfinished=$((unfinished + 1)); fi
  check "$saved" >"$folder/checked" || { cat "$folder/checked" && exit 1; }
done
echo "$unfinished of $kills kills met a checkpoint in the making; step $saved is saved"
[ "$saved" -gt 0 ] && [ "$unfinished" -gt 0 ] || { echo "too few to tell anything" && exit 1; }

# Saving that fails says so and leaves the previous checkpoint; then it works again.
refused() {
  local expected=$1
  shift
  if "$@" >"$folder/log" 2>&1 || ! grep -q "$expected" "$folder/log"; then
    echo "should fail with '$expected': $*" && cat "$folder/log" && exit 1
  fi
}
step=$("$program" check "$folder/run" "$saved" | sed 's/.*of step //')
refused "File too large; raise the limit" \
  bash -c 'ulimit -f 8; exec "$@"' limited "$program" "$train" "$folder/run" $((step + 1))
check "$step"
if ls -d "$folder"/run/.step-*.partial 2>/dev/null; then echo "a failed save left its folder" && exit 1; fi
"$program" "$train" "$folder/run" $((step + 1)) >/dev/null
check $((step + 1))

for place in /dev/full /proc/nothing; do
  refused "cannot " "$program" "$train" "$place" 1
done

# A file system of 1 MiB takes one checkpoint and not a second one.
full_disk() {
  mount -t tmpfs -o size=1m none "$folder/disk"
  mkdir "$folder/disk/run" && ln -sfn "$folder/disk/run" "$folder/run"
  "$program" "$train" "$folder/disk/run" 1 >/dev/null
  head -c 600000 /dev/zero >"$folder/disk/filler"
  refused "No space left on device; free some space" "$program" "$train" "$folder/disk/run" 2
  check 1
  rm "$folder/disk/filler"
  "$program" "$train" "$folder/disk/run" 2 >/dev/null
  check 2
}
mkdir "$folder/disk"
export -f full_disk check refused
export folder program train seed kill
rm -rf "$folder/run"
if unshare --map-root-user --mount true 2>/dev/null; then
  unshare --map-root-user --mount bash -eu -c full_disk
else
  echo "no full disk: this user may not mount one"
fi
echo ok
