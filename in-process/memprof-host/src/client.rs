//! The other end of the control socket: what `memprof` uses.
//!
//! A host may be hostile: root asks everybody's. So each request has one deadline, each line a
//! limit, and a passed descriptor is read only where it is a file of the announced length.
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
use std::path::Path;
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

/// How long connecting may take: a host accepts at once, also during a dump.
const CONNECTING: Duration = Duration::from_secs(5);
/// How long a host may take over what it answers at once, also during a dump.
const AT_ONCE: Duration = Duration::from_secs(10);
/// How long it may take over everything else: longer than the largest dump takes.
const WORK: Duration = Duration::from_secs(300);
/// The largest reply that is held in memory; a dump is read piece by piece.
const REPLY_LIMIT: u64 = 64 << 20;

/// Why a host did not answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// No host listens, it went away, or it did not answer in time.
    #[error("cannot reach the host: {0}")]
    Unreachable(#[from] io::Error),
    /// The host refused the request (a JSON-RPC error).
    #[error("{message}")]
    Refused {
        /// The JSON-RPC code.
        code: i32,
        /// What the host said.
        message: String,
    },
    /// The plugin refused the message.
    #[error("{refusal}")]
    Plugin {
        /// One of the negative codes of memprof.h.
        status: Status,
        /// Why.
        refusal: Box<ErrorBody>,
    },
    /// What came is not the control protocol.
    #[error("the host's reply breaks the control protocol: {0}")]
    Protocol(String),
}

/// A body that was passed as a descriptor, or inline.
#[derive(Debug)]
pub struct ReceivedBody {
    /// Status, content type, and the body when it is inline.
    pub result: MessageResult,
    /// The body when it is not.
    pub file: Option<PassedFile>,
}

impl ReceivedBody {
    /// The body, to be read piece by piece.
    ///
    /// # Errors
    /// As for [`into_bytes`](Self::into_bytes), where it is inline.
    pub fn into_reader(mut self) -> io::Result<Box<dyn Read>> {
        match self.file.take() {
            Some(file) => Ok(Box::new(file)),
            None => Ok(Box::new(io::Cursor::new(self.into_bytes()?))),
        }
    }

    /// The body's bytes.
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
    peer: Peer,
    patience: Timeouts,
    next_id: u64,
}

/// How long answers may take.
#[derive(Clone, Copy, Debug)]
enum Timeouts {
    /// What suits the request.
    ByMessage,
    /// This long each.
    PerReply(Duration),
    /// Until then all of them.
    Overall(Deadline),
}

#[derive(Deserialize)]
struct Response {
    /// Null where the host could not tell which request it answers.
    #[serde(default)]
    id: Value,
    #[serde(default)]
    result: Value,
    error: Option<RpcError>,
}

impl Client {
    /// Connects to a host's control socket.
    ///
    /// # Errors
    /// Nobody listens there, this user may not connect, or nobody accepts within 5 seconds.
    pub fn connect(socket: &Path) -> Result<Self, ClientError> {
        Self::connect_until(socket, Deadline::after(CONNECTING))
    }

    /// The same, and gives up on connecting and on each answer after `timeout`.
    ///
    /// # Errors
    /// As for [`connect`](Self::connect).
    pub fn connect_within(socket: &Path, timeout: Duration) -> Result<Self, ClientError> {
        let mut client = Self::connect_until(socket, Deadline::after(timeout))?;
        client.set_timeout(timeout);
        Ok(client)
    }

    pub(crate) fn connect_until(socket: &Path, deadline: Deadline) -> Result<Self, ClientError> {
        let connection = Connection::open(socket, deadline)?;
        let peer = connection.peer()?;
        Ok(Self {
            connection,
            peer,
            patience: Timeouts::ByMessage,
            next_id: 0,
        })
    }

