# So that the packages' scripts take systemd for running. systemctl sees that it runs elsewhere.
mkdir -p /run/systemd/system
rpm --initdb
rpm --install --nodeps --force-debian /packages/*.rpm
names=$(rpm --query --all 'memprof*')
for name in $names; do rpm --verify --nodeps "$name"; done
rpm --query --list memprof-plugin | grep -x /usr/lib/memprof/memory_profile.so
memprof --version
memprof doctor
systemctl enable memprof-agent
rpm --erase --nodeps --force-debian $names
left=$(find / -xdev -name '*memprof*' -not -path '/proc/*' -not -path '/packages/*')
test -z "$left" || { echo "rpm's removal left: $left" >&2; exit 1; }
