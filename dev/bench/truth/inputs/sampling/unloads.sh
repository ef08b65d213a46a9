#!/bin/sh
# Builds `unloads` and its libraries in the working directory, lets memprof sample its steps, and reports its dump:
# `unloads.sh [-a ALLOCATOR] STEP…`.
here=$(dirname "$0")
allocator=
test "$1" = -a && { allocator="--allocator $2"; shift 2; }
mkdir -p dl
for each in a b; do cc -O2 -g -shared -fPIC "$here/lib$each.c" -o dl/lib$each.so; done
sed 's/alloc_in_a/alloc_in_later_build/g' "$here/liba.c" > new.c
cc -O2 -g -shared -fPIC new.c -o dl/new.so
cc -O2 -g "$here/unloads.c" -o x -ldl
memprof run --active $allocator --lg-sample 16 -- ./x "$@" > log &
until grep -q ready log && pid=$(sed -n 's/ready //p' log) && memprof status -t "$pid" > status; do
	kill -0 $! || exit
done 2> waiting
memprof dump -t "$pid" -o x.heap && memprof report x.heap
kill "$pid"
