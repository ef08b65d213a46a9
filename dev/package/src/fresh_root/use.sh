export XDG_STATE_HOME=/tmp/state XDG_RUNTIME_DIR=/tmp/run
mkdir -m 700 -p "$XDG_STATE_HOME" "$XDG_RUNTIME_DIR"
cd /tmp

# Waits until the host replies.
wait_for_start() { until memprof status "$1" > /dev/null 2>&1; do sleep 0.1; done; }
# Waits until a report names the function in which the program allocates all the time.
wait_for_function() {
    until memprof dump "$1" -o found.heap > /dev/null && memprof report found.heap 2> /dev/null | grep open_session; do
        sleep 0.2
    done
}

# Preloaded with the plugin, and with the program's own allocator.
memprof run -- /packages/unprepared > /dev/null & pid=$!
wait_for_start $pid
memprof doctor $pid || test $? = 4
memprof status $pid
if memprof activate $pid; then wait_for_function $pid; else test $? = 4; fi
kill $pid

# With jemalloc, which samples on any system if it is active from the start; jemalloc 5.2 cannot be activated later.
memprof run --active --allocator jemalloc -- /packages/unprepared > /dev/null & pid=$!
wait_for_start $pid
wait_for_function $pid
# The fleet's agent dumps it too.
memprof agent --once --store file:///tmp/store
memprof fleet ps --store file:///tmp/store | grep unprepared
kill $pid

# A running process without the plugin. If the system refuses to attach, the exit code is 4.
/packages/unprepared > /dev/null & pid=$!
memprof ps --all | grep unprepared
if memprof attach $pid; then
    memprof activate $pid
    wait_for_function $pid
    memprof detach $pid
else
    test $? = 4
fi
kill $pid

# A plugin of one's own starts from the SDK that the package has.
memprof plugin new words --lang rust
grep -F '"/usr/share/memprof/sdk/memprof-host"' words/Cargo.toml
memprof plugin new sentences --lang c
grep -F /usr/share/memprof/sdk/include sentences/Makefile
