//! Which limit an errno of the kernel tells of, whatever was being done, and the command that raises it.

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit};

/// Descriptors that most servers have room for.
const OPEN_FILES: u64 = 65_536;

/// What helps where a limit of this process or of the machine was met; none for other errors.
pub(crate) fn remedy(errno: Errno) -> Option<String> {
    let raised = |options: &str| format!("as root: prlimit --pid {} {options}", std::process::id());
    Some(match errno {
        Errno::MFILE => format!(
            "raise its limit of open files (RLIMIT_NOFILE), {}",
            raised(&open_files(getrlimit(Resource::Nofile)))
        ),
        Errno::NFILE => {
            "raise the machine's limit of open files, as root: sysctl fs.file-max=N".to_owned()
        }
        Errno::NOMEM => format!(
            "raise its limits of memory (RLIMIT_AS, RLIMIT_DATA), {}; or its number of mappings: \
             sysctl vm.max_map_count=N",
            raised("--as=unlimited --data=unlimited")
        ),
        Errno::FBIG => format!(
            "raise its limit of file sizes (RLIMIT_FSIZE), {}",
            raised("--fsize=unlimited")
        ),
        _ => return None,
    })
}

/// The option of prlimit(1) that leaves room for more. A colon keeps the hard limit, which may be higher.
fn open_files(limit: Rlimit) -> String {
    let to = limit.current.unwrap_or(0).saturating_mul(2).max(OPEN_FILES);
    match limit.maximum.is_none_or(|hard| to <= hard) {
        true => format!("--nofile={to}:"),
        false => format!("--nofile={to}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_is_named_with_the_option_that_raises_it() {
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
    fn raised_limit_of_open_files_lowers_no_hard_limit() {
        let check = |current, maximum, expected: &str| {
            assert_eq!(open_files(Rlimit { current, maximum }), expected);
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
