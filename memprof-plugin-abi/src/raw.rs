//! The C structs that are the ABI. `include/memprof.h` is generated from this file.
//!
//! Structs are frozen within a major version: additions go through extension ids (`memprof.<name>/<n>`),
//! never through new fields.

#![expect(non_camel_case_types, reason = "the C header carries these names")]

use std::ffi::{c_char, c_int, c_void};

/// Major version of the ABI. Both sides reject another major version.
pub const MEMPROF_ABI_MAJOR: u32 = 1;
/// Minor version of the ABI, raised when a guarantee or an extension is added.
pub const MEMPROF_ABI_MINOR: u32 = 3;
/// Value of `abi_version` fields: `major << 16 | minor`.
pub const MEMPROF_ABI_VERSION: u32 = 65539;

/// Result of a call: 0 for success, a negative number for an error. The set is open: treat an unknown
/// negative number as `MEMPROF_INTERNAL`. Numbers are never reused.
pub type memprof_status_t = i32;
/// Success.
pub const MEMPROF_OK: memprof_status_t = 0;
/// The plugin has no message of this name.
pub const MEMPROF_UNKNOWN_MESSAGE: memprof_status_t = -1;
/// An argument is malformed, unknown or out of range.
pub const MEMPROF_INVALID_ARGUMENT: memprof_status_t = -2;
/// This allocator or build does not support it.
pub const MEMPROF_UNSUPPORTED: memprof_status_t = -3;
/// Host and plugin were built for different versions of this contract.
pub const MEMPROF_ABI_MISMATCH: memprof_status_t = -4;
/// An operation that excludes this one is running; try again.
pub const MEMPROF_BUSY: memprof_status_t = -5;
/// The allocator refused.
pub const MEMPROF_ALLOCATOR: memprof_status_t = -6;
/// The plugin panicked; the panic was caught.
pub const MEMPROF_PANIC: memprof_status_t = -7;
/// Any other failure.
pub const MEMPROF_INTERNAL: memprof_status_t = -8;
/// It is supported, but not in this process as it was started.
pub const MEMPROF_UNAVAILABLE: memprof_status_t = -9;
/// The operating system refused (file, directory, thread).
pub const MEMPROF_IO: memprof_status_t = -10;
/// The host has no plugin of this name: a host says so to its program, no plugin does (since ABI 1.3).
pub const MEMPROF_UNKNOWN_PLUGIN: memprof_status_t = -11;

/// A log level: 1 error, 2 warn, 3 info, 4 debug, 5 trace.
pub type memprof_log_level_t = u32;
/// Failure of a requested operation.
pub const MEMPROF_LOG_ERROR: memprof_log_level_t = 1;
/// A likely problem.
pub const MEMPROF_LOG_WARN: memprof_log_level_t = 2;
/// Information for operators.
pub const MEMPROF_LOG_INFO: memprof_log_level_t = 3;
/// Details for developers of the plugin.
pub const MEMPROF_LOG_DEBUG: memprof_log_level_t = 4;
/// Details for developers of the plugin, in large amounts.
pub const MEMPROF_LOG_TRACE: memprof_log_level_t = 5;

/// Borrowed UTF-8 text of `len` bytes, not NUL-terminated. `ptr` may be NULL when `len` is 0.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "stable-abi", derive(abi_stable::StableAbi))]
pub struct memprof_str_t {
    /// First byte.
    pub ptr: *const c_char,
    /// Number of bytes.
    pub len: usize,
}

/// Description of one message that a plugin handles. Names match exactly, by length and case.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "stable-abi", derive(abi_stable::StableAbi))]
pub struct memprof_message_t {
    /// `sizeof(memprof_message_t)`.
    pub struct_size: usize,
    /// Reserved; 0.
    pub flags: u64,
    /// Name of the message.
    pub name: memprof_str_t,
    /// Arguments as a person would type them, for example `id=ID`; may be empty.
    pub usage: memprof_str_t,
    /// One sentence that says what the message does.
    pub help: memprof_str_t,
}

