//! `memprof record --pid` that ends before its time.

use std::fs::{self, DirEntry};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::dist::dist;
use crate::fixture;
use crate::host::{Host, TEST_TIMEOUT};
use crate::memprof::memprof;

fn start() -> (TempDir, Host) {
    let (place, program) = fixture::build("ends.c", &["-g"]);
    (place, fixture::start(Command::new(program)))
}

/// A recording that samples.
struct Recording {
    memprof: Child,
    temporary: TempDir,
}

impl Recording {
    /// Signals have their default actions, whatever runs the tests.
    fn start(host: &Host) -> Self {
        let pid = host.pid().to_string();
        Self::start_with(host, &[], &["--for", "10m", "--pid", &pid])
    }

    /// Records with these arguments, by a memprof that a command runs, if there is one.
    fn start_with(host: &Host, runner: &[&str], args: &[&str]) -> Self {
        let temporary = tempfile::tempdir().unwrap();
        let memprof = Command::new("env")
            .arg("--default-signal=INT,TERM,HUP")
            .args(runner)
            .arg(dist("bin/memprof"))
            .arg("record")
            .args(args)
            .env("MEMPROF_SOCKET_DIR", host.socket_dir())
            .env("TMPDIR", temporary.path())
            .env("XDG_STATE_HOME", host.place())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let begun = Instant::now();
        // Until something is in the profile.
        loop {
            let dump = host.memprof("dump", &["--json"]).stdout;
            if dump.contains("\"stacks\":") && !dump.contains("\"stacks\":0") {
                break;
            }
            assert!(begun.elapsed() < TEST_TIMEOUT, "{dump}");
        }
        Self { memprof, temporary }
    }

    /// Waits until the first early profile lies in a file of memprof's without a name, whole.
    fn wait_for_early_profile(&self) {
        let begun = Instant::now();
        let runner = self.memprof.id();
        let child = fs::read_to_string(format!("/proc/{runner}/task/{runner}/children")).unwrap();
        let memprof = child.split(' ').find(|pid| !pid.is_empty());
        let memprof = memprof.map_or(runner, |pid| pid.parse().unwrap());
        let files = format!("/proc/{memprof}/fd");
        let is_profile = |file: DirEntry| {
            let is_temporary = |name: PathBuf| name.starts_with(self.temporary.path());
            fs::read_link(file.path()).is_ok_and(is_temporary)
                && fs::read(file.path())
                    .is_ok_and(|text| String::from_utf8_lossy(&text).contains("# checksum: crc32"))
        };
        while !fs::read_dir(&files).unwrap().flatten().any(is_profile) {
            assert!(begun.elapsed() < TEST_TIMEOUT);
            testkit::pause();
        }
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.memprof.id().cast_signed());
        kill(pid, signal).unwrap();
    }

    /// The exit status, what was written, and the number of files that are left.
    fn end(mut self) -> (ExitStatus, String, usize) {
        let status = self.memprof.wait().unwrap();
        let mut text = String::new();
        let (mut out, mut err) = (self.memprof.stdout.unwrap(), self.memprof.stderr.unwrap());
        out.read_to_string(&mut text).unwrap();
        err.read_to_string(&mut text).unwrap();
        (
            status,
            text,
            fs::read_dir(self.temporary.path()).unwrap().count(),
        )
    }
}

fn is_attached(host: &Host) -> bool {
    let status = memprof(
        &host.socket_dir(),
        &["status", "-t", &host.pid().to_string()],
    );
    status.code == 0
}

#[test]
fn interrupted_recordings_show_the_profile_so_far_and_detach() {
    for (signal, code) in [
        (Signal::SIGINT, 130),
        (Signal::SIGTERM, 143),
        (Signal::SIGHUP, 129),
    ] {
        let (_place, mut host) = start();
        let recording = Recording::start(&host);
        recording.signal(signal);
        let (status, text, left) = recording.end();
        assert_eq!(status.code(), Some(code), "{text}");
        assert!(text.contains("leak_here"), "{text}");
        assert!(text.contains("interrupted"), "{text}");
        assert_eq!(left, 0, "{text}");
        assert!(!is_attached(&host));
        assert!(host.is_alive());
    }
}

