//! What a plugin says of itself before it is created.

use memprof_plugin_abi::Failure;
use memprof_plugin_abi::raw::{
    MEMPROF_ABI_MAJOR, MEMPROF_ABI_MISMATCH, MEMPROF_EXTENSION_THREADS, memprof_plugin_entry_t,
    memprof_plugin_t, memprof_str_t, memprof_threads_t,
};

use crate::protocol::PluginInfo;

/// `enter` of [`memprof_threads_t`].
pub(super) type EnterThread = unsafe extern "C" fn(*mut memprof_plugin_t);

/// # Safety
/// `plugin` is a created instance of the entry's.
pub(super) unsafe fn find_enter_thread(
    entry: &memprof_plugin_entry_t,
    plugin: *mut memprof_plugin_t,
) -> Option<EnterThread> {
    let get = entry.get_extension?;
    // SAFETY: memprof.h, `get_extension`: the text is borrowed for the call.
    let found = unsafe { get(plugin, memprof_str_t::new(MEMPROF_EXTENSION_THREADS)) };
    // SAFETY: the extension of that id is this struct or null, and lives as long as the process.
    let found = unsafe { found.cast::<memprof_threads_t>().as_ref() }?;
    let is_whole = found.struct_size >= size_of::<memprof_threads_t>();
    found.enter.filter(|_| is_whole)
}

/// How every version of `memprof_plugin_entry_t` starts.
#[repr(C)]
struct EntryHead {
    size: usize,
    version: u32,
}

/// # Safety
/// As for [`Instance::create`](super::Instance::create).
pub(crate) unsafe fn check_entry(
    entry: *const memprof_plugin_entry_t,
) -> Result<PluginInfo, Failure> {
    let mismatch = |message: String| {
        Failure::new(MEMPROF_ABI_MISMATCH, message)
            .remedy("use a plugin and a host of the same major version")
    };
    if entry.is_null() {
        return Err(mismatch("memprof_plugin_entry is null".to_owned()));
    }
    // SAFETY: every version of the struct starts with these two fields.
    let EntryHead { size, version } = unsafe { entry.cast::<EntryHead>().read() };
    if version >> 16 != MEMPROF_ABI_MAJOR {
        return Err(mismatch(format!(
            "the plugin was built for ABI {}.{}, this host speaks {MEMPROF_ABI_MAJOR}.x",
            version >> 16,
            version & 0xffff
        )));
    }
    let needed = size_of::<memprof_plugin_entry_t>();
    if size < needed {
        return Err(mismatch(format!(
            "the plugin's memprof_plugin_entry has {size} bytes, ABI {MEMPROF_ABI_MAJOR} needs {needed}"
        )));
    }
    // SAFETY: of this major version and whole; it lives as long as the process.
    let entry = unsafe { &*entry };
    // SAFETY: the entry's texts live as long as it does.
    let id = unsafe { text(entry.id) };
    if id.is_empty() || entry.create.is_none() || entry.handle_message.is_none() {
        return Err(incomplete(&id));
    }
    // SAFETY: as is its version.
    let version = unsafe { text(entry.version) };
    // SAFETY: as are its messages.
    let messages = unsafe { message_names(entry) };
    Ok(PluginInfo {
        id,
        version,
        messages,
        error: None,
    })
}

pub(super) fn incomplete(id: &str) -> Failure {
    let message = format!("plugin {id:?} lacks an id, create or handle_message");
    Failure::new(MEMPROF_ABI_MISMATCH, message)
}

/// # Safety
/// `raw` borrows bytes that live as long as the process.
pub(crate) unsafe fn text(raw: memprof_str_t) -> String {
    // SAFETY: promised by the caller.
    String::from_utf8_lossy(unsafe { raw.as_bytes() }).into_owned()
}

/// # Safety
/// The entry's messages live as long as the process.
unsafe fn message_names(entry: &memprof_plugin_entry_t) -> Vec<String> {
    if entry.messages.is_null() {
        return Vec::new();
    }
    (0..entry.message_count)
        .filter_map(|at| {
            // SAFETY: memprof.h: `messages` points to `message_count` pointers.
            let message = unsafe { entry.messages.add(at) };
            // SAFETY: as above.
            let message = unsafe { message.read() };
            // SAFETY: each of them points to a message, which lives as long as the process.
            let message = unsafe { message.as_ref() }?;
            // SAFETY: and so does its name.
            Some(unsafe { text(message.name) })
        })
        .collect()
}
