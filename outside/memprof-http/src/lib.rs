//! HTTP server for hosts that loaded `memory_profile`: a web page, a JSON API, and the endpoints that existing
//! scripts call. All routes are in one axum [`router()`], which `memprof serve` runs beside a host, and which a
//! Rust program can mount in its own server.
//!
//! Symbolizes and renders reports here, never in the plugin. To talk to a host without HTTP, see
//! `memprof_host::client`; to read a dump, `memprof_report`.

mod router;

mod access;
mod base_url;
mod headers;
mod token;
mod trusted_proxy;

mod host_client;
mod hosts;
mod in_process_host;
mod remote_host;

mod call_limiter;
mod chunked_body;
mod file_format;
mod gateway;
mod render_cache;
mod report;
mod report_parameters;
mod report_query;
mod request_arguments;
mod request_host;
mod shared_dump;

mod api;
mod compat;
mod machine;
mod metrics;
mod openapi;
mod page;
mod scrape_targets;

mod problem;

mod connection;
mod connections;
mod listen_address;
mod listen_options;
mod listener;
mod peer;
mod unix_socket;

pub use access::{Access, AccessRule};
pub use base_url::{BaseUrl, BaseUrlError};
pub use compat::Compat;
pub use file_format::{FileFormat, FormatSource};
pub use host_client::{DumpResponse, HostClient, HostUnavailable, PluginReply};
pub use hosts::Hosts;
pub use in_process_host::InProcessHost;
pub use listen_address::{ListenAddress, ListenAddressError};
pub use listen_options::{ListenError, ListenOptions};
pub use listener::{Listener, serve};
pub use machine::Machine;
pub use page::{shared_file_routes, whole_page};
pub use problem::Problem;
pub use remote_host::{HostSelector, RemoteHost};
pub use router::{RouterSettings, router, scrape_router, with_access};
pub use token::{Token, TokenError};
pub use trusted_proxy::{ProxyNetwork, ProxyNetworkError};
