//! A host in another process, over its control socket.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use memprof_host::client::{Client, ClientError, Delivered};
use memprof_host::protocol::{Deliver, HostInfo};
use memprof_host::running;
use memprof_messages::PLUGIN;

use crate::target::{Answer, Fetched, Gone, Target};

/// Which host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The one behind this control socket.
    Socket(PathBuf),
    /// The one of this pid, name or program: a host that starts again is found again.
    Called(String),
}

/// A host that is connected to for each message, so that it may end and come back.
#[derive(Debug)]
pub struct Remote {
    wanted: Wanted,
    /// Where it was found last.
    last: Mutex<Option<PathBuf>>,
}

impl Remote {
    /// A host, which need not run yet.
    pub fn new(wanted: Wanted) -> Self {
        Self {
            wanted,
            last: Mutex::default(),
        }
    }

    fn connect(&self) -> Result<Client, Gone> {
        let name = match &self.wanted {
            Wanted::Socket(socket) => return connect(socket),
            Wanted::Called(name) => name,
        };
        let last = self.last().clone();
        if let Some(Ok(client)) = last.map(|socket| connect(&socket)) {
            return Ok(client);
        }
        let mut hosts = running();
        hosts.retain(|host| host.is_called(name));
        match hosts.as_slice() {
            [host] => {
                *self.last() = Some(host.socket.clone());
                connect(&host.socket)
            }
            [] => Err(Gone(format!("no host is called {name:?}"))),
            _ => Err(Gone(format!("several hosts are called {name:?}"))),
        }
    }

    fn last(&self) -> MutexGuard<'_, Option<PathBuf>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, name: &str, args: &str) -> Result<Delivered, Gone> {
        let mut client = self.connect()?;
        let reply = client.message(PLUGIN, name, args, Some(Deliver::Fd));
        reply.map_err(gone)
    }
}

impl Target for Remote {
    fn host(&self) -> Result<HostInfo, Gone> {
        self.connect()?.host().map_err(gone)
    }

    fn message(&self, name: &str, args: &str) -> Result<Answer, Gone> {
        answer(self.send(name, args)?)
    }

    fn fetch(&self, id: &str) -> Result<Fetched, Gone> {
        let mut reply = self.send("fetch", &format!("id={id}"))?;
        if reply.result.status_code != 0 {
            return Ok(Fetched::Refused(answer(reply)?));
        }
        let file = reply.file.take();
        let file = file.ok_or_else(|| Gone("it passed no dump".to_owned()))?;
        Ok(Fetched::Dump {
            content_type: reply.result.content_type,
            body: Box::new(file),
        })
    }
}

fn connect(socket: &Path) -> Result<Client, Gone> {
    Client::connect(socket).map_err(|error| Gone(format!("{}: {error}", socket.display())))
}

fn answer(reply: Delivered) -> Result<Answer, Gone> {
    Ok(Answer {
        status: reply.result.status_code,
        body: reply.into_bytes()?,
    })
}

fn gone(error: ClientError) -> Gone {
    Gone(error.to_string())
}
