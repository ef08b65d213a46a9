//! The host as a plugin sees it.
#![expect(unsafe_code, reason = "the ABI boundary: callbacks of the host")]

use std::ffi::c_void;
use std::ptr::NonNull;

use crate::Failure;
use crate::raw::{
    MEMPROF_ABI_MAJOR, MEMPROF_ABI_MISMATCH, MEMPROF_EXTENSION_JEMALLOC,
    MEMPROF_EXTENSION_REPLY_FD, MEMPROF_LOG_DEBUG, MEMPROF_LOG_ERROR, MEMPROF_LOG_INFO,
    MEMPROF_LOG_TRACE, MEMPROF_LOG_WARN, memprof_host_t, memprof_jemalloc_t, memprof_log_level_t,
    memprof_reply_fd_t, memprof_str_t,
};

/// The host that created the plugin. Valid until the plugin is dropped.
#[derive(Clone, Copy, Debug)]
pub struct Host(NonNull<memprof_host_t>);

// SAFETY: memprof.h, `memprof_host_t`: the host guarantees that every callback is thread-safe.
unsafe impl Send for Host {}
// SAFETY: memprof.h, `memprof_host_t`: the host guarantees that every callback is thread-safe.
unsafe impl Sync for Host {}

impl Host {
    /// Wraps the host's struct. Checks its version before reading any other field.
    ///
    /// # Safety
    /// `host` is null, or valid until `destroy` returns, as memprof.h documents.
    ///
    /// # Errors
    /// `AbiMismatch`: the pointer is null, the major version is a different one, or the struct is smaller than this
    /// build's.
    pub(crate) unsafe fn new(host: *const memprof_host_t) -> Result<Self, Failure> {
        let mismatch = |what: String| Failure::new(MEMPROF_ABI_MISMATCH, what);
        let host = NonNull::new(host.cast_mut())
            .ok_or_else(|| mismatch("the host passed no memprof_host_t".into()))?;
        // SAFETY: memprof.h: `struct_size` and `abi_version` are the first fields in every version of the struct. The
        // caller passes a valid struct.
        let (size, version) = unsafe {
            let host = host.as_ref();
            (host.struct_size, host.abi_version)
        };
        if version >> 16 != MEMPROF_ABI_MAJOR || size < size_of::<memprof_host_t>() {
            return Err(mismatch(format!(
                "the host speaks ABI {}.{} with a memprof_host_t of {size} bytes, this plugin ABI \
                 {MEMPROF_ABI_MAJOR} with {} bytes",
                version >> 16,
                version & 0xffff,
                size_of::<memprof_host_t>(),
            )));
        }
        Ok(Self(host))
    }

    /// Returns the address of the host's struct, from which [`from_address`](Self::from_address) restores the host.
    pub(crate) fn address(self) -> NonNull<memprof_host_t> {
        self.0
    }

    /// Restores a host from its address.
    ///
    /// # Safety
    /// `address` comes from [`address`](Self::address) of a host that is still valid.
    pub(crate) unsafe fn from_address(address: NonNull<memprof_host_t>) -> Self {
        Self(address)
    }

    /// Returns the host's struct, which outlives the plugin.
    fn raw(&self) -> &memprof_host_t {
        // SAFETY: the caller of `new` guarantees that the struct outlives the plugin.
        unsafe { self.0.as_ref() }
    }

    /// Returns the name of the program; empty if it is not UTF-8.
    pub fn name(&self) -> &str {
        // SAFETY: memprof.h, `memprof_host_t`: the text lives as long as the struct.
        unsafe { self.raw().name.as_str() }.unwrap_or("")
    }

    /// Returns the version of the program; empty if the host provides none, or if it is not UTF-8.
    pub fn version(&self) -> &str {
        // SAFETY: memprof.h, `memprof_host_t`: the text lives as long as the struct.
        unsafe { self.raw().version.as_str() }.unwrap_or("")
    }

    /// Returns the host's own jemalloc functions. `None` if the host does not pass them, or if its struct is smaller
    /// than this build's.
    pub fn jemalloc(&self) -> Option<&memprof_jemalloc_t> {
        let found = self
            .extension(MEMPROF_EXTENSION_JEMALLOC)
            .cast::<memprof_jemalloc_t>();
        // SAFETY: memprof.h, `memprof_jemalloc_t`: the extension with this id is this struct or null, and is never
        // freed.
        let found = unsafe { found.as_ref() }?;
        (found.struct_size >= size_of::<memprof_jemalloc_t>()).then_some(found)
    }

    /// Returns the callback for replies that are files. `None` if the host accepts no files, or if its struct is
    /// smaller than this build's.
    pub(crate) fn reply_fd(&self) -> Option<&memprof_reply_fd_t> {
        let found = self
            .extension(MEMPROF_EXTENSION_REPLY_FD)
            .cast::<memprof_reply_fd_t>();
        // SAFETY: memprof.h, `memprof_reply_fd_t`: the extension with this id is this struct or null, and is never
        // freed.
        let found = unsafe { found.as_ref() }?;
        (found.struct_size >= size_of::<memprof_reply_fd_t>()).then_some(found)
    }

    /// Returns a pointer to the host's extension with this id; null if the host has none.
    pub fn extension(&self, id: &str) -> *const c_void {
        match self.raw().get_extension {
            // SAFETY: memprof.h, `memprof_host_t.get_extension`: the callback is thread-safe, and the text outlives the
            // call.
            Some(get) => unsafe { get(self.raw().ctx, memprof_str_t::new(id)) },
            None => std::ptr::null(),
        }
    }

    /// Returns whether the host would write a line of this level. If the host lacks the callback that answers this,
    /// returns whether it has a log.
    pub fn log_enabled(&self, level: log::Level) -> bool {
        match self.raw().log_enabled {
            // SAFETY: memprof.h, `memprof_host_t.log_enabled`: the callback is thread-safe.
            Some(enabled) => unsafe { enabled(self.raw().ctx, level_number(level)) != 0 },
            None => self.raw().log.is_some(),
        }
    }

    /// Writes one line, `message`, to the host's log. `target` is the id of the plugin that logs it. Does nothing if
    /// the host has no log.
    pub fn log(&self, level: log::Level, target: &str, message: &str) {
        if let Some(log) = self.raw().log {
            let (target, message) = (memprof_str_t::new(target), memprof_str_t::new(message));
            // SAFETY: memprof.h, `memprof_host_t.log`: the callback is thread-safe, and both texts outlive the call.
            unsafe { log(self.raw().ctx, level_number(level), target, message) }
        }
    }
}

/// Returns the number of a log level, as in memprof.h.
fn level_number(level: log::Level) -> memprof_log_level_t {
    match level {
        log::Level::Error => MEMPROF_LOG_ERROR,
        log::Level::Warn => MEMPROF_LOG_WARN,
        log::Level::Info => MEMPROF_LOG_INFO,
        log::Level::Debug => MEMPROF_LOG_DEBUG,
        log::Level::Trace => MEMPROF_LOG_TRACE,
    }
}
