#!/usr/bin/env bash
# train_sites on a text made up here: every method trains, what is counted is what the formulas say,
# and what cannot be done is said. Usage: train_sites_test.sh <program>
set -eu
program=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
awk 'BEGIN { srand(1); for (i = 0; i < 20000; ++i) printf "%s ", substr("thequickbrownfoxjumps", 1 + int(rand() * 15), 4) }' \
  >"$folder/text"

run() { "$program" --data "$folder/text" --width 16 --layers 1 --context 16 --sequences 8 --rank 4 "$@"; }

run --steps 16 --period 8 --demo "$folder" >"$folder/log" 2>&1 || { cat "$folder/log" && exit 1; }
figure() { sed -n "s/^ *\"$1\": \([^,]*\),*$/\1/p" "$folder/lordo.json"; }
at_most() { awk -v x="$(figure "$1")" -v most="$2" 'BEGIN { exit !(x != "" && x <= most) }' ||
  { echo "$1 is $(figure "$1"), more than $2" && exit 1; }; }
at_least() { awk -v x="$(figure "$1")" -v least="$2" 'BEGIN { exit !(x != "" && x >= least) }' ||
  { echo "$1 is $(figure "$1"), less than $2" && exit 1; }; }

[ "$(grep -c '"loss_' "$folder/lordo.json")" = 17 ] || { echo "not every method has trained" && exit 1; }
grep '"loss_' "$folder/lordo.json" | grep -qvE ': [0-9]+\.[0-9]+,$' && { echo "a loss is no number" && exit 1; }
at_most counter_formula_error_max 0.03 # vectors of 16 elements travel with a count each
at_most bytes_in_step 0
at_most movement_lordo_global_no_qhm 0.001
at_least movement_lordo_global 0.01
at_least bytes_ratio_720m_ddp 20
at_least bytes_ratio_720m_lowrank_ddp 8
at_least state_ratio_moments 8
at_most state_ratio_with_basis 7
at_most state_ratio_with_anchor 2
at_most state_ratio_with_feedback 1

refused() {
  local expected=$1
  shift
  if run "$@" >"$folder/log" 2>&1 || ! grep -q "$expected" "$folder/log"; then
    echo "'$*' should fail with '$expected':" && cat "$folder/log" && exit 1
  fi
}
refused "no method 'nonsense'; there are:" --method nonsense
refused "a run ends with a meeting" --steps 10 --period 8
refused "cannot be shared out evenly" --workers 3 --steps 16 --period 8
