//! Client of the host in this process.

use std::process;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use memprof_host::client::PassedFile;
use memprof_host::protocol::HostInfo;
use memprof_host::{Body, Host};
use memprof_messages::PLUGIN;

use crate::host_client::{DumpResponse, HostClient, HostUnavailable, PluginReply, no_dump_error};

/// The host in this process, which serves HTTP itself.
#[derive(Debug)]
pub struct InProcessHost {
    host: Arc<Host>,
    info: HostInfo,
}

impl InProcessHost {
    /// Creates the client of `host`; `name` and `version` are the program's. Records this process's id and command
    /// line, and the current time as the host's start.
    pub fn new(host: Arc<Host>, name: &str, version: &str) -> Self {
        let command: Vec<_> = std::env::args_os()
            .map(|arg| arg.to_string_lossy().into_owned())
            .collect();
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            host,
            info: HostInfo {
                pid: process::id(),
                name: name.to_owned(),
                command: command.join(" "),
                version: version.to_owned(),
                started: since.map_or(0, |since| since.as_secs()),
            },
        }
    }
}

impl HostClient for InProcessHost {
    fn host_info(&self) -> Result<HostInfo, HostUnavailable> {
        Ok(self.info.clone())
    }

    fn visible_pid(&self) -> Result<Option<u32>, HostUnavailable> {
        Ok(Some(self.info.pid))
    }

    fn send_message(&self, name: &str, args: &str) -> Result<PluginReply, HostUnavailable> {
        let reply = self.host.message(PLUGIN, name, args);
        let reply = reply.map_err(|error| HostUnavailable(error.to_string()))?;
        Ok(PluginReply {
            status: reply.status_code,
            body: reply.body.into_bytes()?,
        })
    }

    fn request_dump(&self, name: &str, args: &str) -> Result<DumpResponse, HostUnavailable> {
        let reply = self.host.message(PLUGIN, name, args);
        let reply = reply.map_err(|error| HostUnavailable(error.to_string()))?;
        match reply.body {
            Body::File(file, length) if reply.status_code == 0 => Ok(DumpResponse::File {
                content_type: reply.content_type.into_owned(),
                file: PassedFile::new(file, length)?,
            }),
            _ if reply.status_code == 0 => Err(no_dump_error()),
            body => Ok(DumpResponse::Refused(PluginReply {
                status: reply.status_code,
                body: body.into_bytes()?,
            })),
        }
    }
}
