//! Checks limits that a copy of a process could exceed, beforehand and while the snapshot is read.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use memprof_ptrace::process_copy::MAX_OOM_SCORE_ADJ;
use memprof_ptrace::read_proc_text;

use super::smaps::{MappingUsage, private_bytes};
use crate::error::Error;

/// Bytes that must be left in addition to those that are needed.
const RESERVE_BYTES: u64 = 16 << 20;

/// Memory of a cgroup or of the machine.
#[derive(Debug)]
pub(super) struct MemoryLimit {
    /// Name in messages: the cgroup with its path, or the machine.
    limiter: String,
    /// Bytes in all.
    total: u64,
    /// Bytes that are left, including those that the kernel can reclaim.
    pub(super) available: u64,
    /// File with the cgroup's usage; `None` for the machine.
    usage: Option<PathBuf>,
}

impl MemoryLimit {
    /// Reads how many bytes are used. In a cgroup these include the bytes that the kernel can reclaim. `None` if they
    /// cannot be read.
    pub(super) fn read_usage(&self) -> Option<u64> {
        match &self.usage {
            Some(usage) => fs::read_to_string(usage).ok()?.trim().parse().ok(),
            None => {
                let available = meminfo_bytes(&read_meminfo(), "MemAvailable")?;
                Some(self.total.saturating_sub(available))
            }
        }
    }

    /// Reads how many bytes are left, including those that the kernel can reclaim. `None` if they cannot be read.
    pub(super) fn read_available(&self) -> Option<u64> {
        let used = self.read_usage()?;
        let directory = self.usage.as_ref().and_then(|usage| usage.parent());
        let reclaimable = directory.map_or(0, reclaimable_bytes);
        Some(self.total.saturating_sub(used.saturating_sub(reclaimable)))
    }
}

/// Fails if a copy of the process would exceed a limit. `pinned` are the bytes of its private memory that is pinned.
///
/// # Errors
/// `Overcommit`: `vm.overcommit_memory` is 2, and too little may be promised; `PidsLimit`: the cgroup has as many
/// processes as it may; `Headroom`: too little memory, or too few huge pages, are left for pages that are written
/// meanwhile.
pub(crate) fn require_headroom(
    pid: u32,
    mappings: &[MappingUsage],
    pinned: u64,
) -> Result<(), Error> {
    let private = private_bytes(mappings);
    require_commit_headroom(private)?;
    if let Some(cgroup) = find_tightest_cgroup(pid, "pids", "pids.max", "pids.current")
        && cgroup.used >= cgroup.limit
    {
        return Err(Error::PidsLimit {
            cgroup: cgroup.name,
            limit: cgroup.limit,
        });
    }
    require_huge_pages(mappings)?;
    let resident: u64 = mappings.iter().map(|each| each.resident).sum();
    let anonymous: u64 = mappings.iter().map(|each| each.anonymous).sum();
    let victim = OomVictim::for_pid(pid, resident.saturating_sub(anonymous));
    require_memory(pid, |limit| {
        // The copy needs page tables, 8 bytes for a page, and pages of its own for pinned memory. Of the rest, about a
        // tenth: a process writes to few of its pages in some seconds. Of one that writes to more, the kernel ends the
        // copy, unless it would end the process.
        let rest = private - pinned;
        let written = match victim.ends_before_copy(limit.total) {
            true => rest,
            false => rest / 10,
        };
        private / 512 + pinned + written
    })
}

/// Fails with `Headroom` unless the machine and the process's cgroup have [`RESERVE_BYTES`] of memory left.
pub(crate) fn require_reserve(pid: u32) -> Result<(), Error> {
    require_memory(pid, |_| 0)
}

/// Fails with `Headroom` unless the machine and the process's cgroup each have the bytes left that `needed` returns,
/// and [`RESERVE_BYTES`]. A limit that cannot be read does not count.
fn require_memory(pid: u32, needed: impl Fn(&MemoryLimit) -> u64) -> Result<(), Error> {
    let limits = memory_limits(pid).map(|limit| {
        let needed = needed(&limit) + RESERVE_BYTES;
        (limit, needed)
    });
    let exceeded = limits.filter(|(limit, needed)| limit.available < *needed);
    match exceeded.min_by_key(|(limit, _)| limit.available) {
        Some((limit, needed)) => Err(Error::Headroom {
            limiter: limit.limiter,
            available: limit.available,
            needed,
        }),
        None => Ok(()),
    }
}

