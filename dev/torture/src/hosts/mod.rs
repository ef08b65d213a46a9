//! Hosts of another user that are hostile, and what a person at `memprof` sees of them: an answer in
//! time, nothing that a terminal obeys, no file that fills the disk, and the honest host beside them.

mod hostile_host;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use super::SuiteLength;
use super::host::HostSetup;
use hostile_host::{HostileHosts, KINDS, Misbehaviour};
use xtask::dist::dist;

/// A user whom no machine has.
const UID: u32 = 4_242_001;
/// What no command may take, with hosts that never answer; they are given up after 10 s in all.
const LIMIT: Duration = Duration::from_secs(20);
/// The most that a refused dump may have written.
const BYTES: u64 = 4096;

pub(super) fn run(length: SuiteLength) -> Result<String> {
    let mut host = HostSetup::default().start()?;
    // Only root looks for other users' hosts; everybody else has hostile ones beside the own.
    let is_root = nix::unistd::geteuid().is_root();
    let own = tempfile::tempdir()?;
    let directory = match is_root {
        true => PathBuf::from(format!("/tmp/memprof-{UID}")),
        false => own.path().join("run"),
    };
    let (count, timeout) = length.pick((1, "300ms"), (30, "1s"));
    let hostile = HostileHosts::start(is_root.then_some(UID), &directory, count)?;
    let sockets = match is_root {
        true => host.dir().path().join("run"),
        false => directory,
    };
    let person = CliUser { sockets, own };

    let mut slowest = Duration::ZERO;
    let mut commands = 0;
    let mut check = |args: &[&str]| -> Result<String> {
        let start = Instant::now();
        let shown = person.runs(args)?;
        slowest = slowest.max(start.elapsed());
        commands += 1;
        Ok(shown)
    };
    let pid = host.pid().to_string();
    for args in [&["ps"][..], &["ps", "--json"]] {
        let shown = check(args)?;
        ensure!(shown.contains(&pid), "the honest host is missing: {shown}");
    }
    check(&["status", "-t", &pid])?;
    check(&["status", "-t", "no-such-host"])?;
    for (kind, socket) in hostile.sockets.iter().take(KINDS.len()) {
        let socket = socket.to_str().context("a path that is text")?;
        check(&["status", "-t", socket, "--timeout", timeout])?;
        check(&["status", "-t", socket, "--timeout", timeout, "--json"])?;
        let file = person.own.path().join(format!("{kind:?}"));
        let output = file.to_str().context("a path that is text")?;
        check(&["dump", "-t", socket, "--timeout", timeout, "-o", output])?;
        check(&["dump", "-t", socket, "--timeout", timeout, "--open"])?;
        let written = file.metadata().map_or(0, |file| file.len());
        ensure!(written <= BYTES, "{kind:?}: {written} bytes were written");
        let is_refused = !matches!(kind, Misbehaviour::Escapes);
        ensure!(file.exists() != is_refused, "{kind:?}: {written} bytes");
    }
    let start = Instant::now();
    let listed = person.serve_hosts()?;
    ensure!(
        listed.contains(&pid),
        "the honest host is missing: {listed}"
    );
    slowest = slowest.max(start.elapsed());
    host.check_alive()?;
    Ok(format!(
        "{commands} commands and serve beside {} hostile hosts of {} kinds: all ended, the slowest \
         after {:.1} s; nothing for a terminal, nothing on the disk",
        hostile.sockets.len(),
        KINDS.len(),
        slowest.as_secs_f64()
    ))
}

/// Somebody who runs `memprof`.
struct CliUser {
    sockets: PathBuf,
    own: TempDir,
}

impl CliUser {
    /// What a command shows, whatever it ends with; it must end, and show nothing that a terminal
    /// would obey.
    fn runs(&self, args: &[&str]) -> Result<String> {
        let output = Command::new("timeout")
            .arg(LIMIT.as_secs().to_string())
            .arg(dist().join("bin/memprof"))
            .args(args)
            .env("MEMPROF_SOCKET_DIR", &self.sockets)
            .env("TMPDIR", self.own.path())
            .env_remove("BROWSER")
            .env_remove("DISPLAY")
            .env_remove("WAYLAND_DISPLAY")
            .stdin(Stdio::null())
            .output()?;
        let shown = [output.stdout, output.stderr].concat();
        let shown = String::from_utf8(shown).context("what is shown is no text")?;
        ensure!(output.status.code() != Some(124), "{args:?} hangs: {shown}");
        ensure!(output.status.code().is_some(), "{args:?} crashed: {shown}");
        let obeyed = |c: char| {
            (c.is_control() && c != '\n' && c != '\t') || ('\u{202a}'..='\u{202e}').contains(&c)
        };
        ensure!(!shown.contains(obeyed), "{args:?} shows {shown:?}");
        Ok(shown)
    }

    /// What `memprof serve` lists.
    fn serve_hosts(&self) -> Result<String> {
        let mut server = Server(
            Command::new(dist().join("bin/memprof"))
                .args(["serve", "--listen", "127.0.0.1:0"])
                .env("MEMPROF_SOCKET_DIR", &self.sockets)
                .stderr(Stdio::piped())
                .spawn()?,
        );
        let stderr = server.0.stderr.take().context("it has no stderr")?;
        let mut lines = BufReader::new(stderr).lines();
        let address = lines.find_map(|line| {
            let line = line.ok()?;
            let (_, url) = line.split_once("http://")?;
            Some(url.split('/').next()?.to_owned())
        });
        let mut stream = TcpStream::connect(address.context("it serves nothing")?)?;
        stream.set_read_timeout(Some(LIMIT))?;
        let request = "GET /api/v1/hosts HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes())?;
        let mut reply = String::new();
        stream.read_to_string(&mut reply).context("serve hangs")?;
        Ok(reply)
    }
}

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(error) = self.0.kill().and_then(|()| self.0.wait()) {
            eprintln!("{error}");
        }
    }
}
