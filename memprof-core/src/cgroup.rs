//! The memory cgroup of this process: what it uses, and what it may.

use serde::Serialize;

/// What the process's memory cgroup says, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Cgroup {
    /// What all its processes and their page cache use.
    pub usage_bytes: u64,
    /// Its limit; absent when there is none.
    pub limit_bytes: Option<u64>,
}

/// Version 1 says "no limit" with a number near `i64::MAX` (memory.c, `PAGE_COUNTER_MAX`).
const NO_LIMIT: u64 = 1 << 62;

impl Cgroup {
    /// That of the calling process; None where it is in none or the files cannot be read.
    pub(crate) fn of_this_process() -> Option<Self> {
        let read = |path: &str| std::fs::read_to_string(path).ok();
        let membership = read("/proc/thread-self/cgroup")?;
        Self::find(&membership, |file| read(&format!("/sys/fs/cgroup{file}")))
    }

    /// That of the process whose `/proc/self/cgroup` is `membership`. `read` reads a file below
    /// `/sys/fs/cgroup`.
    fn find(membership: &str, read: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let path = |controller: &str| {
            let mut lines = membership.lines();
            let path = lines.find_map(|line| line.split_once(controller).map(|(_, path)| path));
            path.map(|path| path.trim_end_matches('/'))
        };
        let number = |file: String| read(&file)?.trim().parse::<u64>().ok();
        let unified = path("0::").and_then(|path| {
            Some(Self {
                usage_bytes: number(format!("{path}/memory.current"))?,
                limit_bytes: number(format!("{path}/memory.max")),
            })
        });
        // A container sees its own cgroup as the root, under whatever path its host has for it.
        let version_1 = |path: &str| {
            let limit = number(format!("/memory{path}/memory.limit_in_bytes"));
            Some(Self {
                usage_bytes: number(format!("/memory{path}/memory.usage_in_bytes"))?,
                limit_bytes: limit.filter(|limit| *limit < NO_LIMIT),
            })
        };
        unified.or_else(|| {
            let path = path(":memory:")?;
            version_1(path).or_else(|| version_1(""))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cgroup_is_read_where_the_process_is() {
        let check = |membership: &str, expected: Option<(u64, Option<u64>)>| {
            let read = |path: &str| match path {
                "/web/memory.current" | "/memory.current" => Some("4096\n".to_owned()),
                "/web/memory.max" => Some("8192\n".to_owned()),
                "/memory.max" => Some("max\n".to_owned()),
                "/memory/db/memory.usage_in_bytes" => Some("100\n".to_owned()),
                "/memory/db/memory.limit_in_bytes" => Some("200\n".to_owned()),
                "/memory/memory.usage_in_bytes" => Some("7\n".to_owned()),
                "/memory/memory.limit_in_bytes" => Some("9223372036854771712\n".to_owned()),
                _ => None,
            };
            let found = Cgroup::find(membership, read);
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
    }
}
