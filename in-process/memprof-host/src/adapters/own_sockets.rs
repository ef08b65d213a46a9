//! Control sockets of this process that are open already: of the program, if it is a memprof host itself, of another
//! copy of this library, or of the library of another plugin.

use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::pending_request::{PendingRequest, request_line, wait_until_readable};
use crate::protocol::{PLUGINS, PluginInfo};
use crate::socket_dir::socket_names;

/// Timeout of the list of one socket's plugins. The host may wait for a processor.
const LIST_TIMEOUT: Duration = Duration::from_secs(3);

/// Returns whether a host in this process has the plugin `id`, loaded or failed. Asks this process's sockets in the
/// default directory `directory`, and waits at most 3 s for each. Also true if a host does not list its plugins in
/// time. Skips the socket of a process that has the same pid in another container.
pub(super) fn is_plugin_served_by_this_process(directory: &Path, id: &str) -> bool {
    let own = std::process::id();
    let request = request_line(PLUGINS, Value::Null);
    socket_names(own).any(|name| {
        match PendingRequest::send(own, &directory.join(name), &request) {
            Ok(sent) => receive_plugin_list(sent)
                .is_none_or(|plugins| plugins.iter().any(|plugin| plugin.id == id)),
            // The queue of clients is full: a host listens that cannot be asked, so assume that it has the plugin.
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        }
    })
}

/// Waits for the response to a request for the list of plugins, at most for [`LIST_TIMEOUT`]. `None` if the response
/// is late, cannot be read, or contains no such list.
fn receive_plugin_list(mut request: PendingRequest) -> Option<Vec<PluginInfo>> {
    let deadline = Instant::now() + LIST_TIMEOUT;
    let line = loop {
        if let Some(line) = request.receive_line() {
            break line.ok()?.to_owned();
        }
        let remaining = deadline.saturating_duration_since(Instant::now());
        if remaining.is_zero() {
            return None;
        }
        wait_until_readable(std::slice::from_ref(&request), remaining);
    };
    let mut response: Value = serde_json::from_slice(&line).ok()?;
    serde_json::from_value(response.get_mut("result")?.take()).ok()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn plugin_is_served_at_any_socket_of_process() {
        let check = |responses: &[&str], expected: bool| {
            let directory = tempfile::tempdir().unwrap();
            let hosts: Vec<_> = socket_names(std::process::id())
                .zip(responses)
                .map(|(name, response)| {
                    let listener = UnixListener::bind(directory.path().join(name)).unwrap();
                    let response = (*response).to_owned();
                    std::thread::spawn(move || respond(&listener, &response))
                })
                .collect();
            assert_eq!(
                is_plugin_served_by_this_process(directory.path(), "words"),
                expected,
                "{responses:?}"
            );
            drop(hosts);
        };
        let with_plugin = |id: &str| {
            format!(r#"{{"result":[{{"id":"{id}","version":"","messages":[]}}]}}"#) + "\n"
        };
        let (words, numbers) = (with_plugin("words"), with_plugin("numbers"));
        check(&[], false);
        check(&[&words], true);
        check(&[&numbers], false);
        check(&[&numbers, &words], true);
        check(&["{\"result\":[]}\n"], false);
        check(&["{\"error\":{\"code\":1,\"message\":\"no\"}}\n"], true);
        check(&[""], true);
    }

    /// Answers one request with `response`, and closes the connection.
    fn respond(listener: &UnixListener, response: &str) {
        let (mut stream, _) = listener.accept().unwrap();
        BufReader::new(&stream)
            .read_line(&mut String::new())
            .unwrap();
        stream.write_all(response.as_bytes()).unwrap();
    }
}
