//! The other end of the control socket: what `memprof` uses.

use std::fs::File;
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::io::retry_on_intr;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recvmsg, send};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::protocol::{
    Deliver, HOST, HostInfo, MESSAGE, MessageParams, MessageResult, PLUGINS, PluginInfo,
};

/// Why a host did not answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// No host listens, or it went away.
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
    /// What came is not the control protocol.
    #[error("the host answered with something else: {0}")]
    Protocol(String),
}

/// A body that was passed as a descriptor, or inline.
#[derive(Debug)]
pub struct Delivered {
    /// Status, content type, and the body when it is inline.
    pub result: MessageResult,
    /// The body when it is not.
    pub file: Option<File>,
}

impl Delivered {
    /// The body's bytes.
    ///
    /// # Errors
    /// The passed file cannot be read.
    pub fn into_bytes(self) -> io::Result<Vec<u8>> {
        match (self.file, self.result.body) {
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
    stream: UnixStream,
    buffer: Vec<u8>,
    next_id: u64,
}

#[derive(Deserialize)]
struct Response {
    #[serde(default)]
    result: Value,
    error: Option<ResponseError>,
}

#[derive(Deserialize)]
struct ResponseError {
    code: i32,
    message: String,
}

impl Client {
    /// Connects to a host's control socket.
    ///
    /// # Errors
    /// Nobody listens there, or this user may not connect.
    pub fn connect(socket: &Path) -> Result<Self, ClientError> {
        Ok(Self {
            stream: UnixStream::connect(socket)?,
            buffer: Vec::new(),
            next_id: 0,
        })
    }

    /// Gives up on an answer after `timeout`.
    ///
    /// # Errors
    /// `timeout` is zero.
    pub fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        self.stream.set_read_timeout(Some(timeout))
    }

    /// Who the host is.
    ///
    /// # Errors
    /// The host is gone, or no host.
    pub fn host(&mut self) -> Result<HostInfo, ClientError> {
        self.call(HOST, Value::Null).map(|(info, _)| info)
    }

    /// The host's plugins.
    ///
    /// # Errors
    /// As for [`host`](Self::host).
    pub fn plugins(&mut self) -> Result<Vec<PluginInfo>, ClientError> {
        self.call(PLUGINS, Value::Null).map(|(plugins, _)| plugins)
    }

    /// Sends a message to a plugin. Its own error is a result with a negative `status_code`.
    ///
    /// # Errors
    /// The host is gone or has no such plugin.
    pub fn message(
        &mut self,
        plugin: &str,
        message: &str,
        args: &str,
        deliver: Option<Deliver>,
    ) -> Result<Delivered, ClientError> {
        let params = MessageParams {
            plugin: plugin.to_owned(),
            message: message.to_owned(),
            args: args.to_owned(),
            deliver,
        };
        let (result, file) = self.call(MESSAGE, json!(params))?;
        Ok(Delivered { result, file })
    }

    /// Calls a method.
    ///
    /// # Errors
    /// The host is gone, refuses, or answers with something else.
    pub fn call<T: DeserializeOwned>(
        &mut self,
        method: &str,
        params: Value,
    ) -> Result<(T, Option<File>), ClientError> {
        self.next_id += 1;
        let mut request = json!({ "jsonrpc": "2.0", "id": self.next_id, "method": method });
        if !params.is_null() {
            request["params"] = params;
        }
        let written = self.write(format!("{request}\n").as_bytes());
        // A host that refuses a connection answers before it closes, and may do so before this.
        let (line, file) = match written {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.read_line().map_err(|_| error)?
            }
            written => written.and_then(|()| self.read_line())?,
        };
        let strange = |error: serde_json::Error| ClientError::Protocol(error.to_string());
        let response: Response = serde_json::from_slice(&line).map_err(strange)?;
        if let Some(ResponseError { code, message }) = response.error {
            return Err(ClientError::Refused { code, message });
        }
        Ok((
            serde_json::from_value(response.result).map_err(strange)?,
            file,
        ))
    }

    fn write(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let sent = retry_on_intr(|| send(&self.stream, bytes, SendFlags::NOSIGNAL))?;
            bytes = &bytes[sent..];
        }
        Ok(())
    }

    fn read_line(&mut self) -> io::Result<(Vec<u8>, Option<File>)> {
        let mut file = None;
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let rest = self.buffer.split_off(end + 1);
                return Ok((std::mem::replace(&mut self.buffer, rest), file));
            }
            let mut chunk = [0; 64 * 1024];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let received = retry_on_intr(|| {
                let mut parts = [io::IoSliceMut::new(&mut chunk)];
                recvmsg(
                    &self.stream,
                    &mut parts,
                    &mut ancillary,
                    RecvFlags::CMSG_CLOEXEC,
                )
            })?;
            if received.bytes == 0 {
                let message = "it closed the connection";
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, message));
            }
            for message in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                    file = descriptors.map(File::from).last().or(file);
                }
            }
            self.buffer.extend_from_slice(&chunk[..received.bytes]);
        }
    }
}