#[test]
fn second_interrupt_ends_at_once_and_names_remaining_changes() {
    let (_place, host) = start();
    let recording = Recording::start(&host);
    // The first one then waits for the process, to end the sampling.
    host.signal(Signal::SIGSTOP);
    recording.signal(Signal::SIGINT);
    recording.signal(Signal::SIGTERM);
    let (status, text, left) = recording.end();
    host.signal(Signal::SIGCONT);
    assert!([Some(130), Some(143)].contains(&status.code()), "{text}");
    let remedy = format!("`memprof detach {}` removes it now", host.pid());
    assert!(text.contains(&remedy), "{text}");
    assert_eq!(left, 0, "{text}");
    let detach = ["detach", &host.pid().to_string()];
    let begun = Instant::now();
    // The dump that memprof asked for first may be under way.
    while memprof(&host.socket_dir(), &detach).code != 0 {
        assert!(begun.elapsed() < TEST_TIMEOUT);
        testkit::pause();
    }
}

#[test]
fn recording_of_an_exiting_process_shows_its_exit_dump() {
    let (_place, mut host) = start();
    let recording = Recording::start(&host);
    host.type_line("end");
    let (status, text, left) = recording.end();
    assert_eq!(status.code(), Some(3), "{text}");
    assert!(text.contains("leak_here"), "{text}");
    assert!(text.contains("has ended with status 7"), "{text}");
    assert_eq!(left, 0, "{text}");
}

#[test]
fn recording_of_a_killed_or_replaced_process_shows_the_last_profile() {
    let check = |end: fn(&mut Host), words: &str| {
        let (_place, mut host) = start();
        let recording = Recording::start(&host);
        recording.wait_for_early_profile();
        end(&mut host);
        let (status, text, left) = recording.end();
        assert_eq!(status.code(), Some(3), "{text}");
        assert!(text.contains(words), "{text}");
        assert!(text.contains("leak_here"), "{text}");
        assert!(text.contains("the profile is that of its first"), "{text}");
        assert_eq!(left, 0, "{text}");
    };
    check(|host| host.signal(Signal::SIGKILL), "has ended by signal 9");
    check(
        |host| host.type_line("exec"),
        "has executed another program",
    );
}

/// A host that a recording reaches by its socket only, which `memprof run` has opened.
fn start_host() -> (TempDir, Host, String) {
    let (place, program) = fixture::build("ends.c", &["-g"]);
    let host = Host::run(&program, &[], tempfile::tempdir().unwrap());
    let sockets = fs::read_dir(host.socket_dir()).unwrap().flatten();
    let mut sockets = sockets.map(|file| file.path().to_str().unwrap().to_owned());
    let socket = sockets.find(|path| path.ends_with(".sock")).unwrap();
    (place, host, socket)
}

/// Records from another pid namespace, where the host's process is not visible.
fn start_elsewhere(host: &Host, time: &str, socket: &str) -> Recording {
    let mut runner = vec!["unshare", "--pid", "--mount-proc", "--fork", "--kill-child"];
    if !nix::unistd::geteuid().is_root() {
        runner.push("--map-root-user");
    }
    Recording::start_with(host, &runner, &["--for", time, socket])
}

/// Records where the host's process may not be inspected, and its socket is in no default directory.
fn start_without_capabilities(host: &Host, time: &str, socket: &str) -> Recording {
    let mut runner = vec!["env", "-u", "MEMPROF_SOCKET_DIR"];
    if nix::unistd::geteuid().is_root() {
        runner.extend(["setpriv", "--bounding-set=-sys_ptrace,-chown"]);
    }
    Recording::start_with(host, &runner, &["--for", time, socket])
}

#[test]
fn recording_by_the_socket_alone_connects_again() {
    let check = |start: fn(&Host, &str, &str) -> Recording| {
        let (_place, host, socket) = start_host();
        let recording = start(&host, "5s", &socket);
        recording.wait_for_early_profile();
        // The host closes the connection that has been idle for longest.
        let others: Vec<_> = (0..40).map(|_| UnixStream::connect(&socket)).collect();
        let (status, text, left) = recording.end();
        drop(others);
        assert!(status.success(), "{text}");
        assert!(text.contains("leak_here"), "{text}");
        assert_eq!(left, 0, "{text}");
    };
    check(start_elsewhere);
    check(start_without_capabilities);
}

#[test]
fn recording_from_another_pid_namespace_ends_with_its_host() {
    let (_place, host, socket) = start_host();
    let recording = start_elsewhere(&host, "10m", &socket);
    recording.wait_for_early_profile();
    host.signal(Signal::SIGKILL);
    let begun = Instant::now();
    let (status, text, left) = recording.end();
    assert!(begun.elapsed() < TEST_TIMEOUT, "{text}");
    assert_eq!(status.code(), Some(3), "{text}");
    assert!(text.contains("leak_here"), "{text}");
    let end = "has ended or closed its control socket; the profile is that of its first";
    assert!(text.contains(end), "{text}");
    // If it has only closed its socket, it goes on to sample.
    let remedy = format!("unless it has ended; `memprof deactivate {socket}` ends that now");
    assert!(text.contains(&remedy), "{text}");
    assert_eq!(left, 0, "{text}");
}

