export XDG_STATE_HOME=/tmp/state XDG_RUNTIME_DIR=/tmp/run
mkdir -m 700 -p "$XDG_STATE_HOME" "$XDG_RUNTIME_DIR"
memprof run -- /packages/unprepared > /dev/null & old=$!
until memprof status $old > /dev/null 2>&1; do sleep 0.1; done
apt-get install -qq -y /packages/newer/*.deb > /dev/null

# The package replaced the file by a rename: the running host keeps the old mapping and replies.
grep -q 'memory_profile.so.*(deleted)' /proc/$old/maps
memprof status $old > /dev/null
memprof dump $old -o /tmp/old.heap || test $? = 4

memprof run -- /packages/unprepared > /dev/null & new=$!
until memprof status $new > /dev/null 2>&1; do sleep 0.1; done
if grep '(deleted)' /proc/$new/maps; then exit 1; fi
memprof status $old > /dev/null
kill $old $new
