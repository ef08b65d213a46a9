//! How many threads a process may have (`RLIMIT_NPROC`): `HAProxy` allows itself none. The limit is raised before the
//! plugin comes, which puts it back when it leaves.

use std::fmt;
use std::fs;

use memprof_ptrace::Refusal;
use memprof_ptrace::process::ProcStatus;
use rustix::process::{Pid, Resource, Rlimit, prlimit};

/// For the plugin's threads, of which 32 answer connections. The kernel counts the threads of the user.
const ROOM: u64 = 64;

/// A limit that was raised. Dropped, it is put back.
#[derive(Debug)]
pub(crate) struct RaisedThreadLimit {
    pid: Pid,
    pub(crate) limits: ThreadLimits,
    is_kept: bool,
}

/// What the limit was, and what it was raised to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThreadLimits {
    pub(crate) was: Rlimit,
    pub(crate) is: Rlimit,
}

impl RaisedThreadLimit {
    /// Raises the limit of a process where it leaves no room.
    ///
    /// # Errors
    /// It has to be raised, and this user may not.
    pub(crate) fn raise_if_needed(pid: u32) -> Result<Option<Self>, Refusal> {
        let status = ProcStatus::read_thread(pid)?;
        let was = limit(pid).filter(|limit| {
            // Nor is root counted, and limits above what the process needs are quotas of its user's.
            let is_root = status.uids[0] == 0;
            let needed = u64::from(status.threads) + ROOM;
            !is_root && limit.current.is_some_and(|limit| limit < needed)
        });
        let Some(was) = was else {
            return Ok(None);
        };
        let least = user_thread_count(status.uids[0]) + ROOM;
        let raised = |limit: Option<u64>| limit.map(|limit| limit.max(least));
        let is = Rlimit {
            current: raised(was.current),
            maximum: raised(was.maximum),
        };
        let known = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let pid = known.ok_or(Refusal::NoSuchProcess)?;
        let set = prlimit(Some(pid), Resource::Nproc, is);
        set.map_err(|errno| Refusal::ThreadLimit {
            limit: was.current.unwrap_or(u64::MAX),
            errno: nix::errno::Errno::from_raw(errno.raw_os_error()),
        })?;
        Ok(Some(Self {
            pid,
            limits: ThreadLimits { was, is },
            is_kept: false,
        }))
    }

    /// Leaves it to the plugin to put it back.
    pub(crate) fn leave_raised(mut self) {
        self.is_kept = true;
    }
}

impl Drop for RaisedThreadLimit {
    fn drop(&mut self) {
        if !self.is_kept {
            // It fails for a process that has ended.
            let _ = prlimit(Some(self.pid), Resource::Nproc, self.limits.was);
        }
    }
}

impl fmt::Display for ThreadLimits {
    /// As a table of TOML: soft and hard limits, -1 for none.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pair = |limit: Rlimit| {
            [limit.current, limit.maximum]
                .map(|limit| limit.map_or(-1, |limit| i64::try_from(limit).unwrap_or(-1)))
        };
        let (was, is) = (pair(self.was), pair(self.is));
        write!(f, "{{ was = {was:?}, is = {is:?} }}")
    }
}

/// The limit of a process; `None` where it is not to be seen.
fn limit(pid: u32) -> Option<Rlimit> {
    parse(&fs::read_to_string(format!("/proc/{pid}/limits")).ok()?)
}

/// `Max processes             0                    unlimited            processes`
fn parse(limits: &str) -> Option<Rlimit> {
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max processes"))?;
    let mut words = line.split_whitespace();
    let mut next = || match words.next()? {
        "unlimited" => Some(None),
        number => Some(Some(number.parse().ok()?)),
    };
    Some(Rlimit {
        current: next()?,
        maximum: next()?,
    })
}

/// How many threads a user has.
fn user_thread_count(uid: u32) -> u64 {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let statuses = pids.filter_map(|pid| ProcStatus::read_thread(pid).ok());
    let its = statuses.filter(|status| status.uids[0] == uid);
    its.map(|status| u64::from(status.threads)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_as_the_kernel_shows_them_and_the_plugin_reads_them() {
        let check = |words: &str, expected: Option<(Option<u64>, Option<u64>)>| {
            let line = format!(
                "Max core file size        0  unlimited  bytes\nMax processes  {words}  processes\n"
            );
            let limit = parse(&line).map(|limit| (limit.current, limit.maximum));
            assert_eq!(limit, expected, "{words}");
        };
        check("0   0", Some((Some(0), Some(0))));
        check("7   unlimited", Some((Some(7), None)));
        check("x   y", None);
        let limits = ThreadLimits {
            was: parse("Max processes 0 unlimited").unwrap(),
            is: parse("Max processes 66 unlimited").unwrap(),
        };
        assert_eq!(limits.to_string(), "{ was = [0, -1], is = [66, -1] }");
    }
}
