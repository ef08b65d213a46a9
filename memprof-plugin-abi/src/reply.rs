//! The reply to one message.
#![expect(unsafe_code, reason = "the ABI boundary: callbacks of the host")]

use std::marker::PhantomData;

use crate::Failure;
use crate::raw::{MEMPROF_INTERNAL, MEMPROF_OK, memprof_reply_t, memprof_str_t};

/// The content type of a JSON body.
pub const JSON: &str = "application/json";
/// The content type of a body for which none was named.
pub const TEXT: &str = "text/plain; charset=utf-8";

/// Where a plugin writes the answer to one message.
#[derive(Debug)]
pub struct Reply<'a> {
    sink: memprof_reply_t,
    begun: bool,
    call: PhantomData<&'a memprof_reply_t>,
}

impl Reply<'_> {
    /// # Safety
    /// `sink` points to the host's reply for this call, and its callbacks work as memprof.h says.
    pub(crate) unsafe fn new(sink: *const memprof_reply_t) -> Self {
        // SAFETY: the host lends the struct for the call (memprof.h, `handle_message`).
        let sink = unsafe { *sink };
        Self {
            sink,
            begun: false,
            call: PhantomData,
        }
    }

    /// True once part of a body was written.
    pub(crate) fn begun(&self) -> bool {
        self.begun
    }

    /// Writes a whole body of plain text.
    ///
    /// # Errors
    /// The host does not take it.
    pub fn text(&mut self, text: &str) -> Result<(), Failure> {
        self.write(text.as_bytes())
    }

    /// Writes a whole body of JSON.
    ///
    /// # Errors
    /// The host does not take it.
    pub fn json(&mut self, json: &str) -> Result<(), Failure> {
        self.begin(JSON)?;
        self.write(json.as_bytes())
    }

    /// Names the content type, once and before the first byte.
    ///
    /// # Errors
    /// The host refuses it.
    pub fn begin(&mut self, content_type: &str) -> Result<(), Failure> {
        self.begun = true;
        let Some(begin) = self.sink.begin else {
            return Ok(());
        };
        // SAFETY: the host's callback, called on the thread of the call, with text that outlives
        // it (memprof.h, `memprof_reply_t.begin`).
        accepted(unsafe { begin(self.sink.ctx, memprof_str_t::new(content_type)) })
    }

    /// Appends bytes to the body.
    ///
    /// # Errors
    /// The host takes no more: too large, or out of memory.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.begun = true;
        let Some(write) = self.sink.write else {
            return Ok(());
        };
        // SAFETY: as in `begin`.
        accepted(unsafe { write(self.sink.ctx, memprof_str_t::from_bytes(bytes)) })
    }
}

fn accepted(status: crate::Status) -> Result<(), Failure> {
    match status {
        MEMPROF_OK => Ok(()),
        _ => Err(Failure::new(
            MEMPROF_INTERNAL,
            "the host did not take the reply",
        )),
    }
}
