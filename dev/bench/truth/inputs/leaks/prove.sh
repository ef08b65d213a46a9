#!/bin/sh
# prove.sh COMMAND…: starts a program that prints "ready PID", searches it by `leaks --prove --fail`, and ends it.
fifo=$(mktemp -u) && mkfifo "$fifo" || exit 9
mkfifo "$fifo.input"
"$@" < "$fifo.input" > "$fifo" &
exec 3> "$fifo.input"
read -r _ pid < "$fifo"
memprof leaks --prove --fail --max-pause 5s "$pid"
status=$?
exec 3>&-
kill -KILL "$pid" 2> /dev/null
rm -f "$fifo" "$fifo.input"
exit $status
