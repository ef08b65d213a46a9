//! Name servers.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;

use crate::net_client::connect;
use crate::server::{PATIENCE, RunningServer};
use crate::server::{ProfiledProcess, Server};
use crate::server_dir::User;

/// So many names each load brings.
const NAMES: usize = 10_000;

pub(crate) const NAMED: Server = Server {
    name: "named",
    packages: &["bind9"],
    user: User::Starter,
    profiled: ProfiledProcess::Main,
    names: "dns_rbt_addnode",
    forks: None,
    command: |place| {
        place.write("site.zone", &zone(0))?;
        let config = format!(
            "options {{ directory \"{0}\"; pid-file \"{0}/named.pid\"; \
             session-keyfile \"{0}/session.key\"; listen-on port {1} {{ 127.0.0.1; }}; \
             listen-on-v6 {{ none; }}; recursion no; dnssec-validation no; }};\ncontrols {{ }};\n\
             zone \"site\" {{ type primary; file \"{0}/site.zone\"; }};\n",
            place.path().display(),
            place.port
        );
        let mut command = Command::new("/usr/sbin/named");
        command.args(["-g", "-n", "2", "-u", "bind", "-c"]);
        command.arg(place.write("named.conf", &config)?);
        Ok(command)
    },
    answer: |running| address(running, "answer.site"),
    load: |running| {
        running.place().write("site.zone", &zone(running.loads))?;
        running.signal(Signal::SIGHUP)?;
        let expected = generation(running.loads);
        running.wait_for("the new zone", |running| {
            let found = address(running, "load.site")?;
            Ok((found == expected).then_some(()))
        })
    },
};

pub(crate) const KRESD: Server = Server {
    name: "kresd",
    packages: &["knot-resolver"],
    user: User::Nobody,
    profiled: ProfiledProcess::Main,
    names: "kr_zonecut_add",
    forks: None,
    command: |place| {
        let config = format!(
            "net.listen('127.0.0.1', {}, {{ kind = 'dns' }})\n\
             net.listen('{}', nil, {{ kind = 'control' }})\n\
             cache.size = 10 * MB\nmodules = {{ 'hints' }}\nhints['answer.site'] = '127.0.0.7'\n",
            place.port,
            place.file("control")
        );
        let mut command = Command::new("/usr/sbin/kresd");
        command.args(["-n", "-c"]);
        command.arg(place.write("kresd.conf", &config)?);
        command.arg(place.path());
        Ok(command)
    },
    answer: |running| address(running, "answer.site"),
    load: |running| {
        let hosts = running
            .place()
            .write("hosts", &hosts(running.loads))?
            .display()
            .to_string();
        let control = UnixStream::connect(running.place().path().join("control"))?;
        control.set_read_timeout(Some(PATIENCE))?;
        let mut control = BufReader::new(control);
        // Forgets those of the file before.
        writeln!(control.get_mut(), "hints.config('{hosts}')")?;
        let mut line = String::new();
        control.read_line(&mut line)?;
        let found = address(running, "load.site")?;
        ensure!(found == generation(running.loads), "{found}: {line}");
        Ok(())
    },
};

/// A file in the form of hosts(5) that tells by its `load.site` which one it is.
fn hosts(number: usize) -> String {
    let mut hosts = format!("127.0.0.7 answer.site\n{} load.site\n", generation(number));
    for name in 0..NAMES {
        writeln!(hosts, "127.0.0.2 n{name}.site").expect("a text takes everything");
    }
    hosts
}

/// A zone that tells by its `load.site` which one it is.
fn zone(number: usize) -> String {
    let mut zone = format!(
        "$TTL 60\n@ SOA ns.site. root.site. {} 60 60 60 60\n@ NS ns.site.\nns A 127.0.0.1\n\
         answer A 127.0.0.7\nload A {}\n",
        number + 1,
        generation(number)
    );
    for name in 0..NAMES.min(number * NAMES) {
        writeln!(zone, "n{name} A 127.0.0.2").expect("a text takes everything");
    }
    zone
}

/// The address that stands for the load of that number.
fn generation(number: usize) -> String {
    format!("127.1.{}.{}", number / 250 % 250, number % 250)
}

/// The address of a name, asked for over TCP (RFC 1035, 4.2.2).
fn address(running: &mut RunningServer, name: &str) -> Result<String> {
    use std::io::Read;
    // Number 7, recursion desired, one question.
    let mut question = vec![0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        question.push(u8::try_from(label.len())?);
        question.extend_from_slice(label.as_bytes());
    }
    // The root, type A, class IN.
    question.extend_from_slice(&[0, 0, 1, 0, 1]);
    let mut stream = connect(running.place().port)?;
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
    // A name that points back, type A, class IN, time, length, address.
    let record = reply.get(question.len()..).and_then(|rest| rest.get(..16));
    let [_, _, 0, 1, 0, 1, _, _, _, _, 0, 4, a, b, c, d] = record.context("no record")? else {
        anyhow::bail!("{name} has no address: {reply:x?}");
    };
    Ok(format!("{a}.{b}.{c}.{d}"))
}