/// Reads the memory of the process's cgroup that has least left, and of the machine. Omits a cgroup without a limit,
/// and memory that cannot be read.
pub(super) fn memory_limits(pid: u32) -> impl Iterator<Item = MemoryLimit> {
    let files = [
        ("memory.max", "memory.current"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    ];
    let mut cgroups = files.into_iter();
    let cgroup = cgroups.find_map(|(limit, usage)| {
        let found = find_tightest_cgroup(pid, "memory", limit, usage)?;
        Some(MemoryLimit {
            limiter: format!("its cgroup {}", found.name),
            total: found.limit,
            available: found.limit.saturating_sub(found.used),
            usage: Some(found.usage),
        })
    });
    let meminfo = read_meminfo();
    let machine = meminfo_bytes(&meminfo, "MemAvailable").map(|available| MemoryLimit {
        limiter: "the machine".to_owned(),
        total: meminfo_bytes(&meminfo, "MemTotal").unwrap_or(available),
        available,
        usage: None,
    });
    cgroup.into_iter().chain(machine)
}

/// Facts by which the kernel chooses whether to end a process or its copy where memory runs out.
struct OomVictim {
    /// `oom_score_adj` (`proc_pid_oom_score_adj(5)`).
    adjustment: i64,
    /// Whether the kernel ends all processes of its cgroup together (`memory.oom.group`).
    ends_with_cgroup: bool,
    /// Resident bytes that its copy does not have.
    uncopied: u64,
}

impl OomVictim {
    /// Reads the facts of a process. `uncopied` are its resident bytes that a copy does not have. A fact that cannot be
    /// read counts as the kernel's default.
    fn for_pid(pid: u32, uncopied: u64) -> Self {
        let adjustment = read_proc_text(format!("/proc/{pid}/oom_score_adj"));
        let cgroups = cgroup_directories(pid, "memory", "memory.oom.group");
        let is_set = |cgroup: &CgroupDirectory| {
            let text = fs::read_to_string(cgroup.path.join("memory.oom.group"));
            text.is_ok_and(|text| text.trim() == "1")
        };
        Self {
            adjustment: adjustment
                .ok()
                .and_then(|text| text.trim().parse().ok())
                .unwrap_or(0),
            ends_with_cgroup: cgroups.iter().any(is_set),
            uncopied,
        }
    }

    /// Whether the kernel would end the process together with its copy, or instead of it, when `total` bytes are used
    /// up. The kernel ends the process with the highest score: its resident bytes, and `oom_score_adj` thousandths of
    /// `total` (`oom_badness` of `mm/oom_kill.c`). The copy has the highest `oom_score_adj`, [`MAX_OOM_SCORE_ADJ`].
    fn ends_before_copy(&self, total: u64) -> bool {
        let lead = (MAX_OOM_SCORE_ADJ - self.adjustment).max(0).unsigned_abs() * (total / 1000);
        self.ends_with_cgroup || self.uncopied + RESERVE_BYTES >= lead
    }
}

/// Fails with `Headroom` unless the pools have as many huge pages (hugetlbpage.rst of Linux) as the process has private
/// ones: a write to each needs another one while there is a copy. Without it, the kernel takes the page from the copy,
/// or ends the process by SIGBUS (`hugetlb_wp` of mm/hugetlb.c).
fn require_huge_pages(mappings: &[MappingUsage]) -> Result<(), Error> {
    let mut needed_by_size = BTreeMap::new();
    let written = mappings
        .iter()
        .filter(|each| each.huge_tlb > 0 && !each.is_shared && !each.is_not_copied);
    for each in written {
        *needed_by_size.entry(each.page_size).or_insert(0) += each.huge_tlb;
    }
    for (size, needed) in needed_by_size {
        let available = free_huge_pages(size) * size;
        if available < needed {
            return Err(Error::Headroom {
                limiter: format!("the pool of huge pages of {} KiB", size >> 10),
                available,
                needed,
            });
        }
    }
    Ok(())
}

/// Number of huge pages of a size that are free, and not reserved for mappings. 0 if it cannot be read.
fn free_huge_pages(size: u64) -> u64 {
    let number = |file: &str| -> u64 {
        let pool = format!("/sys/kernel/mm/hugepages/hugepages-{}kB", size >> 10);
        let text = fs::read_to_string(format!("{pool}/{file}")).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    };
    number("free_hugepages").saturating_sub(number("resv_hugepages"))
}

/// Fails with `Overcommit` unless the kernel's commit limit allows `needed` bytes more.
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

/// A cgroup of a process, or one above it.
#[derive(Debug, PartialEq, Eq)]
struct CgroupDirectory {
    /// Path in its hierarchy, as text for people.
    name: String,
    /// Path of the directory with its files.
    path: PathBuf,
}

/// A cgroup with a limit.
struct LimitedCgroup {
    /// Path in its hierarchy, as text for people.
    name: String,
    limit: u64,
    used: u64,
    /// Path of the file with the usage.
    usage: PathBuf,
}

/// Finds the cgroup that has least left, among a process's own and those above it. `limit` and `usage` name the files
/// of these two numbers. For the controller `memory`, the usage is without the page cache that the kernel can drop.
/// `None` if no cgroup has both numbers, or they cannot be read.
fn find_tightest_cgroup(
    pid: u32,
    controller: &str,
    limit: &str,
    usage: &str,
) -> Option<LimitedCgroup> {
    let cgroups = cgroup_directories(pid, controller, limit).into_iter();
    let cgroups = cgroups.filter_map(|CgroupDirectory { name, path }| {
        let number = |file: &str| -> Option<u64> {
            let text = fs::read_to_string(path.join(file)).ok()?;
            text.trim().parse().ok()
        };
        let used = number(usage)?.saturating_sub(match controller {
            "memory" => reclaimable_bytes(&path),
            _ => 0,
        });
        Some(LimitedCgroup {
            name,
            limit: number(limit)?,
            used,
            usage: path.join(usage),
        })
    });
    cgroups.min_by_key(|cgroup| cgroup.limit.saturating_sub(cgroup.used))
}

/// A process's cgroup and those above it, the topmost first, in the controller's hierarchy that has `file`. Empty if the
/// process is in no such hierarchy, or its cgroups cannot be read.
fn cgroup_directories(pid: u32, controller: &str, file: &str) -> Vec<CgroupDirectory> {
    let membership = fs::read(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    parse_cgroup_directories(&membership, controller, file)
}

/// The cgroup in `membership`, the content of /proc/PID/cgroup, and those above it; see [`cgroup_directories`]. Names of
/// cgroups may be of any bytes.
fn parse_cgroup_directories(
    membership: &[u8],
    controller: &str,
    file: &str,
) -> Vec<CgroupDirectory> {
    let mut lines = membership.split(|byte| *byte == b'\n');
    let found = lines.find_map(|line| cgroup_hierarchy(line, controller, file));
    let Some((root, path)) = found else {
        return Vec::new();
    };
    // The path of the root is `/`; no other path ends with a slash.
    let path = path.strip_suffix(b"/").unwrap_or(path);
    let ancestors = (0..path.len()).filter(|end| path[*end] == b'/');
    let ends = ancestors.chain([path.len()]);
    let directory = |end| CgroupDirectory {
        name: match end {
            0 => "/".to_owned(),
            end => String::from_utf8_lossy(&path[..end]).into_owned(),
        },
        path: OsString::from_vec([root.as_bytes(), &path[..end]].concat()).into(),
    };
    ends.map(directory).collect()
}

/// Bytes of a cgroup's inactive page cache, which the kernel drops before it kills a process. `directory` has the
/// cgroup's files; 0 if its memory.stat cannot be read.
fn reclaimable_bytes(directory: &Path) -> u64 {
    let text = fs::read_to_string(directory.join("memory.stat")).unwrap_or_default();
    let value = |name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.parse().ok())
    };
    value("total_inactive_file ")
        .or_else(|| value("inactive_file "))
        .unwrap_or(0)
}

