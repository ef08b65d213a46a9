//! A host in another process, over its control socket.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use memprof_host::client::{Client, ClientError, ReceivedBody};
use memprof_host::protocol::{Delivery, HostInfo};
use memprof_host::running_hosts;
use memprof_messages::{Effect, PLUGIN, message};

use crate::host_client::{DumpResponse, HostClient, HostUnavailable, PluginReply, no_dump};

/// How long a connection is kept for the next message. The host closes it after a second of silence.
const KEPT: Duration = Duration::from_millis(500);

/// Which host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostSelector {
    /// The one behind this control socket.
    Socket(PathBuf),
    /// The one of this pid, name or program: a host that starts again is found again.
    Named(String),
}

/// A host that is connected to for each request, so that it may end and come back.
#[derive(Debug)]
pub struct RemoteHost {
    wanted: HostSelector,
    /// Where it was found last.
    last: Mutex<Option<PathBuf>>,
    /// What the message before came over: most requests have several.
    idle: Mutex<Option<(Client, Instant)>>,
}

impl RemoteHost {
    /// A host, which need not run yet.
    pub fn new(wanted: HostSelector) -> Self {
        Self {
            wanted,
            last: Mutex::default(),
            idle: Mutex::default(),
        }
    }

    /// Asks over the connection before, where that is certain to do no harm: it may have ended with the
    /// question on its way.
    fn ask<T>(
        &self,
        effect: Effect,
        ask: impl Fn(&mut Client) -> Result<T, ClientError>,
    ) -> Result<T, HostUnavailable> {
        if effect == Effect::ReadOnly
            && let Some(mut client) = self.take_idle()
        {
            match ask(&mut client) {
                Ok(answer) => return Ok(self.store_idle(client, answer)),
                Err(ClientError::Unreachable(error)) if error.kind() != io::ErrorKind::TimedOut => {
                }
                Err(error) => return Err(host_unavailable(error)),
            }
        }
        let mut client = self.connect()?;
        let answer = ask(&mut client).map_err(host_unavailable)?;
        Ok(self.store_idle(client, answer))
    }

    fn store_idle<T>(&self, client: Client, answer: T) -> T {
        *self.idle() = Some((client, Instant::now()));
        answer
    }

    fn take_idle(&self) -> Option<Client> {
        let kept = self.idle().take();
        kept.filter(|(_, since)| since.elapsed() < KEPT)
            .map(|(client, _)| client)
    }

    fn idle(&self) -> MutexGuard<'_, Option<(Client, Instant)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connect(&self) -> Result<Client, HostUnavailable> {
        let name = match &self.wanted {
            HostSelector::Socket(socket) => return connect(socket),
            HostSelector::Named(name) => name,
        };
        let last = self.last().clone();
        if let Some(Ok(client)) = last.map(|socket| connect(&socket)) {
            return Ok(client);
        }
        let mut hosts = running_hosts();
        hosts.retain(|host| host.matches(name));
        match hosts.as_slice() {
            [host] => {
                *self.last() = Some(host.socket.clone());
                connect(&host.socket)
            }
            [] => Err(HostUnavailable(format!("no host is named {name:?}"))),
            _ => Err(HostUnavailable(format!(
                "several hosts are called {name:?}"
            ))),
        }
    }

    fn last(&self) -> MutexGuard<'_, Option<PathBuf>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, name: &str, args: &str) -> Result<ReceivedBody, HostUnavailable> {
        let effect = message(name).map_or(Effect::Mutating, |message| message.effect);
        self.ask(effect, |client| {
            client.message(PLUGIN, name, args, Some(Delivery::Fd))
        })
    }
}

impl HostClient for RemoteHost {
    fn host(&self) -> Result<HostInfo, HostUnavailable> {
        self.ask(Effect::ReadOnly, Client::host)
    }

    fn message(&self, name: &str, args: &str) -> Result<PluginReply, HostUnavailable> {
        answer(self.send(name, args)?)
    }

    fn dump(&self, name: &str, args: &str) -> Result<DumpResponse, HostUnavailable> {
        let mut reply = self.send(name, args)?;
        if reply.result.status_code != 0 {
            return Ok(DumpResponse::Refused(answer(reply)?));
        }
        Ok(DumpResponse::File {
            file: reply.file.take().ok_or_else(no_dump)?,
            content_type: reply.result.content_type,
        })
    }
}

fn connect(socket: &Path) -> Result<Client, HostUnavailable> {
    Client::connect(socket)
        .map_err(|error| HostUnavailable(format!("{}: {error}", socket.display())))
}

fn answer(reply: ReceivedBody) -> Result<PluginReply, HostUnavailable> {
    Ok(PluginReply {
        status: reply.result.status_code,
        body: reply.into_bytes()?,
    })
}

fn host_unavailable(error: ClientError) -> HostUnavailable {
    HostUnavailable(error.to_string())
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;

    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn questions_share_a_connection_and_outlive_its_end() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("h.sock");
        let listener = UnixListener::bind(&path).unwrap();
        // How many questions come over each connection.
        let host = std::thread::spawn(move || {
            [2, 1].map(|questions| {
                let (stream, _) = listener.accept().unwrap();
                let mut lines = BufReader::new(&stream).lines();
                for number in 1..=questions {
                    let asked: Value =
                        serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
                    assert_eq!(asked["id"], number);
                    let info = json!({
                        "pid": number, "name": "n", "command": "c", "version": "", "started": 0,
                    });
                    let answer = json!({ "jsonrpc": "2.0", "id": number, "result": info });
                    writeln!(&stream, "{answer}").unwrap();
                }
            })
        });
        let remote = RemoteHost::new(HostSelector::Socket(path));
        let pids = [(); 3].map(|()| remote.host().unwrap().pid);
        assert_eq!(pids, [1, 2, 1]);
        host.join().unwrap();
    }
}
