systemd-analyze verify /usr/lib/systemd/system/memprof-agent.service
# Drop-ins change a service of the same name; the test's service does nothing.
for directory in /usr/share/memprof/systemd/*.service.d; do
    service=/etc/systemd/system/$(basename "$directory" .d)
    printf '[Service]\nExecStart=/bin/true\n' > "$service"
    cp -r "$directory" /etc/systemd/system/
    output=$(systemd-analyze verify "$service" 2>&1)
    test -z "$output" || { echo "$output" >&2; exit 1; }
    rm -r "$service" "$service.d"
done
