# The directory makes the packages' scripts call systemctl, which only changes files here.
mkdir -p /run/systemd/system
export SYSTEMD_OFFLINE=1
rpm --initdb
# rpm's plugins would treat / as a mount point.
rpm --install --nodeps --noplugins /packages/*.rpm
names=$(rpm --query --all 'memprof*')
for name in $names; do rpm --verify --nodeps "$name"; done
rpm --query --list memprof-plugin | grep -x /usr/lib/memprof/memory_profile.so
memprof --version
systemctl enable memprof-agent
rpm --erase --nodeps --noplugins $names
left=$(find /etc /usr /var/lib -xdev -name '*memprof*')
test -z "$left" || { echo "rpm's removal left: $left" >&2; exit 1; }
