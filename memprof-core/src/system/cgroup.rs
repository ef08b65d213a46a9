//! The memory cgroup of this process: its usage and limit.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use memprof_messages::Cgroup;

/// File names in one version of the cgroup hierarchy, below /sys/fs/cgroup.
#[derive(Clone, Copy, Debug)]
struct CgroupHierarchy {
    /// Controller in the hierarchy's line of /proc/PID/cgroup. Empty for version 2, whose line names none.
    controller: &'static str,
    root: &'static str,
    usage: &'static str,
    limit: &'static str,
    /// Start of the line in memory.stat with the page cache that was not used recently.
    inactive_prefix: &'static str,
    /// Starts of the lines in memory.stat with the page cache, including shared memory, and with shared memory alone.
    cache_prefixes: [&'static str; 2],
}

const VERSION_2: CgroupHierarchy = CgroupHierarchy {
    controller: "",
    root: "",
    usage: "memory.current",
    limit: "memory.max",
    inactive_prefix: "inactive_file ",
    cache_prefixes: ["file ", "shmem "],
};
const VERSION_1: CgroupHierarchy = CgroupHierarchy {
    controller: "memory",
    root: "/memory",
    usage: "memory.usage_in_bytes",
    limit: "memory.limit_in_bytes",
    inactive_prefix: "total_inactive_file ",
    cache_prefixes: ["total_cache ", "total_shmem "],
};

/// Version 1 represents "no limit" by a number near `i64::MAX` (memory.c, `PAGE_COUNTER_MAX`).
const NO_LIMIT: u64 = 1 << 62;

/// Usage, limit, page cache and shared memory of the calling process's memory cgroup. `None` if it is in no such
/// cgroup, or if the files cannot be read.
pub(crate) fn read_current_cgroup() -> Option<Cgroup> {
    find_cgroup(&read_cgroup_membership()?, read_cgroup_file)
}

/// Usage, limit, page cache and shared memory of the memory cgroup in `membership`, the text of /proc/PID/cgroup.
/// `read` reads a file below /sys/fs/cgroup. `None` if no hierarchy reports the cgroup's memory.
fn find_cgroup(membership: &[u8], read: impl Fn(&[u8]) -> Option<String>) -> Option<Cgroup> {
    let (hierarchy, path) = find_hierarchy(membership, &read)?;
    hierarchy.read_cgroup(path, &read)
}

/// Path, as text for people, and remaining bytes of the cgroup with the least memory left: the calling process's cgroup
/// or one of its ancestors. `None` if none of them has a limit, or if no hierarchy reports the cgroup's memory.
pub(crate) fn least_cgroup_headroom() -> Option<(String, u64)> {
    find_least_headroom(&read_cgroup_membership()?, read_cgroup_file)
}

/// Path and remaining bytes of the cgroup with the least memory left: the one in `membership`, the text of
/// /proc/PID/cgroup, or one of its ancestors. `read` reads a file below /sys/fs/cgroup. The usage includes the page
/// cache. Its inactive part counts as free, because the kernel reclaims it before it kills a process. `None` if no
/// level has a limit, or if no hierarchy reports the cgroup's memory.
fn find_least_headroom(
    membership: &[u8],
    read: impl Fn(&[u8]) -> Option<String>,
) -> Option<(String, u64)> {
    let (hierarchy, path) = find_hierarchy(membership, &read)?;
    // The ancestors of `/a/b` are the root, which is the empty path here, and `/a`.
    let ends = (0..path.len()).filter(|end| path[*end] == b'/');
    let above = ends.map(|end| &path[..end]);
    let levels = above.chain([path]).filter_map(|path| {
        let level = hierarchy.read_cgroup(path, &read)?;
        let limit = level.limit_bytes?;
        let used = level
            .usage_bytes
            .saturating_sub(hierarchy.read_reclaimable_bytes(path, &read));
        let path: &[u8] = if path.is_empty() { b"/" } else { path };
        let name = String::from_utf8_lossy(path).into_owned();
        Some((name, limit.saturating_sub(used)))
    });
    levels.min_by_key(|(_, bytes)| *bytes)
}

/// Reads the text of the /proc file that lists the calling thread's cgroups, whose names may be of any bytes. `None` if
/// it cannot be read.
fn read_cgroup_membership() -> Option<Vec<u8>> {
    // /proc/self stands for the main thread, which may have exited.
    std::fs::read("/proc/thread-self/cgroup").ok()
}

/// Reads a file below /sys/fs/cgroup, which holds numbers and ASCII words. `None` if it cannot be read.
fn read_cgroup_file(file: &[u8]) -> Option<String> {
    let path = [b"/sys/fs/cgroup".as_slice(), file].concat();
    std::fs::read_to_string(OsStr::from_bytes(&path)).ok()
}

/// Finds the hierarchy that reports the memory of the cgroup in `membership`, the text of /proc/PID/cgroup. Returns it
/// with the cgroup's path in it. Tries version 2 first. `None` if no hierarchy has a readable usage for the cgroup.
fn find_hierarchy<'a>(
    membership: &'a [u8],
    read: &impl Fn(&[u8]) -> Option<String>,
) -> Option<(CgroupHierarchy, &'a [u8])> {
    let path = |hierarchy: CgroupHierarchy| {
        let mut lines = membership.split(|byte| *byte == b'\n');
        let path = lines.find_map(|line| hierarchy.parse_path(line))?;
        // The path of the root is `/`; no other path ends with a slash.
        Some(path.strip_suffix(b"/").unwrap_or(path))
    };
    let has_usage =
        |(hierarchy, path): &(CgroupHierarchy, &[u8])| hierarchy.read_usage(path, read).is_some();
    let version_2 = path(VERSION_2).map(|path| (VERSION_2, path));
    let version_1 = path(VERSION_1).map(|path| (VERSION_1, path));
    // In a container, the cgroup is mounted as the root, whatever its path in the host system is.
    let contained = version_1.map(|(hierarchy, _)| (hierarchy, &b""[..]));
    [version_2, version_1, contained]
        .into_iter()
        .flatten()
        .find(has_usage)
}

