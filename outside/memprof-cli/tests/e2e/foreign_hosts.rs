//! Foreign hosts through what their operators do: reload, upgrade of the plugin's file, unknown messages, clients
//! without rights, messages while the host ends, restart, and a config that is refused.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};
use serde::Deserialize;
use tempfile::TempDir;

use crate::bus::free_port;
use crate::dist::{dist, source};
use crate::host::{Host, TEST_TIMEOUT};
use crate::languages::{INACTIVE, UNKNOWN};
use crate::place::{copy_of_the_plugin, open_place, plugin};

/// The rows of `foreign_hosts.toml`, which describes the fields.
#[derive(Deserialize)]
struct Table {
    host: Vec<ForeignHost>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ForeignHost {
    name: String,
    #[serde(default)]
    setup: String,
    start: String,
    #[serde(default)]
    install: String,
    serve: String,
    served: String,
    ask: String,
    #[serde(default = "one")]
    workers: usize,
    #[serde(default)]
    reload: String,
    #[serde(default)]
    upgrade: String,
    denied: String,
    denial: String,
    #[serde(default = "term")]
    end: String,
    #[serde(default = "success")]
    status: Vec<i32>,
    #[serde(default)]
    is_killed: bool,
}

fn one() -> usize {
    1
}

fn success() -> Vec<i32> {
    vec![0]
}

fn term() -> String {
    "TERM".to_owned()
}

fn table() -> Table {
    let file = source("outside/memprof-cli/tests/fixtures/foreign_hosts.toml");
    toml::from_str(&fs::read_to_string(file).unwrap()).unwrap()
}

/// Functions that the scripts have in common.
const PRELUDE: &str = r#"
dns() {
    perl -MIO::Socket::INET -e '
        my $server = IO::Socket::INET->new("127.0.0.1:$ENV{PORT}") or die $!;
        $server->autoflush(1);
        my $question = pack("n6", 7, 0x100, 1, 0, 0, 0) . "\6answer\4site\0" . pack("n2", 1, 1);
        print $server pack("n", length $question) . $question;
        read $server, my $length, 2;
        read $server, my $answer, unpack "n", $length;
        print join ".", unpack "C4", substr $answer, -4'
}
"#;

/// User ids of clients and servers that are not root's.
const NOBODY: u32 = 65534;
const STRANGER: u32 = 65533;

/// A server that runs, or ran, in its directory.
struct Running<'a> {
    row: &'a ForeignHost,
    host: Host,
    ports: [u16; 2],
}

impl ForeignHost {
    /// A script in the directory, with the variables of the table; `pid` is the server's.
    fn script(&self, place: &Path, ports: [u16; 2], pid: u32, text: &str) -> Command {
        let user = |id: u32| format!("setpriv --reuid={id} --regid={id} --clear-groups");
        let bin = dist("bin/memprof");
        let path = std::env::var("PATH").unwrap();
        let mut shell = Command::new("sh");
        shell.args(["-uc", &format!("cd $PLACE; {PRELUDE}{text}")]);
        shell
            .env(
                "PATH",
                format!("{}:/usr/sbin:/sbin:{path}", bin.parent().unwrap().display()),
            )
            .env("PLACE", place)
            .env("PLUGIN", plugin(place))
            .env("CONFIG", place.join("config.toml"))
            .env("MEMPROF_CONFIG", place.join("config.toml"))
            .env("MEMPROF_SOCKET_DIR", place.join("run"))
            .env("EXAMPLES", source("hosts-examples"))
            .env("PORT", ports[0].to_string())
            .env("OTHER_PORT", ports[1].to_string())
            .env("PID", pid.to_string())
            .env("NOBODY", user(NOBODY))
            .env("STRANGER", user(STRANGER));
        shell
    }

    /// Starts the server, and waits until it serves.
    fn start(&self, place: TempDir, ports: [u16; 2]) -> Running<'_> {
        let command = self.script(place.path(), ports, 0, &self.start);
        let running = Running {
            row: self,
            host: Host::spawn(command, place),
            ports,
        };
        running.wait_for(&self.serve, "serves", |said| said.contains(&self.served));
        running
    }
}

