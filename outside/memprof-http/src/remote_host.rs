//! Client of a host in another process, over its control socket.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use memprof_host::client::{Client, ClientError, ReceivedBody};
use memprof_host::protocol::{Delivery, HostInfo};
use memprof_host::running_hosts;
use memprof_messages::{Effect, PLUGIN, find_message};

use crate::host_client::{DumpResponse, HostClient, HostUnavailable, PluginReply, no_dump_error};

/// Time for which a connection is kept for the next message. The host closes it after a second of silence.
const MAX_IDLE: Duration = Duration::from_millis(500);

/// Selects a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostSelector {
    /// The host behind this control socket.
    Socket(PathBuf),
    /// The host with this process id, name or program; found again after it restarts.
    Named(String),
}

/// A host that is connected to for each request, so that it may end and restart.
#[derive(Debug)]
pub struct RemoteHost {
    selector: HostSelector,
    /// Control socket at which it was found last.
    last_socket: Mutex<Option<PathBuf>>,
    /// Connection of the last message: most requests send several.
    idle: Mutex<Option<(Client, Instant)>>,
}

impl RemoteHost {
    /// Creates the client of a host, which need not be running yet.
    pub fn new(selector: HostSelector) -> Self {
        Self {
            selector,
            last_socket: Mutex::default(),
            idle: Mutex::default(),
        }
    }

    /// Calls the host with `send`. A call without side effects uses the idle connection, if there is one. If that
    /// connection fails other than by a timeout, the call is repeated over a new connection. A call with side effects
    /// gets a new connection at once: the idle one could lose its reply, and a repeated call would act twice.
    fn call_host<T>(
        &self,
        effect: Effect,
        send: impl Fn(&mut Client) -> Result<T, ClientError>,
    ) -> Result<T, HostUnavailable> {
        if effect == Effect::ReadOnly
            && let Some(mut client) = self.take_idle_client()
        {
            match send(&mut client) {
                Ok(reply) => return Ok(self.store_idle_client(client, reply)),
                // The host has probably closed the connection. A host that was too slow is not called again.
                Err(ClientError::Unreachable(error)) if error.kind() != io::ErrorKind::TimedOut => {
                }
                Err(error) => return Err(host_unavailable_error(error)),
            }
        }
        let mut client = self.connect()?;
        let reply = send(&mut client).map_err(host_unavailable_error)?;
        Ok(self.store_idle_client(client, reply))
    }

    /// Stores a connection for the next message, and returns `reply` unchanged.
    fn store_idle_client<T>(&self, client: Client, reply: T) -> T {
        *self.lock_idle_client() = Some((client, Instant::now()));
        reply
    }

    /// Removes and returns the idle connection. `None` if there is none, or it was used more than 500 ms ago: the host
    /// closes an idle connection after 1 s.
    fn take_idle_client(&self) -> Option<Client> {
        let kept = self.lock_idle_client().take();
        kept.filter(|(_, since)| since.elapsed() < MAX_IDLE)
            .map(|(client, _)| client)
    }

    /// Locks the idle connection, even if a thread panicked while it held the lock. The guarded value is `None` if no
    /// connection is idle.
    fn lock_idle_client(&self) -> MutexGuard<'_, Option<(Client, Instant)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connects to the selected host. For a name, first tries the socket at which a host of that name was found last;
    /// if no host answers there, discovers the hosts, and stores the socket. Fails unless exactly one host has the
    /// name.
    fn connect(&self) -> Result<Client, HostUnavailable> {
        let name = match &self.selector {
            HostSelector::Socket(socket) => return connect_to_socket(socket),
            HostSelector::Named(name) => name,
        };
        let last_socket = self.lock_last_socket().clone();
        if let Some(Ok(client)) = last_socket.map(|socket| connect_to_socket(&socket)) {
            return Ok(client);
        }
        let mut hosts = running_hosts();
        hosts.retain(|host| host.matches(name));
        match hosts.as_slice() {
            [host] => {
                *self.lock_last_socket() = Some(host.socket.clone());
                connect_to_socket(&host.socket)
            }
            [] => Err(HostUnavailable(format!("no host is named {name:?}"))),
            _ => Err(HostUnavailable(format!(
                "several hosts are called {name:?}"
            ))),
        }
    }

    /// Locks the path of the last socket, even if a thread panicked while it held the lock. The guarded value is `None`
    /// if no host was found yet.
    fn lock_last_socket(&self) -> MutexGuard<'_, Option<PathBuf>> {
        self.last_socket
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends the message `name` to the plugin; the reply may be a file. An unknown message counts as one with side
    /// effects.
    fn send_to_plugin(&self, name: &str, args: &str) -> Result<ReceivedBody, HostUnavailable> {
        let effect = find_message(name).map_or(Effect::Mutating, |message| message.effect);
        self.call_host(effect, |client| {
            client.message(PLUGIN, name, args, Some(Delivery::Fd))
        })
    }
}

impl HostClient for RemoteHost {
    fn host_info(&self) -> Result<HostInfo, HostUnavailable> {
        self.call_host(Effect::ReadOnly, Client::host_info)
    }

    fn visible_pid(&self) -> Result<Option<u32>, HostUnavailable> {
        self.call_host(Effect::ReadOnly, |client| Ok(client.peer().pid))
    }

    fn send_message(&self, name: &str, args: &str) -> Result<PluginReply, HostUnavailable> {
        read_plugin_reply(self.send_to_plugin(name, args)?)
    }

    fn request_dump(&self, name: &str, args: &str) -> Result<DumpResponse, HostUnavailable> {
        let mut reply = self.send_to_plugin(name, args)?;
        if reply.result.status_code != 0 {
            return Ok(DumpResponse::Refused(read_plugin_reply(reply)?));
        }
        Ok(DumpResponse::File {
            file: reply.file.take().ok_or_else(no_dump_error)?,
            content_type: reply.result.content_type,
        })
    }
}

/// Connects to a control socket. An error names the path of the socket.
fn connect_to_socket(socket: &Path) -> Result<Client, HostUnavailable> {
    Client::connect(socket)
        .map_err(|error| HostUnavailable(format!("{}: {error}", socket.display())))
}

/// Reads the whole body of a reply, also if the body is a file.
fn read_plugin_reply(reply: ReceivedBody) -> Result<PluginReply, HostUnavailable> {
    Ok(PluginReply {
        status: reply.result.status_code,
        body: reply.into_bytes()?,
    })
}

/// Converts an error of a call to its text. The kind of the error is lost.
fn host_unavailable_error(error: ClientError) -> HostUnavailable {
    HostUnavailable(error.to_string())
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;

    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn messages_share_connection_and_reconnect() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("h.sock");
        let listener = UnixListener::bind(&path).unwrap();
        // Number of messages over each connection.
        let host = std::thread::spawn(move || {
            [2, 1].map(|messages| {
                let (stream, _) = listener.accept().unwrap();
                let mut lines = BufReader::new(&stream).lines();
                for number in 1..=messages {
                    let request: Value =
                        serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
                    assert_eq!(request["id"], number);
                    let info = json!({
                        "pid": number, "name": "n", "command": "c", "version": "", "started": 0,
                    });
                    let reply = json!({ "jsonrpc": "2.0", "id": number, "result": info });
                    writeln!(&stream, "{reply}").unwrap();
                }
            })
        });
        let remote = RemoteHost::new(HostSelector::Socket(path));
        let pids = [(); 3].map(|()| remote.host_info().unwrap().pid);
        assert_eq!(pids, [1, 2, 1]);
        host.join().unwrap();
    }
}
