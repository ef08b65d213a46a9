//! Check whether a cgroup has frozen a process, as `docker pause` and `systemctl freeze` do. Such a process looks
//! asleep, and no signal or tracer wakes it.

use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::proc_dir::read_proc_text;

/// Mount points of the two kinds of cgroups that can freeze; `None` if not mounted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FreezerCgroups {
    unified: Option<PathBuf>,
    legacy: Option<PathBuf>,
}

impl FreezerCgroups {
    /// Reads from /proc/self/mountinfo where cgroup v2 and the freezer of cgroup v1 are mounted; none if the file
    /// cannot be read.
    pub(crate) fn read() -> Self {
        let mounts = read_proc_text("/proc/self/mountinfo").unwrap_or_default();
        Self::parse_mountinfo(&mounts)
    }

    /// Parses the text of mountinfo (proc(5)) and skips malformed lines. A line looks like `35 24 0:30 /
    /// /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw,nsdelegate`. Of several mounts of a kind, the last one counts.
    fn parse_mountinfo(mounts: &str) -> Self {
        let mut freezers = Self::default();
        for line in mounts.lines() {
            let Some((mount_fields, system_fields)) = line.split_once(" - ") else {
                continue;
            };
            let mut mount_fields = mount_fields.split(' ').skip(3);
            // Only a mount of the whole hierarchy: its root, field 4, is `/`. Field 5 is the mount point.
            let (Some("/"), Some(mount_point)) = (mount_fields.next(), mount_fields.next()) else {
                continue;
            };
            let mut system_fields = system_fields.split(' ');
            let mount_point = Some(PathBuf::from(mount_point));
            // Behind the dash: type, source and options.
            match (system_fields.next(), system_fields.nth(1)) {
                (Some("cgroup2"), _) => freezers.unified = mount_point,
                (Some("cgroup"), Some(options)) if has_item(options, "freezer") => {
                    freezers.legacy = mount_point;
                }
                _ => {}
            }
        }
        freezers
    }

    /// Returns whether one of the cgroups in the text of /proc/PID/cgroup is frozen. Unreadable cgroups count as
    /// thawed.
    pub(crate) fn is_frozen(&self, cgroups: &str) -> bool {
        cgroups
            .lines()
            .any(|line| self.is_cgroup_frozen(line).unwrap_or(false))
    }

    /// Returns whether the cgroup of one line of /proc/PID/cgroup is frozen. Such lines are
    /// `0::/system.slice/web.service` and `7:freezer:/docker/4711`. `None` if the line is malformed or of a controller
    /// other than the freezer, or if the cgroup is outside of this cgroup namespace, is not mounted or cannot be read.
    fn is_cgroup_frozen(&self, line: &str) -> Option<bool> {
        let mut columns = line.splitn(3, ':').skip(1);
        let (controllers, path) = (columns.next()?, Path::new(columns.next()?));
        let mut parts = path.components();
        // The path begins with `/..` if it is outside of this cgroup namespace, and cannot be resolved.
        if parts.any(|part| part == Component::ParentDir) {
            return None;
        }
        let path = path.strip_prefix("/").ok()?;
        let read = |mount: &Option<PathBuf>, file| {
            let directory = mount.as_ref()?.join(path);
            fs::read_to_string(directory.join(file)).ok()
        };
        // The line of cgroup v2 names no controllers.
        if controllers.is_empty() {
            let events = read(&self.unified, "cgroup.events")?;
            return Some(events.lines().any(|line| line == "frozen 1"));
        }
        if !has_item(controllers, "freezer") {
            return None;
        }
        // The file holds FREEZING, FROZEN or THAWED. A group that is still freezing counts as frozen.
        Some(read(&self.legacy, "freezer.state")?.starts_with("FR"))
    }
}

/// Returns whether a comma-separated list has an item.
fn has_item(list: &str, item: &str) -> bool {
    list.split(',').any(|each| each == item)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_of_freezers_are_found() {
        let check = |mounts: &str, unified: Option<&str>, legacy: Option<&str>| {
            let expected = FreezerCgroups {
                unified: unified.map(PathBuf::from),
                legacy: legacy.map(PathBuf::from),
            };
            assert_eq!(
                FreezerCgroups::parse_mountinfo(mounts),
                expected,
                "{mounts}"
            );
        };
        let unified =
            "35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
        check(unified, Some("/sys/fs/cgroup"), None);
        let legacy = "40 32 0:35 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer\n\
                      41 32 0:36 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      42 32 0:37 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let [both, one] = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup/freezer"].map(Some);
        check(legacy, both, one);
        let part = "35 24 0:30 /docker/1 /sys/fs/cgroup rw - cgroup2 cgroup rw\n";
        check(part, None, None);
        check(
            "35 24 0:30 / / rw shared:1 - ext4 /dev/vda rw\nx\n\n",
            None,
            None,
        );
    }

    #[test]
    fn frozen_cgroup_is_recognized() {
        let dir = tempfile::tempdir().unwrap();
        let freezers = FreezerCgroups {
            unified: Some(dir.path().join("unified")),
            legacy: Some(dir.path().join("freezer")),
        };
        let put = |file: &str, text: &str| {
            let file = dir.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        put("unified/held/cgroup.events", "populated 1\nfrozen 1\n");
        put("unified/free/cgroup.events", "populated 1\nfrozen 0\n");
        put("freezer/held/freezer.state", "FROZEN\n");
        put("freezer/free/freezer.state", "THAWED\n");
        let check =
            |cgroups, expected| assert_eq!(freezers.is_frozen(cgroups), expected, "{cgroups}");
        check("0::/held\n", true);
        check("0::/free\n", false);
        check("0::/\n", false);
        check("0::/../held\n", false);
        check("9:memory:/held\n8:freezer:/held\n0::/free\n", true);
        check("8:cpu,freezer:/free\n0::/free\n", false);
        check("8:memory:/held\n", false);
        check("", false);
        assert!(!FreezerCgroups::default().is_frozen("0::/held\n8:freezer:/held\n"));
    }
}