/// Connects a socket to that of a host until a line comes, or a client sends what matches the third argument, and then
/// closes it for good.
const RELAY: &str = r#"
    use IO::Socket::UNIX;
    use IO::Select;
    my $listener = IO::Socket::UNIX->new(Local => $ARGV[0], Listen => 9) or die $!;
    my ($select, %other) = IO::Select->new($listener, *STDIN);
    print STDERR "ready\n";
    sub end {
        close $_ for $listener, values %other;
        sleep 600;
    }
    while (1) {
        for my $from ($select->can_read) {
            if ($from eq *STDIN) {
                end;
            } elsif ($from == $listener) {
                my ($client, $host) = (scalar $from->accept, IO::Socket::UNIX->new($ARGV[1]));
                @other{$client, $host} = ($host, $client);
                $select->add($client, $host);
            } elsif (sysread $from, my $bytes, 65536) {
                end if $bytes =~ $ARGV[2];
                syswrite $other{$from}, $bytes;
            } else {
                $select->remove($from);
                $other{$from}->shutdown(1);
            }
        }
    }"#;

/// Its threads, which are the plugin's by their name, go on, and so the recording does not see it end.
#[test]
fn recording_of_a_host_that_closes_its_socket_shows_the_last_profile() {
    let check = |time: &str, last: Option<&str>, words: &str| {
        let (_place, host, socket) = start_host();
        let relay_place = tempfile::tempdir().unwrap();
        let program = relay_place.path().join("memprof-relay");
        symlink("/usr/bin/perl", &program).unwrap();
        let relayed = relay_place.path().join("relayed.sock");
        let relayed = relayed.to_str().unwrap();
        let mut relay = Command::new(program);
        // It matches nothing by default.
        relay.args(["-e", RELAY, relayed, &socket, last.unwrap_or("(?!)")]);
        let mut relay = fixture::start(relay);
        let recording = Recording::start_with(&host, &[], &["--for", time, relayed]);
        if last.is_some() {
            // The host can keep no dump, so that it sends the bytes: the relay passes no files.
            let state = host.place().join("state");
            fs::rename(&state, host.place().join("before")).unwrap();
            fs::write(&state, "").unwrap();
        }
        recording.wait_for_early_profile();
        if last.is_none() {
            relay.type_line("close");
        }
        let begun = Instant::now();
        let (status, text, left) = recording.end();
        assert!(begun.elapsed() < TEST_TIMEOUT, "{text}");
        assert_eq!(status.code(), Some(3), "{text}");
        assert!(text.contains("leak_here"), "{text}");
        assert!(text.contains(words), "{text}");
        let (_, age) = text
            .split_once("; the profile is that of its first ")
            .unwrap();
        let seconds = age
            .split_once('s')
            .and_then(|(age, _)| age.parse::<f64>().ok());
        // The dump of the whole time, although the sampling was not ended.
        let is_whole = seconds.is_some_and(|seconds| seconds >= 5.0);
        assert_eq!(is_whole, last.is_some(), "{text}");
        assert_eq!(left, 0, "{text}");
    };
    check("10m", None, "has closed its control socket");
    check("6s", None, "does not answer any more");
    check("5s", Some("\"deactivate\""), "does not answer any more");
}

#[test]
fn recording_of_a_stopped_process_reports_it_at_once() {
    let (_place, mut host) = start();
    let mut recording = Recording::start(&host);
    recording.wait_for_early_profile();
    host.signal(Signal::SIGSTOP);
    let mut notes = BufReader::new(recording.memprof.stderr.as_mut().unwrap()).lines();
    let stopped = notes.find(|line| line.as_ref().unwrap().contains("is stopped (SIGSTOP)"));
    stopped.unwrap().unwrap();
    recording.signal(Signal::SIGINT);
    let (status, text, left) = recording.end();
    assert_eq!(status.code(), Some(130), "{text}");
    assert!(text.contains("leak_here"), "{text}");
    // The remaining changes are reported.
    assert!(
        text.contains(&format!("memprof detach {}", host.pid())),
        "{text}"
    );
    assert_eq!(left, 0, "{text}");
    host.signal(Signal::SIGCONT);
    host.type_line("end");
}
