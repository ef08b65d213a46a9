//! The reply to one message.
#![expect(unsafe_code, reason = "the ABI boundary: callbacks of the host")]

use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use crate::Failure;
use crate::host_log;
use crate::raw::{MEMPROF_INTERNAL, MEMPROF_IO, MEMPROF_OK, memprof_reply_t, memprof_str_t};

/// Content type of a JSON body.
pub const JSON: &str = "application/json";
/// Default content type of a body.
pub const TEXT: &str = "text/plain; charset=utf-8";

/// Maximum size of a body that is copied through a host's heap, in bytes. A larger body can only be passed as a file.
pub const COPY_LIMIT: u64 = 16 << 20;

/// Writer of the reply to one message.
#[derive(Debug)]
pub struct Reply<'a> {
    sink: memprof_reply_t,
    has_begun: bool,
    /// Whether the body is complete JSON, so that nothing may be appended.
    is_json: bool,
    call: PhantomData<&'a memprof_reply_t>,
}

impl Reply<'_> {
    /// Wraps the host's reply.
    ///
    /// # Safety
    /// `sink` points to the host's reply for this call, and its callbacks behave as memprof.h documents.
    pub(crate) unsafe fn new(sink: *const memprof_reply_t) -> Self {
        // SAFETY: memprof.h, `handle_message`: the host lends the struct for the call.
        let sink = unsafe { *sink };
        Self {
            sink,
            has_begun: false,
            is_json: false,
            call: PhantomData,
        }
    }

    /// Returns whether a part of the body was written, or its content type was set.
    pub(crate) fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Returns whether the body is complete JSON, so that nothing may be appended.
    pub(crate) fn is_json(&self) -> bool {
        self.is_json
    }

    /// Writes a complete body of plain text, the host's default content type.
    ///
    /// # Errors
    /// `Internal`: the host does not accept the text.
    pub fn text(&mut self, text: &str) -> Result<(), Failure> {
        self.write(text.as_bytes())
    }

    /// Writes a complete body of JSON, and sets its content type. `json` is not checked.
    ///
    /// # Errors
    /// `Internal`: the host does not accept the content type or the text.
    pub fn json(&mut self, json: &str) -> Result<(), Failure> {
        self.begin(JSON)?;
        self.is_json = true;
        self.write(json.as_bytes())
    }

    /// Sets the content type of the body. Call it at most once, before the first byte. Has no effect if the host lacks
    /// the callback for content types.
    ///
    /// # Errors
    /// The host rejects the content type.
    pub fn begin(&mut self, content_type: &str) -> Result<(), Failure> {
        self.has_begun = true;
        let Some(begin) = self.sink.begin else {
            return Ok(());
        };
        // SAFETY: memprof.h, `memprof_reply_t.begin`: called on the thread of the call, with text that
        // outlives the callback.
        check_status(unsafe { begin(self.sink.ctx, memprof_str_t::new(content_type)) })
    }

    /// Appends bytes to the body. If the host has no callback for them, drops them without an error.
    ///
    /// # Errors
    /// The host accepts no more bytes: the body is too large, or memory ran out.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.has_begun = true;
        let Some(write) = self.sink.write else {
            return Ok(());
        };
        // SAFETY: memprof.h, `memprof_reply_t.write`: called on the thread of the call, with bytes that
        // outlive the callback.
        check_status(unsafe { write(self.sink.ctx, memprof_str_t::from_bytes(bytes)) })
    }

    /// Passes the first `size` bytes of a file as the complete body, without copying. The file must be open for reading
    /// only, and must not change any more. If the host does not accept the file, writes a copy of the bytes instead, up
    /// to [`COPY_LIMIT`].
    ///
    /// # Errors
    /// The body is too large to copy or cannot be read, or the host does not accept it.
    pub fn file(&mut self, file: &File, size: u64, content_type: &str) -> Result<(), Failure> {
        if self.pass_file(file, size, content_type) {
            self.has_begun = true;
            return Ok(());
        }
        if size > COPY_LIMIT {
            return Err(Failure::new(
                MEMPROF_IO,
                format!(
                    "a body of {size} bytes is too large to be copied into a reply: at most \
                     {COPY_LIMIT}"
                ),
            )
            .remedy("send the message to a host that accepts files (memprof.reply_fd/1)"));
        }
        self.begin(content_type)?;
        let mut chunk = [0; 16 << 10];
        let mut offset = 0;
        while offset < size {
            let wanted = chunk.len().min((size - offset) as usize);
            match file.read_at(&mut chunk[..wanted], offset) {
                Ok(0) => return Err(file_read_failure(&io::ErrorKind::UnexpectedEof.into())),
                Ok(read) => {
                    self.write(&chunk[..read])?;
                    offset += read as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(file_read_failure(&error)),
            }
        }
        Ok(())
    }

    /// Passes the first `size` bytes of a file to the host as the complete body. Returns false, with nothing passed, if
    /// the host accepts no files, or rejects this one.
    fn pass_file(&self, file: &File, size: u64, content_type: &str) -> bool {
        let host = host_log::host();
        let Some(pass_file) = host.as_ref().and_then(|host| host.reply_fd()?.file) else {
            return false;
        };
        let content_type = memprof_str_t::new(content_type);
        // SAFETY: memprof.h, `memprof_reply_fd_t.file`: called on the thread of the call, with a descriptor
        // and a text that outlive the callback.
        let status = unsafe { pass_file(self.sink.ctx, file.as_raw_fd(), size, content_type) };
        status == MEMPROF_OK
    }
}

/// Creates the failure to read the file of a body.
fn file_read_failure(error: &io::Error) -> Failure {
    Failure::io("read the body", error)
}

/// Converts a status of the host's reply callbacks: any status except `MEMPROF_OK` becomes a failure of kind
/// `Internal`.
fn check_status(status: crate::Status) -> Result<(), Failure> {
    match status {
        MEMPROF_OK => Ok(()),
        _ => Err(Failure::new(
            MEMPROF_INTERNAL,
            "the host did not take the reply",
        )),
    }
}
