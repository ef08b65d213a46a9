//! The host's side of memprof: loads plugins, routes messages to them, and serves the control socket through which
//! `memprof` reaches a host.
//!
//! ```no_run
//! use memprof_host::{Config, Host, HostProgram};
//!
//! let config = Config::read("host.toml".as_ref())?;
//! let host = Host::start(&config, HostProgram::new("my-server", "1.0"))?;
//! let reply = host.message("memory_profile", "status", "")?;
//! println!("{}", reply.body.into_text());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`adapters`] turn programs that were not built for memprof into hosts.
//!
//! To write a plugin, see `memprof-plugin-abi`. To embed a host in C or C++, see
//! `memprof-host-c`.

#[cfg(feature = "adapters")]
pub mod adapters;
mod body;
#[cfg(feature = "client")]
pub mod client;
#[cfg(feature = "loader")]
mod config;
mod config_source;
#[cfg(feature = "control")]
mod control;
#[cfg(feature = "loader")]
mod dependencies;
#[cfg(feature = "client")]
mod discovery;
#[cfg(feature = "loader")]
mod elf;
#[cfg(feature = "loader")]
mod file_trust;
#[cfg(all(feature = "loader", feature = "control"))]
mod host;
mod instance;
#[cfg(feature = "loader")]
mod loader;
mod log_line;
#[cfg(feature = "loader")]
mod mapped_files;
mod program;
pub mod protocol;
mod reply;
mod router;
#[cfg(any(feature = "adapters", feature = "loader"))]
mod secure_execution;
pub mod socket_dir;

pub use body::Body;
#[cfg(feature = "loader")]
pub use config::{Config, ConfigError, ControlConfig, LogConfig, PluginConfig};
#[cfg(feature = "control")]
pub use control::{ControlError, ControlSocket, ListenConfig};
#[cfg(feature = "client")]
pub use discovery::{
    CONTROL_SOCKET_REMEDY, Discovery, DiscoveryScope, RunningHost, UnreachableHost, discover_hosts,
    discover_hosts_within, find_host_by_pid, running_hosts,
};
#[cfg(all(feature = "loader", feature = "control"))]
pub use host::Host;
pub use instance::Instance;
#[cfg(feature = "loader")]
pub use loader::{check, load};
pub use log_line::one_line;
pub use program::HostProgram;
pub use reply::Reply;
pub use router::{Router, UnknownPlugin};
