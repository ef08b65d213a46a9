//! A `memprof serve`, ended when dropped.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

use testkit::processes::status_number;

use crate::curl::as_user;
use crate::dist::dist;
use crate::host::Host;

#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    /// Its address without a token; ends with a slash.
    pub(crate) address: String,
    /// The address as it printed it.
    pub(crate) printed: String,
}

impl Server {
    /// Serves this host alone, whatever else runs on the machine.
    pub(crate) fn of(host: &Host, args: &[&str]) -> Self {
        let socket = host.socket();
        let target = ["-t", socket.to_str().unwrap()];
        Self::start(&host.socket_dir(), &[&target, args].concat())
    }

    /// Serves the hosts whose sockets lie in `sockets`, and others that run.
    pub(crate) fn start(sockets: &Path, args: &[&str]) -> Self {
        Self::start_with(sockets, args, &[])
    }

    /// Like [`start`](Self::start), with an environment.
    pub(crate) fn start_with(sockets: &Path, args: &[&str], env: &[(&str, &str)]) -> Self {
        let args = [&["--listen", "127.0.0.1:0"], args].concat();
        Self::spawn(sockets, &args, env)
    }

    /// Serves a host at a Unix socket.
    pub(crate) fn at(host: &Host, path: &str) -> Self {
        let socket = host.socket();
        let args = ["--socket", path, "-t", socket.to_str().unwrap()];
        Self::spawn(&host.socket_dir(), &args, &[])
    }

    /// Serves as another user, from a copy of the program that this user can execute.
    pub(crate) fn run_by(uid: u32, program: &Path, sockets: &Path) -> Self {
        let mut command = as_user(uid, program);
        command.args(["serve", "--listen", "127.0.0.1:0"]);
        Self::wait_for(command.env("MEMPROF_SOCKET_DIR", sockets))
    }

    /// An agent that serves scrapers as its configuration says.
    pub(crate) fn agent(sockets: &Path, config: &Path) -> Self {
        let mut command = Command::new(dist("bin/memprof"));
        command.args(["agent", "--config"]).arg(config);
        Self::wait_for(command.env("MEMPROF_SOCKET_DIR", sockets))
    }

    fn spawn(sockets: &Path, args: &[&str], env: &[(&str, &str)]) -> Self {
        let mut command = Command::new(dist("bin/memprof"));
        command
            .arg("serve")
            .args(args)
            .env("MEMPROF_SOCKET_DIR", sockets)
            .envs(env.iter().copied());
        Self::wait_for(&mut command)
    }

    fn wait_for(command: &mut Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut notes = BufReader::new(child.stderr.take().unwrap()).lines();
        let printed = notes
            .by_ref()
            .map_while(Result::ok)
            .find_map(|line| Some(line.split_once("serving ")?.1.to_owned()));
        let printed = printed.expect("memprof serve tells its address");
        let address = match printed.split_once("/t/") {
            Some((address, _)) => format!("{address}/"),
            None => printed.clone(),
        };
        // It must not meet a closed pipe.
        thread::spawn(move || notes.map_while(Result::ok).for_each(drop));
        Self {
            child,
            address,
            printed,
        }
    }
}

impl Server {
    pub(crate) fn anonymous_kib(&self) -> u64 {
        status_number(self.child.id(), "RssAnon:").unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}
