//! `memprof attach --node-inspector`: a Node loads the plugin through its inspector, or says why not.

use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::host::{Host, TEST_TIMEOUT};
use crate::memprof::{Run, memprof};
use crate::processes::memprof_as_nobody;
use crate::root::skip_without_root;

/// Answers a line with a line, and keeps 32 MiB for each.
const SERVER: &str = "
const kept = [];
require('readline').createInterface({ input: process.stdin }).on('line', (line) => {
    for (let i = 0; i < 32; i++) kept.push(Buffer.alloc(1 << 20, 1));
    console.error(`served ${line}`);
});
console.error('ready');";

/// Answers a line with a line.
const ECHO: &str = "
require('readline').createInterface({ input: process.stdin }).on('line', (line) => console.error(`served ${line}`));
console.error('ready');";

/// Waits in a call of native code.
const READING: &str = "require('fs').readSync(0, Buffer.alloc(64))";
const EXECUTING: &str = "require('child_process').execSync('read line', { stdio: 'inherit' })";

/// Starts a Node that makes `call` first, and then answers lines.
fn waiting(option: &str, call: &str) -> Host {
    let script = format!("console.error('ready'); {call}; console.error('goes on'); {ECHO}");
    let host = node_with(&[option], &script);
    // Until it waits, which its log does not tell.
    let wchan = format!("/proc/{0}/task/{0}/wchan", host.pid());
    let begun = Instant::now();
    while std::fs::read_to_string(&wchan).unwrap() == "0" {
        assert!(begun.elapsed() < TEST_TIMEOUT);
        testkit::pause();
    }
    host
}

/// Connects to its own inspector as soon as that is open, and leaves it on a line.
const DEBUGGED: &str = "
const inspector = require('inspector'), http = require('http');
const looking = setInterval(() => {
    if (!inspector.url()) return;
    clearInterval(looking);
    const { port, pathname } = new URL(inspector.url());
    const headers = {
        Connection: 'Upgrade', Upgrade: 'websocket', 'Sec-WebSocket-Version': '13',
        'Sec-WebSocket-Key': 'AAAAAAAAAAAAAAAAAAAAAA==',
    };
    http.get({ host: '127.0.0.1', port, path: pathname, headers }).on('upgrade', (response, socket) => {
        require('readline').createInterface({ input: process.stdin }).on('line', (line) => {
            console.error(`served ${line}`);
            if (line !== 'leave') return;
            socket.destroy();
            setInterval(() => inspector.url() ?? console.error('closed'), 10);
        });
    });
}, 1);
console.error('ready');";

const CLOSED: &str = "through its inspector, which was closed again";
const STILL_OPEN: &str = "through its inspector, which is still open until";

/// A Node that runs a script, with a port for its inspector that the kernel chooses.
fn node(script: &str) -> Host {
    node_with(&["--inspect-port=127.0.0.1:0"], script)
}

fn node_with(options: &[&str], script: &str) -> Host {
    let mut node = Command::new("node");
    node.args(options)
        .args(["-e", script])
        .stdin(Stdio::piped());
    ready(node)
}

fn ready(mut command: Command) -> Host {
    command.stdin(Stdio::piped());
    let host = Host::spawn(command, tempfile::tempdir().unwrap());
    host.wait_for_log("ready");
    host
}

fn attach(host: &Host, words: &[&str]) -> Run {
    let pid = host.pid().to_string();
    let dump_dir = format!("dump_dir={}", host.dump_dir().display());
    let args = [&["attach", &pid, "--node-inspector", &dump_dir], words].concat();
    memprof(&host.socket_dir(), &args)
}

fn serves(host: &mut Host, line: &str) {
    host.type_line(line);
    host.wait_for_log(&format!("served {line}"));
}

/// Whether anything listens at the address that Node has logged last.
fn inspector_is_open(host: &Host) -> bool {
    let log = host.log();
    let mut addresses = log.iter().filter_map(|line| {
        let address = line.strip_prefix("Debugger listening on ws://")?;
        address.split('/').next()
    });
    TcpStream::connect(addresses.next_back().unwrap()).is_ok()
}

fn has_the_plugin(host: &Host) -> bool {
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", host.pid())).unwrap();
    maps.contains("memory_profile.so")
}

#[test]
fn node_is_profiled_and_detached_repeatedly() {
    let mut host = node(SERVER);
    let pid = host.pid().to_string();
    let listing = memprof(&host.socket_dir(), &["ps", "--json"])
        .exits(0)
        .json();
    let hosts = listing["hosts"].as_array().unwrap();
    assert!(hosts.iter().all(|known| known["pid"] != host.pid()));
    for round in ["one", "two", "three"] {
        let attached = attach(&host, &["--json"]).exits(0).json();
        let text = attached["text"].as_str().unwrap();
        assert!(text.contains(CLOSED), "{text}");
        assert_eq!(attached["stopped_ms"], 0.0);
        assert!(!inspector_is_open(&host));
        host.memprof("activate", &["lg_sample=12"]).exits(0);
        serves(&mut host, round);
        host.dump_of(16 << 20);
        memprof(&host.socket_dir(), &["detach", &pid]).exits(0);
        serves(&mut host, &format!("after {round}"));
    }
}

#[test]
fn open_inspector_stays_open() {
    let mut host = node_with(&["--inspect=127.0.0.1:0"], SERVER);
    let attached = attach(&host, &[]).exits(0).stdout;
    assert!(
        attached.contains("which was open before and stays so"),
        "{attached}"
    );
    assert!(inspector_is_open(&host));
    serves(&mut host, "on");
}