    /// Gives up on each answer after `timeout`, in place of what suits its message: 10 seconds for
    /// what a host answers at once, 5 minutes for everything else.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.patience = Timeouts::PerReply(timeout);
    }

    /// Gives up on all answers at the same time.
    pub(crate) fn set_deadline(&mut self, deadline: Deadline) {
        self.patience = Timeouts::Overall(deadline);
    }

    /// Who opened the socket.
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// Whether the host holds the connection open.
    pub fn is_connected(&self) -> bool {
        self.connection.is_open()
    }

    /// Who the host is, in its own words.
    ///
    /// # Errors
    /// The host is gone, or no host.
    pub fn host(&mut self) -> Result<HostInfo, ClientError> {
        self.call(HOST, Value::Null, AT_ONCE).map(|(info, _)| info)
    }

    /// The host's plugins.
    ///
    /// # Errors
    /// As for [`host`](Self::host).
    pub fn plugins(&mut self) -> Result<Vec<PluginInfo>, ClientError> {
        let plugins = self.call(PLUGINS, Value::Null, AT_ONCE);
        plugins.map(|(plugins, _)| plugins)
    }

    /// Sends a message to a plugin. Its own error is a result with a negative `status_code`.
    ///
    /// # Errors
    /// The host is gone, has no such plugin, or passed something else than a file of the size that
    /// it announced.
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
        let usual = match memprof_messages::message(message) {
            Some(known) if known.latency == ReplyLatency::Immediate => AT_ONCE,
            _ => WORK,
        };
        let (result, file): (MessageResult, _) = self.call(MESSAGE, json!(params), usual)?;
        let strange = |what: &str| ClientError::Protocol(what.to_owned());
        let file = match (file, result.size) {
            (Some(file), Some(size)) => Some(
                PassedFile::new(file, size)
                    .map_err(|error| ClientError::Protocol(error.to_string()))?,
            ),
            (None, Some(_)) => return Err(strange("it announced a file and passed none")),
            // Nobody asked for it.
            (Some(_), None) => None,
            (None, None) => None,
        };
        Ok(ReceivedBody { result, file })
    }

    fn call<T: DeserializeOwned>(
        &mut self,
        method: &str,
        params: Value,
        usual: Duration,
    ) -> Result<(T, Option<File>), ClientError> {
        self.next_id += 1;
        let deadline = match self.patience {
            Timeouts::ByMessage => Deadline::after(usual),
            Timeouts::PerReply(timeout) => Deadline::after(timeout),
            Timeouts::Overall(deadline) => deadline,
        };
        let mut request = json!({ "jsonrpc": "2.0", "id": self.next_id, "method": method });
        if !params.is_null() {
            request["params"] = params;
        }
        let connection = &mut self.connection;
        let written = connection.write(format!("{request}\n").as_bytes(), deadline);
        // A host that refuses a connection answers before it closes, and may do so before this.
        let (line, file) = match written {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                connection.read_line(deadline).map_err(|_| error)?
            }
            written => written.and_then(|()| connection.read_line(deadline))?,
        };
        let strange = |error: serde_json::Error| ClientError::Protocol(error.to_string());
        let response: Response = serde_json::from_slice(&line).map_err(strange)?;
        if !response.id.is_null() && response.id != self.next_id {
            // The answer to a request that was given up.
            return Err(ClientError::Protocol(format!(
                "it answered request {}, not {}",
                response.id, self.next_id
            )));
        }
        if let Some(RpcError { code, message }) = response.error {
            return Err(ClientError::Refused { code, message });
        }
        Ok((
            serde_json::from_value(response.result).map_err(strange)?,
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

    const SHORT: Duration = Duration::from_millis(100);
    /// Longer than a busy machine takes over anything here, shorter than for ever.
    const LONG: Duration = Duration::from_secs(20);

    /// What a client makes of a host that does `work` with its connection.
    fn meet<T>(
        timeout: Duration,
        work: impl FnOnce(UnixStream) -> io::Result<()> + Send + 'static,
        ask: impl FnOnce(&mut Client) -> Result<T, ClientError>,
    ) -> String {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("h.sock");
        let listener = UnixListener::bind(&path).unwrap();
        // It ends with an error when the client leaves, which is what is tested.
        let host = std::thread::spawn(move || work(listener.accept()?.0));
        let mut client = Client::connect(&path).unwrap();
        client.set_timeout(timeout);
        let begun = Instant::now();
        let error = ask(&mut client).err().unwrap().to_string();
        assert!(begun.elapsed() < LONG, "{error}");
        drop(client);
        drop(host.join().unwrap());
        error
    }

    #[test]
    fn a_host_that_accepts_nobody() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("h.sock");
        let listener = UnixListener::bind(&path).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let _waits = Client::connect(&path).unwrap();
        let refused = Client::connect_until(&path, Deadline::after(SHORT)).unwrap_err();
        let expected = "cannot reach the host: it accepted no connection within 100ms";
        assert_eq!(refused.to_string(), expected);
    }

    #[test]
    fn hosts_that_never_come_to_an_end() {
        let late = "cannot reach the host: it did not answer within 100ms";
        let silent = |mut stream: UnixStream| loop {
            if io::Read::read(&mut stream, &mut [0; 512])? == 0 {
                return Ok(());
            }
        };
        assert_eq!(meet(SHORT, silent, Client::host), late);
        let drips = |mut stream: UnixStream| loop {
            stream.write_all(b" ")?;
            std::thread::park_timeout(Duration::from_millis(1));
        };
        assert_eq!(meet(SHORT, drips, Client::host), late);
        let endless = |mut stream: UnixStream| loop {
            stream.write_all(&[b'x'; 4096])?;
        };
        let long = "cannot reach the host: it answered with a line above 1048576 bytes";
        assert_eq!(meet(LONG, endless, Client::host), long);
    }

    #[test]
    fn passed_descriptors_must_be_the_announced_file() {
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
            let error = meet(LONG, host, fetch);
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
    fn an_answer_to_another_request_is_none() {
        let late = |mut stream: UnixStream| {
            stream.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":[]}\n")
        };
        let expected = "the host's reply breaks the control protocol: it answered request 7, not 1";
        assert_eq!(meet(LONG, late, Client::plugins), expected);
        let without = |mut stream: UnixStream| {
            let result = r#"{"status_code":0,"content_type":"x","size":7}"#;
            writeln!(stream, r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#)
        };
        let fetch = |client: &mut Client| client.message("p", "fetch", "", None);
        let expected =
            "the host's reply breaks the control protocol: it announced a file and passed none";
        assert_eq!(meet(LONG, without, fetch), expected);
    }
}
