//! Directory and port of a server.

use std::fs::{self, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use nix::unistd::geteuid;
use tempfile::TempDir;

/// User and group id without any rights (Debian policy, section 9.2.2).
const UNPRIVILEGED_ID: u32 = 65534;

/// User that a server runs as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    /// The user that starts it; many servers then change their user themselves.
    Starter,
    /// An unprivileged user if root starts it, because the server refuses to run as root or cannot drop privileges
    /// itself.
    Unprivileged,
}

/// Temporary directory of a server, deleted on drop, and a port that was free.
#[derive(Debug)]
pub struct ServerDir {
    temp_dir: TempDir,
    /// The port, on 127.0.0.1.
    pub port: u16,
    user: User,
}

impl ServerDir {
    /// Creates a temporary directory in which the server's user may write, and picks a free port.
    pub(crate) fn new(user: User) -> Result<Self> {
        let temp_dir = tempfile::tempdir().context("failed to create a directory")?;
        // Servers that change their user write here too.
        fs::set_permissions(&temp_dir, Permissions::from_mode(0o1777))?;
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let dir = Self {
            temp_dir,
            port,
            user,
        };
        dir.chown_to_server(dir.path())?;
        Ok(dir)
    }

    /// Returns the absolute path of the directory, which is removed when this value is dropped.
    pub fn path(&self) -> &Path {
        self.temp_dir.path()
    }

    /// Returns the absolute path of a file in the directory, which need not exist.
    pub(crate) fn file_path(&self, name: &str) -> String {
        self.path().join(name).display().to_string()
    }

    /// Writes a file that belongs to the server's user, and returns its path.
    pub(crate) fn write_file(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.path().join(name);
        fs::write(&path, text).with_context(|| path.display().to_string())?;
        self.chown_to_server(&path)?;
        Ok(path)
    }

    /// Creates a subdirectory that the server can write to, and returns its absolute path.
    pub(crate) fn create_subdir(&self, name: &str) -> Result<String> {
        let path = self.path().join(name);
        fs::create_dir(&path).with_context(|| path.display().to_string())?;
        self.chown_to_server(&path)?;
        Ok(path.display().to_string())
    }

    /// Returns the user id for the server; `None` if it runs as the user that starts it.
    fn server_uid(&self) -> Option<u32> {
        (self.user == User::Unprivileged && geteuid().is_root()).then_some(UNPRIVILEGED_ID)
    }

    /// Sets the command's user and group to those of the server. Does nothing if that is the user of this process.
    pub(crate) fn run_as_server_user<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        match self.server_uid() {
            Some(uid) => command.uid(uid).gid(uid),
            None => command,
        }
    }

    /// Changes the owner of a path to the server's user. Does nothing if the server runs as the user of this process.
    fn chown_to_server(&self, path: &Path) -> Result<()> {
        match self.server_uid() {
            Some(uid) => {
                chown(path, Some(uid), Some(uid)).with_context(|| path.display().to_string())
            }
            None => Ok(()),
        }
    }
}
