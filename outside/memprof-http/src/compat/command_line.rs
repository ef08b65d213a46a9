//! The command line of a host's process, as brpc, Go and userver serve it: `cmdline`.

use crate::gateway::{Gateway, run_blocking};
use crate::problem::Result;
use crate::request_host::RequestHost;

/// Serves the program of the host's process and its arguments, separated by NUL.
pub(super) async fn serve_command_line(RequestHost(host): RequestHost) -> Result<String> {
    read_command_line(&host).await
}

/// Returns the program and its arguments, separated by NUL. Reads them from /proc or, if the process is not visible
/// there or has just ended, takes the command that the host reports. Fails if the host does not answer.
pub(super) async fn read_command_line(host: &Gateway) -> Result<String> {
    if let Some(pid) = host.process_ids().await?.visible_pid {
        let own = run_blocking(move || std::fs::read(format!("/proc/{pid}/cmdline"))).await?;
        // The file is empty if the process has just ended.
        if let Some(bytes) = own.ok().filter(|bytes| !bytes.is_empty()) {
            return Ok(without_trailing_nul(&bytes));
        }
    }
    Ok(separate_arguments(&host.host_info().await?.command))
}

/// Separates the arguments of a command line as a host reports it by NUL. The host joins them by blanks, and puts a
/// backslash before those in the program's path.
fn separate_arguments(command: &str) -> String {
    let parts = command.split("\\ ").map(|part| part.replace(' ', "\0"));
    parts.collect::<Vec<_>>().join(" ")
}

/// Converts arguments to text without NULs at its end. The kernel ends each argument with a NUL, but Go's server only
/// separates arguments with one, and jeprof would keep a NUL at the end in the name of a file that it creates.
fn without_trailing_nul(arguments: &[u8]) -> String {
    let arguments = String::from_utf8_lossy(arguments);
    arguments.trim_end_matches('\0').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanks_in_program_separate_no_arguments() {
        let separated = separate_arguments(r"/opt/my\ shop/web --port 80");
        assert_eq!(separated, "/opt/my shop/web\0--port\080");
    }

    #[test]
    fn trailing_nul_is_removed() {
        let check =
            |arguments: &[u8], expected| assert_eq!(without_trailing_nul(arguments), expected);
        check(b"server\0", "server");
        check(b"server\0-p\x00", "server\0-p");
        check(b"renamed by itself", "renamed by itself");
    }
}
