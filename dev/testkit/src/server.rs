//! What is known of a server before it is started.

mod running_server;

use std::ffi::OsString;
use std::process::Command;

use anyhow::Result;

use crate::server_dir::{ServerDir, User};
pub(crate) use running_server::PATIENCE;
pub use running_server::{ExitReport, RunningServer};

/// A server of Debian's.
#[derive(Clone, Copy, Debug)]
pub struct Server {
    /// Its name in what is printed.
    pub name: &'static str,
    /// The Debian packages that have it and its clients.
    pub packages: &'static [&'static str],
    /// Who runs it, where root starts it.
    pub user: User,
    /// Which of its processes is meant.
    pub profiled: ProfiledProcess,
    /// A part of the name of a function or file under which the load allocates.
    pub names: &'static str,
    /// Has it fork a child that serves until the server ends, where it forks any.
    pub(crate) forks: Option<fn(&mut RunningServer) -> Result<u32>>,
    /// Writes its config into the place, and returns how it is started in the foreground.
    pub(crate) command: fn(&ServerDir) -> Result<Command>,
    /// What a client is answered, the same at any time.
    pub(crate) answer: fn(&mut RunningServer) -> Result<String>,
    /// Allocates memory that stays until the next load, about 1 MiB or more.
    pub(crate) load: fn(&mut RunningServer) -> Result<()>,
}

/// Which process of a server is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProfiledProcess {
    /// The one that was started.
    Main,
    /// The first of its children whose command line, or name, has this text.
    Child(&'static str),
    /// The one that serves the session which the load and the answers go through.
    Session,
}

impl Server {
    /// Starts it, and waits until it answers.
    ///
    /// # Errors
    /// It is not installed, or ends, or does not answer in a minute.
    pub fn start(&self) -> Result<RunningServer> {
        self.start_under(&[])
    }

    /// The same under `wrapper`, a command that executes the server with the arguments that follow.
    ///
    /// # Errors
    /// As for [`Server::start`].
    pub fn start_under(&self, wrapper: &[OsString]) -> Result<RunningServer> {
        let place = ServerDir::new(self.user)?;
        let command = (self.command)(&place)?;
        running_server::start(*self, place, &command, wrapper)
    }
}
