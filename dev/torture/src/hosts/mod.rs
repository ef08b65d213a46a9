//! Suite `hosts`: `memprof` beside hostile hosts of another user. Each command must end in time, print no control
//! characters, write no large file, and still list the honest host.

mod hostile_host;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;
use testkit::LineReader;

use super::SuiteLength;
use super::host::HostSetup;
use hostile_host::{HostileHosts, Misbehaviour};
use xtask::dist::dist_dir;

/// User ID of the hostile hosts, which no machine uses.
const HOSTILE_UID: u32 = 4_242_001;
/// Time limit of each command; `memprof` gives up on hosts that never answer after 10 s in all.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum size of the output file of a dump that `memprof` refuses.
const MAX_REFUSED_DUMP_BYTES: u64 = 4096;

/// Runs the suite `hosts`, and returns its figures in one line. Fails if a command hangs, prints control characters,
/// writes a large file, or does not list the honest host.
pub(super) fn run_suite(length: SuiteLength) -> Result<String> {
    let mut host = HostSetup::default().start()?;
    // Only root discovers the hosts of other users. For others the hostile hosts are in their own directory.
    let is_root = nix::unistd::geteuid().is_root();
    let temp_dir = tempfile::tempdir()?;
    let directory = match is_root {
        true => PathBuf::from(format!("/tmp/memprof-{HOSTILE_UID}")),
        false => temp_dir.path().join("run"),
    };
    let (count, timeout) = length.pick((1, "300ms"), (30, "1s"));
    let hostile = HostileHosts::start(is_root.then_some(HOSTILE_UID), &directory, count)?;
    let sockets = match is_root {
        true => host.dir().path().join("run"),
        false => directory,
    };
    let user = CliUser { sockets, temp_dir };

    let mut slowest = Duration::ZERO;
    let mut commands = 0;
    let mut check = |args: &[&str]| -> Result<String> {
        let start = Instant::now();
        let shown = user.run(args)?;
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
    // The first hosts are one of each kind.
    for (kind, socket) in hostile.sockets.iter().take(Misbehaviour::ALL.len()) {
        let socket = socket.to_str().context("a path that is text")?;
        check(&["status", "-t", socket, "--timeout", timeout])?;
        check(&["status", "-t", socket, "--timeout", timeout, "--json"])?;
        let file = user.temp_dir.path().join(format!("{kind:?}"));
        let output = file.to_str().context("a path that is text")?;
        check(&["dump", "-t", socket, "--timeout", timeout, "-o", output])?;
        check(&["dump", "-t", socket, "--timeout", timeout, "--open"])?;
        let written = file.metadata().map_or(0, |file| file.len());
        ensure!(
            written <= MAX_REFUSED_DUMP_BYTES,
            "{kind:?}: {written} bytes were written"
        );
        // This kind passes a regular file, which is a valid dump for `memprof`.
        let is_refused = !matches!(kind, Misbehaviour::Escapes);
        ensure!(file.exists() != is_refused, "{kind:?}: {written} bytes");
    }
    let start = Instant::now();
    let listed = user.list_hosts_over_http()?;
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
        Misbehaviour::ALL.len(),
        slowest.as_secs_f64()
    ))
}

/// User who runs `memprof` with a directory of sockets, and a temporary directory for its files.
struct CliUser {
    sockets: PathBuf,
    temp_dir: TempDir,
}

impl CliUser {
    /// Runs `memprof` with these arguments, and returns its output and error texts, whatever its exit code.
    ///
    /// # Errors
    /// The command hangs, dies of a signal, or prints control or text direction characters.
    fn run(&self, args: &[&str]) -> Result<String> {
        let output = Command::new("timeout")
            .arg(COMMAND_TIMEOUT.as_secs().to_string())
            .arg(dist_dir().join("bin/memprof"))
            .args(args)
            .env("MEMPROF_SOCKET_DIR", &self.sockets)
            .env("TMPDIR", self.temp_dir.path())
            .env_remove("BROWSER")
            .env_remove("DISPLAY")
            .env_remove("WAYLAND_DISPLAY")
            .stdin(Stdio::null())
            .output()?;
        let shown = [output.stdout, output.stderr].concat();
        let shown = String::from_utf8(shown).context("what is shown is no text")?;
        // timeout(1) returns 124 if the command was too slow; a command killed by a signal has no code.
        ensure!(output.status.code() != Some(124), "{args:?} hangs: {shown}");
        ensure!(output.status.code().is_some(), "{args:?} crashed: {shown}");
        let is_unsafe = |c: char| {
            (c.is_control() && c != '\n' && c != '\t') || ('\u{202a}'..='\u{202e}').contains(&c)
        };
        ensure!(!shown.contains(is_unsafe), "{args:?} shows {shown:?}");
        Ok(shown)
    }

    /// Starts `memprof serve`, and returns its HTTP response with the list of hosts. Fails if it prints no address
    /// within [`COMMAND_TIMEOUT`], or if it sends nothing for so long.
    fn list_hosts_over_http(&self) -> Result<String> {
        let mut server = Server(
            Command::new(dist_dir().join("bin/memprof"))
                .args(["serve", "--listen", "127.0.0.1:0"])
                .env("MEMPROF_SOCKET_DIR", &self.sockets)
                .stderr(Stdio::piped())
                .spawn()?,
        );
        let stderr = server.0.stderr.take().context("it has no stderr")?;
        let address = LineReader::new(stderr).find_line(COMMAND_TIMEOUT, |line| {
            let (_, url) = line.split_once("http://")?;
            Some(url.split('/').next()?.to_owned())
        });
        let mut stream = TcpStream::connect(address.context("it serves nothing")?)?;
        stream.set_read_timeout(Some(COMMAND_TIMEOUT))?;
        let request = "GET /api/v1/hosts HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes())?;
        let mut reply = String::new();
        stream.read_to_string(&mut reply).context("serve hangs")?;
        Ok(reply)
    }
}

/// Process of `memprof serve`, killed when dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(error) = self.0.kill().and_then(|()| self.0.wait()) {
            eprintln!("{error}");
        }
    }
}