/// Writer of one reply. The host owns it; valid for the call only. Neither callback may be NULL.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "stable-abi", derive(abi_stable::StableAbi))]
pub struct memprof_reply_t {
    /// `sizeof(memprof_reply_t)`.
    pub struct_size: usize,
    /// Reserved; 0.
    pub reserved: u64,
    /// Argument for the callbacks.
    pub ctx: *mut c_void,
    /// [same thread as the call] Sets the body's content type; at most once, before the first `write`.
    /// Without it the body is `text/plain; charset=utf-8`. Returns `MEMPROF_INVALID_ARGUMENT` if it is not
    /// printable ASCII, `MEMPROF_INTERNAL` if the reply has begun.
    pub begin: Option<
        unsafe extern "C" fn(ctx: *mut c_void, content_type: memprof_str_t) -> memprof_status_t,
    >,
    /// [same thread as the call] Appends bytes to the body. Returns `MEMPROF_IO` if the body would have more
    /// than 16 MiB, or if there is no memory for it. After an error, further bytes are refused with the same.
    pub write:
        Option<unsafe extern "C" fn(ctx: *mut c_void, chunk: memprof_str_t) -> memprof_status_t>,
}

/// Functions of the host for its plugins. Valid from the start of `create` until `destroy` returns. No
/// callback throws, and none calls the plugin. Only `get_extension` may be NULL.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "stable-abi", derive(abi_stable::StableAbi))]
pub struct memprof_host_t {
    /// `sizeof(memprof_host_t)`.
    pub struct_size: usize,
    /// `MEMPROF_ABI_VERSION` of the host.
    pub abi_version: u32,
    /// Reserved; 0.
    pub reserved: u32,
    /// Argument for the callbacks.
    pub ctx: *mut c_void,
    /// Name of the program.
    pub name: memprof_str_t,
    /// Version of the program; may be empty.
    pub version: memprof_str_t,
    /// [thread-safe] Returns 1 if a line of this level would be written, otherwise 0.
    pub log_enabled:
        Option<unsafe extern "C" fn(ctx: *mut c_void, level: memprof_log_level_t) -> i32>,
    /// [thread-safe] Writes one line to the host's log. `target` is the plugin's id.
    pub log: Option<
        unsafe extern "C" fn(
            ctx: *mut c_void,
            level: memprof_log_level_t,
            target: memprof_str_t,
            message: memprof_str_t,
        ),
    >,
    /// [thread-safe] Returns the host's extension with this id, or NULL.
    pub get_extension:
        Option<unsafe extern "C" fn(ctx: *mut c_void, id: memprof_str_t) -> *const c_void>,
}

/// Instance of a plugin; opaque to the host.
pub type memprof_plugin_t = c_void;

/// The one symbol that a plugin exports: constant data named `memprof_plugin_entry`. It and everything that
/// it points to live as long as the process.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "stable-abi", derive(abi_stable::StableAbi))]
pub struct memprof_plugin_entry_t {
    /// `sizeof(memprof_plugin_entry_t)`.
    pub struct_size: usize,
    /// `MEMPROF_ABI_VERSION` of the plugin.
    pub abi_version: u32,
    /// Reserved; 0.
    pub reserved: u32,
    /// Name of the plugin in messages and logs; unique in a host. At most 64 ASCII letters, digits and `_`, a
    /// letter first.
    pub id: memprof_str_t,
    /// Version of the plugin.
    pub version: memprof_str_t,
    /// Build information for bug reports; may be empty.
    pub build_info: memprof_str_t,
    /// `message_count` pointers to the messages that the plugin handles.
    pub messages: *const *const memprof_message_t,
    /// Number of messages.
    pub message_count: usize,
    /// [control-thread] Creates the instance and stores it in `*plugin`. Only one instance per process exists
    /// at a time, so state may be in static variables. `config` is the text of the plugin's TOML table. On
    /// failure log the reason at error level as the last line: the host repeats it to every sender of a
    /// message to this plugin.
    pub create: Option<
        unsafe extern "C" fn(
            host: *const memprof_host_t,
            config: memprof_str_t,
            plugin: *mut *mut memprof_plugin_t,
        ) -> memprof_status_t,
    >,
    /// [thread-safe] Handles one message; may be called on several threads at once. `args` are `key=value`
    /// words. On an error, still writes a body that explains it. The thread is the program's own, or one of a
    /// control socket: that has at least 1 MiB of stack for the plugin and blocks all signals, which children
    /// that are started there inherit unless their mask is set (`POSIX_SPAWN_SETSIGMASK`, or sigprocmask(2)
    /// after fork). No exception, panic, `longjmp` or `pthread_exit` may leave the call.
    pub handle_message: Option<
        unsafe extern "C" fn(
            plugin: *mut memprof_plugin_t,
            name: memprof_str_t,
            args: memprof_str_t,
            reply: *const memprof_reply_t,
        ) -> memprof_status_t,
    >,
    /// [control-thread] Destroys the instance. No call is running, and none follows. May be NULL.
    pub destroy: Option<unsafe extern "C" fn(plugin: *mut memprof_plugin_t)>,
    /// [thread-safe] Returns the plugin's extension with this id, or NULL. May be NULL.
    pub get_extension: Option<
        unsafe extern "C" fn(plugin: *mut memprof_plugin_t, id: memprof_str_t) -> *const c_void,
    >,
}

