#!/usr/bin/env bash
# train_gpt_test.sh <train_gpt>: a tiny run gives the same loss on every placement, and bad input gives
# one clear line and a nonzero status.
set -eu
train_gpt=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for i in $(seq 400); do echo "$i sheep, $((i * i)) goats and $((i % 7)) wolves"; done >"$folder/text"
tiny="--data $folder/text --layers 2 --width 32 --heads 2 --context 24 --sequences 12 --steps 4"

value() { sed -n "s/.*\"$1\": \([^,]*\),*/\1/p" "$2"; }

for optimizer in muon adamw; do
  expected=
  for placement in replicated owner rows; do
    "$train_gpt" $tiny --optimizer "$optimizer" --placement "$placement" --ranks 3 \
      --json "$folder/figures.json" >/dev/null
    loss=$(value train_loss "$folder/figures.json")
    validation=$(value val_loss "$folder/figures.json")
    : "${expected:=$loss $validation}"
    [ "$loss $validation" = "$expected" ] || {
      echo "$optimizer on $placement: losses $loss $validation, with full copies $expected"
      exit 1
    }
    moved=$(value step_bytes "$folder/figures.json")
    case $optimizer.$placement in
      muon.rows) [ "$moved" -gt 0 ] ;;
      *) [ "$moved" -eq 0 ] ;;
    esac || { echo "$optimizer on $placement moved $moved bytes in the step"; exit 1; }
  done
done

# A run that stops, and goes on from its checkpoint: the losses of one that did not, in every digit.
losses() { sed -n '/"losses"/,/]/s/^ *\([-+.e0-9]*\),*$/\1/p' "$1"; }
"$train_gpt" $tiny --ranks 3 --json "$folder/figures.json" >/dev/null
saved="$tiny --ranks 3 --checkpoint $folder/run --save-every 1"
"$train_gpt" $saved --stop-after 3 >/dev/null
rm -r "$folder/run/step-000000000003"
"$train_gpt" $saved --resume --json "$folder/resumed.json" >/dev/null
[ "$(value first_step "$folder/resumed.json")" = 2 ] || { echo "not resumed at step 2"; exit 1; }
diff <(losses "$folder/figures.json" | tail -n 2) <(losses "$folder/resumed.json")
# At another number of ranks, after the last step: nothing left to do.
"$train_gpt" ${saved/--ranks 3/--ranks 2} --resume --json "$folder/resumed.json" >/dev/null
[ "$(value first_step "$folder/resumed.json")" = 4 ] || { echo "not resumed at step 4"; exit 1; }

refuses() {
  local expected=$1
  shift
  if output=$("$train_gpt" "$@" 2>&1); then
    echo "accepted: $*"
    exit 1
  fi
  case $output in
    *"$expected"*) ;;
    *) echo "for $*: expected '$expected' in: $output"; exit 1 ;;
  esac
}
refuses "cannot be shared out evenly over 5 ranks" $tiny --ranks 5
refuses "does not exist" --data "$folder/nothing"
refuses "not in" $tiny --placement owners
refuses "is empty" --data /dev/null
printf aaaa >"$folder/short"
refuses "repeats a single byte" --data "$folder/short"
refuses "width" $tiny --width 33
refuses "cannot write" $tiny --json "$folder"
refuses "this one would have seed 2" $saved --resume --seed 2
refuses "has checkpoints already" $saved
refuses "clip 2" $saved --resume --clip 2
refuses "of another model" $saved --resume --optimizer soap --placement owner
refuses "--checkpoint" $tiny --resume
echo "ok"
