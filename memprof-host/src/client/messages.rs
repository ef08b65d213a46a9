//! The messages of `memory_profile`, with their replies as types.

use memprof_messages::{Activation, DumpReport, Kept, KeptDumps, PLUGIN, Refusal, Status};
use memprof_plugin_abi::raw::MEMPROF_OK;
use memprof_plugin_abi::{Arguments, Failure};
use serde::de::DeserializeOwned;

use super::{Client, ClientError, Delivered, Passed};
use crate::protocol::Deliver;

impl Client {
    /// The state of the profiler.
    ///
    /// # Errors
    /// As for [`ask`](Self::ask).
    pub fn status(&mut self) -> Result<Status, ClientError> {
        self.ask("status", "")
    }

    /// Starts sampling; `args` as in the table of messages.
    ///
    /// # Errors
    /// As for [`ask`](Self::ask).
    pub fn activate(&mut self, args: &str) -> Result<Activation, ClientError> {
        self.ask("activate", args)
    }

    /// Stops sampling.
    ///
    /// # Errors
    /// As for [`ask`](Self::ask).
    pub fn deactivate(&mut self) -> Result<Activation, ClientError> {
        self.ask("deactivate", "")
    }

    /// Takes a heap profile; `args` as in the table of messages.
    ///
    /// # Errors
    /// As for [`ask`](Self::ask).
    pub fn dump(&mut self, args: &str) -> Result<DumpReport, ClientError> {
        self.ask("dump", args)
    }

    /// The kept dumps, newest first.
    ///
    /// # Errors
    /// As for [`ask`](Self::ask).
    pub fn list(&mut self) -> Result<Vec<Kept>, ClientError> {
        self.ask("list", "").map(|KeptDumps { dumps }| dumps)
    }

    /// The bytes of a kept dump, as a file.
    ///
    /// # Errors
    /// As for [`ask`](Self::ask); the host passes no file.
    pub fn fetch(&mut self, id: &str) -> Result<Passed, ClientError> {
        let args = Arguments::join([format!("id={id}").as_str()]);
        let mut reply = answered(self.message(PLUGIN, "fetch", &args, Some(Deliver::Fd))?)?;
        let missing = || ClientError::Protocol("it passed no dump".to_owned());
        reply.file.take().ok_or_else(missing)
    }

    /// Sends a message to `memory_profile`, and returns its reply as a type, whether it came inline
    /// or as a file.
    ///
    /// # Errors
    /// The host does not answer, the plugin refuses the message, or its reply is of another type.
    pub fn ask<T: DeserializeOwned>(
        &mut self,
        message: &str,
        args: &str,
    ) -> Result<T, ClientError> {
        let reply = answered(self.message(PLUGIN, message, args, None)?)?;
        let bytes = reply.into_bytes()?;
        serde_json::from_slice(&bytes)
            .map_err(|error| ClientError::Protocol(format!("the reply to {message}: {error}")))
    }
}

/// A reply that is no refusal.
fn answered(reply: Delivered) -> Result<Delivered, ClientError> {
    let status = reply.result.status_code;
    if status == MEMPROF_OK {
        return Ok(reply);
    }
    let bytes = reply.into_bytes()?;
    let refusal = Refusal::of_reply(&bytes)
        .unwrap_or_else(|| Refusal::from(&Failure::new(status, String::from_utf8_lossy(&bytes))));
    Err(ClientError::Plugin {
        status,
        refusal: Box::new(refusal),
    })
}
