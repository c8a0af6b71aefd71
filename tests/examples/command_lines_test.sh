#!/usr/bin/env bash
# command_lines_test.sh <train_gpt> <train_sites>: a bad command line ends soon, with a status of its own
# and one clear message, not with a signal.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for i in $(seq 4000); do echo "$i sheep, $((i * i)) goats and $((i % 7)) wolves"; done >"$folder/text"
long=$(printf '%05000d' 7)
failed=0

# refuses <program> <expected> [arguments]: an option given here replaces that of a good line.
refuses() {
  local program=$1 expected=$2 status=0 output good
  shift 2
  case $program in
    */train_gpt) good="--layers 1 --width 16 --heads 2 --context 8 --sequences 4 --steps 1" ;;
    *) good="--workers 2 --layers 1 --width 16 --context 8 --sequences 8 --steps 8 --period 4 --rank 2" ;;
  esac
  case " $* " in *" --data"*) ;; *) good="--data $folder/text $good" ;; esac
  local option=${1:-}
  good=" $good "
  good=$(sed "s/ ${option//\//\\/} [^ ]* / /" <<<"$good")
  output=$(ulimit -v 16000000 && timeout 20 "$program" $good "$@" 2>&1 </dev/null) || status=$?
  output=${output//[^[:print:][:space:]]/?}
  if [ $status = 0 ] || [ $status -ge 124 ] || [[ $output != *"$expected"* ]] ||
    [[ $output == *"terminate called"* ]] || [ ${#output} -gt 6000 ]; then
    echo "$(basename "$program") $(cut -c 1-200 <<<"$*"): status $status, expected '$expected' in:"
    cut -c 1-400 <<<"$output" | tail -n 5
    failed=1
  fi
}

table() {
  local program=$1 expected arguments
  while IFS='|' read -r expected arguments; do
    [ -n "$expected" ] || continue
    refuses "$program" "$expected" $(sed "s|FOLDER|$folder|g; s|LONG|$long|g" <<<"$arguments")
  done
}

table "$1" <<'END'
1 required TEXT|--data
does not exist|--data FOLDER/none
is actually a directory|--data FOLDER
File does not exist|--data LONG
not in range 1 to 1048576|--ranks 0
not in range 1 to 1048576|--ranks -1
not in range 1 to 1048576|--ranks 2000000000
--ranks|--ranks 99999999999999999999
--ranks|--ranks 1.5
--ranks|--ranks abc
--ranks|--ranks LONG
cannot be shared out evenly over 3 ranks|--ranks 3
not in range|--steps 0
not in range|--steps -5
--steps|--steps 1e9
--steps|--steps 0x
not in range|--layers 0
not in range|--layers 1000000000
not in range|--heads 0
multiple of twice the heads|--heads 3
not in range|--width 0
not in range|--width -4
not in range|--width 2000000000
multiple of twice the heads|--width 17
not in range|--context 0
too short for context 1000000|--context 1000000
--context|--context 9223372036854775807
not in range|--sequences 0
not in range|--sequences 2000000000
no finite number|--clip nan
no finite number|--clip -1
no finite number|--matrix-rate nan
no finite number|--matrix-rate -1
no finite number|--matrix-rate 1e400
no finite number|--elementwise-rate inf
no finite number|--elementwise-rate x
not in range|--prefetch -1
not in range|--validate-every -1
not in range|--sample -1
not in range|--sample 2000000000
no optimizer 'nonsense'|--optimizer nonsense
no preset of muon is named ''|--optimizer muon:
no preset of muon is named 'none'|--optimizer muon:none
1 required TEXT|--optimizer
not in {|--placement everywhere
not in {|--engine smoke
cannot write FOLDER|--json FOLDER/none/figures
cannot write|--json /dev/full
does not exist|--demo FOLDER/none
actually a file|--demo FOLDER/text
not expected|--unknown 1
not expected|extra
not expected|--data FOLDER/text LONG
END
refuses "$1" "not expected" $'\x01\xff\xfe'

table "$2" <<'END'
does not exist|--data FOLDER/none
too short for context|--data /dev/null --context 8
not in range|--workers 0
not in range|--workers 2000000000
cannot be shared out evenly|--workers 3
not in range|--period 0
a run ends with a meeting|--period 3
a run ends with a meeting|--steps 7
not in range|--rank 0
not in range|--rank -1
no finite number|--rate nan
no finite number|--rate -1
no finite number|--elementwise-rate inf
not in range|--sequences 0
not in range|--width 0
not in range|--layers 1000000000
too short for context|--context 1000000
no method 'x'|--method x
cannot write|--json FOLDER
actually a file|--demo FOLDER/text
does not exist|--study FOLDER/none
not expected|extra
END
[ $failed = 0 ] && echo ok