impl Running<'_> {
    fn script(&self, text: &str) -> Command {
        let mut shell = self
            .row
            .script(self.host.place(), self.ports, self.host.pid(), text);
        shell.env("MESSAGE", "status");
        shell
    }

    /// Exit status, and output with errors, of a script.
    fn run(&self, text: &str, message: &str) -> (bool, String) {
        let mut script = self.script(&format!("exec 2>&1\n{text}"));
        let output = script.env("MESSAGE", message).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.success(), said)
    }

    /// Runs a script until its output is as expected.
    fn wait_for(&self, text: &str, what: &str, is_right: impl Fn(&str) -> bool) {
        let begun = Instant::now();
        loop {
            let (_, said) = self.run(text, "status");
            if is_right(&said) {
                return;
            }
            let log = self.host.log();
            assert!(
                begun.elapsed() < TEST_TIMEOUT,
                "{} never {what}: {text}: {said}\n{log:#?}",
                self.row.name
            );
        }
    }

    /// Each worker answers by the plugin, and the server serves.
    fn is_whole(&mut self, when: &str) {
        let workers = self.row.workers;
        let answer = |said: &str| said.matches(INACTIVE).count() >= workers;
        self.wait_for(&self.row.ask, &format!("answers {when}"), answer);
        let (_, said) = self.run(&self.row.serve, "");
        assert!(
            said.contains(&self.row.served),
            "{} {when}: {said}",
            self.row.name
        );
        assert!(self.host.is_alive(), "{} {when}", self.row.name);
    }

    /// Ends the server while clients send messages: each has the answer, or an error.
    fn ends_amid_messages(mut self) -> TempDir {
        let (is_over, answers) = (AtomicBool::new(false), AtomicUsize::new(0));
        let signal: Signal = format!("SIG{}", self.row.end).parse().unwrap();
        let (row, pid, ports) = (self.row, self.host.pid(), self.ports);
        let place = self.host.place().to_owned();
        let code = thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        let text = format!("exec 2>&1\n{}", row.ask);
                        let mut ask = row.script(&place, ports, pid, &text);
                        let output = ask.env("MESSAGE", "status").output().unwrap();
                        let said = String::from_utf8_lossy(&output.stdout);
                        if said.contains(INACTIVE) {
                            answers.fetch_add(1, Ordering::Relaxed);
                        } else {
                            is_refusal(&row.name, &said);
                        }
                    }
                });
            }
            while answers.load(Ordering::Relaxed) < 3 {
                testkit::pause();
            }
            self.host.signal(signal);
            let code = self.host.wait();
            is_over.store(true, Ordering::Relaxed);
            code
        });
        let found = std::os::unix::process::ExitStatusExt::signal(&code)
            .map_or(code.code(), |by| Some(128 + by));
        let is_expected = found.is_some_and(|code| row.status.contains(&code));
        assert!(
            is_expected,
            "{}: {found:?}: {:#?}",
            row.name,
            self.host.log()
        );
        leaves_nothing(row, self.host.into_place())
    }
}

/// A text without an answer says that there is none, and of no fault of the plugin.
fn is_refusal(name: &str, said: &str) {
    for fault in ["panicked", "SIGSEGV", "Segmentation", "(status -7)"] {
        assert!(!said.contains(fault), "{name}: {said}");
    }
}

/// Waits until no process of the directory is left, and checks that neither is a socket nor half a dump.
fn leaves_nothing(row: &ForeignHost, place: TempDir) -> TempDir {
    let begun = Instant::now();
    let here = place.path().to_str().unwrap();
    loop {
        let left: Vec<_> = processes_with(here).collect();
        if left.is_empty() {
            break;
        }
        assert!(begun.elapsed() < TEST_TIMEOUT, "{}: {left:?}", row.name);
    }
    let left = files(&place, "dumps").chain(files(&place, "run").filter(|_| !row.is_killed));
    let left: Vec<_> = left.collect();
    assert_eq!(left, <[PathBuf; 0]>::default(), "{}", row.name);
    place
}

/// Kills the processes of a directory that a failed test leaves.
struct Cleanup(PathBuf);

