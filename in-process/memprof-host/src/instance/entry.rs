//! The entry of a plugin's library, which describes the plugin before it is created.

use memprof_plugin_abi::Failure;
use memprof_plugin_abi::raw::{
    MEMPROF_ABI_MAJOR, MEMPROF_ABI_MISMATCH, MEMPROF_EXTENSION_THREADS, MEMPROF_INVALID_ARGUMENT,
    memprof_plugin_entry_t, memprof_plugin_t, memprof_str_t, memprof_threads_t,
};

use crate::protocol::{MessageUsage, PluginInfo};

/// `enter` of [`memprof_threads_t`].
pub(super) type EnterThread = unsafe extern "C" fn(*mut memprof_plugin_t);

/// Returns the plugin's function that memprof's threads call to report themselves. `None` if the plugin has none, or if
/// the struct that contains the function is too small.
///
/// # Safety
/// `plugin` is an instance that `entry` created.
pub(super) unsafe fn find_enter_thread(
    entry: &memprof_plugin_entry_t,
    plugin: *mut memprof_plugin_t,
) -> Option<EnterThread> {
    let get = entry.get_extension?;
    // SAFETY: memprof.h, `get_extension`: the text is borrowed for the call.
    let extension = unsafe { get(plugin, memprof_str_t::new(MEMPROF_EXTENSION_THREADS)) };
    // SAFETY: memprof.h: the extension of this id is this struct or null, and lives as long as the process.
    let extension = unsafe { extension.cast::<memprof_threads_t>().as_ref() }?;
    let is_whole = extension.struct_size >= size_of::<memprof_threads_t>();
    extension.enter.filter(|_| is_whole)
}

/// First fields of every version of `memprof_plugin_entry_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct EntryHead {
    size: usize,
    version: u32,
}

/// Largest major version that a later ABI could have. A larger number is something else than a version.
const MAX_MAJOR: u32 = 99;

/// Formats a version of the ABI, as `1.3`: the major version is in its upper 16 bits.
fn abi_version_text(version: u32) -> String {
    format!("{}.{}", version >> 16, version & 0xffff)
}

/// Checks an entry's version, size and functions, and returns the description of the plugin in it. Fails if the entry
/// is null, incomplete or of another ABI, or if the plugin's id has blanks or control characters.
///
/// # Safety
/// `entry` is null or a plugin's `memprof_plugin_entry`, and its library stays loaded until the process ends.
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
    // SAFETY: not null, and every version of the struct starts with these two fields.
    let head = unsafe { entry.cast::<EntryHead>().read() };
    let EntryHead { size, version } = head;
    if version >> 16 != MEMPROF_ABI_MAJOR {
        if version >> 16 > MAX_MAJOR || version >> 16 == 0 {
            let message =
                "its memprof_plugin_entry is not a memprof_plugin_entry_t: it has no version";
            return Err(Failure::new(MEMPROF_INVALID_ARGUMENT, message).remedy(
                "export the struct itself, as constant data: neither a function nor a pointer",
            ));
        }
        return Err(mismatch(format!(
            "the plugin was built for ABI {}, this host speaks {MEMPROF_ABI_MAJOR}.x",
            abi_version_text(version)
        )));
    }
    let needed = size_of::<memprof_plugin_entry_t>();
    if size < needed {
        return Err(mismatch(format!(
            "the plugin's memprof_plugin_entry has {size} bytes, ABI {MEMPROF_ABI_MAJOR} needs {needed}"
        )));
    }
    // SAFETY: the entry is of this major version and whole; the caller promises that its library stays loaded.
    let entry = unsafe { &*entry };
    // SAFETY: memprof.h: the entry's texts live as long as the entry.
    let id = unsafe { copy_text(entry.id) };
    if id.is_empty() || entry.create.is_none() || entry.handle_message.is_none() {
        return Err(incomplete_entry_error(&id));
    }
    if id.contains(|character: char| character.is_whitespace() || character.is_control()) {
        let message = format!("the plugin's id {id:?} has blanks or control characters");
        return Err(Failure::new(MEMPROF_INVALID_ARGUMENT, message));
    }
    // SAFETY: memprof.h: the entry's texts live as long as the entry.
    let version = unsafe { copy_text(entry.version) };
    // SAFETY: memprof.h: the entry's messages live as long as the entry.
    let usage = unsafe { message_usages(entry) };
    let EntryHead { version: abi, .. } = head;
    Ok(PluginInfo {
        id,
        version,
        messages: usage.iter().map(|message| message.name.clone()).collect(),
        abi: abi_version_text(abi),
        path: String::new(),
        usage,
        error: None,
        remedy: None,
    })
}

