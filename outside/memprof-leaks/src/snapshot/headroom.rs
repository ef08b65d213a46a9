//! Checks limits that a copy of a process could exceed, beforehand and while the snapshot is read.

use std::fs;

use memprof_ptrace::read_proc_text;

use super::smaps::MappingUsage;
use crate::error::Error;

/// Bytes that must be left in addition to those that are needed.
const RESERVE_BYTES: u64 = 16 << 20;

/// Fails if a copy of the process would exceed a limit.
///
/// # Errors
/// `Overcommit`: `vm.overcommit_memory` is 2, and too little may be promised; `PidsLimit`: the cgroup has as many
/// processes as it may; `Headroom`: too little memory is left for pages that are written meanwhile.
pub(crate) fn require_headroom(pid: u32, mappings: &[MappingUsage]) -> Result<(), Error> {
    let private: u64 = mappings
        .iter()
        .map(|each| each.anonymous + each.swapped)
        .sum();
    require_commit_headroom(private)?;
    if let Some((cgroup, limit, used)) =
        find_tightest_cgroup(pid, "pids", "pids.max", "pids.current")
        && used >= limit
    {
        return Err(Error::PidsLimit { cgroup, limit });
    }
    // The copy needs page tables, and about a tenth of the pages: a process writes to few of them in some
    // seconds.
    require_memory(pid, private / 512 + private / 10)
}

/// Fails with `Headroom` unless the machine and the process's cgroup have `needed` bytes left, and a reserve. A limit
/// that cannot be read counts as none.
pub(crate) fn require_memory(pid: u32, needed: u64) -> Result<(), Error> {
    let needed = needed + RESERVE_BYTES;
    let cgroup =
        find_tightest_cgroup(pid, "memory", "memory.max", "memory.current").or_else(|| {
            find_tightest_cgroup(
                pid,
                "memory",
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
            )
        });
    let cgroup = cgroup
        .map(|(path, limit, used)| (format!("its cgroup {path}"), limit.saturating_sub(used)));
    let machine = meminfo_bytes(&read_meminfo(), "MemAvailable");
    let machine = machine.map(|available| ("the machine".to_owned(), available));
    let tightest = cgroup
        .into_iter()
        .chain(machine)
        .min_by_key(|(_, available)| *available);
    match tightest {
        Some((limiter, available)) if available < needed => Err(Error::Headroom {
            limiter,
            available,
            needed,
        }),
        _ => Ok(()),
    }
}

/// Fails unless the kernel's commit limit allows `needed` bytes more.
fn require_commit_headroom(needed: u64) -> Result<(), Error> {
    let mode = fs::read_to_string("/proc/sys/vm/overcommit_memory").unwrap_or_default();
    match commit_headroom(&mode, &read_meminfo()) {
        Some(available) if available < needed => Err(Error::Overcommit { needed, available }),
        _ => Ok(()),
    }
}

/// Bytes that the kernel may still commit. `None` if it does not limit them (`vm.overcommit_memory` is not
/// 2).
fn commit_headroom(mode: &str, meminfo: &str) -> Option<u64> {
    let bytes = |name| meminfo_bytes(meminfo, name).unwrap_or(0);
    let available = || bytes("CommitLimit").saturating_sub(bytes("Committed_AS"));
    (mode.trim() == "2").then(available)
}

/// Text of /proc/meminfo; empty if it cannot be read.
fn read_meminfo() -> String {
    fs::read_to_string("/proc/meminfo").unwrap_or_default()
}

/// Value of a field of /proc/meminfo, in bytes. `None` if there is no such field.
fn meminfo_bytes(meminfo: &str, name: &str) -> Option<u64> {
    let value = meminfo
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kibibytes: u64 = value.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kibibytes << 10)
}

/// Path, limit and usage of the cgroup that has least left, among a process's own and those above it. `limit` and
/// `usage` name the files of these two numbers. For the controller `memory`, the usage is without the page cache that
/// the kernel can drop. `None` if no cgroup has a limit, or it cannot be read.
fn find_tightest_cgroup(
    pid: u32,
    controller: &str,
    limit: &str,
    usage: &str,
) -> Option<(String, u64, u64)> {
    let membership = read_proc_text(format!("/proc/{pid}/cgroup")).ok()?;
    let (root, path) = membership
        .lines()
        .find_map(|line| cgroup_hierarchy(line, controller, limit))?;
    let number = |path: &str, file: &str| -> Option<u64> {
        fs::read_to_string(format!("{root}{path}/{file}"))
            .ok()?
            .trim()
            .parse()
            .ok()
    };
    let path = path.trim_end_matches('/');
    let ancestors = path.match_indices('/').map(|(end, _)| &path[..end]);
    let cgroups = ancestors.chain([path]).filter_map(|path| {
        let name = if path.is_empty() { "/" } else { path };
        let used = number(path, usage)?.saturating_sub(match controller {
            "memory" => reclaimable_bytes(&format!("{root}{path}/memory.stat")),
            _ => 0,
        });
        Some((name.to_owned(), number(path, limit)?, used))
    });
    cgroups.min_by_key(|(_, limit, used)| limit.saturating_sub(*used))
}

/// Bytes of a cgroup's inactive page cache, which the kernel drops before it kills a process. `stat` is the path of
/// its memory.stat; 0 if it cannot be read.
fn reclaimable_bytes(stat: &str) -> u64 {
    let text = fs::read_to_string(stat).unwrap_or_default();
    let value = |name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.parse().ok())
    };
    value("total_inactive_file ")
        .or_else(|| value("inactive_file "))
        .unwrap_or(0)
}

/// Mount point and path of the cgroup in a line of /proc/PID/cgroup: `0::/path` is of version 2,
/// `7:memory:/path` of version 1. `None` if `limit` is not the file's name in that version.
fn cgroup_hierarchy<'a>(line: &'a str, controller: &str, limit: &str) -> Option<(String, &'a str)> {
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
    fn hierarchy_depends_on_cgroup_version() {
        let check = |line, controller, limit, expected: Option<(&str, &str)>| {
            let found = cgroup_hierarchy(line, controller, limit);
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

    /// Only the parser is tested, because the mode is the machine's.
    #[test]
    fn commit_headroom_is_limited_in_mode_2_only() {
        let meminfo = "MemTotal: 9 kB\nCommitLimit:     1000 kB\nCommitted_AS:     400 kB\n";
        let check = |mode, meminfo, expected| assert_eq!(commit_headroom(mode, meminfo), expected);
        check("2\n", meminfo, Some(600 << 10));
        check("2\n", "CommitLimit: 4 kB\nCommitted_AS: 9 kB\n", Some(0));
        check("2\n", "", Some(0));
        check("0\n", meminfo, None);
        check("1\n", meminfo, None);
        check("", meminfo, None);
        let own = meminfo_bytes(&read_meminfo(), "CommitLimit").unwrap();
        assert!(own > 0);
    }

    #[test]
    fn require_memory_beyond_the_machine_fails() {
        let own = std::process::id();
        let error = require_memory(own, 1 << 60).unwrap_err();
        assert!(matches!(error, Error::Headroom { .. }), "{error}");
    }
}
