//! Typed requests: the messages of `memory_profile` and their replies.

use memprof_messages::{
    ActivationResult, DumpList, DumpReport, ErrorBody, KeptDump, PLUGIN, ProfilerStatus,
};
use memprof_plugin_abi::raw::MEMPROF_OK;
use memprof_plugin_abi::{Arguments, Failure};
use serde::de::DeserializeOwned;

use super::{Client, ClientError, PassedFile, ReceivedBody};
use crate::protocol::Delivery;

impl Client {
    /// Requests the state of the profiler by the message `status`.
    ///
    /// # Errors
    /// The host does not respond, the plugin refuses the message, or its reply has another type.
    pub fn status(&mut self) -> Result<ProfilerStatus, ClientError> {
        self.send_typed("status", "")
    }

    /// Starts sampling by the message `activate`; `args` are the arguments of that message.
    ///
    /// # Errors
    /// The host does not respond, the plugin refuses the message, or its reply has another type.
    pub fn activate(&mut self, args: &str) -> Result<ActivationResult, ClientError> {
        self.send_typed("activate", args)
    }

    /// Stops sampling by the message `deactivate`. Samples taken so far are kept.
    ///
    /// # Errors
    /// The host does not respond, the plugin refuses the message, or its reply has another type.
    pub fn deactivate(&mut self) -> Result<ActivationResult, ClientError> {
        self.send_typed("deactivate", "")
    }

    /// Takes a heap profile by the message `dump`; `args` are the arguments of that message.
    ///
    /// # Errors
    /// The host does not respond, the plugin refuses the message, or its reply has another type.
    pub fn dump(&mut self, args: &str) -> Result<DumpReport, ClientError> {
        self.send_typed("dump", args)
    }

    /// Lists the dumps in the host's dump directory, newest first.
    ///
    /// # Errors
    /// The host does not respond, the plugin refuses the message, or its reply has another type.
    pub fn list_dumps(&mut self) -> Result<Vec<KeptDump>, ClientError> {
        self.send_typed("list", "").map(|DumpList { dumps }| dumps)
    }

    /// Requests a dump in the host's dump directory, given by its id, as an open file.
    ///
    /// # Errors
    /// The host does not respond, or the plugin refuses the message; [`ClientError::Protocol`] if the host passes no
    /// file.
    pub fn fetch_dump(&mut self, id: &str) -> Result<PassedFile, ClientError> {
        let args = Arguments::join([format!("id={id}").as_str()]);
        let mut reply =
            require_success(self.message(PLUGIN, "fetch", &args, Some(Delivery::Fd))?)?;
        let missing = || ClientError::Protocol("it passed no dump".to_owned());
        reply.file.take().ok_or_else(missing)
    }

    /// Sends a message to `memory_profile` and parses its reply, whether it is inline or passed as a file.
    ///
    /// # Errors
    /// The host does not respond, the plugin refuses the message, or its reply has another type.
    pub fn send_typed<T: DeserializeOwned>(
        &mut self,
        message: &str,
        args: &str,
    ) -> Result<T, ClientError> {
        let reply = require_success(self.message(PLUGIN, message, args, None)?)?;
        let bytes = reply.into_bytes()?;
        serde_json::from_slice(&bytes)
            .map_err(|error| ClientError::Protocol(format!("the reply to {message}: {error}")))
    }
}

/// Returns the reply if its status is 0. Otherwise fails with [`ClientError::Plugin`], which contains the error in the
/// reply, or the reply's text if it has none.
fn require_success(reply: ReceivedBody) -> Result<ReceivedBody, ClientError> {
    let status = reply.result.status_code;
    if status == MEMPROF_OK {
        return Ok(reply);
    }
    let bytes = reply.into_bytes()?;
    let refusal = ErrorBody::from_reply(&bytes)
        .unwrap_or_else(|| ErrorBody::from(&Failure::new(status, String::from_utf8_lossy(&bytes))));
    Err(ClientError::Plugin {
        status,
        refusal: Box::new(refusal),
    })
}
