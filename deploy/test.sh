#!/bin/sh
# Runs the whole suite: deploy/test.sh PYTHON [ARGUMENTS OF PYTEST]
#
# The tests with Ray come one after another, and wait much of their time for one process to import and start: so the
# others run beside them in two processes, on what is left of the processors. Linux gives a process of the policy
# SCHED_IDLE nothing that another one wants; elsewhere they have the least priority.
set -u
python=$1
shift
yielding="nice -n 19"
chrt --idle 0 true 2>/dev/null && yielding="chrt --idle 0"
output=$(mktemp)
$yielding "$python" -m pytest -m "not ray" -n 2 "$@" >"$output" 2>&1 &
others=$!
trap 'kill "$others" 2>/dev/null; rm -f "$output"' EXIT
trap 'exit 130' INT TERM
"$python" -m pytest -m ray "$@"
with_ray=$?
wait "$others"
without=$?
cat "$output"
# With arguments that choose tests of one kind only, pytest finds none of the other and says so by 5.
for code in $with_ray $without; do
    [ "$code" -eq 0 ] || [ "$code" -eq 5 ] || exit "$code"
done
