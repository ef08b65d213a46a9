//! Resource limits of the process and the machine: which one an errno reports, and the command that raises
//! it.

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit};

/// Least number of open files to suggest as the new limit.
const MIN_OPEN_FILES: u64 = 65_536;

/// Command that raises the limit that a system call met. `None` if `errno` reports no limit.
pub(crate) fn remedy(errno: Errno) -> Option<String> {
    let raise = |options: &str| format!("as root: prlimit --pid {} {options}", std::process::id());
    Some(match errno {
        Errno::MFILE => format!(
            "raise its limit of open files (RLIMIT_NOFILE), {}",
            raise(&nofile_option(getrlimit(Resource::Nofile)))
        ),
        Errno::NFILE => {
            "raise the machine's limit of open files, as root: sysctl fs.file-max=N".to_owned()
        }
        Errno::NOMEM => format!(
            "raise its limits of memory (RLIMIT_AS, RLIMIT_DATA), {}; or its number of mappings: \
             sysctl vm.max_map_count=N",
            raise("--as=unlimited --data=unlimited")
        ),
        Errno::FBIG => format!(
            "raise its limit of file sizes (RLIMIT_FSIZE), {}",
            raise("--fsize=unlimited")
        ),
        _ => return None,
    })
}

/// Option of prlimit(1) that doubles the soft limit of open files. `--nofile=N:` keeps the hard limit, which
/// may be higher; without the colon both are set.
fn nofile_option(limit: Rlimit) -> String {
    let raised = limit
        .current
        .unwrap_or(0)
        .saturating_mul(2)
        .max(MIN_OPEN_FILES);
    match limit.maximum.is_none_or(|hard| raised <= hard) {
        true => format!("--nofile={raised}:"),
        false => format!("--nofile={raised}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remedy_names_limit_and_raising_option() {
        let check = |errno, words: &[&str]| {
            let remedy = remedy(errno).unwrap_or_default();
            for word in words {
                assert!(remedy.contains(word), "{errno}: {remedy}");
            }
        };
        let pid = format!("prlimit --pid {} --", std::process::id());
        check(Errno::MFILE, &["RLIMIT_NOFILE", &pid, "--nofile="]);
        check(Errno::NFILE, &["fs.file-max"]);
        check(
            Errno::NOMEM,
            &["RLIMIT_AS", "RLIMIT_DATA", &pid, "vm.max_map_count"],
        );
        check(Errno::FBIG, &["RLIMIT_FSIZE", &pid, "--fsize="]);
        assert_eq!(remedy(Errno::NOSPC), None);
    }

    #[test]
    fn nofile_option_never_lowers_hard_limit() {
        let check = |current, maximum, expected: &str| {
            assert_eq!(nofile_option(Rlimit { current, maximum }), expected);
        };
        check(Some(1024), Some(1024), "--nofile=65536");
        check(Some(1024), Some(4096), "--nofile=65536");
        check(Some(1024), Some(65_536), "--nofile=65536:");
        check(Some(1024), Some(1 << 20), "--nofile=65536:");
        check(Some(1024), None, "--nofile=65536:");
        check(Some(65_536), Some(65_536), "--nofile=131072");
        check(Some(1 << 19), Some(1 << 20), "--nofile=1048576:");
    }
}
