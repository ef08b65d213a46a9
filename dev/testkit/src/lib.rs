//! Real servers for memprof's tests, as Debian ships them: started in the foreground in a directory
//! of their own, asked as a client asks, given work whose memory stays, and ended without a trace.
//!
//! [`SERVERS`] says of each what differs; [`Server::start`] and [`RunningServer`] do what all share. The
//! crate installs no Debian package: [`Server::packages`] tells whoever does.
//!
//! [`s3`] is a server that fails as it is told, [`seaweedfs`] a real one; [`tls`] makes certificates, and [`python`]
//! has packages of Python's index.

mod broker;
mod databases;
mod dns;
mod half_open;
mod ldap;
mod net_client;
mod processes;
mod psql_session;
pub mod python;
pub mod s3;
pub mod seaweedfs;
mod server;
mod server_dir;
pub mod tls;
mod web;

pub use server::{ExitReport, ProfiledProcess, RunningServer, Server};
pub use server_dir::{ServerDir, User};

/// The servers, those that are heavy to start last.
pub const SERVERS: &[Server] = &[
    databases::REDIS,
    databases::MEMCACHED,
    broker::MOSQUITTO,
    web::NGINX,
    web::HAPROXY,
    web::APACHE,
    web::VARNISH,
    web::PHP,
    web::PYTHON,
    web::RUBY,
    web::NODE,
    dns::NAMED,
    dns::KRESD,
    ldap::SLAPD,
    databases::POSTGRES_BACKEND,
    databases::POSTMASTER,
    web::JAVA,
    databases::MARIADB,
];