/// Id of [`memprof_jemalloc_t`], the host extension with the host's jemalloc functions.
pub const MEMPROF_EXTENSION_JEMALLOC: &str = "memprof.jemalloc/1";

/// Callback of `malloc_stats_print`.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "stable-abi", derive(abi_stable::StableAbi))]
pub struct memprof_stats_callback_t(
    /// Receives the caller's pointer and one NUL-terminated piece of text.
    pub Option<unsafe extern "C" fn(opaque: *mut c_void, text: *const c_char)>,
);

/// Host extension `memprof.jemalloc/1`: the HOST's own jemalloc functions (jemalloc(3)), with any prefix.
/// `struct_size` must be set; the functions must live as long as the process.
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

/// Id of [`memprof_reply_fd_t`], the host extension that accepts a reply as a file.
pub const MEMPROF_EXTENSION_REPLY_FD: &str = "memprof.reply_fd/1";

/// Host extension `memprof.reply_fd/1` (since ABI 1.1): a reply whose body is a file, which is passed without
/// a copy. To a host without it, write the bytes by `memprof_reply_t.write`. `struct_size` must be set; the
/// function must live as long as the process.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct memprof_reply_fd_t {
    /// `sizeof(memprof_reply_fd_t)`.
    pub struct_size: usize,
    /// [same thread as the call] The complete body is the first `size` bytes of the file `fd`, with no
    /// `begin` and no `write` before or after it. `ctx` is that of the `memprof_reply_t`. The file is a
    /// regular one that is open for reading only, or a sealed memfd, and does not change any more. The
    /// descriptor is borrowed for the call: the host duplicates it. Returns `MEMPROF_INVALID_ARGUMENT` if the
    /// file is neither of these or shorter, or the content type is not printable ASCII, `MEMPROF_IO` if the
    /// host has no descriptor left: the body is then empty, and can still be written. `MEMPROF_INTERNAL` if
    /// the reply has begun.
    pub file: Option<
        unsafe extern "C" fn(
            ctx: *mut c_void,
            fd: c_int,
            size: u64,
            content_type: memprof_str_t,
        ) -> memprof_status_t,
    >,
}

/// Id of [`memprof_threads_t`], the plugin extension for the host's own threads.
pub const MEMPROF_EXTENSION_THREADS: &str = "memprof.threads/1";

/// Plugin extension `memprof.threads/1` (since ABI 1.1): prepares a thread that the host runs only for its
/// plugins, such as those of a control socket; a profiler excludes it from the profile. `struct_size` must be
/// set; the function must live as long as the process.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct memprof_threads_t {
    /// `sizeof(memprof_threads_t)`.
    pub struct_size: usize,
    /// [thread-safe] Called on such a thread before the host allocates anything there, and again before each
    /// message. Must not allocate.
    pub enter: Option<unsafe extern "C" fn(plugin: *mut memprof_plugin_t)>,
}

/// The labels of a program's threads (since ABI 1.2): they say for which work a thread runs, and a profiler
/// records them with each sample. Not an extension with an id, because programs that host no plugin have
/// labels too: a program or library points to its constant of this type in an ELF note, as `MEMPROF_LABELS`
/// does. `struct_size` must be set; the functions must live as long as the process. The static library of
/// `memprof_host.h` has one, for `memprof_label_push`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct memprof_labels_t {
    /// `sizeof(memprof_labels_t)`.
    pub struct_size: usize,
    /// [thread-safe] Address of the calling thread's pointer to its record: a thread-local variable of the
    /// library with the note, at the same offset in each thread. It is read inside of `malloc`. NULL: no
    /// labels. The record is that of OpenTelemetry's thread context (OTEP 4947), and must be readable as long
    /// as the pointer points to it: 16 and 8 bytes that are not read · valid, 1 byte, 1 · flags, 1 byte ·
    /// length of the rest, 2 bytes · for each label the number of its key, 1 byte, the length of its value, 1
    /// byte, and the value.
    pub place: Option<unsafe extern "C" fn() -> *const *const c_void>,
    /// [thread-safe] Number of a key, 0 to 254, assigned at its first use and constant for the life of the
    /// process. A negative status if no number is left.
    pub key: Option<unsafe extern "C" fn(key: memprof_str_t) -> i32>,
}

// Another build of this contract must have the same layout, on every 64-bit target.
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
