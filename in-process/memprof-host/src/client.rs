//! The client of the control socket, which `memprof` uses.
//!
//! A host may be hostile: root may send requests to any user's hosts. So each request has one deadline, each line a
//! limit, and a passed descriptor is read only if it is a file of the announced length.
//!
//! ```no_run
//! use memprof_host::client::Client;
//!
//! let mut client = Client::connect("/run/memprof/4711.sock".as_ref())?;
//! client.activate("for=10m")?;
//! let dump = client.dump("")?.largest;
//! println!("{} live bytes, in {}", dump.estimated_inuse_bytes, dump.path.display());
//! # Ok::<(), memprof_host::client::ClientError>(())
//! ```

mod connection;
mod messages;
mod passed_file;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use memprof_messages::{ErrorBody, ReplyLatency};
use memprof_plugin_abi::Status;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::protocol::{
    Delivery, HOST, HostInfo, MESSAGE, MessageParams, MessageResult, PLUGINS, PluginInfo, RpcError,
};
use connection::Connection;
pub(crate) use connection::Deadline;
pub use connection::Peer;
pub use passed_file::PassedFile;

/// Timeout of connecting: a host accepts at once, also during a dump.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of requests that a host answers at once, also during a dump.
const IMMEDIATE_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of all other requests: longer than the largest dump takes.
const WORK_TIMEOUT: Duration = Duration::from_secs(300);
/// Largest reply, in bytes, that is held in memory. Dumps are read in pieces.
const REPLY_LIMIT: u64 = 64 << 20;

/// Reason for which a request failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// No host listens, it closed the connection, or it did not respond in time.
    #[error("cannot reach the host: {0}")]
    Unreachable(#[from] io::Error),
    /// The host refused the request by a JSON-RPC error.
    #[error("{message}")]
    Refused {
        /// Code of the JSON-RPC error.
        code: i32,
        /// Message of the JSON-RPC error.
        message: String,
    },
    /// The plugin refused the message.
    #[error("{refusal}")]
    Plugin {
        /// Status of the reply: one of the negative codes of memprof.h.
        status: Status,
        /// Error in the reply.
        refusal: Box<ErrorBody>,
    },
    /// The response breaks the control protocol.
    #[error("the host's reply breaks the control protocol: {0}")]
    Protocol(String),
}

impl ClientError {
    /// Returns whether the host did not respond in time. False for a host that refused, or closed the connection.
    pub(crate) fn is_timeout(&self) -> bool {
        matches!(self, Self::Unreachable(error) if error.kind() == io::ErrorKind::TimedOut)
    }
}

/// Reply to a message, whose body was passed inline or as a descriptor.
#[derive(Debug)]
pub struct ReceivedBody {
    /// Status, content type, and the body if it is inline.
    pub result: MessageResult,
    /// The body if it is not inline.
    pub file: Option<PassedFile>,
}

impl ReceivedBody {
    /// Returns a reader of the body, whether it came inline or as a file.
    ///
    /// # Errors
    /// At present none: an inline body is in memory, and the reader of a file returns its own errors.
    pub fn into_reader(mut self) -> io::Result<Box<dyn Read>> {
        match self.file.take() {
            Some(file) => Ok(Box::new(file)),
            None => Ok(Box::new(io::Cursor::new(self.into_bytes()?))),
        }
    }

    /// Returns the whole body: the content of the passed file, or else the inline body, as text or JSON. Empty if the
    /// reply has neither.
    ///
    /// # Errors
    /// The passed file cannot be read, or has more than 64 MiB.
    pub fn into_bytes(self) -> io::Result<Vec<u8>> {
        match (self.file, self.result.body) {
            (Some(file), _) if file.len() > REPLY_LIMIT => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!(
                    "the reply has {} bytes, more than the limit of {REPLY_LIMIT}",
                    file.len()
                ),
            )),
            (Some(mut file), _) => {
                let mut bytes = Vec::new();
                file.read_to_end(&mut bytes)?;
                Ok(bytes)
            }
            (None, Some(Value::String(text))) => Ok(text.into_bytes()),
            (None, Some(json)) => Ok(json.to_string().into_bytes()),
            (None, None) => Ok(Vec::new()),
        }
    }
}

/// A connection to a host.
#[derive(Debug)]
pub struct Client {
    connection: Connection,
    socket: PathBuf,
    peer: Peer,
    timeouts: Timeouts,
    next_id: u64,
}

