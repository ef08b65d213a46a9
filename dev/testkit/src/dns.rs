//! Name servers.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;

use crate::net_client::connect;
use crate::server::{ProfiledProcess, Server};
use crate::server::{RunningServer, SERVER_TIMEOUT};
use crate::server_dir::User;

/// Names that each load adds.
const NAMES_PER_LOAD: usize = 10_000;

pub(crate) const NAMED: Server = Server {
    name: "named",
    packages: &["bind9"],
    user: User::Starter,
    profiled: ProfiledProcess::Main,
    load_symbol: "dns_rbt_addnode",
    fork: None,
    command: |dir| {
        dir.write_file("site.zone", &zone_file(0))?;
        let config = format!(
            "options {{ directory \"{0}\"; pid-file \"{0}/named.pid\"; \
             session-keyfile \"{0}/session.key\"; listen-on port {1} {{ 127.0.0.1; }}; \
             listen-on-v6 {{ none; }}; recursion no; dnssec-validation no; }};\ncontrols {{ }};\n\
             zone \"site\" {{ type primary; file \"{0}/site.zone\"; }};\n",
            dir.path().display(),
            dir.port
        );
        let mut command = Command::new("/usr/sbin/named");
        command.args(["-g", "-n", "2", "-u", "bind", "-c"]);
        command.arg(dir.write_file("named.conf", &config)?);
        Ok(command)
    },
    query: |running| resolve_address(running, "answer.site"),
    load: |running| {
        running
            .dir()
            .write_file("site.zone", &zone_file(running.loads))?;
        running.signal(Signal::SIGHUP)?;
        let expected = load_address(running.loads);
        running.wait_for("the new zone", |running| {
            let found = resolve_address(running, "load.site")?;
            Ok((found == expected).then_some(()))
        })
    },
};

pub(crate) const KRESD: Server = Server {
    name: "kresd",
    packages: &["knot-resolver"],
    user: User::Unprivileged,
    profiled: ProfiledProcess::Main,
    load_symbol: "kr_zonecut_add",
    fork: None,
    command: |dir| {
        let config = format!(
            "net.listen('127.0.0.1', {}, {{ kind = 'dns' }})\n\
             net.listen('{}', nil, {{ kind = 'control' }})\n\
             cache.size = 10 * MB\nmodules = {{ 'hints' }}\nhints['answer.site'] = '127.0.0.7'\n",
            dir.port,
            dir.file_path("control")
        );
        let mut command = Command::new("/usr/sbin/kresd");
        command.args(["-n", "-c"]);
        command.arg(dir.write_file("kresd.conf", &config)?);
        command.arg(dir.path());
        Ok(command)
    },
    query: |running| resolve_address(running, "answer.site"),
    load: |running| {
        let hosts_file = running
            .dir()
            .write_file("hosts", &hosts_file(running.loads))?
            .display()
            .to_string();
        let control = UnixStream::connect(running.dir().path().join("control"))?;
        control.set_read_timeout(Some(SERVER_TIMEOUT))?;
        let mut control = BufReader::new(control);
        // A new file replaces the names of the one before.
        writeln!(control.get_mut(), "hints.config('{hosts_file}')")?;
        let mut line = String::new();
        control.read_line(&mut line)?;
        let found = resolve_address(running, "load.site")?;
        ensure!(found == load_address(running.loads), "{found}: {line}");
        Ok(())
    },
};

/// Returns a file in the format of hosts(5). The address of `load.site` in it depends on `load`, the number of loads so
/// far.
fn hosts_file(load: usize) -> String {
    let mut hosts_file = format!("127.0.0.7 answer.site\n{} load.site\n", load_address(load));
    for name in 0..NAMES_PER_LOAD {
        writeln!(hosts_file, "127.0.0.2 n{name}.site").expect("writing to a String cannot fail");
    }
    hosts_file
}

/// Returns a zone file (RFC 1035, section 5). Its serial number and the address of `load.site` depend on `load`, the
/// number of loads so far; before the first load, it has no further names.
fn zone_file(load: usize) -> String {
    let mut zone_file = format!(
        "$TTL 60\n@ SOA ns.site. root.site. {} 60 60 60 60\n@ NS ns.site.\nns A 127.0.0.1\n\
         answer A 127.0.0.7\nload A {}\n",
        load + 1,
        load_address(load)
    );
    // No names before the first load.
    for name in 0..NAMES_PER_LOAD.min(load * NAMES_PER_LOAD) {
        writeln!(zone_file, "n{name} A 127.0.0.2").expect("writing to a String cannot fail");
    }
    zone_file
}

/// Returns the address of `load.site` after the given number of loads. It differs from that after the load before,
/// which shows that a server has read its file again.
fn load_address(load: usize) -> String {
    format!("127.1.{}.{}", load / 250 % 250, load % 250)
}

/// Queries the IPv4 address of a name over TCP (RFC 1035, section 4.2.2). Fails unless the first record of the reply is
/// one.
fn resolve_address(running: &mut RunningServer, name: &str) -> Result<String> {
    use std::io::Read;
    // Identifier 7, recursion desired, one question.
    let mut question = vec![0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        question.push(u8::try_from(label.len())?);
        question.extend_from_slice(label.as_bytes());
    }
    // The root label, type A, class IN.
    question.extend_from_slice(&[0, 0, 1, 0, 1]);
    let mut stream = connect(running.dir().port)?;
    let length = u16::try_from(question.len())?.to_be_bytes();
    stream.write_all(&[&length[..], &question].concat())?;
    let mut length = [0; 2];
    stream.read_exact(&mut length)?;
    let mut reply = vec![0; u16::from_be_bytes(length).into()];
    stream.read_exact(&mut reply)?;
    let [_, _, _, code, ..] = reply[..] else {
        anyhow::bail!("a reply of {} bytes", reply.len());
    };
    ensure!(code & 15 == 0, "{name}: code {}", code & 15);
    // A compressed name, type A, class IN, time to live, length, address.
    let record = reply.get(question.len()..).and_then(|rest| rest.get(..16));
    let [_, _, 0, 1, 0, 1, _, _, _, _, 0, 4, a, b, c, d] = record.context("no record")? else {
        anyhow::bail!("{name} has no address: {reply:x?}");
    };
    Ok(format!("{a}.{b}.{c}.{d}"))
}
