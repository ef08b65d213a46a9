//! HTTP over hosts that loaded `memory_profile`: the page, an API of JSON, and the endpoints that
//! existing scripts call. One axum [`router()`], which `memprof serve` puts beside a host, and which
//! a Rust program may mount in a server of its own.
//!
//! Symbols and reports are made here, never in the plugin. To talk to a host without HTTP, see
//! `memprof_host::client`; to read a dump, `memprof_report`.

mod router;

mod access;
mod headers;
mod token;

mod hosts;
mod in_process;
mod remote;
mod target;

mod calls;
mod chunks;
mod dumping;
mod extractor;
mod file_format;
mod gateway;
mod renders;
mod report;

mod api;
mod compat;
mod discovery;
mod metrics;
mod openapi;
mod page;

mod problem;

mod clients;
mod connection;
mod listener;
mod peer;
mod place;
mod unix_socket;

pub use access::{Access, Admits};
pub use compat::Compat;
pub use file_format::{FileFormat, Made};
pub use hosts::Hosts;
pub use in_process::InProcess;
pub use listener::{Listener, serve};
pub use page::{shared_files, whole_page};
pub use place::{Place, PlaceError};
pub use problem::Problem;
pub use remote::{Remote, Wanted};
pub use router::{Settings, guarded, router, scraped};
pub use target::{Answer, Dumped, Gone, Target};
pub use token::{Token, TokenError};