/// Timeouts of requests.
#[derive(Clone, Copy, Debug)]
enum Timeouts {
    /// 10 seconds for a message that a host answers at once, otherwise 5 minutes.
    ByMessage,
    /// One timeout for each request.
    PerReply(Duration),
    /// One deadline for all requests.
    Overall(Deadline),
}

/// A response of JSON-RPC 2.0.
#[derive(Deserialize)]
struct Response {
    /// Id of the request; null if the host could not read it.
    #[serde(default)]
    id: Value,
    #[serde(default)]
    result: Value,
    error: Option<RpcError>,
}

impl Client {
    /// Connects to the control socket of a host, given by its path.
    ///
    /// # Errors
    /// No host listens there, this user may not connect, or the host does not accept within 5 seconds.
    pub fn connect(socket: &Path) -> Result<Self, ClientError> {
        Self::connect_until(socket, Deadline::after(CONNECT_TIMEOUT))
    }

    /// Connects to the control socket of a host. `timeout` applies to connecting, and to each request instead of the
    /// timeout of its message.
    ///
    /// # Errors
    /// No host listens there, this user may not connect, or the host does not accept in time.
    pub fn connect_within(socket: &Path, timeout: Duration) -> Result<Self, ClientError> {
        let mut client = Self::connect_until(socket, Deadline::after(timeout))?;
        client.set_timeout(timeout);
        Ok(client)
    }

    /// Connects to the control socket of a host. Later requests have the timeouts of their messages. Fails if no host
    /// listens there, if this user may not connect, or if the host does not accept before the deadline.
    pub(crate) fn connect_until(socket: &Path, deadline: Deadline) -> Result<Self, ClientError> {
        let connection = Connection::open(socket, deadline)?;
        let peer = connection.read_peer()?;
        Ok(Self {
            connection,
            socket: socket.to_owned(),
            peer,
            timeouts: Timeouts::ByMessage,
            next_id: 0,
        })
    }

