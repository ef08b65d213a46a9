//! The C structs that are the ABI. `include/memprof.h` is generated from this file.
//!
//! Structs are frozen within a major version: growth goes through extension ids
//! (`memprof.<name>/<n>`), never through new fields.

#![expect(non_camel_case_types, reason = "the C header carries these names")]

use std::ffi::{c_char, c_int, c_void};

/// The ABI's major version. Another major is refused by both sides.
pub const MEMPROF_ABI_MAJOR: u32 = 1;
/// The ABI's minor version: raised when a promise or an extension is added.
pub const MEMPROF_ABI_MINOR: u32 = 2;
/// `major << 16 | minor`: what `abi_version` fields hold.
pub const MEMPROF_ABI_VERSION: u32 = 65538;

/// The outcome of a call: 0 is success, a negative number an error. The set is open: treat an
/// unknown negative number as `MEMPROF_INTERNAL`. Numbers are never reused.
pub type memprof_status_t = i32;
/// Success.
pub const MEMPROF_OK: memprof_status_t = 0;
/// The plugin has no message of that name.
pub const MEMPROF_UNKNOWN_MESSAGE: memprof_status_t = -1;
/// An argument is malformed, unknown or out of range.
pub const MEMPROF_INVALID_ARGUMENT: memprof_status_t = -2;
/// This allocator or build cannot do it.
pub const MEMPROF_UNSUPPORTED: memprof_status_t = -3;
/// The two sides were built for different versions of this contract.
pub const MEMPROF_ABI_MISMATCH: memprof_status_t = -4;
/// Something that excludes this call is running; try again.
pub const MEMPROF_BUSY: memprof_status_t = -5;
/// The allocator refused.
pub const MEMPROF_ALLOCATOR: memprof_status_t = -6;
/// The plugin panicked; the panic was contained.
pub const MEMPROF_PANIC: memprof_status_t = -7;
/// Any other failure.
pub const MEMPROF_INTERNAL: memprof_status_t = -8;
/// It could work, but not in this process as it was started.
pub const MEMPROF_UNAVAILABLE: memprof_status_t = -9;
/// The operating system refused (file, directory, thread).
pub const MEMPROF_IO: memprof_status_t = -10;

/// A log level: 1 error, 2 warn, 3 info, 4 debug, 5 trace.
pub type memprof_log_level_t = u32;
/// The host or the plugin cannot do something it was asked to do.
pub const MEMPROF_LOG_ERROR: memprof_log_level_t = 1;
/// Something is likely wrong.
pub const MEMPROF_LOG_WARN: memprof_log_level_t = 2;
/// Something an operator wants to know.
pub const MEMPROF_LOG_INFO: memprof_log_level_t = 3;
/// For the developer of the plugin.
pub const MEMPROF_LOG_DEBUG: memprof_log_level_t = 4;
/// For the developer of the plugin, in bulk.
pub const MEMPROF_LOG_TRACE: memprof_log_level_t = 5;

/// Borrowed UTF-8 text of `len` bytes, not NUL-terminated. `ptr` may be NULL when `len` is 0.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "stable-abi", derive(abi_stable::StableAbi))]
pub struct memprof_str_t {
    /// The first byte.
    pub ptr: *const c_char,
    /// The number of bytes.
    pub len: usize,
}

/// One message that a plugin answers. Names match exactly, by length and case.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "stable-abi", derive(abi_stable::StableAbi))]
pub struct memprof_message_t {
    /// `sizeof(memprof_message_t)`.
    pub struct_size: usize,
    /// 0; reserved.
    pub flags: u64,
    /// The message's name.
    pub name: memprof_str_t,
    /// Its arguments as a person would type them, for example `id=ID`; may be empty.
    pub usage: memprof_str_t,
    /// One sentence that says what it does.
    pub help: memprof_str_t,
}

