//! The plugins of a process: those at its control sockets, of which a foreign program has one for each plugin, and
//! those without a socket.

use std::fs;
use std::mem::offset_of;

use anyhow::Context;
use memprof_host::client::{Client, ClientError, ReceivedBody};
use memprof_host::protocol::{PluginInfo, UNKNOWN_PLUGIN};
use memprof_host::{CONTROL_SOCKET_REMEDY, DiscoveryScope, discover_hosts};
use memprof_messages::PLUGIN;
use memprof_plugin_abi::raw::{MEMPROF_ABI_MAJOR, memprof_plugin_entry_t};
use memprof_ptrace::frame_memory::loaded_libraries;
use memprof_ptrace::library_image::LibraryImage;
use memprof_ptrace::memory::Memory;

use crate::exit::{USAGE, with_exit_code};
use crate::target;

/// Largest number of bytes of an id that is read; memprof.h allows 64.
const MAX_ID: u64 = 64;

/// Plugins of a process.
#[derive(Debug, Default)]
pub(crate) struct ProcessPlugins {
    /// Plugins of all control sockets.
    pub(crate) plugins: Vec<PluginInfo>,
    /// Number of control sockets.
    sockets: usize,
    /// Ids of loaded plugins that no socket has. Empty if this user may not read the process's memory.
    pub(crate) without_socket: Vec<String>,
}

/// Returns the plugins of the host that `target` names, at all its control sockets; if `target` is `None`, of the only
/// running host. If `target` is a socket's path, returns only the plugins at that socket.
pub(crate) fn list_plugins(target: Option<&str>) -> anyhow::Result<ProcessPlugins> {
    if let Some(path) = target.and_then(target::socket_path) {
        let client = Client::connect(&path).with_context(|| path.display().to_string());
        return Ok(ProcessPlugins {
            plugins: client?.plugins()?,
            sockets: 1,
            ..ProcessPlugins::default()
        });
    }
    let host = target::find_host(target, PLUGIN)?;
    Ok(plugins_of_process(host.pid)?)
}

/// Requests the plugins at each control socket of a process, and reads the ids of plugins without a socket from its
/// memory. Fails if a socket does not reply.
fn plugins_of_process(pid: u32) -> Result<ProcessPlugins, ClientError> {
    let found = discover_hosts(DiscoveryScope::Process(pid), Client::plugins);
    let sockets = found.hosts.len();
    let mut plugins = Vec::new();
    for (_, listed) in found.hosts {
        plugins.extend(listed?);
    }
    let mut without_socket = loaded_plugin_ids(pid);
    without_socket.retain(|id| !plugins.iter().any(|plugin| plugin.id == *id));
    Ok(ProcessPlugins {
        plugins,
        sockets,
        without_socket,
    })
}

/// Reads the ids of all plugins in a process, sorted, from the symbol `memprof_plugin_entry` of its libraries. Empty if
/// this user may not read the process's memory.
fn loaded_plugin_ids(pid: u32) -> Vec<String> {
    let maps = fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    let Ok(memory) = Memory::open_by_child(pid) else {
        return Vec::new();
    };
    let libraries = loaded_libraries(&memory, &maps).unwrap_or_default();
    let ids = libraries.into_iter().filter_map(|base| {
        let image = LibraryImage::read(&memory, base).ok()?;
        read_plugin_id(&memory, image.symbol_address("memprof_plugin_entry")?)
    });
    let mut ids: Vec<_> = ids.collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// Reads the id of the plugin whose `memprof_plugin_entry` is at the address `entry`. `None` if the id cannot be read
/// or is invalid (longer than 64 bytes, or with other characters than ASCII letters, digits and `_`), or if the plugin
/// has another major version of the ABI.
fn read_plugin_id(memory: &Memory, entry: u64) -> Option<String> {
    let version = entry.checked_add(offset_of!(memprof_plugin_entry_t, abi_version) as u64)?;
    let version = u32::from_ne_bytes(memory.read_array(version).ok()?);
    // The major version is in the upper 16 bits.
    if version >> 16 != MEMPROF_ABI_MAJOR {
        return None;
    }
    let id = entry.checked_add(offset_of!(memprof_plugin_entry_t, id) as u64)?;
    // `memprof_str_t`: the address, and the length.
    let (address, length) = (memory.read_u64(id).ok()?, memory.read_u64(id + 8).ok()?);
    let mut bytes = vec![0; usize::try_from(length).ok().filter(|_| length <= MAX_ID)?];
    memory.read(address, &mut bytes).ok()?;
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    String::from_utf8(bytes)
        .ok()
        .filter(|id| id.as_bytes().iter().all(is_plain))
}

/// Returns the text, with a remedy, about a plugin that is loaded but has no control socket.
pub(crate) fn plugin_without_socket_text(id: &str) -> String {
    format!("the process has the plugin {id}, but no control socket of it: {CONTROL_SOCKET_REMEDY}")
}

/// Sends a message to a plugin and waits for its reply. If the host has no such plugin, the error lists the plugins at
/// all sockets of the process, or says that this plugin has no socket.
pub(crate) fn send_to_plugin(
    client: &mut Client,
    plugin: &str,
    message: &str,
    args: &str,
) -> anyhow::Result<ReceivedBody> {
    match client.message(plugin, message, args, None) {
        Err(ClientError::Refused {
            code: UNKNOWN_PLUGIN,
            message,
        }) => {
            let found = target::host_pid(client).ok();
            let found = found.and_then(|pid| plugins_of_process(pid).ok());
            let text = unknown_plugin_text(plugin, message, &found.unwrap_or_default());
            Err(with_exit_code(USAGE, text))
        }
        sent => Ok(sent?),
    }
}

/// Returns the error text for a plugin that the host does not have. `message` is the host's own text, which knows only
/// the plugins of one socket; `found` are the plugins of the process.
fn unknown_plugin_text(plugin: &str, message: String, found: &ProcessPlugins) -> String {
    if found.without_socket.iter().any(|id| id == plugin) {
        return plugin_without_socket_text(plugin);
    }
    let is_known = found.plugins.iter().any(|info| info.id == plugin);
    if found.sockets < 2 || is_known {
        return message;
    }
    let describe = |info: &PluginInfo| match info.error {
        Some(_) => format!("{} (refused)", info.id),
        None => info.id.clone(),
    };
    let known: Vec<_> = found.plugins.iter().map(describe).collect();
    format!(
        "no such plugin: {plugin:?}; this process has {}",
        known.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_plugin_error_covers_all_sockets() {
        let plugin = |id: &str, error: Option<&str>| PluginInfo {
            id: id.to_owned(),
            error: error.map(str::to_owned),
            ..PluginInfo::default()
        };
        let found = |sockets| ProcessPlugins {
            plugins: vec![plugin("greeter", None), plugin("words", Some("gone"))],
            sockets,
            without_socket: vec!["tally".to_owned()],
        };
        let check = |name: &str, sockets, expected: &str| {
            let text = unknown_plugin_text(name, "of the host".to_owned(), &found(sockets));
            assert_eq!(text, expected);
        };
        let hint = plugin_without_socket_text("tally");
        check("tally", 1, &hint);
        check("tally", 2, &hint);
        check("nope", 1, "of the host");
        check("words", 2, "of the host");
        let all = "no such plugin: \"nope\"; this process has greeter, words (refused)";
        check("nope", 2, all);
    }
}
