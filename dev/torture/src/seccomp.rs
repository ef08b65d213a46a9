//! Suite `seccomp`: filters that kill the process at one system call. memprof names the call in its error or avoids it,
//! and the host survives.

use anyhow::{Context, Result, ensure};
use nix::libc;

use super::SuiteLength;
use super::dump_dir::scan_dump_dir;
use super::host::{HostSetup, send_message};

/// System calls that are forbidden, one at a time. Calls for threads and sockets, and getrandom, are missing, because
/// the control socket itself needs them.
const FORBIDDEN: &[(&str, libc::c_long)] = &[
    ("memfd_create", libc::SYS_memfd_create),
    ("fchmod", libc::SYS_fchmod),
    ("fstatfs", libc::SYS_fstatfs),
    ("ftruncate", libc::SYS_ftruncate),
    ("fallocate", libc::SYS_fallocate),
    ("pread64", libc::SYS_pread64),
    ("lseek", libc::SYS_lseek),
    ("uname", libc::SYS_uname),
    ("statx", libc::SYS_statx),
    ("newfstatat", libc::SYS_newfstatat),
    ("getdents64", libc::SYS_getdents64),
    ("linkat", libc::SYS_linkat),
    ("renameat2", libc::SYS_renameat2),
    ("unlinkat", libc::SYS_unlinkat),
    ("flock", libc::SYS_flock),
    ("fsync", libc::SYS_fsync),
    ("prlimit64", libc::SYS_prlimit64),
    ("wait4", libc::SYS_wait4),
];
/// Calls that memprof never makes: with their filters everything works.
const UNUSED: &[(&str, libc::c_long)] = &[("reboot", libc::SYS_reboot)];

const MESSAGES: &[&str] = &[
    "status",
    "dump",
    "list",
    "dump",
    "ledger",
    "stats",
    "doctor",
    "deactivate",
    "activate",
    "purge",
    "help",
];

/// Runs the suite `seccomp`, which has one length, and returns its figures in one line. Fails if a host is killed, or
/// if an error does not name the forbidden call.
pub(super) fn run_suite(_: SuiteLength) -> Result<String> {
    let mut dumps = 0;
    for (name, number) in FORBIDDEN.iter().chain(UNUSED) {
        let refused = send_all_messages(*number).context(*name)?;
        match refused {
            Some(refused) => ensure!(
                refused.contains(&format!("would end or hold it at {name},")),
                "{name} is not named: {refused}"
            ),
            None => dumps += 1,
        }
        let is_unused = UNUSED.iter().any(|(unused, _)| unused == name);
        ensure!(!is_unused || dumps > 0, "no dump without {name}");
    }
    Ok(format!(
        "{} filters that kill × {} messages: every host alive, {} calls refused by name, {dumps} not \
         needed",
        FORBIDDEN.len() + UNUSED.len(),
        MESSAGES.len(),
        FORBIDDEN.len() + UNUSED.len() - dumps
    ))
}

/// Sends every message, each on a new connection, to a host that the kernel kills at the call `number`. Returns the
/// last error's message; `None` if all succeeded. Fails if the host ends, or leaves a bad file.
fn send_all_messages(number: libc::c_long) -> Result<Option<String>> {
    let mut host = HostSetup::with_options(&format!("allocate=1 forbid={number}")).start()?;
    let mut refused = None;
    for message in MESSAGES {
        // Each message has a new connection, for which the host starts a thread.
        let reply = send_message(&mut host.client()?, message, "").with_context(|| host.log());
        host.check_alive().with_context(|| (*message).to_owned())?;
        let reply = reply?;
        if reply["status"] == "error" {
            let message = reply["error"]["message"].as_str();
            refused = Some(message.context("message")?.to_owned());
        }
    }
    let dumps = host.dir().dump_dir();
    if dumps.exists() {
        let found = scan_dump_dir(&dumps)?;
        ensure!(found.bad.is_empty(), "bad files: {:?}", found.bad);
    }
    Ok(refused)
}
