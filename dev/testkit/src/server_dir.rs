//! Where a server lives: a directory, and a port on loopback.

use std::fs::{self, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use nix::unistd::geteuid;
use tempfile::TempDir;

/// uid and gid of `nobody` and `nogroup` (Debian policy, 9.2.2).
const NOBODY: u32 = 65534;

/// Who runs a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    /// Whoever starts it; many then change their user themselves.
    Starter,
    /// Nobody, where root starts it: it insists, or cannot drop privileges itself.
    Nobody,
}

/// A directory that goes with its server, and a port that nobody had.
#[derive(Debug)]
pub struct ServerDir {
    directory: TempDir,
    /// The port, on 127.0.0.1.
    pub port: u16,
    user: User,
}

impl ServerDir {
    pub(crate) fn new(user: User) -> Result<Self> {
        let directory = tempfile::tempdir().context("failed to make a directory")?;
        // The servers' own users write here too.
        fs::set_permissions(&directory, Permissions::from_mode(0o1777))?;
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let place = Self {
            directory,
            port,
            user,
        };
        place.give_to_server(place.path())?;
        Ok(place)
    }

    /// Absolute; it ends with this value.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The file of that name, as text.
    pub(crate) fn file(&self, name: &str) -> String {
        self.path().join(name).display().to_string()
    }

    /// Writes a file that the server can read.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.path().join(name);
        fs::write(&path, text).with_context(|| path.display().to_string())?;
        self.give_to_server(&path)?;
        Ok(path)
    }

    /// Makes a directory that the server can write to.
    pub(crate) fn directory(&self, name: &str) -> Result<String> {
        let path = self.path().join(name);
        fs::create_dir(&path).with_context(|| path.display().to_string())?;
        self.give_to_server(&path)?;
        Ok(path.display().to_string())
    }

    /// Who is to run the server, where that is not who starts it.
    fn server_uid(&self) -> Option<u32> {
        (self.user == User::Nobody && geteuid().is_root()).then_some(NOBODY)
    }

    /// Has a command run as whoever runs the server.
    pub(crate) fn run_as_server_user<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        match self.server_uid() {
            Some(uid) => command.uid(uid).gid(uid),
            None => command,
        }
    }

    fn give_to_server(&self, path: &Path) -> Result<()> {
        match self.server_uid() {
            Some(uid) => {
                chown(path, Some(uid), Some(uid)).with_context(|| path.display().to_string())
            }
            None => Ok(()),
        }
    }
}
