//! A complete host: its plugins and its control socket.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use memprof_plugin_abi::Failure;

use crate::config::{Config, ControlConfig, PluginConfig};
use crate::control::{ControlSocket, ListenConfig};
use crate::instance::duplicate_id_error;
use crate::loader::load_plugin_with_check;
use crate::log_line::one_line;
use crate::program::HostProgram;
use crate::protocol::PluginInfo;
use crate::reply::Reply;
use crate::router::{Router, UnknownPlugin};

/// A running host. Dropping it closes the control socket and destroys the plugins.
#[derive(Debug)]
pub struct Host {
    control: Option<ControlSocket>,
    router: Arc<Router>,
}

/// The error of a `[control] socket` that is neither a switch nor an absolute path.
#[derive(Debug, thiserror::Error)]
#[error("invalid [control] socket {0:?}: expected on, off or an absolute path")]
pub struct InvalidSocketError(String);

impl Host {
    /// Loads the plugins that `config` names, and opens the control socket. A plugin that cannot be loaded, or a socket
    /// that cannot be opened, is logged as an error; the host starts all the same.
    ///
    /// # Errors
    /// `[control] socket` is neither a switch nor an absolute path.
    pub fn start(config: &Config, mut program: HostProgram) -> Result<Self, InvalidSocketError> {
        let socket = parse_socket_path(&config.control)?;
        if let Some(name) = &config.control.name {
            // Plugins borrow the name until the process ends.
            program.name = Box::leak(name.clone().into_boxed_str());
        }
        let mut router = Router::default();
        for plugin in &config.plugin {
            add_plugin(&mut router, plugin, program);
        }
        let router = Arc::new(router);
        let control = socket.and_then(|path| {
            let listen = ListenConfig {
                path,
                name: program.name.to_owned(),
                version: program.version.to_owned(),
                allow_uids: config.control.allow_uids.clone(),
                // The host has chosen its plugins, and they may need the capabilities that the host's threads have.
                keeps_capabilities: true,
            };
            ControlSocket::open(listen, Arc::clone(&router))
                .inspect_err(|error| log::error!("{error}; memprof cannot reach this host"))
                .inspect(|socket| log::info!("control socket {}", socket.path().display()))
                .ok()
        });
        Ok(Self { control, router })
    }

    /// Sends a message to the plugin called `plugin`, and waits for its reply.
    ///
    /// # Errors
    /// The config names no such plugin.
    pub fn message(&self, plugin: &str, name: &str, args: &str) -> Result<Reply, UnknownPlugin> {
        self.router.message(plugin, name, args)
    }

    /// Returns the path of the control socket. `None` if there is none.
    pub fn socket_path(&self) -> Option<&Path> {
        self.control.as_ref().map(ControlSocket::path)
    }
}

/// Loads a plugin and adds it to the router, or adds the reason for its failure. The entry has the plugin's id, or the
/// file's name if loading failed before the id was known. Logs the result.
fn add_plugin(router: &mut Router, config: &PluginConfig, program: HostProgram) {
    let mut info = PluginInfo {
        id: config.provisional_id(),
        ..PluginInfo::default()
    };
    let plugin = load_plugin_with_check(config, program, |known| {
        info = known.clone();
        check_unique_id(router, &known.id, &config.path)
    });
    info.path = config.path.display().to_string();
    match &plugin {
        Ok(_) => log::info!("plugin {} {} loaded", info.id, info.version),
        Err(failure) => log::error!("plugin refused: {}", one_line(&failure.to_string())),
    }
    router.add(info, plugin);
}

/// Fails if the router has a running plugin with this id. The error names both files; `path` is the one to be loaded.
fn check_unique_id(router: &Router, id: &str, path: &Path) -> Result<(), Failure> {
    let Some(loaded) = router.path_of_plugin(id) else {
        return Ok(());
    };
    Err(duplicate_id_error(id, &path.display().to_string(), loaded))
}

/// Parses `[control] socket`: `on`, `off` or an absolute path. Fails for other values. `None`: no socket; `Some(None)`:
/// a socket at the default path.
fn parse_socket_path(
    config: &ControlConfig,
) -> Result<Option<Option<PathBuf>>, InvalidSocketError> {
    match config.socket.as_deref() {
        None | Some("on") => Ok(Some(None)),
        Some("off") => Ok(None),
        Some(path) if path.starts_with('/') => Ok(Some(Some(PathBuf::from(path)))),
        Some(other) => Err(InvalidSocketError(other.to_owned())),
    }
}
