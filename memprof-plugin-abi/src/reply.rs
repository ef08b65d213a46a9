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

/// The content type of a JSON body.
pub const JSON: &str = "application/json";
/// The content type of a body for which none was named.
pub const TEXT: &str = "text/plain; charset=utf-8";

/// The largest body that is copied through a host's heap, in bytes. A larger one is passed as a
/// file, or not at all.
pub const COPY_LIMIT: u64 = 16 << 20;

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
    pub(crate) fn has_begun(&self) -> bool {
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
        check_status(unsafe { begin(self.sink.ctx, memprof_str_t::new(content_type)) })
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
        check_status(unsafe { write(self.sink.ctx, memprof_str_t::from_bytes(bytes)) })
    }

    /// Passes the first `size` bytes of a file as the whole body, without a copy. The file is open
    /// for reading only, and nobody writes to it any more. A host that takes no files is given
    /// the bytes, [`COPY_LIMIT`] at the most.
    ///
    /// # Errors
    /// The bytes are too many, or cannot be read; the host does not take them.
    pub fn file(&mut self, file: &File, size: u64, content_type: &str) -> Result<(), Failure> {
        if self.pass_file(file, size, content_type) {
            self.begun = true;
            return Ok(());
        }
        if size > COPY_LIMIT {
            return Err(Failure::new(
                MEMPROF_IO,
                format!(
                    "a body of {size} bytes is too large to be copied into a reply: at most \
                     {COPY_LIMIT}"
                ),
            ));
        }
        self.begin(content_type)?;
        let mut chunk = [0; 16 << 10];
        let mut at = 0;
        while at < size {
            let wanted = chunk.len().min((size - at) as usize);
            match file.read_at(&mut chunk[..wanted], at) {
                Ok(0) => return Err(unreadable(&io::ErrorKind::UnexpectedEof.into())),
                Ok(read) => {
                    self.write(&chunk[..read])?;
                    at += read as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(unreadable(&error)),
            }
        }
        Ok(())
    }

    /// True when the host took the file.
    fn pass_file(&self, file: &File, size: u64, content_type: &str) -> bool {
        let host = host_log::host();
        let Some(take) = host.as_ref().and_then(|host| host.reply_fd()?.file) else {
            return false;
        };
        let content_type = memprof_str_t::new(content_type);
        // SAFETY: the host's callback, called on the thread of the call, with a descriptor and a
        // text that outlive it (memprof.h, `memprof_reply_fd_t.file`).
        let status = unsafe { take(self.sink.ctx, file.as_raw_fd(), size, content_type) };
        status == MEMPROF_OK
    }
}

fn unreadable(error: &io::Error) -> Failure {
    Failure::io("read the body", error)
}

fn check_status(status: crate::Status) -> Result<(), Failure> {
    match status {
        MEMPROF_OK => Ok(()),
        _ => Err(Failure::new(
            MEMPROF_INTERNAL,
            "the host did not take the reply",
        )),
    }
}
