systemd-analyze verify /usr/lib/systemd/system/memprof-agent.service
# Drop-ins change a service of the same name: here one that does nothing.
for directory in /usr/share/memprof/systemd/*.service.d; do
    service=/etc/systemd/system/$(basename "$directory" .d)
    printf '[Service]\nExecStart=/bin/true\n' > "$service"
    cp -r "$directory" /etc/systemd/system/
    told=$(systemd-analyze verify "$service" 2>&1)
    test -z "$told" || { echo "$told" >&2; exit 1; }
    rm -r "$service" "$service.d"
done