#[test]
fn record_attaches_by_the_inspector() {
    let turning = "const kept = []; let count = 0;
        setInterval(() => { kept[count++ % 64] = Buffer.alloc(1 << 20, 1); }, 1);";
    let mut host = node(&format!("{turning} {ECHO}"));
    let pid = host.pid().to_string();
    let args = ["record", "--pid", &pid, "--node-inspector", "--for", "1s"];
    memprof(&host.socket_dir(), &args).exits(0);
    assert!(!inspector_is_open(&host));
    serves(&mut host, "on");
}

/// The start of the plugin fails in the Node, which throws what `memprof attach` says.
#[test]
fn node_with_invalid_keys_reports_the_reason() {
    let mut host = node(SERVER);
    let refused = attach(&host, &["dump_dirr=/tmp"]).exits(4).stderr;
    assert!(
        refused.contains("the plugin was not started: "),
        "{refused}"
    );
    assert!(refused.contains("dump_dirr"), "{refused}");
    assert!(!inspector_is_open(&host));
    serves(&mut host, "on");
    attach(&host, &[]).exits(0);
}

/// A loop of JavaScript alone lets the inspector in between two steps, and never comes back to the event loop.
#[test]
fn busy_node_is_attached() {
    let host = node("console.error('ready'); for (;;);");
    let attached = attach(&host, &[]).exits(0).stdout;
    assert!(attached.contains(STILL_OPEN), "{attached}");
    assert!(inspector_is_open(&host));
    host.memprof("status", &[]).exits(0);
}

/// Node would wait for it with everything that it does.
#[test]
fn inspector_stays_open_while_a_debugger_is_connected() {
    let mut host = node(DEBUGGED);
    let attached = attach(&host, &[]).exits(0).stdout;
    assert!(attached.contains(STILL_OPEN), "{attached}");
    serves(&mut host, "on");
    assert!(inspector_is_open(&host));
    serves(&mut host, "leave");
    host.wait_for_log("closed");
    assert!(!inspector_is_open(&host));
    serves(&mut host, "still");
}

#[test]
fn process_without_handler_gets_no_signal() {
    let check = |command: Command, expected: &str| {
        let mut host = ready(command);
        let refused = attach(&host, &[]).exits(4).stderr;
        assert!(refused.contains(expected), "{refused}");
        serves(&mut host, "on");
        assert!(!host.log().iter().any(|line| line.contains("signalled")));
    };
    let mut perl = Command::new("perl");
    let echo = "$SIG{USR1} = sub { print STDERR qq(signalled\\n) }; print STDERR qq(ready\\n);
                while (<STDIN>) { print STDERR qq(served $_) }";
    perl.args(["-e", echo]);
    check(perl, "is no Node");
    // libuv gives the signal back to the kernel, and with it Node's own handler, which newer ones can do without.
    let ignorant = format!(
        "const listener = () => {{}};
        process.on('SIGUSR1', listener).removeListener('SIGUSR1', listener); {ECHO}"
    );
    let mut node = Command::new("node");
    node.args(["-e", &ignorant]);
    check(node, "has no handler of SIGUSR1");
    let mut elsewhere = Command::new("unshare");
    elsewhere.arg("--net");
    if !nix::unistd::geteuid().is_root() {
        elsewhere.arg("--map-root-user");
    }
    elsewhere.args([
        "node",
        "-e",
        &format!("process.on('SIGUSR1', () => console.error('signalled')); {ECHO}"),
    ]);
    check(elsewhere, "is in another network namespace");
}

#[test]
fn node_of_another_user_is_refused() {
    if skip_without_root("attach_node::node_of_another_user_is_refused") {
        return;
    }
    let mut host = node(ECHO);
    let pid = host.pid().to_string();
    let args = ["attach", "--node-inspector", &pid];
    let refused = memprof_as_nobody(host.place(), &args).exits(3).stderr;
    let words = format!("/proc/{pid}/exe: Permission denied; run memprof as uid 0 or as root");
    assert!(refused.contains(&words), "{refused}");
    serves(&mut host, "on");
}

#[test]
fn unopened_inspector_is_reported() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = format!("--inspect-port={}", taken.local_addr().unwrap());
    let mut host = node_with(&[&port], SERVER);
    let refused = attach(&host, &[]).exits(4).stderr;
    assert!(
        refused.contains("did not open its inspector for 5 s"),
        "{refused}"
    );
    host.wait_for_log("address already in use");
    serves(&mut host, "on");
    assert!(!has_the_plugin(&host));
}

#[test]
fn waiting_javascript_is_reported_and_the_plugin_not_loaded() {
    let check = |option: &str, call: &str, expected: &str| {
        let mut host = waiting(option, call);
        let refused = attach(&host, &[]).exits(4).stderr;
        assert!(refused.contains(expected), "{refused}");
        host.type_line("wake");
        host.wait_for_log("goes on");
        serves(&mut host, "on");
        assert!(!has_the_plugin(&host));
    };
    // The signal would have it throw EINTR.
    check(
        "--inspect-port=127.0.0.1:0",
        READING,
        "its main thread waits in a call",
    );
    check(
        "--inspect-port=127.0.0.1:0",
        EXECUTING,
        "did not open its inspector for 5 s",
    );
    // It runs what it got meanwhile, and answers a client that is gone.
    check(
        "--inspect=127.0.0.1:0",
        READING,
        "its JavaScript did not run for 10 s",
    );
}
