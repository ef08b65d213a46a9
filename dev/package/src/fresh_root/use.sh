export XDG_STATE_HOME=/tmp/state XDG_RUNTIME_DIR=/tmp/run
mkdir -m 700 -p "$XDG_STATE_HOME" "$XDG_RUNTIME_DIR"
cd /tmp

started() { until memprof status -t "$1" > /dev/null 2>&1; do sleep 0.1; done; }
# The program allocates all the time, in one function.
named() {
    until memprof dump -t "$1" -o found.heap > /dev/null && memprof report found.heap 2> /dev/null | grep open_session; do
        sleep 0.2
    done
}

# Started with the plugin, and the allocator that the program has.
memprof run -- /packages/unprepared > /dev/null & pid=$!
started $pid
memprof doctor -t $pid || test $? = 4
memprof status -t $pid
if memprof activate -t $pid; then named $pid; else test $? = 4; fi
kill $pid

# With another one, which samples by itself on any system. jemalloc 5.2 does not begin later.
memprof run --active --allocator jemalloc -- /packages/unprepared > /dev/null & pid=$!
started $pid
named $pid
# The fleet's agent takes it too.
memprof agent --once --store file:///tmp/store
memprof fleet ps --store file:///tmp/store | grep unprepared
kill $pid

# Prepared by nobody. Where that is refused, it says why.
/packages/unprepared > /dev/null & pid=$!
memprof ps --all | grep unprepared
if memprof attach $pid; then
    memprof activate -t $pid
    named $pid
    memprof detach $pid
else
    test $? = 4
fi
kill $pid
