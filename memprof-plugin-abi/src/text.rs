//! Borrowed text at the ABI boundary.
#![expect(unsafe_code, reason = "the ABI boundary: pointers from the other side")]

use std::slice;

use crate::raw::{memprof_message_t, memprof_plugin_entry_t, memprof_str_t};

// SAFETY: memprof.h, `memprof_plugin_entry_t`: the struct only contains pointers to constant data that lives
// as long as the process.
unsafe impl Sync for memprof_plugin_entry_t {}
// SAFETY: memprof.h, `memprof_plugin_entry_t`: the struct only contains pointers to constant data that lives
// as long as the process.
unsafe impl Sync for memprof_message_t {}

/// Text that should be UTF-8; the error contains the position of the first invalid byte.
pub type Utf8<'a> = Result<&'a str, std::str::Utf8Error>;

impl memprof_str_t {
    /// Text of length 0.
    pub const EMPTY: Self = Self::new("");

    /// Borrows `text`. The caller must keep it alive while the other side may read it.
    pub const fn new(text: &str) -> Self {
        Self {
            ptr: text.as_ptr().cast(),
            len: text.len(),
        }
    }

    /// Borrows bytes that need not be text, for a reply's body.
    pub const fn from_bytes(bytes: &[u8]) -> Self {
        Self {
            ptr: bytes.as_ptr().cast(),
            len: bytes.len(),
        }
    }

    /// Bytes that the other side lent; empty for a null pointer.
    ///
    /// # Safety
    /// `ptr` points to `len` bytes that stay unchanged during `'a`, or `len` is 0.
    pub unsafe fn as_bytes<'a>(self) -> &'a [u8] {
        if self.len == 0 || self.ptr.is_null() {
            return &[];
        }
        // SAFETY: the caller guarantees `len` readable bytes at `ptr`.
        unsafe { slice::from_raw_parts(self.ptr.cast(), self.len) }
    }

    /// Text that the other side lent, or the UTF-8 error.
    ///
    /// # Safety
    /// As for [`as_bytes`](Self::as_bytes).
    pub unsafe fn as_str<'a>(self) -> Utf8<'a> {
        // SAFETY: the caller guarantees `len` readable bytes at `ptr`, or that `len` is 0.
        std::str::from_utf8(unsafe { self.as_bytes() })
    }
}
