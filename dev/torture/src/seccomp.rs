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
    let mut refused = 0;
    for (name, number) in FORBIDDEN {
        let errors = send_all_messages(*number).context(*name)?;
        check_errors_name_call(name, &errors)?;
        refused += usize::from(!errors.is_empty());
    }
    ensure!(refused > 0, "no filter had an effect");
    for (name, number) in UNUSED {
        let errors = send_all_messages(*number).context(*name)?;
        ensure!(errors.is_empty(), "{name} is not needed: {errors:?}");
    }
    let filters = FORBIDDEN.len() + UNUSED.len();
    Ok(format!(
        "{filters} filters that kill × {} messages: every host alive, {refused} calls refused by name, {} not \
         needed",
        MESSAGES.len(),
        filters - refused
    ))
}

/// Fails unless each error names the forbidden call `name`.
fn check_errors_name_call(name: &str, errors: &[String]) -> Result<()> {
    let expected = format!("would end or hold it at {name},");
    let other = errors.iter().find(|error| !error.contains(&expected));
    ensure!(other.is_none(), "{name} is not named: {other:?}");
    Ok(())
}

/// Sends every message, each on a new connection, to a host that the kernel kills at the call `number`. Returns the
/// text of each error. Fails if the host ends, or leaves a bad file.
fn send_all_messages(number: libc::c_long) -> Result<Vec<String>> {
    let mut host = HostSetup::with_options(&format!("allocate=1 forbid={number}")).start()?;
    let mut errors = Vec::new();
    for message in MESSAGES {
        // Each message has a new connection, for which the host starts a thread.
        let reply = send_message(&mut host.client()?, message, "").with_context(|| host.log());
        host.check_alive().with_context(|| (*message).to_owned())?;
        let reply = reply?;
        if reply["status"] != "ok" {
            let error = reply["error"]["message"].as_str();
            errors.push(
                error
                    .with_context(|| format!("{message}: {reply}"))?
                    .to_owned(),
            );
        }
    }
    let dumps = host.dir().dump_dir();
    if dumps.exists() {
        let found = scan_dump_dir(&dumps)?;
        ensure!(found.bad.is_empty(), "bad files: {:?}", found.bad);
    }
    Ok(errors)
}

#[cfg(test)]
mod tests {
    use super::check_errors_name_call;

    #[test]
    fn each_error_must_name_the_call() {
        let check = |errors: &[&str], is_good: bool| {
            let errors: Vec<String> = errors.iter().map(|error| (*error).to_owned()).collect();
            let result = check_errors_name_call("fsync", &errors);
            assert_eq!(result.is_ok(), is_good, "{errors:?}");
        };
        let named =
            "the seccomp filter of this process would end or hold it at fsync, which memprof needs";
        check(&[], true);
        check(&[named], true);
        check(&["failed to write the dump", named], false);
        check(&[named, "failed to write the dump"], false);
    }
}
