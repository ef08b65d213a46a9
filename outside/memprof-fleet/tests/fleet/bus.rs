//! Requests over a real NATS server, with one agent whose policy selects no host.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::test_dir::{CART, TestDir};

/// Longest wait for an event, more than it takes on a busy machine.
const EVENT_TIMEOUT: Duration = Duration::from_secs(60);

/// Child process that is killed on drop.
pub(crate) struct ChildGuard(pub(crate) Child);

impl Drop for ChildGuard {
    fn drop(&mut self) {
        // The kill fails if the process has ended already.
        self.0.kill().unwrap_or_default();
        self.0.wait().unwrap();
    }
}

/// Waits for a line of the child's stderr, and reads on in a thread, because the child would block on a full
/// pipe.
pub(crate) fn wait_for_line(child: &mut Child, text: &str) {
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut lines_before = Vec::new();
    let found = lines.by_ref().map_while(Result::ok).any(|line| {
        lines_before.push(line);
        lines_before.last().is_some_and(|line| line.contains(text))
    });
    assert!(found, "no line with {text:?}: {lines_before:#?}");
    std::thread::spawn(move || lines.for_each(drop));
}

/// Returns a port of 127.0.0.1 on which no process listened a moment ago.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

/// Starts a NATS server on a port of 127.0.0.1, and waits until it is ready. `config` is added to its configuration.
pub(crate) fn server(dir: &Path, port: u16, config: &str) -> ChildGuard {
    let file = dir.join("nats.conf");
    fs::write(&file, format!("listen: \"127.0.0.1:{port}\"\n{config}")).unwrap();
    let mut command = Command::new("/usr/sbin/nats-server");
    command
        .arg("-c")
        .arg(&file)
        .stderr(Stdio::piped())
        .stdout(Stdio::null());
    let child = command.spawn();
    let mut child =
        child.expect("nats-server: run `cargo xtask test`, or apt-get install nats-server");
    wait_for_line(&mut child, "Server is ready");
    ChildGuard(child)
}

/// Starts an agent, and waits until it is connected.
fn agent(dir: &TestDir, args: &[&str]) -> ChildGuard {
    let mut command = dir.command(&[&["agent"], args].concat());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    wait_for_line(&mut child, "questions come from");
    ChildGuard(child)
}

/// Target without processes, so that hosts of other tests are left alone.
const NO_PROCESS: [&str; 2] = ["-t", "@nobody-is-called-so"];

#[test]
fn agents_reply_and_missing_ones_are_named() {
    let dir = TestDir::new();
    let port = free_port();
    let url = format!("nats://127.0.0.1:{port}");
    let ps = [&["fleet", "ps", "--nats", &url], &NO_PROCESS[..]].concat();
    let unreachable = dir.run(&ps).exits(3).stderr;
    assert!(
        unreachable.contains(&format!("failed to connect to {url}")),
        "{unreachable}"
    );

    let server_of_first = server(dir.path("").as_path(), port, "");
    let no_agent = dir.run(&ps).exits(3).stderr;
    assert!(no_agent.contains("no agent answered"), "{no_agent}");

    let _agent = agent(&dir, &["--nats", &url]);
    let reply = dir.run(&ps).exits(0);
    assert!(reply.stderr.contains("1 agents answered"), "{reply:?}");
    let dump = [&["fleet", "dump", "--nats", &url], &NO_PROCESS[..]].concat();
    dir.run(&dump).exits(5);

    // The agent reconnects after a restart of the server.
    drop(server_of_first);
    let _server = server(dir.path("").as_path(), port, "");
    let start = Instant::now();
    while dir.run(&ps).code != 0 {
        assert!(start.elapsed() < EVENT_TIMEOUT);
    }

    // A machine that wrote a profile a moment ago is noted as missing.
    let other = TestDir::new();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    other.spool(
        CART,
        i64::try_from(now.as_millis()).unwrap(),
        &[("leak", 1)],
    );
    other.drain();
    let missed = other
        .run(&["fleet", "ps", "-t", "@cart", "--nats", &url])
        .exits(1);
    assert!(
        missed
            .stderr
            .contains("missing: node: it wrote a profile at"),
        "{missed:?}"
    );
    assert!(missed.stderr.contains("1 agents answered"), "{missed:?}");
}

#[test]
fn refusal_of_server_is_reported_with_remedy() {
    let dir = TestDir::new();
    let check = |url: &str, options: &[&str], expected: &str| {
        let args = [&["fleet", "ps", "--nats", url], options, &NO_PROCESS[..]].concat();
        let run = dir.run(&args);
        assert!(run.stderr.contains(expected), "{run:?}");
        assert!([1, 2, 3].contains(&run.code), "{run:?}");
    };
    let users = "authorization { users = [ { user: u, password: p, permissions: { publish: [\"other\"] } } ] }";
    let port = free_port();
    let address = format!("nats://127.0.0.1:{port}");
    let mute = format!("{users}\nno_auth_user: u");
    let mute = server(dir.path("").as_path(), port, &mute);
    let publish = "the server must let this user publish memprof.v1.svc.nobody-is-called-so.ps";
    check(&address, &[], publish);
    drop(mute);
    let _server = server(dir.path("").as_path(), port, users);
    check(
        &address,
        &[],
        "`nkey_file` must hold the seed of a user that the server knows",
    );
    check(
        &address,
        &["--nkey-file", "/no/such"],
        "failed to read /no/such",
    );
    check("http://x", &[], "give nats://HOST:4222 or tls://HOST:4222");
    check(
        &address,
        &["--ca-file", "/no/such"],
        "failed to read /no/such",
    );
}

/// Attempts of an agent to connect to a server that is gone.
const ATTEMPTS: usize = 8;

#[test]
fn lasting_connection_error_has_one_line_and_its_end_another() {
    let dir = TestDir::new();
    let port = free_port();
    let server_of_first = server(dir.path("").as_path(), port, "");
    let log = dir.path("log");
    let mut command = dir.command(&["agent", "--nats", &format!("nats://127.0.0.1:{port}")]);
    let agent = command.stderr(fs::File::create(&log).unwrap()).spawn();
    let _agent = ChildGuard(agent.unwrap());
    let lines = || fs::read_to_string(&log).unwrap();
    let wait_for = |text: &str| {
        let start = Instant::now();
        while !lines().contains(text) {
            assert!(start.elapsed() < EVENT_TIMEOUT, "no {text:?}: {}", lines());
        }
    };
    wait_for("questions come from");
    drop(server_of_first);
    // Each attempt ends in the same error.
    let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    for attempt in listener.incoming().take(ATTEMPTS) {
        drop(attempt.unwrap());
    }
    drop(listener);
    let _server = server(dir.path("").as_path(), port, "");
    wait_for("NATS: works again");
    let text = lines();
    let about_nats = text.lines().filter(|line| line.contains("NATS: "));
    let mut distinct: Vec<_> = about_nats.clone().collect();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), about_nats.count(), "{text}");
    assert!((2..=ATTEMPTS / 2).contains(&distinct.len()), "{text}");
}
