//! The contract between a host process and the plugins that it loads, and the SDK for plugin authors.
//!
//! - [`raw`] contains the C structs, which are the ABI. A plugin in C or C++ includes `include/memprof.h`,
//!   which is generated from that module.
//! - A plugin in Rust implements [`Plugin`] and calls [`export_plugin!`]. The SDK catches panics, forwards
//!   log lines and rejects malformed messages.
//!
//! To load plugins rather than write one, see the crate `memprof-host`.
//!
//! ```
//! use memprof_plugin_abi::{Arguments, Failure, Host, Message, Plugin, Reply, export_plugin};
//!
//! struct Greeter;
//!
//! impl Plugin for Greeter {
//!     const ID: &'static str = "greeter";
//!     const VERSION: &'static str = env!("CARGO_PKG_VERSION");
//!     const MESSAGES: &'static [Message] = &[Message::new("hello", "[name=NAME]", "Greets.")];
//!
//!     fn create(_host: Host, _config: &str) -> Result<Self, Failure> {
//!         Ok(Self)
//!     }
//!
//!     fn handle_message(&self, _: &str, mut args: Arguments, reply: &mut Reply) -> Result<(), Failure> {
//!         let name = args.take("name").unwrap_or_else(|| "world".into());
//!         args.finish()?;
//!         log::info!("greeting {name}");
//!         reply.text(&format!("hello, {name}"))
//!     }
//! }
//!
//! export_plugin!(Greeter);
//! # fn main() {}
//! ```
//!
//! # The contract
//!
#![doc = include_str!("../CONTRACT.md")]

mod arguments;
mod boundary;
mod error_kind;
mod failure;
mod host;
mod host_log;
#[cfg(feature = "stable-abi")]
pub mod layout;
mod plugin;
pub mod raw;
mod reply;
mod stay_loaded;
mod text;

pub use arguments::Arguments;
pub use error_kind::ErrorKind;
pub use failure::Failure;
pub use host::Host;
pub use plugin::{Message, Plugin};
pub use raw::memprof_status_t as Status;
pub use reply::{COPY_LIMIT, JSON, Reply, TEXT};
pub use text::{Utf8, escape_controls};

#[cfg(feature = "stable-abi")]
#[doc(hidden)]
pub use abi_stable;
#[doc(hidden)]
pub use boundary::{BUILD_INFO, MessagePointers, create_entry};
#[doc(hidden)]
pub use stay_loaded::stay_loaded;
