//! Description of a server: how to start, query and load it.

mod running_server;

use std::ffi::OsString;
use std::process::Command;

use anyhow::Result;

use crate::server_dir::{ServerDir, User};
pub(crate) use running_server::SERVER_TIMEOUT;
pub use running_server::{ExitReport, RunningServer};

/// A server from Debian's packages.
#[derive(Clone, Copy, Debug)]
pub struct Server {
    /// Name in messages.
    pub name: &'static str,
    /// Debian packages with the server and its clients.
    pub packages: &'static [&'static str],
    /// User that the server runs as if root starts it.
    pub user: User,
    /// The process that tests profile.
    pub profiled: ProfiledProcess,
    /// Part of the name of a function or file in the stacks of the load's allocations.
    pub load_symbol: &'static str,
    /// Makes the server fork a child that serves until the server exits, and returns its pid; `None` if the server
    /// forks none.
    pub(crate) fork: Option<fn(&mut RunningServer) -> Result<u32>>,
    /// Writes the configuration into the directory, and returns the command that runs the server in the foreground.
    pub(crate) command: fn(&ServerDir) -> Result<Command>,
    /// Sends a client's request and returns the reply, which does not change with time or load.
    pub(crate) query: fn(&mut RunningServer) -> Result<String>,
    /// Makes the server allocate about 1 MiB or more, which it keeps until the next load.
    pub(crate) load: fn(&mut RunningServer) -> Result<()>,
}

/// The process of a server that tests profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProfiledProcess {
    /// The process that was started.
    Main,
    /// The first descendant whose command line or name contains this text.
    Child(&'static str),
    /// The backend of the session that queries and loads use.
    Session,
}

impl Server {
    /// Starts the server and waits until it replies.
    ///
    /// # Errors
    /// The server is not installed, exits, or does not reply within a minute.
    pub fn start(&self) -> Result<RunningServer> {
        self.start_under(&[])
    }

    /// Like [`start`](Self::start), but executes `wrapper` with the server's command as its last arguments.
    ///
    /// # Errors
    /// Those of [`start`](Self::start).
    pub fn start_under(&self, wrapper: &[OsString]) -> Result<RunningServer> {
        let dir = ServerDir::new(self.user)?;
        let command = (self.command)(&dir)?;
        running_server::start_server(*self, dir, &command, wrapper)
    }
}
