//! Raises the thread limit of a process (`RLIMIT_NPROC`), which `HAProxy` sets to 0, before the plugin is loaded.
//! The plugin restores it when it is unloaded.

use std::fmt;
use std::fs;

use memprof_ptrace::Refusal;
use memprof_ptrace::process::ProcStatus;
use rustix::process::{Pid, Resource, Rlimit, prlimit};

/// Threads that the plugin needs, of which 32 serve connections. The kernel counts all threads of the user.
const NEEDED_THREADS: u64 = 64;

/// A raised limit. It is restored when this value is dropped.
#[derive(Debug)]
pub(crate) struct RaisedThreadLimit {
    pid: Pid,
    pub(crate) limits: ThreadLimits,
    is_kept: bool,
}

/// The limit before and after.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThreadLimits {
    pub(crate) original: Rlimit,
    pub(crate) raised: Rlimit,
}

impl RaisedThreadLimit {
    /// Raises the thread limit of a process if it is less than the process's threads plus [`NEEDED_THREADS`]. The new
    /// limit leaves [`NEEDED_THREADS`] beside all threads of the user. `None` if the limit suffices or cannot be read,
    /// or if the process is root's, which the kernel does not limit.
    ///
    /// # Errors
    /// `ThreadLimit`: the limit is too low, and this user may not raise it. Other refusals: the process's status cannot
    /// be read.
    pub(crate) fn raise_if_needed(pid: u32) -> Result<Option<Self>, Refusal> {
        let status = ProcStatus::read_thread(pid)?;
        let original = read_thread_limit(pid).filter(|limit| {
            // The kernel does not limit root. A limit above the process's own needs is a quota of its user.
            let is_root = status.uids[0] == 0;
            let needed = u64::from(status.threads) + NEEDED_THREADS;
            !is_root && limit.current.is_some_and(|limit| limit < needed)
        });
        let Some(original) = original else {
            return Ok(None);
        };
        let least = count_user_threads(status.uids[0]) + NEEDED_THREADS;
        let raise = |limit: Option<u64>| limit.map(|limit| limit.max(least));
        let raised = Rlimit {
            current: raise(original.current),
            maximum: raise(original.maximum),
        };
        let known = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let pid = known.ok_or(Refusal::NoSuchProcess)?;
        let set = prlimit(Some(pid), Resource::Nproc, raised);
        set.map_err(|errno| Refusal::ThreadLimit {
            limit: original.current.unwrap_or(u64::MAX),
            errno: nix::errno::Errno::from_raw(errno.raw_os_error()),
        })?;
        Ok(Some(Self {
            pid,
            limits: ThreadLimits { original, raised },
            is_kept: false,
        }))
    }

    /// Keeps the limit raised when this value is dropped. From now on the plugin restores the limit, when it is
    /// unloaded.
    pub(crate) fn leave_raised(mut self) {
        self.is_kept = true;
    }
}

impl Drop for RaisedThreadLimit {
    /// Restores the limit, unless [`Self::leave_raised`] was called.
    fn drop(&mut self) {
        if !self.is_kept {
            // The call fails for a process that has ended.
            let _ = prlimit(Some(self.pid), Resource::Nproc, self.limits.original);
        }
    }
}

impl fmt::Display for ThreadLimits {
    /// Formats the limits as a table of TOML, with soft and hard limit each, -1 for unlimited. memprof-host's
    /// `adapters::attachment` parses it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pair = |limit: Rlimit| {
            [limit.current, limit.maximum]
                .map(|limit| limit.map_or(-1, |limit| i64::try_from(limit).unwrap_or(-1)))
        };
        let (original, raised) = (pair(self.original), pair(self.raised));
        write!(f, "{{ was = {original:?}, is = {raised:?} }}")
    }
}

/// Returns the thread limit (`RLIMIT_NPROC`) of a process; `None` if it cannot be read.
fn read_thread_limit(pid: u32) -> Option<Rlimit> {
    parse_thread_limit(&fs::read_to_string(format!("/proc/{pid}/limits")).ok()?)
}

/// Parses the thread limit in the text of /proc/PID/limits; `None` if it is missing or malformed. Its line is `Max
/// processes             0                    unlimited            processes`.
fn parse_thread_limit(limits: &str) -> Option<Rlimit> {
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

/// Counts the threads of all processes whose real user ID is `uid`, as far as /proc shows them.
fn count_user_threads(uid: u32) -> u64 {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let statuses = pids.filter_map(|pid| ProcStatus::read_thread(pid).ok());
    let own = statuses.filter(|status| status.uids[0] == uid);
    own.map(|status| u64::from(status.threads)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_parsed_and_formatted() {
        let check = |words: &str, expected: Option<(Option<u64>, Option<u64>)>| {
            let line = format!(
                "Max core file size        0  unlimited  bytes\nMax processes  {words}  processes\n"
            );
            let limit = parse_thread_limit(&line).map(|limit| (limit.current, limit.maximum));
            assert_eq!(limit, expected, "{words}");
        };
        check("0   0", Some((Some(0), Some(0))));
        check("7   unlimited", Some((Some(7), None)));
        check("x   y", None);
        let limits = ThreadLimits {
            original: parse_thread_limit("Max processes 0 unlimited").unwrap(),
            raised: parse_thread_limit("Max processes 66 unlimited").unwrap(),
        };
        assert_eq!(limits.to_string(), "{ was = [0, -1], is = [66, -1] }");
    }
}