/// Where a plugin writes its reply. The host owns it; it lives as long as the call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "stable-abi", derive(abi_stable::StableAbi))]
pub struct memprof_reply_t {
    /// `sizeof(memprof_reply_t)`.
    pub struct_size: usize,
    /// 0; reserved.
    pub reserved: u64,
    /// Passed back to the callbacks.
    pub ctx: *mut c_void,
    /// [same thread as the call] Names the body's content type; at most once, before the first
    /// `write`. Without it the body is `text/plain; charset=utf-8`.
    pub begin: Option<
        unsafe extern "C" fn(ctx: *mut c_void, content_type: memprof_str_t) -> memprof_status_t,
    >,
    /// [same thread as the call] Appends bytes to the body. After an error further bytes are
    /// dropped.
    pub write:
        Option<unsafe extern "C" fn(ctx: *mut c_void, chunk: memprof_str_t) -> memprof_status_t>,
}

/// What a host offers its plugins. Valid from the start of `create` until `destroy` returns.
/// No callback throws, and none of them calls the plugin back. Only `get_extension` may be NULL.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "stable-abi", derive(abi_stable::StableAbi))]
pub struct memprof_host_t {
    /// `sizeof(memprof_host_t)`.
    pub struct_size: usize,
    /// `MEMPROF_ABI_VERSION` of the host.
    pub abi_version: u32,
    /// 0; reserved.
    pub reserved: u32,
    /// Passed back to the callbacks.
    pub ctx: *mut c_void,
    /// The program's name.
    pub name: memprof_str_t,
    /// The program's version; may be empty.
    pub version: memprof_str_t,
    /// [thread-safe] 1 when a line of this level would be written, else 0.
    pub log_enabled:
        Option<unsafe extern "C" fn(ctx: *mut c_void, level: memprof_log_level_t) -> i32>,
    /// [thread-safe] Writes one line to the host's log. `target` names the part that speaks.
    pub log: Option<
        unsafe extern "C" fn(
            ctx: *mut c_void,
            level: memprof_log_level_t,
            target: memprof_str_t,
            message: memprof_str_t,
        ),
    >,
    /// [thread-safe] The host's extension of that id, or NULL.
    pub get_extension:
        Option<unsafe extern "C" fn(ctx: *mut c_void, id: memprof_str_t) -> *const c_void>,
}

/// An instance of a plugin: opaque to the host.
pub type memprof_plugin_t = c_void;

/// The one symbol that a plugin exports, as constant data named `memprof_plugin_entry`.
/// It and all that it points to live as long as the process.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "stable-abi", derive(abi_stable::StableAbi))]
pub struct memprof_plugin_entry_t {
    /// `sizeof(memprof_plugin_entry_t)`.
    pub struct_size: usize,
    /// `MEMPROF_ABI_VERSION` of the plugin.
    pub abi_version: u32,
    /// 0; reserved.
    pub reserved: u32,
    /// The plugin's name in messages and logs, unique in a host.
    pub id: memprof_str_t,
    /// The plugin's version.
    pub version: memprof_str_t,
    /// How it was built, for a bug report; may be empty.
    pub build_info: memprof_str_t,
    /// `message_count` pointers to the messages that it answers.
    pub messages: *const *const memprof_message_t,
    /// The number of messages.
    pub message_count: usize,
    /// [control-thread] Makes the instance and stores it in `*plugin`: one at a time in a process, so that
    /// state may lie in static variables. `config` is the text of
    /// the plugin's TOML table. On failure log the reason at error level before returning: the
    /// host repeats it to everyone who sends this plugin a message.
    pub create: Option<
        unsafe extern "C" fn(
            host: *const memprof_host_t,
            config: memprof_str_t,
            plugin: *mut *mut memprof_plugin_t,
        ) -> memprof_status_t,
    >,
    /// [thread-safe] Answers one message; may be called on several threads at once.
    /// `args` are `key=value` words. An error still writes a body that explains it.
    /// The thread is the program's own, or one of a control socket: that has 1 MiB of stack and every
    /// signal blocked, which children that are started there inherit unless their mask is set (sigprocmask
    /// after fork, `POSIX_SPAWN_SETSIGMASK`). No exception, `longjmp` or `pthread_exit` may leave the call.
    pub handle_message: Option<
        unsafe extern "C" fn(
            plugin: *mut memprof_plugin_t,
            name: memprof_str_t,
            args: memprof_str_t,
            reply: *const memprof_reply_t,
        ) -> memprof_status_t,
    >,
    /// [control-thread] Ends the instance. No call is running and none follows.
    pub destroy: Option<unsafe extern "C" fn(plugin: *mut memprof_plugin_t)>,
    /// [thread-safe] The plugin's extension of that id, or NULL.
    pub get_extension: Option<
        unsafe extern "C" fn(plugin: *mut memprof_plugin_t, id: memprof_str_t) -> *const c_void,
    >,
}

