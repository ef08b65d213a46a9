//! Real servers for memprof's tests, as Debian ships them: started in the foreground in a directory
//! of their own, asked as a client asks, given work whose memory stays, and ended without a trace.
//!
//! [`SERVERS`] says of each what differs; [`Server::start`] and [`Running`] do what all share. The
//! crate installs no Debian package: [`Server::packages`] tells whoever does.
//!
//! [`s3`] is a server that fails as it is told, [`seaweedfs`] a real one; [`tls`] makes certificates, and [`python`]
//! has packages of Python's index.

mod broker;
mod databases;
mod directory;
mod held;
mod names;
mod place;
mod processes;
pub mod python;
pub mod s3;
pub mod seaweedfs;
mod server;
mod session;
mod talk;
pub mod tls;
mod web;

pub use place::{Place, User};
pub use server::{Ending, Profiled, Running, Server};

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
    names::NAMED,
    names::KRESD,
    directory::SLAPD,
    databases::POSTGRES_BACKEND,
    databases::POSTMASTER,
    web::JAVA,
    databases::MARIADB,
];
