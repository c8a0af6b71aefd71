#!/bin/sh
# The two trainers of examples/flat_buffer print the same losses, differ in few lines, and
# docs/flat_buffer.md shows how they differ.
#
#   flat_buffer_test.sh <flat_buffer_plain> <flat_buffer_sharded>    compares
#   flat_buffer_test.sh --update                                     rewrites the diff in the page
set -eu
export LC_ALL=C

root=$(cd "$(dirname "$0")/../.." && pwd)
page=$root/docs/flat_buffer.md
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

fail() {
  echo "flat_buffer: $*" >&2
  exit 1
}

cd "$root/examples/flat_buffer"
diff -u --label plain.cpp --label sharded.cpp plain.cpp sharded.cpp >"$scratch/diff" || [ $? = 1 ]
added=$(sed 1,2d "$scratch/diff" | grep -c '^+')
removed=$(sed 1,2d "$scratch/diff" | grep -c '^-')

if [ "$1" = --update ]; then
  awk -v diff="$scratch/diff" '
    /^```diff$/ { print; while ((getline line < diff) > 0) print line; inside = 1 }
    /^```$/ { inside = 0 }
    !inside { print }' "$page" >"$scratch/page"
  cp "$scratch/page" "$page"
  echo "$removed lines removed, $added added"
  exit 0
fi

for ranks in 1 2 3 4 5; do
  "$1" $ranks 3 >"$scratch/plain"
  "$2" $ranks 3 >"$scratch/sharded"
  [ "$(wc -l <"$scratch/plain")" -eq 3 ] || fail "plain printed no losses"
  diff "$scratch/plain" "$scratch/sharded" || fail "other losses on $ranks ranks"
done

[ "$added" -lt 60 ] && [ "$removed" -lt 60 ] || fail "$removed lines removed and $added added"
grep -q "$removed lines go and $added come" "$page" || fail "the page has other counts"
sed -n '/^```diff$/,/^```$/p' "$page" | sed '1d;$d' | cmp - "$scratch/diff" ||
  fail "the page shows another diff; run $0 --update"