/// The id of [`memprof_jemalloc_t`], the host extension that hands over the host's jemalloc.
pub const MEMPROF_EXTENSION_JEMALLOC: &str = "memprof.jemalloc/1";

/// The callback of `malloc_stats_print`.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "stable-abi", derive(abi_stable::StableAbi))]
pub struct memprof_stats_callback_t(
    /// Receives the caller's pointer and one NUL-terminated piece of text.
    pub Option<unsafe extern "C" fn(opaque: *mut c_void, text: *const c_char)>,
);

/// Host extension `memprof.jemalloc/1`: the HOST's own jemalloc functions (jemalloc(3)), whatever
/// prefix they were built with. `struct_size` must be set; the functions must live as long as
/// the process.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "stable-abi", derive(abi_stable::StableAbi))]
pub struct memprof_jemalloc_t {
    /// `sizeof(memprof_jemalloc_t)`.
    pub struct_size: usize,
    /// `mallctl`.
    pub mallctl: Option<
        unsafe extern "C" fn(
            name: *const c_char,
            oldp: *mut c_void,
            oldlenp: *mut usize,
            newp: *mut c_void,
            newlen: usize,
        ) -> c_int,
    >,
    /// `mallctlnametomib`.
    pub mallctlnametomib: Option<
        unsafe extern "C" fn(name: *const c_char, mibp: *mut usize, miblenp: *mut usize) -> c_int,
    >,
    /// `mallctlbymib`.
    pub mallctlbymib: Option<
        unsafe extern "C" fn(
            mib: *const usize,
            miblen: usize,
            oldp: *mut c_void,
            oldlenp: *mut usize,
            newp: *mut c_void,
            newlen: usize,
        ) -> c_int,
    >,
    /// `malloc_stats_print`.
    pub malloc_stats_print: Option<
        unsafe extern "C" fn(
            write: memprof_stats_callback_t,
            opaque: *mut c_void,
            opts: *const c_char,
        ),
    >,
}

/// The id of [`memprof_reply_fd_t`], the host extension that takes a reply as a file.
pub const MEMPROF_EXTENSION_REPLY_FD: &str = "memprof.reply_fd/1";

/// Host extension `memprof.reply_fd/1` (since ABI 1.1): a reply whose body is a file, which is
/// passed on without a copy. A host that lacks it takes the bytes by `memprof_reply_t.write`.
/// `struct_size` must be set; the function must live as long as the process.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct memprof_reply_fd_t {
    /// `sizeof(memprof_reply_fd_t)`.
    pub struct_size: usize,
    /// [same thread as the call] The whole body is the first `size` bytes of the file `fd`; no
    /// `begin` and no `write` before or after it. `ctx` is that of the `memprof_reply_t`. The file
    /// is a regular one that is open for reading only, or a sealed memfd; nobody writes to it any
    /// more. The descriptor is borrowed for the call: the host duplicates it.
    /// `MEMPROF_INVALID_ARGUMENT` when the file is none of these, `MEMPROF_IO` when the host has
    /// no descriptor left; the body is empty then, and can still be written.
    pub file: Option<
        unsafe extern "C" fn(
            ctx: *mut c_void,
            fd: c_int,
            size: u64,
            content_type: memprof_str_t,
        ) -> memprof_status_t,
    >,
}

