//! Which host is meant.

use std::path::PathBuf;

use anyhow::Context;
use memprof_host::client::Client;
use memprof_host::{Running, running};

use crate::exit::{UNREACHABLE, USAGE, coded};

/// Connects to the host that `target` names: a socket's path, a pid, or a name.
pub(crate) fn connect(target: Option<&str>) -> anyhow::Result<Client> {
    let socket = match target {
        Some(path) if path.contains('/') => PathBuf::from(path),
        target => choose(running()?, target)?.socket,
    };
    Client::connect(&socket).with_context(|| socket.display().to_string())
}

fn choose(mut hosts: Vec<Running>, target: Option<&str>) -> anyhow::Result<Running> {
    let all = describe(&hosts);
    if let Some(target) = target {
        hosts.retain(|host| host.is_called(target));
    }
    match (hosts.len(), target) {
        (1, _) => Ok(hosts.remove(0)),
        (0, None) => Err(coded(
            UNREACHABLE,
            "no host is running that this user may talk to; see `memprof ps`",
        )),
        (0, Some(target)) => Err(coded(
            UNREACHABLE,
            format!("no host is called {target:?}; running: {all}"),
        )),
        (_, None) => Err(coded(
            USAGE,
            format!("several hosts are running, choose one with -t: {all}"),
        )),
        (_, Some(target)) => {
            let those = describe(&hosts);
            Err(coded(
                USAGE,
                format!("several hosts are called {target:?}, give a pid: {those}"),
            ))
        }
    }
}

fn describe(hosts: &[Running]) -> String {
    let one = |host: &Running| format!("{} ({})", host.info.pid, host.info.name);
    match hosts {
        [] => "none".to_owned(),
        hosts => hosts.iter().map(one).collect::<Vec<_>>().join(", "),
    }
}

#[cfg(test)]
mod tests {
    use memprof_host::protocol::HostInfo;

    use super::*;

    fn host(pid: u32, name: &str, command: &str) -> Running {
        let info = HostInfo {
            pid,
            name: name.to_owned(),
            command: command.to_owned(),
            version: String::new(),
            started: 0,
        };
        Running {
            socket: PathBuf::from(format!("/run/{pid}.sock")),
            info,
        }
    }

    #[test]
    fn targets() {
        let hosts = || {
            vec![
                host(7, "web", "/usr/bin/server --x"),
                host(8, "db", "/usr/bin/server"),
            ]
        };
        let check = |hosts: Vec<Running>, target: Option<&str>, expected: &str| {
            let found = match choose(hosts, target) {
                Ok(host) => host.info.pid.to_string(),
                Err(error) => error.to_string(),
            };
            assert_eq!(found, expected);
        };
        check(hosts(), Some("7"), "7");
        check(hosts(), Some("db"), "8");
        check(
            hosts(),
            Some("server"),
            "several hosts are called \"server\", give a pid: 7 (web), 8 (db)",
        );
        check(
            hosts(),
            Some("x"),
            "no host is called \"x\"; running: 7 (web), 8 (db)",
        );
        check(
            hosts(),
            None,
            "several hosts are running, choose one with -t: 7 (web), 8 (db)",
        );
        check(vec![host(7, "web", "")], None, "7");
        check(
            vec![],
            None,
            "no host is running that this user may talk to; see `memprof ps`",
        );
    }
}
