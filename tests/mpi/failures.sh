#!/bin/sh
# failures.sh <program> <mpiexec>: rank 1 of 4 dies or throws in each phase; every other rank must say
# so, by name, soon, and end with a code that is not zero.
set -u
program=$1
mpiexec=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
bad=0

complain() {
  echo "FAILED $phase $how $shape: $*"
  bad=1
}

run() {
  how=$1 phase=$2 shape=$3
  rm -f "$folder"/*
  begin=$(date +%s)
  # Left to itself the launcher kills who has survived.
  PROGRAM=$program PHASE=$phase HOW=$how SHAPE=$shape FOLDER=$folder \
    timeout 60 "$mpiexec" --enable-recovery --oversubscribe --bind-to none -n 4 sh -c '
      "$PROGRAM" "$PHASE" "$HOW" $SHAPE 2>"$FOLDER/said.$OMPI_COMM_WORLD_RANK"
      echo $? >"$FOLDER/status.$OMPI_COMM_WORLD_RANK"' >/dev/null 2>&1
  seconds=$(($(date +%s) - begin))
  [ "$seconds" -le 20 ] || complain "took $seconds s"
  for rank in 0 1 2 3; do
    status=$(cat "$folder/status.$rank" 2>/dev/null || echo none)
    said=$(cat "$folder/said.$rank" 2>/dev/null)
    case $rank:$how in
      1:kill) [ "$status" = 137 ] || complain "rank 1 ended with $status" ;;
      *) [ "$status" = 1 ] || complain "rank $rank ended with $status" ;;
    esac
    case $rank:$how in
      1:kill) continue ;;
      1:throw) pattern="^no more disk" ;;
      *:throw) pattern="^rank 1 failed first: no more disk" ;;
      *) pattern="(all-gather|reduce-scatter|all-reduce) '(block\.[0-2]|gradient norms|mean over sites, step [0-9]+)'.*rank 1, which does not answer" ;;
    esac
    echo "$said" | grep -Eq "$pattern" || complain "rank $rank said: $said"
  done
  echo "$phase $how $shape: $seconds s; rank 0: $(head -1 "$folder/said.0")"
}

for how in kill throw; do
  for phase in acquire reduce clip step between; do run $how $phase ""; done
done
run kill reduce around
run kill acquire mesh
run kill clip mesh
run throw reduce mesh
run kill sync sites
run throw sync sites
exit $bad