impl CgroupHierarchy {
    /// Path of the cgroup in `line`, which is `ID:CONTROLLERS:PATH` (cgroups(7)). `None` if the line is that of another
    /// hierarchy. A hierarchy of version 1 may have several controllers, as in `cpu,memory`.
    fn parse_path(self, line: &[u8]) -> Option<&[u8]> {
        let mut parts = line.splitn(3, |byte| *byte == b':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        let mut controllers = controllers.split(|byte| *byte == b',');
        controllers
            .any(|each| each == self.controller.as_bytes())
            .then_some(path)
    }

    /// Reads a file of the cgroup at `path` in this hierarchy. `None` if it cannot be read.
    fn read_file(
        self,
        path: &[u8],
        file: &str,
        read: &impl Fn(&[u8]) -> Option<String>,
    ) -> Option<String> {
        read(&[self.root.as_bytes(), path, b"/", file.as_bytes()].concat())
    }

    /// Memory usage of the cgroup at `path`, in bytes. `None` if it cannot be read.
    fn read_usage(self, path: &[u8], read: &impl Fn(&[u8]) -> Option<String>) -> Option<u64> {
        self.read_file(path, self.usage, read)?.trim().parse().ok()
    }

    /// Usage, limit, page cache and shared memory of the cgroup at `path`. `None` if the usage cannot be read. A limit
    /// that cannot be read counts as none. The page cache excludes shared memory.
    fn read_cgroup(self, path: &[u8], read: &impl Fn(&[u8]) -> Option<String>) -> Option<Cgroup> {
        let limit = self.read_file(path, self.limit, read);
        let limit = limit.and_then(|limit| limit.trim().parse().ok());
        let [cache, shared] = self
            .cache_prefixes
            .map(|prefix| self.read_memory_stat(path, prefix, read));
        Some(Cgroup {
            usage_bytes: self.read_usage(path, read)?,
            limit_bytes: limit.filter(|limit| *limit < NO_LIMIT),
            file_cache_bytes: cache
                .zip(shared)
                .map(|(cache, shared)| cache.saturating_sub(shared)),
            shared_bytes: shared,
        })
    }

    /// Number in the line of memory.stat that starts with `prefix`. `None` if there is no such line or number, or if
    /// the file cannot be read.
    fn read_memory_stat(
        self,
        path: &[u8],
        prefix: &str,
        read: &impl Fn(&[u8]) -> Option<String>,
    ) -> Option<u64> {
        let stat = self.read_file(path, "memory.stat", read)?;
        let value = stat.lines().find_map(|line| line.strip_prefix(prefix))?;
        value.trim().parse().ok()
    }

    /// Bytes of the inactive page cache, which the kernel can reclaim; 0 if unknown.
    fn read_reclaimable_bytes(self, path: &[u8], read: &impl Fn(&[u8]) -> Option<String>) -> u64 {
        self.read_memory_stat(path, self.inactive_prefix, read)
            .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroup_usage_and_limit_of_each_hierarchy() {
        let check = |membership: &str, expected: Option<(u64, Option<u64>)>| {
            let read = |path: &[u8]| match path {
                b"/web/memory.current" | b"/memory.current" => Some("4096\n".to_owned()),
                b"/web/memory.max" => Some("8192\n".to_owned()),
                b"/memory.max" => Some("max\n".to_owned()),
                b"/memory/db/memory.usage_in_bytes" => Some("100\n".to_owned()),
                b"/memory/db/memory.limit_in_bytes" => Some("200\n".to_owned()),
                b"/memory/memory.usage_in_bytes" => Some("7\n".to_owned()),
                b"/memory/memory.limit_in_bytes" => Some("9223372036854771712\n".to_owned()),
                _ => None,
            };
            let found = find_cgroup(membership.as_bytes(), read);
            assert_eq!(
                found.map(|found| (found.usage_bytes, found.limit_bytes)),
                expected,
                "{membership}"
            );
        };
        check("0::/web\n", Some((4096, Some(8192))));
        check("0::/\n", Some((4096, None)));
        check("0::/elsewhere\n", None);
        check("4:memory:/db\n0::/elsewhere\n", Some((100, Some(200))));
        check("4:memory:/docker/1f\n", Some((7, None)));
        check("4:cpu:/web\n", None);
        check("5:cpu,memory:/db\n", Some((100, Some(200))));
        check("5:cpu:/a:memory:/db\n4:memory:/\n", Some((7, None)));
        check("1:name=systemd:/10::/web\n0::/\n", Some((4096, None)));
    }

    #[test]
    fn shared_memory_is_not_file_cache() {
        let check = |membership: &str, stat: &str, expected: [Option<u64>; 2]| {
            let read = |path: &[u8]| match path {
                b"/web/memory.current" | b"/memory/db/memory.usage_in_bytes" => {
                    Some("9".to_owned())
                }
                b"/web/memory.stat" | b"/memory/db/memory.stat" => Some(stat.to_owned()),
                _ => None,
            };
            let found = find_cgroup(membership.as_bytes(), read).unwrap();
            assert_eq!([found.file_cache_bytes, found.shared_bytes], expected);
        };
        let second = "anon 4\nfile 700\nfile_mapped 9\nshmem 500\n";
        check("0::/web\n", second, [Some(200), Some(500)]);
        check("0::/web\n", "anon 4\n", [None, None]);
        let first = "cache 1\ntotal_cache 70\ntotal_shmem 50\n";
        check("4:memory:/db\n", first, [Some(20), Some(50)]);
    }

    #[test]
    fn headroom_is_least_of_all_ancestors() {
        let check = |membership: &str, expected: Option<(&str, u64)>| {
            let read = |path: &[u8]| {
                let text = match path {
                    b"/shop/web/memory.current" => "4000",
                    b"/shop/web/memory.max" => "8000",
                    b"/shop/web/memory.stat" => "anon 3000\ninactive_file 500\nactive_file 400\n",
                    b"/shop/memory.current" => "9000",
                    b"/shop/memory.max" => "9900",
                    b"/shop/memory.stat" => "inactive_file 1000\n",
                    b"/free/memory.current" => "7",
                    b"/free/memory.max" => "max",
                    b"/full/memory.current" => "8001",
                    b"/full/memory.max" => "8000",
                    b"/memory/db/memory.usage_in_bytes" => "100",
                    b"/memory/db/memory.limit_in_bytes" => "200",
                    b"/memory/db/memory.stat" => "inactive_file 1\ntotal_inactive_file 20\n",
                    b"/memory/memory.usage_in_bytes" => "700",
                    b"/memory/memory.limit_in_bytes" => "9223372036854771712",
                    _ => return None,
                };
                Some(format!("{text}\n"))
            };
            let found = find_least_headroom(membership.as_bytes(), read);
            let found = found.as_ref().map(|(path, bytes)| (path.as_str(), *bytes));
            assert_eq!(found, expected, "{membership}");
        };
        check("0::/shop/web\n", Some(("/shop", 1900)));
        check("0::/shop\n", Some(("/shop", 1900)));
        check("0::/free\n", None);
        check("0::/full\n", Some(("/full", 0)));
        check("4:memory:/db\n0::/\n", Some(("/db", 120)));
        check("4:memory:/docker/1f\n", None);
        check("4:cpu:/web\n", None);
    }

    #[test]
    fn cgroup_name_may_be_of_any_bytes() {
        let membership = b"0::/caf\xe9/web\n";
        let read = |path: &[u8]| match path {
            b"/caf\xe9/web/memory.current" | b"/caf\xe9/memory.current" => Some("4096".to_owned()),
            b"/caf\xe9/memory.max" => Some("8192".to_owned()),
            _ => None,
        };
        let found = find_cgroup(membership, read).unwrap();
        assert_eq!(found.usage_bytes, 4096);
        let headroom = find_least_headroom(membership, read);
        assert_eq!(headroom, Some(("/caf\u{fffd}".to_owned(), 4096)));
    }
}