impl Drop for Cleanup {
    fn drop(&mut self) {
        for (pid, _) in processes_with(self.0.to_str().unwrap()) {
            // It may have ended.
            let _: nix::Result<()> = kill(Pid::from_raw(pid.parse().unwrap()), Signal::SIGKILL);
        }
    }
}

/// Files in a directory of `place`.
fn files(place: &TempDir, directory: &str) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(place.path().join(directory))
        .into_iter()
        .flatten();
    entries.map(|entry| entry.unwrap().path())
}

/// Processes whose arguments or environment have a text: pid and arguments.
fn processes_with(text: &str) -> impl Iterator<Item = (String, String)> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    processes.filter_map(move |process| {
        let read = |name: &str| {
            let bytes = fs::read(process.path().join(name)).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let has_text = read("cmdline").contains(text) || read("environ").contains(text);
        let pid = process.file_name().into_string().ok()?;
        (has_text && pid.parse::<u32>().is_ok()).then(|| (pid, read("cmdline").replace('\0', " ")))
    })
}

/// Writes the plugin's config.
fn configure(place: &Path, more: &str) {
    let text = format!("dump_dir = {:?}\n{more}\n", place.join("dumps"));
    fs::write(place.join("config.toml"), text).unwrap();
}

fn survives_its_operator(name: &str) {
    assert!(
        geteuid().is_root(),
        "run this test as root: it denies messages to another user"
    );
    let table = table();
    let row = table.host.iter().find(|row| row.name == name).unwrap();
    let place = open_place();
    let ports = [free_port(), free_port()];
    configure(place.path(), "");
    let mut setup = row.script(place.path(), ports, 0, &format!("set -e\n{}", row.setup));
    let output = setup.output().unwrap();
    assert!(output.status.success(), "{name}: {output:?}");

    let _cleanup = Cleanup(place.path().to_owned());
    let mut server = row.start(place, ports);
    let (is_installed, said) = server.run(&row.install, "");
    assert!(is_installed, "{name}: {said}");
    server.is_whole("at first");
    let (_, said) = server.run(&row.ask, "bogus");
    assert!(said.contains(UNKNOWN), "{name}: {said}");
    let (_, said) = server.run(&row.denied, "");
    assert!(
        said.contains(&row.denial) && !said.contains(INACTIVE),
        "{name}: {said}"
    );
    server.is_whole("after refusals");
    let (_, said) = server.run(&row.reload, "");
    server.is_whole(&format!("after a reload: {said}"));

    let new = server.host.place().join("new.so");
    copy_of_the_plugin(&new);
    fs::rename(&new, plugin(server.host.place())).unwrap();
    server.is_whole("over a replaced file");
    let (_, said) = server.run(&row.upgrade, "");
    server.is_whole(&format!("after an upgrade: {said}"));

    let place = server.ends_amid_messages();
    configure(place.path(), "nonsense = 1");
    let mut refused = row.start(place, ports);
    let reason = "unknown field `nonsense`";
    refused.wait_for(&row.ask, "says why its config is refused", |said| {
        said.contains(reason) || refused.host.log().iter().any(|line| line.contains(reason))
    });
    assert!(refused.host.is_alive());
    configure(refused.host.place(), "");
    let mut host = refused.host;
    host.signal(format!("SIG{}", row.end).parse().unwrap());
    host.wait();
    let place = leaves_nothing(row, host.into_place());
    let before: Vec<_> = files(&place, "run").collect();
    let mut again = row.start(place, ports);
    again.is_whole("after a restart");
    // The new socket's thread removes them, which starts a moment later.
    let begun = Instant::now();
    while before.iter().any(|file| file.exists()) {
        assert!(begun.elapsed() < TEST_TIMEOUT, "{name}: {before:?}");
    }
    again.ends_amid_messages();
}

/// A test for each row.
macro_rules! hosts {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            survives_its_operator(stringify!($name));
        })*

        #[test]
        fn every_row_has_a_test() {
            let names: Vec<_> = table().host.into_iter().map(|row| row.name).collect();
            assert_eq!(names, [$(stringify!($name)),*]);
        }
    };
}

hosts! {
    redis mosquitto nginx httpd haproxy mariadb postgresql dnsdist kresd pdns_recursor traffic_server
}
