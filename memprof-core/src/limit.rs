//! Which limit an errno of the kernel tells of, whatever was being done, and the command that raises it.

use rustix::io::Errno;

/// What helps where a limit of this process or of the machine was met; none for other errors.
pub(crate) fn remedy(errno: Errno) -> Option<String> {
    let raised = |options: &str| format!("as root: prlimit --pid {} {options}", std::process::id());
    Some(match errno {
        Errno::MFILE => format!(
            "raise its limit of open files (RLIMIT_NOFILE), {}",
            raised("--nofile=65536")
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
}
