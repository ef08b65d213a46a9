//! Attaches through a Java virtual machine's attach API: HotSpot's protocol by which `jcmd` loads agents. No thread
//! is stopped, and no right to trace is needed: HotSpot accepts its own user and root.
//!
//! `attach_socket.rs` describes when it is available. If it is not, or fails to load the plugin, the plugin is loaded
//! by a stopped thread instead, which can also report why the plugin did not start.

mod attach_socket;

use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::attachment::Attachment;
use crate::error::AttachError;
use crate::maps_text::read_maps_text;
use crate::plugin::{ENTRY_NAME, Plugin};

/// Largest argument of the protocol (`AttachOperation::arg_length_max`), in bytes.
const MAX_ARGUMENT_SIZE: usize = 1024;
/// Timeout for the plugin to be loaded, as for a stopped thread.
const LOAD_TIMEOUT: Duration = Duration::from_secs(60);

/// Largest reply to `load`, in bytes: a JVM sends two lines, or the text of an exception.
const REPLY_LIMIT: usize = 64 << 10;

/// Makes the JVM load the plugin, and start it. Returns false if the plugin was not loaded: the process is no JVM, has
/// no attach API, or does not have the plugin at the same path; or the JVM failed to load it. Fails if the JVM does not
/// reply to the request.
pub(crate) fn load_plugin(
    pid: u32,
    plugin: &Plugin,
    attachment: &Attachment,
) -> Result<bool, AttachError> {
    let options = format!("{ENTRY_NAME} {}", attachment.to_toml());
    let fits =
        options.len() <= MAX_ARGUMENT_SIZE && plugin.path.as_os_str().len() <= MAX_ARGUMENT_SIZE;
    let Ok(maps) = read_maps_text(pid) else {
        return Ok(false);
    };
    if !fits || !plugin.has_same_path(pid) || plugin.is_mapped_from_elsewhere(&maps) {
        return Ok(false);
    }
    let Some(mut jvm) = attach_socket::connect_to_jvm(pid, &maps) else {
        return Ok(false);
    };
    if send_load_request(&mut jvm, &plugin.path, &options).is_err() {
        return Ok(false);
    }
    let reply = read_reply(&mut jvm, Instant::now() + LOAD_TIMEOUT);
    let act = "the JVM did not say whether it loaded the plugin; `memprof ps` shows whether it is a host now";
    Ok(reports_success(&reply.map_err(AttachError::io_error(act))?))
}

/// Sends the request to load the plugin, in version 1 of the attach protocol: texts that end with NUL. "true" says that
/// the path is absolute.
fn send_load_request(jvm: &mut UnixStream, plugin: &Path, options: &str) -> io::Result<()> {
    jvm.set_write_timeout(Some(LOAD_TIMEOUT))?;
    let words = [b"1", b"load".as_slice(), plugin.as_os_str().as_bytes()];
    let words = words.into_iter().chain([b"true", options.as_bytes()]);
    let request: Vec<u8> = words.flat_map(|word| [word, b"\0"].concat()).collect();
    jvm.write_all(&request)
}

/// Reads the reply to its end. The peer may be no JVM, so time and size are limited: fails with `TimedOut` at the
/// deadline, with `InvalidData` if the reply is too long.
fn read_reply(jvm: &mut UnixStream, deadline: Instant) -> io::Result<String> {
    let mut reply = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let remaining = deadline.saturating_duration_since(Instant::now());
        if remaining.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        jvm.set_read_timeout(Some(remaining))?;
        match jvm.read(&mut buffer) {
            Ok(0) => return Ok(String::from_utf8_lossy(&reply).into_owned()),
            Ok(length) => reply.extend_from_slice(&buffer[..length]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(io::ErrorKind::TimedOut.into());
            }
            Err(error) => return Err(error),
        }
        if reply.len() > REPLY_LIMIT {
            let message = "its reply is too long for one of a JVM";
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
    }
}

/// Returns whether a reply reports success: 0 as the protocol's code in the first line, and as the result of
/// `Agent_OnAttach` in the second. Before Java 9, the second line has no prefix.
fn reports_success(reply: &str) -> bool {
    let mut lines = reply.lines();
    let protocol = lines.next();
    let agent = lines.next();
    protocol == Some("0") && matches!(agent, Some("0" | "return code: 0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that the peer sends before it is silent, as a process that is no JVM may do.
    #[test]
    fn replies_are_limited_in_size_and_time() {
        let check = |pieces: &'static [&'static [u8]],
                     closes: bool,
                     expected: Result<&str, io::ErrorKind>| {
            let (mut own, mut other) = UnixStream::pair().unwrap();
            let writer = std::thread::spawn(move || {
                for piece in pieces {
                    // The reader may have closed the connection.
                    let _ = other.write_all(piece);
                }
                if closes {
                    drop(other);
                } else {
                    std::mem::forget(other);
                }
            });
            let deadline = Instant::now() + Duration::from_millis(if closes { 60_000 } else { 50 });
            let reply = read_reply(&mut own, deadline).map_err(|error| error.kind());
            drop(own);
            writer.join().unwrap();
            assert_eq!(reply.as_deref().map_err(|kind| *kind), expected);
        };
        const PIECE: &[u8] = &[b'x'; 32 << 10];
        check(
            &[b"0\n", b"return code: 0\n"],
            true,
            Ok("0\nreturn code: 0\n"),
        );
        check(&[b"0\n"], false, Err(io::ErrorKind::TimedOut));
        check(&[], false, Err(io::ErrorKind::TimedOut));
        check(&[PIECE; 64], true, Err(io::ErrorKind::InvalidData));
        check(&[PIECE; 64], false, Err(io::ErrorKind::InvalidData));
    }

    #[test]
    fn replies_of_java_8_and_17_are_parsed() {
        assert!(reports_success("0\n0\n"));
        assert!(reports_success("0\nreturn code: 0\n"));
        assert!(!reports_success("0\nreturn code: 1\n"));
        assert!(!reports_success(
            "0\n/p.so was not loaded.\n/p.so: cannot open\n"
        ));
        assert!(!reports_success("101\n"));
        assert!(!reports_success(""));
    }
}
