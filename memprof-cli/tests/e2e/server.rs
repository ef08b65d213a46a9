//! A `memprof serve`, ended when dropped.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

use crate::dist::dist;

/// A running server.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    /// Its address, which ends in a slash.
    pub(crate) address: String,
}

impl Server {
    /// Serves the hosts whose sockets lie in `sockets`.
    pub(crate) fn start(sockets: &Path, args: &[&str]) -> Self {
        Self::start_with(sockets, args, &[])
    }

    /// The same with an environment.
    pub(crate) fn start_with(sockets: &Path, args: &[&str], env: &[(&str, &str)]) -> Self {
        let args = [&["--listen", "127.0.0.1:0"], args].concat();
        Self::spawn(sockets, &args, env)
    }

    /// One on a Unix socket.
    pub(crate) fn at(sockets: &Path, path: &str) -> Self {
        Self::spawn(sockets, &["--socket", path], &[])
    }

    fn spawn(sockets: &Path, args: &[&str], env: &[(&str, &str)]) -> Self {
        let mut child = Command::new(dist("bin/memprof"))
            .arg("serve")
            .args(args)
            .env("MEMPROF_SOCKET_DIR", sockets)
            .envs(env.iter().copied())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut notes = BufReader::new(child.stderr.take().unwrap()).lines();
        let address = notes
            .by_ref()
            .map_while(Result::ok)
            .find_map(|line| Some(line.split_once("serving ")?.1.to_owned()));
        // It must not meet a closed pipe.
        thread::spawn(move || notes.map_while(Result::ok).for_each(drop));
        Self {
            child,
            address: address.expect("memprof serve tells its address"),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}
