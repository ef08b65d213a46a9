//! The identity of this process, which each client of the control socket receives.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::SystemTime;

use crate::protocol::HostInfo;

impl HostInfo {
    /// Creates the identity of this process. `started` is the present time, because the control socket is opened now.
    /// The command line is read from /proc, and empty if that fails.
    pub(super) fn for_this_process(name: String, version: String) -> Self {
        let arguments = File::open("/proc/thread-self/cmdline");
        let started = SystemTime::UNIX_EPOCH.elapsed();
        Self {
            pid: std::process::id(),
            name,
            command: arguments.map_or_else(
                |_| String::new(),
                |arguments| read_command_line(arguments, |program| Path::new(program).exists()),
            ),
            version,
            started: started.map_or(0, |since| since.as_secs()),
        }
    }
}

/// Reads the arguments of a program, each of which ends with NUL (/proc/PID/cmdline), and joins them by blanks. Blanks
/// in the program's path get a backslash. Of more than [`MAX_COMMAND_BYTES`] bytes, returns the first ones, followed by
/// ` …`. `exists` returns whether there is a file of that path.
fn read_command_line(arguments: impl Read, exists: impl Fn(&str) -> bool) -> String {
    let mut bytes = Vec::new();
    // If reading fails, the part that was read is shown.
    let _read = arguments
        .take(MAX_COMMAND_BYTES + 1)
        .read_to_end(&mut bytes);
    let is_cut = bytes.len() as u64 > MAX_COMMAND_BYTES;
    bytes.truncate(MAX_COMMAND_BYTES as usize);
    let command = String::from_utf8_lossy(&bytes);
    let (program, arguments) = match command.find('\0') {
        Some(end) => command.split_at(end),
        None => (&*command, ""),
    };
    let command = escape_blanks_in_path(program, exists) + &arguments.replace('\0', " ");
    match is_cut {
        true => format!("{command} …"),
        false => command.trim_end().to_owned(),
    }
}

/// Puts a backslash before each blank of a program's path, so that a client finds its end. A title that the program
/// gave itself, such as `/usr/bin/redis-server *:6379`, stays as it is: no file has that path.
fn escape_blanks_in_path(program: &str, exists: impl Fn(&str) -> bool) -> String {
    let is_path = program.contains('/') && exists(program.trim_end());
    match is_path {
        true => program.trim_end().replace(' ', "\\ "),
        false => program.to_owned(),
    }
}

/// Most bytes of a program's arguments in a reply. They may be of two megabytes, and a byte may take six in JSON: a
/// client refuses such a line.
const MAX_COMMAND_BYTES: u64 = 4 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_is_one_line_and_cut_if_it_is_long() {
        let exists = |path: &str| ["/bin/web", "/opt/my shop/web"].contains(&path);
        let check = |arguments: &[u8], expected: &str| {
            assert_eq!(read_command_line(arguments, exists), expected);
        };
        check(b"sleep\0 5\0", "sleep  5");
        check(b"", "");
        check(b"/bin/web *:6379\0\0", "/bin/web *:6379");
        check(b"/bin/web\0--log\0a b\0", "/bin/web --log a b");
        check(b"/opt/my shop/web\0-x\0", r"/opt/my\ shop/web -x");
        check(b"/opt/my shop/web", r"/opt/my\ shop/web");
        check(b"postgres: walwriter  \0\0", "postgres: walwriter");
        let long = vec![b'\x1b'; 2 << 20];
        let command = read_command_line(long.as_slice(), exists);
        let end = command.strip_prefix(&"\x1b".repeat(MAX_COMMAND_BYTES as usize));
        assert_eq!(end, Some(" …"));
    }
}