/// Returns a warning if memprof.h does not allow the id, and one for the first message whose name it does not allow.
/// Such a plugin is loaded all the same, because the rule is younger than the ABI.
#[cfg(feature = "loader")]
pub(crate) fn name_warnings(info: &PluginInfo) -> Vec<String> {
    let id = (!is_valid_name(&info.id, b"_")).then(|| {
        format!(
            "its id {:?} can be hard to type, and foreign servers make names of commands and functions of it; use at \
             most 64 ASCII letters, digits and _, a letter first",
            info.id
        )
    });
    let mut messages = info.messages.iter();
    let message = messages.find(|name| !is_valid_name(name, b"_-."));
    let message = message.map(|name| {
        format!(
            "its message {name:?} can be hard to type; use at most 64 ASCII letters, digits, _, - and ., a letter first"
        )
    });
    id.into_iter().chain(message).collect()
}

/// Returns whether memprof.h allows a name: at most 64 ASCII letters, digits and bytes of `also`, a letter first.
#[cfg(feature = "loader")]
fn is_valid_name(name: &str, also: &[u8]) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || also.contains(&byte);
    name.len() <= 64
        && name.starts_with(|first: char| first.is_ascii_alphabetic())
        && name.bytes().all(is_allowed)
}

/// Creates the error of an entry that lacks a required part.
pub(super) fn incomplete_entry_error(id: &str) -> Failure {
    let message = format!("plugin {id:?} lacks an id, create or handle_message");
    Failure::new(MEMPROF_ABI_MISMATCH, message)
}

/// Copies a text, replacing what is not UTF-8.
///
/// # Safety
/// `raw` refers to bytes that are readable during the call.
pub(crate) unsafe fn copy_text(raw: memprof_str_t) -> String {
    // SAFETY: the caller promises readable bytes.
    String::from_utf8_lossy(unsafe { raw.as_bytes() }).into_owned()
}

/// Returns the messages of the plugin, with the usage and help of each. Leaves out null pointers.
///
/// # Safety
/// The entry's messages live as long as the process.
unsafe fn message_usages(entry: &memprof_plugin_entry_t) -> Vec<MessageUsage> {
    if entry.messages.is_null() {
        return Vec::new();
    }
    (0..entry.message_count)
        .filter_map(|index| {
            // SAFETY: memprof.h: `messages` points to `message_count` pointers, and `index` is less.
            let message = unsafe { entry.messages.add(index) };
            // SAFETY: memprof.h: each of the `message_count` pointers is initialized.
            let message = unsafe { message.read() };
            // SAFETY: memprof.h: each pointer is null or a message that lives as long as the process.
            let message = unsafe { message.as_ref() }?;
            // SAFETY: memprof.h: the message's texts live as long as the message.
            let copy = |text| unsafe { copy_text(text) };
            Some(MessageUsage {
                name: copy(message.name),
                usage: copy(message.usage),
                help: copy(message.help),
            })
        })
        .collect()
}

#[cfg(all(test, feature = "loader"))]
mod tests {
    use super::is_valid_name;

    #[test]
    fn name_rule_follows_the_contract() {
        let check = |name: &str, also: &[u8], expected| {
            assert_eq!(is_valid_name(name, also), expected, "{name:?}");
        };
        for name in ["memory_profile", "hello_c", "W", "a1", &"x".repeat(64)] {
            check(name, b"_", true);
        }
        for name in [
            "",
            "Bad Name",
            "a-b",
            "1a",
            "_a",
            "é",
            "a\n",
            &"x".repeat(65),
        ] {
            check(name, b"_", false);
        }
        check("dump-all.now", b"_-.", true);
        check("do it", b"_-.", false);
    }
}
