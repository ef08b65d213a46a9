//! Questions over a real NATS server, with one agent that looks after no host.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::place::{CART, Place};

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A process that ends with the test.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        self.0.kill().unwrap_or_default();
        self.0.wait().unwrap();
    }
}

/// Waits for a line of standard error, and reads on so that nobody waits for a full pipe.
pub(crate) fn wait_for_line(child: &mut Child, text: &str) {
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut seen = Vec::new();
    let found = lines.by_ref().map_while(Result::ok).any(|line| {
        seen.push(line);
        seen.last().is_some_and(|line| line.contains(text))
    });
    assert!(found, "no line with {text:?}: {seen:#?}");
    std::thread::spawn(move || lines.for_each(drop));
}

pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

pub(crate) fn server(place: &Path, port: u16, config: &str) -> Running {
    let file = place.join("nats.conf");
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
    Running(child)
}

fn agent(place: &Place, args: &[&str]) -> Running {
    let mut command = place.command(&[&["agent"], args].concat());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    wait_for_line(&mut child, "questions come from");
    Running(child)
}

/// Nobody's: other tests' hosts are left alone.
const NOBODY: [&str; 2] = ["-t", "@nobody-is-called-so"];

#[test]
fn agents_answer_and_those_that_do_not_are_named() {
    let place = Place::new();
    let port = free_port();
    let url = format!("nats://127.0.0.1:{port}");
    let ps = [&["fleet", "ps", "--nats", &url], &NOBODY[..]].concat();
    let unreachable = place.run(&ps).exits(3).stderr;
    assert!(
        unreachable.contains(&format!("failed to connect to {url}")),
        "{unreachable}"
    );

    let server_of_first = server(place.path("").as_path(), port, "");
    let nobody = place.run(&ps).exits(3).stderr;
    assert!(nobody.contains("no agent answered"), "{nobody}");

    let _agent = agent(&place, &["--nats", &url]);
    let answered = place.run(&ps).exits(0);
    assert!(
        answered.stderr.contains("1 agents answered"),
        "{answered:?}"
    );
    let dump = [&["fleet", "dump", "--nats", &url], &NOBODY[..]].concat();
    place.run(&dump).exits(5);

    // A server that goes and comes back finds the agent again.
    drop(server_of_first);
    let _server = server(place.path("").as_path(), port, "");
    let begun = Instant::now();
    while place.run(&ps).code != 0 {
        assert!(begun.elapsed() < PATIENCE);
    }

    // One that wrote a profile a moment ago is missed by its name.
    let other = Place::new();
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
fn what_a_server_refuses_is_said_with_what_helps() {
    let place = Place::new();
    let ask = |url: &str, more: &[&str], expected: &str| {
        let args = [&["fleet", "ps", "--nats", url], more, &NOBODY[..]].concat();
        let run = place.run(&args);
        assert!(run.stderr.contains(expected), "{run:?}");
        assert!([1, 2, 3].contains(&run.code), "{run:?}");
    };
    let users = "authorization { users = [ { user: u, password: p, permissions: { publish: [\"other\"] } } ] }";
    let port = free_port();
    let stranger = format!("nats://127.0.0.1:{port}");
    let mute = format!("{users}\nno_auth_user: u");
    let mute = server(place.path("").as_path(), port, &mute);
    let publish = "the server must let this user publish memprof.v1.svc.nobody-is-called-so.ps";
    ask(&stranger, &[], publish);
    drop(mute);
    let _server = server(place.path("").as_path(), port, users);
    ask(
        &stranger,
        &[],
        "`nkey_file` must hold the seed of a user that the server knows",
    );
    ask(
        &stranger,
        &["--nkey-file", "/no/such"],
        "failed to read /no/such",
    );
    ask("http://x", &[], "give nats://HOST:4222 or tls://HOST:4222");
    ask(
        &stranger,
        &["--ca-file", "/no/such"],
        "failed to read /no/such",
    );
}
