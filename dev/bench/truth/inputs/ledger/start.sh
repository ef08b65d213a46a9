# start.sh PROGRAM…: runs it in the background with an open standard input, and waits until it prints `ready PID` and
# its host answers. Leaves the pid in the file `pid`.
rm -f in && mkfifo in
sleep 120 > in &
"$@" < in > log 2>&1 &
until grep -q ready log; do :; done
awk '/ready/ { print $2 }' log > pid
until memprof status $(cat pid) > status 2>&1; do :; done
