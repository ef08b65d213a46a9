//! Rights of this process to trace other processes.

use std::fs;
use std::os::linux::fs::MetadataExt;

use crate::freezer::FreezerCgroups;
use crate::proc_dir::ProcDir;
use crate::process::{ProcStatus, SeccompMode};
use crate::refusal::{Denial, Refusal};

/// Capability numbers of linux/capability.h.
const CAP_SYS_PTRACE: u32 = 19;
const CAP_SYS_ADMIN: u32 = 21;

/// Inode of /proc/self/ns/user outside of all containers: `PROC_USER_INIT_INO` of `linux/proc_ns.h`.
const INITIAL_USER_NAMESPACE: u64 = 0xEFFF_FFFD;

/// Credentials of this process.
#[derive(Clone, Debug)]
pub(crate) struct TracerCredentials {
    status: ProcStatus,
    is_in_initial_user_namespace: bool,
    /// Yama's `ptrace_scope`; 0 if the kernel has no Yama.
    yama: u8,
    pub(crate) freezers: FreezerCgroups,
}

impl TracerCredentials {
    /// Reads the credentials of this process, and the settings of the machine that restrict tracing. A setting that
    /// cannot be read counts as no restriction.
    ///
    /// # Errors
    /// `Unreadable`: /proc is not mounted.
    pub(crate) fn current() -> Result<Self, Refusal> {
        let status = ProcDir::current().parse_file("status", ProcStatus::parse)?;
        let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
        let namespace = fs::metadata("/proc/self/ns/user");
        Ok(Self {
            status,
            is_in_initial_user_namespace: namespace
                .is_ok_and(|namespace| namespace.st_ino() == INITIAL_USER_NAMESPACE),
            yama: scope.map_or(0, |scope| parse_ptrace_scope(&scope)),
            freezers: FreezerCgroups::read(),
        })
    }

    /// Returns whether the kernel lets this process read seccomp filters of others (`man 2 ptrace`,
    /// `PTRACE_SECCOMP_GET_FILTER`): it has `CAP_SYS_ADMIN` in the initial user namespace, and no filter itself.
    pub(crate) fn can_read_seccomp_filters(&self) -> bool {
        self.has_capability(CAP_SYS_ADMIN)
            && self.is_in_initial_user_namespace
            && self.status.seccomp == SeccompMode::Off
    }

    /// Returns credentials for accesses that Yama does not restrict: reading files of /proc other than the memory.
    pub(crate) fn without_yama(self) -> Self {
        Self { yama: 0, ..self }
    }

    /// Returns the likely reason for which the kernel has denied this process to trace another one. `target` is the
    /// status of the other process, and `owner` the user id of its files in /proc, `None` if it is not known.
    pub(crate) fn denial_reason(&self, target: &ProcStatus, owner: Option<u32>) -> Denial {
        let [real, effective, ..] = self.status.uids;
        let may_trace = self.has_capability(CAP_SYS_PTRACE);
        let is_same_user = target.uids[..3].iter().all(|uid| *uid == real)
            && target.gids[..3]
                .iter()
                .all(|gid| *gid == self.status.gids[0]);
        let has_more = target.capabilities[0] & !self.status.capabilities[0] != 0;
        match self.yama {
            3 => Denial::Yama(3),
            2 if !may_trace => Denial::Yama(2),
            // With this capability, a tracer needs none of the rights below.
            _ if may_trace => Denial::Unknown,
            _ if effective == 0 => Denial::WithoutPtrace,
            _ if !is_same_user => Denial::OtherUser(target.uids[1]),
            // The files of a process that is not dumpable belong to root (proc(5)).
            _ if owner.is_some_and(|owner| owner != target.uids[1]) => Denial::NotDumpable,
            _ if has_more => Denial::MoreCapabilities,
            1 => Denial::Yama(1),
            _ => Denial::Unknown,
        }
    }

    /// Returns whether this process has a capability in its effective set.
    fn has_capability(&self, capability: u32) -> bool {
        self.status.capabilities[1] & 1 << capability != 0
    }
}

/// Parses Yama's `ptrace_scope`, 0 to 3 (Linux's Documentation/admin-guide/LSM/Yama.rst); 0 if malformed.
fn parse_ptrace_scope(text: &str) -> u8 {
    text.trim().parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: u64 = (1 << 41) - 1;

    fn status(uid: u32, capabilities: u64) -> ProcStatus {
        let own = fs::read("/proc/self/status").unwrap();
        ProcStatus {
            uids: [uid; 4],
            gids: [uid; 4],
            capabilities: [capabilities; 2],
            ..ProcStatus::parse(&own).unwrap()
        }
    }

    fn caller(uid: u32, capabilities: u64, yama: u8) -> TracerCredentials {
        TracerCredentials {
            status: ProcStatus {
                seccomp: SeccompMode::Off,
                ..status(uid, capabilities)
            },
            is_in_initial_user_namespace: true,
            yama,
            freezers: FreezerCgroups::default(),
        }
    }

    #[test]
    fn denial_reason_names_the_missing_right() {
        let check = |caller: TracerCredentials, target: ProcStatus, owner, expected| {
            assert_eq!(caller.denial_reason(&target, Some(owner)), expected);
        };
        let user = |yama| caller(1000, 0, yama);
        check(user(0), status(0, ALL), 0, Denial::OtherUser(0));
        check(user(1), status(33, 0), 33, Denial::OtherUser(33));
        check(user(1), status(1000, 0), 0, Denial::NotDumpable);
        check(
            user(0),
            status(1000, 1 << 10),
            1000,
            Denial::MoreCapabilities,
        );
        check(user(0), status(1000, 0), 1000, Denial::Unknown);
        check(caller(0, 0, 0), status(33, 0), 33, Denial::WithoutPtrace);
        check(caller(0, ALL, 0), status(33, 0), 33, Denial::Unknown);
        let set_uid = ProcStatus {
            uids: [1000, 0, 0, 0],
            ..status(1000, ALL)
        };
        check(user(0), set_uid, 0, Denial::OtherUser(0));
    }

    /// Contents of Yama's file: the kernel of a test machine need not have Yama.
    #[test]
    fn yama_denial_has_its_level() {
        let check = |scope: &str, capabilities, expected| {
            let caller = caller(1000, capabilities, parse_ptrace_scope(scope));
            assert_eq!(
                caller.denial_reason(&status(1000, 0), Some(1000)),
                expected,
                "{scope:?}"
            );
        };
        check("0\n", 0, Denial::Unknown);
        check("1\n", 0, Denial::Yama(1));
        check("2\n", 0, Denial::Yama(2));
        check("3\n", 0, Denial::Yama(3));
        check("3\n", ALL, Denial::Yama(3));
        check("2\n", ALL, Denial::Unknown);
        check("", 0, Denial::Unknown);
    }

    #[test]
    fn only_initial_root_without_filter_can_read_filters() {
        assert!(caller(0, ALL, 0).can_read_seccomp_filters());
        assert!(!caller(1000, 0, 0).can_read_seccomp_filters());
        let mut contained = caller(0, ALL, 0);
        contained.is_in_initial_user_namespace = false;
        assert!(!contained.can_read_seccomp_filters());
        let mut filtered = caller(0, ALL, 0);
        filtered.status.seccomp = SeccompMode::Filter;
        assert!(!filtered.can_read_seccomp_filters());
    }
}