/// The id of [`memprof_threads_t`], the plugin extension for the host's own threads.
pub const MEMPROF_EXTENSION_THREADS: &str = "memprof.threads/1";

/// Plugin extension `memprof.threads/1` (since ABI 1.1): what a plugin does on a thread that the
/// host runs only for its plugins, such as those of a control socket: a profiler leaves it out of the
/// profile. `struct_size` must be set; the function must live as long as the process.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct memprof_threads_t {
    /// `sizeof(memprof_threads_t)`.
    pub struct_size: usize,
    /// [thread-safe] Called on such a thread before the host allocates anything there, and again
    /// before each message. Allocates nothing.
    pub enter: Option<unsafe extern "C" fn(plugin: *mut memprof_plugin_t)>,
}

/// The labels of a program's threads (since ABI 1.2): whose work a thread does, which a profiler tells of
/// each sample. Not asked for by an id, because programs that host nothing have labels too: a program or
/// library tells of its constant of this type in an ELF note, as `MEMPROF_LABELS` does. `struct_size` must be
/// set; the functions must live as long as the process. The static library of `memprof_host.h` has
/// one, for `memprof_label_push`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct memprof_labels_t {
    /// `sizeof(memprof_labels_t)`.
    pub struct_size: usize,
    /// [thread-safe] Where the calling thread has a pointer to its record: a thread-local variable
    /// of the library that has the note, at the same offset in each thread. It is read in the
    /// midst of `malloc`. NULL: no labels. The record is that of OpenTelemetry's thread context
    /// (OTEP 4947), and can be read for as long as the pointer leads to it: 16 and 8 bytes that
    /// are not read · valid, 1 byte, 1 · flags, 1 byte · length of what follows, 2 bytes · for each
    /// label the number of its key, 1 byte, the length of its value, 1 byte, and the value.
    pub place: Option<unsafe extern "C" fn() -> *const *const c_void>,
    /// [thread-safe] The number of a key, 0 to 254, for as long as the process lives; made where
    /// the key is new. A negative status where there is no number left.
    pub key: Option<unsafe extern "C" fn(key: memprof_str_t) -> i32>,
}

// What another build of this contract must agree with, on every 64-bit target.
const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(size_of::<memprof_str_t>() == 16);
    assert!(size_of::<memprof_message_t>() == 64);
    assert!(size_of::<memprof_reply_t>() == 40);
    assert!(size_of::<memprof_host_t>() == 80);
    assert!(size_of::<memprof_plugin_entry_t>() == 112);
    assert!(size_of::<memprof_jemalloc_t>() == 40);
    assert!(size_of::<memprof_threads_t>() == 16);
    assert!(size_of::<memprof_reply_fd_t>() == 16);
    assert!(size_of::<memprof_labels_t>() == 24);
    assert!(offset_of!(memprof_host_t, ctx) == 16);
    assert!(offset_of!(memprof_host_t, get_extension) == 72);
    assert!(offset_of!(memprof_plugin_entry_t, abi_version) == 8);
    assert!(offset_of!(memprof_plugin_entry_t, id) == 16);
    assert!(offset_of!(memprof_plugin_entry_t, messages) == 64);
    assert!(offset_of!(memprof_plugin_entry_t, create) == 80);
    assert!(offset_of!(memprof_plugin_entry_t, get_extension) == 104);
    assert!(MEMPROF_ABI_VERSION == MEMPROF_ABI_MAJOR << 16 | MEMPROF_ABI_MINOR);
};
