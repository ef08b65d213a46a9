//! Servers of Debian's packages for memprof's tests: each runs in the foreground in a temporary directory, is
//! queried as a client would, gets a load that makes it allocate, and leaves nothing when it is terminated.
//!
//! [`SERVERS`] has what differs between them; [`Server::start`] and [`RunningServer`] have what they share. The
//! crate installs no Debian package: [`Server::packages`] lists those that a server needs.
//!
//! [`s3`] is an object store that fails on request, [`seaweedfs`] a real one; [`tls`] creates certificates, and
//! [`python`] installs packages from Python's index, and [`node`] unpacks those of npm's registry. [`LineReader`] reads
//! a process's output without waiting for one that hangs.

mod broker;
mod databases;
mod dns;
mod half_open;
mod ldap;
mod line_reader;
mod net_client;
pub mod node;
pub mod planted;
mod polling;
pub mod processes;
mod psql_session;
pub mod python;
mod random;
mod run;
pub mod s3;
pub mod seaweedfs;
mod server;
mod server_dir;
pub mod tls;
mod web;

pub use line_reader::LineReader;
pub use polling::pause;
pub use random::Random;
pub use run::{Run, limit_time};
pub use server::{ExitReport, ProfiledProcess, RunningServer, Server};
pub use server_dir::{ServerDir, User};

/// All servers; those that start slowly come last.
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
