//! What could hurt a process that is copied: looked at beforehand, and while the snapshot is read.

use std::fs;

use super::smaps::MappingUsage;
use crate::error::Error;

/// What must be left besides.
const RESERVE: u64 = 16 << 20;

/// A copy of this process would break no limit.
///
/// # Errors
/// `Overcommit`, `PidsLimit`, `Headroom`.
pub(crate) fn require_room(pid: u32, mappings: &[MappingUsage]) -> Result<(), Error> {
    let private: u64 = mappings
        .iter()
        .map(|each| each.anonymous + each.swapped)
        .sum();
    require_commit_headroom(private)?;
    if let Some((cgroup, limit, used)) = tightest_cgroup(pid, "pids", "pids.max", "pids.current")
        && used >= limit
    {
        return Err(Error::PidsLimit { cgroup, limit });
    }
    // The page tables, and a tenth of the pages: a process writes to few of them in some seconds.
    require_memory(pid, private / 512 + private / 10)
}

/// The machine and the process's cgroup have that much memory left, and a reserve.
///
/// # Errors
/// `Headroom`.
pub(crate) fn require_memory(pid: u32, needed: u64) -> Result<(), Error> {
    let needed = needed + RESERVE;
    let cgroup = tightest_cgroup(pid, "memory", "memory.max", "memory.current").or_else(|| {
        tightest_cgroup(
            pid,
            "memory",
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
        )
    });
    let cgroup = cgroup
        .map(|(path, limit, used)| (format!("its cgroup {path}"), limit.saturating_sub(used)));
    let machine = figure(&read_meminfo(), "MemAvailable");
    let machine = machine.map(|left| ("the machine".to_owned(), left));
    let tightest = cgroup
        .into_iter()
        .chain(machine)
        .min_by_key(|(_, left)| *left);
    match tightest {
        Some((place, left)) if left < needed => Err(Error::Headroom {
            place,
            left,
            needed,
        }),
        _ => Ok(()),
    }
}

fn require_commit_headroom(needed: u64) -> Result<(), Error> {
    let mode = fs::read_to_string("/proc/sys/vm/overcommit_memory").unwrap_or_default();
    match commit_headroom(&mode, &read_meminfo()) {
        Some(left) if left < needed => Err(Error::Overcommit { needed, left }),
        _ => Ok(()),
    }
}

/// How much memory the machine may still promise, where it counts that.
fn commit_headroom(mode: &str, meminfo: &str) -> Option<u64> {
    let figure = |name| self::figure(meminfo, name).unwrap_or(0);
    let left = || figure("CommitLimit").saturating_sub(figure("Committed_AS"));
    (mode.trim() == "2").then(left)
}

fn read_meminfo() -> String {
    fs::read_to_string("/proc/meminfo").unwrap_or_default()
}

/// A figure of /proc/meminfo, in bytes.
fn figure(meminfo: &str, name: &str) -> Option<u64> {
    let value = meminfo
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kibibytes: u64 = value.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kibibytes << 10)
}

/// Of the cgroups that a process is in and those above, the one with the least left: its path, its limit, and
/// what is used. `None` where there is no limit.
fn tightest_cgroup(
    pid: u32,
    controller: &str,
    limit: &str,
    usage: &str,
) -> Option<(String, u64, u64)> {
    let membership = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let (root, path) = membership
        .lines()
        .find_map(|line| hierarchy(line, controller, limit))?;
    let number = |path: &str, file: &str| -> Option<u64> {
        fs::read_to_string(format!("{root}{path}/{file}"))
            .ok()?
            .trim()
            .parse()
            .ok()
    };
    let path = path.trim_end_matches('/');
    let above = path.match_indices('/').map(|(end, _)| &path[..end]);
    let levels = above.chain([path]).filter_map(|path| {
        let name = if path.is_empty() { "/" } else { path };
        let used = number(path, usage)?.saturating_sub(match controller {
            "memory" => reclaimable(&format!("{root}{path}/memory.stat")),
            _ => 0,
        });
        Some((name.to_owned(), number(path, limit)?, used))
    });
    levels.min_by_key(|(_, limit, used)| limit.saturating_sub(*used))
}

/// The page cache that nobody used lately: the kernel drops it before it ends a process.
fn reclaimable(stat: &str) -> u64 {
    let text = fs::read_to_string(stat).unwrap_or_default();
    let value = |name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.parse().ok())
    };
    value("total_inactive_file ")
        .or_else(|| value("inactive_file "))
        .unwrap_or(0)
}

/// Where the limits of a line of /proc/PID/cgroup lie: `0::/path` is of version 2, `7:memory:/path` of version
/// 1, whose file has another name for memory.
fn hierarchy<'a>(line: &'a str, controller: &str, limit: &str) -> Option<(String, &'a str)> {
    let mut parts = line.splitn(3, ':');
    let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    let is_version_1 = controllers.split(',').any(|each| each == controller);
    match (controllers, limit) {
        ("", limit) if limit != "memory.limit_in_bytes" => {
            Some(("/sys/fs/cgroup".to_owned(), path))
        }
        (_, limit) if is_version_1 && limit != "memory.max" => {
            Some((format!("/sys/fs/cgroup/{controller}"), path))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_limit_lies() {
        let check = |line, controller, limit, expected: Option<(&str, &str)>| {
            let found = hierarchy(line, controller, limit);
            let found = found.as_ref().map(|(root, path)| (root.as_str(), *path));
            assert_eq!(found, expected, "{line}");
        };
        check(
            "0::/a/b",
            "memory",
            "memory.max",
            Some(("/sys/fs/cgroup", "/a/b")),
        );
        check("0::/a", "pids", "pids.max", Some(("/sys/fs/cgroup", "/a")));
        check("0::/a", "memory", "memory.limit_in_bytes", None);
        check("7:memory:/a", "memory", "memory.max", None);
        let memory = Some(("/sys/fs/cgroup/memory", "/a"));
        check("7:memory:/a", "memory", "memory.limit_in_bytes", memory);
        check(
            "3:cpu,pids:/a",
            "pids",
            "pids.max",
            Some(("/sys/fs/cgroup/pids", "/a")),
        );
        check("3:cpu:/a", "pids", "pids.max", None);
        check("nonsense", "pids", "pids.max", None);
    }

    /// The mode is the machine's: a test leaves it as it is.
    #[test]
    fn a_machine_that_counts_its_promises_may_have_none_left() {
        let meminfo = "MemTotal: 9 kB\nCommitLimit:     1000 kB\nCommitted_AS:     400 kB\n";
        let check = |mode, meminfo, expected| assert_eq!(commit_headroom(mode, meminfo), expected);
        check("2\n", meminfo, Some(600 << 10));
        check("2\n", "CommitLimit: 4 kB\nCommitted_AS: 9 kB\n", Some(0));
        check("2\n", "", Some(0));
        check("0\n", meminfo, None);
        check("1\n", meminfo, None);
        check("", meminfo, None);
        let own = figure(&read_meminfo(), "CommitLimit").unwrap();
        assert!(own > 0);
    }

    #[test]
    fn no_machine_has_all_memory_left() {
        let own = std::process::id();
        let error = require_memory(own, 1 << 60).unwrap_err();
        assert!(matches!(error, Error::Headroom { .. }), "{error}");
    }
}