    /// Sets one timeout for each request. By default it is 10 seconds for a message that a host answers at once, and 5
    /// minutes for all others.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeouts = Timeouts::PerReply(timeout);
    }

    /// Sets one deadline at which all later requests fail, in place of a timeout for each.
    pub(crate) fn set_deadline(&mut self, deadline: Deadline) {
        self.timeouts = Timeouts::Overall(deadline);
    }

    /// Returns the path of the socket, as it was given.
    pub fn socket_path(&self) -> &Path {
        &self.socket
    }

    /// Returns the user and process that opened the socket.
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// Returns whether the connection is still open: the host has not closed it.
    pub fn is_connected(&self) -> bool {
        self.connection.is_open()
    }

    /// Requests the identity that the host reports.
    ///
    /// # Errors
    /// The host does not respond within 10 seconds, has closed the connection, or is no host.
    pub fn host_info(&mut self) -> Result<HostInfo, ClientError> {
        self.call_method(HOST, Value::Null, IMMEDIATE_TIMEOUT)
            .map(|(info, _)| info)
    }

    /// Requests the list of the host's plugins, which includes those that could not be created.
    ///
    /// # Errors
    /// The host does not respond within 10 seconds, has closed the connection, or is no host.
    pub fn plugins(&mut self) -> Result<Vec<PluginInfo>, ClientError> {
        let plugins = self.call_method(PLUGINS, Value::Null, IMMEDIATE_TIMEOUT);
        plugins.map(|(plugins, _)| plugins)
    }

    /// Sends a message to a plugin. If the plugin refuses it, returns a reply with a negative `status_code`. `deliver`
    /// requests how the body is passed; `None` lets the host pass a large body as a file, and a small one inline.
    ///
    /// # Errors
    /// The host does not respond in time, has closed the connection, has no such plugin, or passed no file of the size
    /// that it announced.
    pub fn message(
        &mut self,
        plugin: &str,
        message: &str,
        args: &str,
        deliver: Option<Delivery>,
    ) -> Result<ReceivedBody, ClientError> {
        let params = MessageParams {
            plugin: plugin.to_owned(),
            message: message.to_owned(),
            args: args.to_owned(),
            deliver,
        };
        let timeout = match memprof_messages::find_message(message) {
            Some(known) if known.latency == ReplyLatency::Immediate => IMMEDIATE_TIMEOUT,
            _ => WORK_TIMEOUT,
        };
        let (result, file): (MessageResult, _) =
            self.call_method(MESSAGE, json!(params), timeout)?;
        let protocol_error = |what: &str| ClientError::Protocol(what.to_owned());
        let file = match (file, result.size) {
            (Some(file), Some(size)) => Some(
                PassedFile::new(file, size)
                    .map_err(|error| ClientError::Protocol(error.to_string()))?,
            ),
            (None, Some(_)) => return Err(protocol_error("it announced a file and passed none")),
            // The file was not announced: close it.
            (Some(_), None) => None,
            (None, None) => None,
        };
        Ok(ReceivedBody { result, file })
    }

    /// Sends a request and waits for its response, at most for `timeout`, unless the client has a timeout or deadline
    /// of its own. Also returns the file that was passed with the response; `None` if none was passed.
    ///
    /// # Errors
    /// [`ClientError::Unreachable`] if no response comes in time; [`ClientError::Refused`] for an error in the
    /// response; [`ClientError::Protocol`] if the response is invalid or answers another request.
    fn call_method<T: DeserializeOwned>(
        &mut self,
        method: &str,
        params: Value,
        timeout: Duration,
    ) -> Result<(T, Option<File>), ClientError> {
        self.next_id += 1;
        let deadline = match self.timeouts {
            Timeouts::ByMessage => Deadline::after(timeout),
            Timeouts::PerReply(fixed) => Deadline::after(fixed),
            Timeouts::Overall(deadline) => deadline,
        };
        let mut request = json!({ "jsonrpc": "2.0", "id": self.next_id, "method": method });
        if !params.is_null() {
            request["params"] = params;
        }
        let connection = &mut self.connection;
        let written = connection.write_all(format!("{request}\n").as_bytes(), deadline);
        // A host that refuses a connection responds before it closes, perhaps before the request is written.
        let received = match written {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                connection.read_line(deadline).map_err(|_| error)
            }
            written => written.and_then(|()| connection.read_line(deadline)),
        };
        let (line, file) =
            received.map_err(|error| connection.explain_lost_connection(error, &request))?;
        let parse_error = |error: serde_json::Error| ClientError::Protocol(error.to_string());
        let response: Response = serde_json::from_slice(&line).map_err(parse_error)?;
        if !response.id.is_null() && response.id != self.next_id {
            // The response to an earlier request that timed out.
            return Err(ClientError::Protocol(format!(
                "it answered request {}, not {}",
                response.id, self.next_id
            )));
        }
        if let Some(RpcError { code, message }) = response.error {
            return Err(ClientError::Refused { code, message });
        }
        Ok((
            serde_json::from_value(response.result).map_err(parse_error)?,
            file,
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{IoSlice, Write};
    use std::mem::MaybeUninit;
    use std::os::fd::AsFd;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::time::Instant;

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    use super::*;

    const SHORT_TIMEOUT: Duration = Duration::from_millis(100);
    /// Longer than anything here takes on a busy machine.
    const LONG_TIMEOUT: Duration = Duration::from_secs(20);

    /// Connects a client to a host that runs `work` with the connection. Returns the error of `request`, which must
    /// fail before [`LONG_TIMEOUT`]. `timeout` is that of the client.
    fn client_error<T>(
        timeout: Duration,
        work: impl FnOnce(UnixStream) -> io::Result<()> + Send + 'static,
        request: impl FnOnce(&mut Client) -> Result<T, ClientError>,
    ) -> String {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("h.sock");
        let listener = UnixListener::bind(&path).unwrap();
        // The thread ends with an error when the client disconnects, which is expected.
        let host = std::thread::spawn(move || work(listener.accept()?.0));
        let mut client = Client::connect(&path).unwrap();
        client.set_timeout(timeout);
        let start = Instant::now();
        let error = request(&mut client).err().unwrap().to_string();
        assert!(start.elapsed() < LONG_TIMEOUT, "{error}");
        drop(client);
        drop(host.join().unwrap());
        error
    }

    #[test]
    fn connect_times_out_if_host_does_not_accept() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("h.sock");
        let listener = UnixListener::bind(&path).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let _waits = Client::connect(&path).unwrap();
        let error = Client::connect_until(&path, Deadline::after(SHORT_TIMEOUT)).unwrap_err();
        let expected = "cannot reach the host: it accepted no connection within 100ms";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn any_timeout_is_accepted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("h.sock");
        let _listener = UnixListener::bind(&path).unwrap();
        for timeout in [LONG_TIMEOUT, Duration::MAX] {
            Client::connect_within(&path, timeout).unwrap();
        }
    }

    #[test]
    fn slow_and_endless_responses_fail() {
        let late = "cannot reach the host: it did not answer within 100ms";
        let silent = |mut stream: UnixStream| loop {
            if io::Read::read(&mut stream, &mut [0; 512])? == 0 {
                return Ok(());
            }
        };
        assert_eq!(client_error(SHORT_TIMEOUT, silent, Client::host_info), late);
        let drips = |mut stream: UnixStream| loop {
            stream.write_all(b" ")?;
            std::thread::park_timeout(Duration::from_millis(1));
        };
        assert_eq!(client_error(SHORT_TIMEOUT, drips, Client::host_info), late);
        let endless = |mut stream: UnixStream| loop {
            stream.write_all(&[b'x'; 4096])?;
        };
        let long = "cannot reach the host: it answered with a line above 1048576 bytes";
        assert_eq!(client_error(LONG_TIMEOUT, endless, Client::host_info), long);
    }

    #[test]
    fn passed_descriptor_must_be_announced_file() {
        let check = |file: File, result: &str, expected: &str| {
            let line = format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{result}}}\n");
            let host = move |stream: UnixStream| {
                let descriptors = [file.as_fd()];
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
                let mut ancillary = SendAncillaryBuffer::new(&mut space);
                ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
                let parts = [IoSlice::new(line.as_bytes())];
                sendmsg(&stream, &parts, &mut ancillary, SendFlags::NOSIGNAL)?;
                Ok(())
            };
            let fetch = |client: &mut Client| client.message("p", "fetch", "", Some(Delivery::Fd));
            let error = client_error(LONG_TIMEOUT, host, fetch);
            assert!(error.contains(expected), "{error}");
        };
        let size =
            |size: u64| format!("{{\"status_code\":0,\"content_type\":\"x\",\"size\":{size}}}");
        let zero = || File::open("/dev/zero").unwrap();
        check(
            zero(),
            &size(1 << 30),
            "the passed descriptor is not a regular file",
        );
        check(
            zero(),
            &size(0),
            "the passed descriptor is not a regular file",
        );
        check(tempfile::tempfile().unwrap(), &size(7), "announced were 7");
    }

    #[test]
    fn response_to_other_request_is_refused() {
        let late = |mut stream: UnixStream| {
            stream.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":[]}\n")
        };
        let expected = "the host's reply breaks the control protocol: it answered request 7, not 1";
        assert_eq!(client_error(LONG_TIMEOUT, late, Client::plugins), expected);
        let without = |mut stream: UnixStream| {
            let result = r#"{"status_code":0,"content_type":"x","size":7}"#;
            writeln!(stream, r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#)
        };
        let fetch = |client: &mut Client| client.message("p", "fetch", "", None);
        let expected =
            "the host's reply breaks the control protocol: it announced a file and passed none";
        assert_eq!(client_error(LONG_TIMEOUT, without, fetch), expected);
    }

    /// Returns the error of a request to a host in Python that does `action` in place of a reply. The host's pid is
    /// replaced by `PID`.
    fn query_python_host<T: std::fmt::Debug>(
        action: &str,
        query: impl FnOnce(&mut Client) -> Result<T, ClientError>,
    ) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("h.sock");
        let script = format!(
            "import os, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print(flush=True)
connection = listener.accept()[0]
connection.recv(1)
{action}"
        );
        let mut host = std::process::Command::new("python3")
            .args(["-c", &script])
            .arg(&path)
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        Read::read_exact(host.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        let mut client = Client::connect(&path).unwrap();
        let error = query(&mut client).unwrap_err().to_string();
        host.kill().unwrap();
        host.wait().unwrap();
        error.replace(&host.id().to_string(), "PID")
    }

    #[test]
    fn lost_host_is_reported_with_the_reason() {
        let check = |action: &str, expected: &str| {
            let error = query_python_host(action, Client::host_info);
            assert_eq!(error, format!("cannot reach the host: {expected}"));
        };
        check("os._exit(0)", "process PID has ended meanwhile");
        check("os.kill(os.getpid(), 9)", "process PID has ended meanwhile");
        check(
            "os.execvp('sleep', ['sleep', '1000'])",
            "process PID has executed another program meanwhile; `memprof attach PID` loads the plugin into that one",
        );
        check(
            "connection.close(); listener.accept()",
            "it closed the connection (it ends, executes another program, or the plugin is detached); try again",
        );
    }

    /// The plugin may have ended the program: by abort(3), for example, which says nothing.
    #[test]
    fn end_of_the_host_names_the_message_that_it_did_not_answer() {
        let send = |client: &mut Client| client.message("words", "throw", "", None);
        assert_eq!(
            query_python_host("os.abort()", send),
            "cannot reach the host: process PID has ended meanwhile: plugin words did not answer \"throw\""
        );
    }
}