/// Mount point and path of the cgroup in a line of /proc/PID/cgroup: `0::/path` is of version 2, `7:memory:/path` of
/// version 1. `None` if the line is malformed, or of another controller of version 1, or if `limit` is not the file's
/// name in that version.
fn cgroup_hierarchy<'a>(
    line: &'a [u8],
    controller: &str,
    limit: &str,
) -> Option<(String, &'a [u8])> {
    let mut parts = line.splitn(3, |byte| *byte == b':');
    let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    let is_version_1 = controllers
        .split(|byte| *byte == b',')
        .any(|each| each == controller.as_bytes());
    match (controllers, limit) {
        (b"", limit) if limit != "memory.limit_in_bytes" => {
            Some(("/sys/fs/cgroup".to_owned(), path))
        }
        (_, limit) if is_version_1 && !["memory.max", "memory.oom.group"].contains(&limit) => {
            Some((format!("/sys/fs/cgroup/{controller}"), path))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn hierarchy_depends_on_cgroup_version() {
        let check = |line: &str, controller, limit, expected: Option<(&str, &str)>| {
            let found = cgroup_hierarchy(line.as_bytes(), controller, limit);
            let found = found.as_ref().map(|(root, path)| (root.as_str(), *path));
            let expected = expected.map(|(root, path)| (root, path.as_bytes()));
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

    #[test]
    fn cgroups_above_are_listed_with_names_of_any_bytes() {
        let check = |membership: &[u8], expected: &[(&str, &[u8])]| {
            let found = parse_cgroup_directories(membership, "memory", "memory.max");
            let found = found.iter();
            let found = found.map(|each| (each.name.as_str(), each.path.as_os_str().as_bytes()));
            assert_eq!(found.collect::<Vec<_>>(), expected);
        };
        let root: (&str, &[u8]) = ("/", b"/sys/fs/cgroup");
        check(b"0::/\n", &[root]);
        let named: [(&str, &[u8]); 2] = [
            ("/caf\u{fffd}", b"/sys/fs/cgroup/caf\xe9"),
            ("/caf\u{fffd}/web", b"/sys/fs/cgroup/caf\xe9/web"),
        ];
        check(b"1:cpu:/x\n0::/caf\xe9/web\n", &[root, named[0], named[1]]);
        check(b"1:cpu:/x\n", &[]);
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
    fn process_with_score_of_its_copy_ends_first() {
        let check = |adjustment, ends_with_cgroup, uncopied: u64, expected| {
            let victim = OomVictim {
                adjustment,
                ends_with_cgroup,
                uncopied,
            };
            let found = victim.ends_before_copy(1000 << 20);
            assert_eq!(found, expected, "{adjustment} {uncopied}");
        };
        check(0, false, 500 << 20, false);
        check(-1000, false, 500 << 20, false);
        check(0, true, 0, true);
        // Pods of Kubernetes: BestEffort and Burstable.
        check(1000, false, 0, true);
        check(999, false, 0, true);
        check(900, false, 50 << 20, false);
        check(900, false, 100 << 20, true);
    }

    #[test]
    fn huge_pages_beyond_the_pool_are_refused() {
        // No kernel has a pool of pages of this size.
        let mapping = MappingUsage {
            huge_tlb: 8192,
            page_size: 8192,
            ..MappingUsage::default()
        };
        let error = require_huge_pages(std::slice::from_ref(&mapping)).unwrap_err();
        let expected = "cannot be copied: the pool of huge pages of 8 KiB has 0B left, and 8.00KiB may be needed";
        assert!(error.to_string().starts_with(expected), "{error}");
        let uncopied = [
            MappingUsage {
                is_shared: true,
                ..mapping.clone()
            },
            MappingUsage {
                is_not_copied: true,
                ..mapping
            },
        ];
        require_huge_pages(&uncopied).unwrap();
    }

    #[test]
    fn require_memory_beyond_the_machine_fails() {
        let own = std::process::id();
        let error = require_memory(own, |_| 1 << 60).unwrap_err();
        assert!(matches!(error, Error::Headroom { .. }), "{error}");
    }
}
