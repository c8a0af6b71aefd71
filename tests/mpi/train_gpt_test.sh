#!/usr/bin/env bash
# train_gpt_test.sh <train_gpt> <launcher>...: processes give the losses of threads in every digit,
# rank 0 alone prints, and errors come with the rank that has them.
set -eu
train_gpt=$1
shift
launch=("$@")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for i in $(seq 400); do echo "$i sheep, $((i * i)) goats and $((i % 7)) wolves"; done >"$folder/text"
tiny="--data $folder/text --layers 2 --width 32 --heads 2 --context 24 --sequences 12"
run="$tiny --steps 4 --clip 1 --sample 20"

fail() {
  echo "$*" >&2
  exit 1
}

# Everything that a run tells, but for what it measures of time.
untimed() { sed 's/ [0-9]* chars\/s .*//; /_seconds"\|chars_per_second"/d' "$1"; }

for optimizer in muon adamw soap shampoo; do
  "$train_gpt" $run --optimizer $optimizer --ranks 2 --json "$folder/threads.json" >"$folder/threads"
  "${launch[@]}" -n 2 "$train_gpt" $run --optimizer $optimizer --engine mpi --json "$folder/mpi.json" \
    >"$folder/mpi"
  for what in threads threads.json; do
    diff <(untimed "$folder/$what") <(untimed "$folder/${what/threads/mpi}") ||
      fail "$optimizer: threads (<) and processes (>) tell different things"
  done
  [ "$(sed -n '/"losses"/,/]/p' "$folder/mpi.json" | grep -c '[0-9]')" -eq 4 ] || fail "no losses"
done

# Processes go on where threads were, and threads where processes were.
saved="$tiny --checkpoint $folder/run --save-every 2"
losses() { sed -n '/"losses"/,/]/p' "$1" | grep '[0-9]'; }
"$train_gpt" $tiny --steps 6 --ranks 2 --json "$folder/whole.json" >/dev/null
"$train_gpt" $saved --steps 6 --ranks 2 --stop-after 2 >/dev/null
"${launch[@]}" -n 2 "$train_gpt" $saved --steps 6 --stop-after 4 --resume --engine mpi >/dev/null
"$train_gpt" $saved --steps 6 --ranks 2 --resume --json "$folder/resumed.json" >/dev/null
diff <(losses "$folder/whole.json" | tail -n 2) <(losses "$folder/resumed.json") ||
  fail "a run that changed its engine twice has other losses"

"$train_gpt" $run --engine mpi --json "$folder/alone.json" >/dev/null
grep -q '"ranks": 1,' "$folder/alone.json" || fail "without mpirun there are other ranks"

refuses() {
  local expected=$1
  shift
  if output=$("${launch[@]}" "$@" 2>&1); then fail "accepted: $*"; fi
  case $output in
    *"train_gpt, rank "*"$expected"*) ;;
    *) fail "for $*: expected 'train_gpt, rank', then '$expected' in: $output" ;;
  esac
}
mpi="$train_gpt --engine mpi $tiny"
refuses "--ranks 3, but this job has 2 processes" -n 2 $mpi --ranks 3
refuses "no placement 'rows' on this engine; it has owner" -n 2 $mpi --placement rows
refuses "--demo runs with --engine threads" -n 2 $mpi --demo "$folder"
refuses "cannot write" -n 2 $mpi --steps 1 --json "$folder"
refuses "the ranks have different plans" -n 1 $mpi --steps 2 : -n 1 $mpi --steps 2 --prefetch 0
# One rank stops early: the other names the unit and the operation.
refuses "all-gather 'embedding'" -n 1 $mpi --steps 4 : -n 1 $mpi --steps 2
echo "ok"
