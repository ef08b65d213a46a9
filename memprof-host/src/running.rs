//! The hosts that are running, found by their control sockets.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::client::{Client, ClientError};
use crate::protocol::HostInfo;
use crate::socket_dir;

/// A host that is busy with a dump still answers who it is at once.
const INTRODUCTION: Duration = Duration::from_secs(2);

/// A host that answered.
#[derive(Clone, Debug)]
pub struct Running {
    /// Its control socket.
    pub socket: PathBuf,
    /// Who it is.
    pub info: HostInfo,
}

impl Running {
    /// Whether `target` means this host: its pid, its name, or its program's file name.
    pub fn is_called(&self, target: &str) -> bool {
        let info = &self.info;
        let program = info.command.split(' ').next().unwrap_or_default();
        let file_name = program.rsplit('/').next().unwrap_or_default();
        info.pid.to_string() == target || info.name == target || file_name == target
    }
}

/// The hosts that answer this user, by pid.
///
/// # Errors
/// A directory of sockets cannot be read.
pub fn running() -> io::Result<Vec<Running>> {
    let uid = rustix::process::geteuid().as_raw();
    let mut hosts: Vec<Running> = Vec::new();
    for directory in socket_dir::all_dirs(uid, |name| std::env::var_os(name)) {
        let sockets = socket_dir::sockets(&directory).map_err(|error| {
            let message = format!("failed to read {}: {error}", directory.display());
            io::Error::new(error.kind(), message)
        })?;
        for socket in sockets {
            // What does not answer is left over, or somebody else's.
            let Ok(info) = introduce(&socket) else {
                continue;
            };
            if !hosts.iter().any(|known| known.info.pid == info.pid) {
                let socket = socket.canonicalize().unwrap_or(socket);
                hosts.push(Running { socket, info });
            }
        }
    }
    hosts.sort_by_key(|host| host.info.pid);
    Ok(hosts)
}

fn introduce(socket: &Path) -> Result<HostInfo, ClientError> {
    let mut client = Client::connect(socket)?;
    client.set_timeout(INTRODUCTION)?;
    client.host()
}
