//! The control socket: what is answered, what is refused, and that the host outlives its clients.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use memprof_host::client::{Client, ClientError};
use memprof_host::protocol::{Delivery, TOO_MANY_CONNECTIONS};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::host::{Host, Setup, TEST_TIMEOUT};

fn connect(host: &Host) -> UnixStream {
    let stream = UnixStream::connect(host.socket()).unwrap();
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    stream
}

/// Sends a line and returns the answer's.
fn ask(stream: &mut UnixStream, line: &str) -> Value {
    stream.write_all(format!("{line}\n").as_bytes()).unwrap();
    answer(stream)
}

fn answer(stream: &UnixStream) -> Value {
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
}

#[test]
fn invalid_requests_are_errors() {
    let host = Setup::of("c_host").start();
    let mut stream = connect(&host);
    let mut check = |request: Value, expected: Value| {
        let answered = ask(&mut stream, &request.to_string());
        let shown = answered
            .get("error")
            .map_or(&answered["result"], |error| &error["code"]);
        assert_eq!(*shown, expected, "{answered}");
        assert_eq!(answered["id"], request["id"], "{answered}");
    };
    let request = |method: &str, params: Value| json!({ "jsonrpc": "2.0", "id": method, "method": method, "params": params });
    let basic = |tag: &str, data: &str| {
        request(
            "admin_plugin_send_basic_msg",
            json!({ "tag": tag, "data": data }),
        )
    };
    check(Value::Null, json!(-32600));
    check(request("nope", json!({})), json!(-32601));
    check(
        request("memprof.message", json!({ "plugin": "memory_profile" })),
        json!(-32602),
    );
    check(
        request("memprof.message", json!({ "plugin": "x", "message": "y" })),
        json!(-32001),
    );
    check(basic("x", "dump"), json!(-32001));
    check(basic("memory_profile", "status"), json!("success"));
    check(basic("memory_profile", "status\0"), json!("success"));
    check(basic("memory_profile", "nope"), json!("success"));
    host.wait_for_log("memory_profile status: profiling is inactive");
    host.wait_for_log("memory_profile nope: memory_profile has no message \"nope\"");
}

#[test]
fn messages_are_matched_exactly() {
    let host = Setup::of("c_host").start();
    for message in ["", "d", "Dump", "dump ", " dump", "dumpp", "dump\0"] {
        let reply = host
            .client()
            .message("memory_profile", message, "", None)
            .unwrap();
        assert_eq!(reply.result.status_code, -1, "{message:?}");
        let body = reply.result.body.unwrap();
        assert_eq!(body["error"]["kind"], "unknown_message");
        let remedy = body["error"]["remedy"].as_str().unwrap();
        let valid = "activate, deactivate, dump, stats, status, ledger, purge, background_thread, reset, gdump, recent, doctor, detach, list, fetch, help";
        assert_eq!(remedy, format!("valid messages: {valid}"));
    }
}

/// Each message with arguments that it does not take, and what the refusal says: the key, and what
/// is allowed.
const MALFORMED: &[(&str, &str, &str)] = &[
    (
        "dump",
        "path=/etc/passwd",
        "unknown argument \"path\"; valid arguments: ",
    ),
    ("dump", "kind=cpu", "valid: heap, growth, pinned"),
    (
        "purge",
        "allocator=x",
        "valid: jemalloc, tcmalloc, mimalloc, glibc",
    ),
    (
        "activate",
        "sample_interval=3KiB",
        "sample_interval=\"3KiB\" is out of range",
    ),
    (
        "activate",
        "sample_interval=1KiB lg_sample=10",
        "are the same; give one of them",
    ),
    (
        "status",
        "path=/etc/passwd",
        "unknown argument \"path\"; this message takes no arguments",
    ),
    ("dump", "now", "\"now\" is not of the form key=value"),
    ("dump", "=now", "\"=now\" is not of the form key=value"),
    ("dump", "at=\"now", "a quote is left open"),
    (
        "deactivate",
        "for=10m",
        "unknown argument \"for\"; valid arguments: ",
    ),
    ("status", "verbose=on", "unknown argument \"verbose\""),
    ("purge", "arena=1", "unknown argument \"arena\""),
    ("doctor", "fix=on", "unknown argument \"fix\""),
    ("detach", "now=on", "unknown argument \"now\""),
    ("list", "count=1", "unknown argument \"count\""),
    ("help", "message=dump", "unknown argument \"message\""),
    (
        "activate",
        "lg_sample=64",
        "lg_sample=64 is out of range 10..=24",
    ),
    (
        "activate",
        "lg_sample=9",
        "lg_sample=9 is out of range 10..=24",
    ),
    ("activate", "lg_sample=", "lg_sample=\"\" is not a number"),
    (
        "activate",
        "lg_sample=-1",
        "lg_sample=\"-1\" is not a number",
    ),
    (
        "activate",
        "lg_sample=19.5",
        "lg_sample=\"19.5\" is not a number",
    ),
    (
        "activate",
        "lg_sample=99999999999999999999",
        "is not a number",
    ),
    (
        "activate",
        "lg_sample=12 lg_sample=13",
        "argument \"lg_sample\" is given twice",
    ),
    (
        "activate",
        "for=soon",
        "for=\"soon\" is not a duration; for example for=10m",
    ),
    (
        "activate",
        "for=10",
        "for=\"10\" is not a duration; for example for=10m",
    ),
    (
        "activate",
        "for=10parsecs",
        "is not a duration; for example for=10m, at most 7d",
    ),
    ("activate", "for=-1s", "is not a duration"),
    (
        "activate",
        "for=8d",
        "for=\"8d\" is too long; for example for=10m, at most 7d",
    ),
    ("activate", "for=0s", "for=\"0s\" must be above 0s"),
    (
        "activate",
        "FOR=1s",
        "unknown argument \"FOR\"; valid arguments: ",
    ),
    (
        "activate",
        "unwinder=fast",
        "valid: auto, memprof, allocator",
    ),
    ("activate", "sampler=mine", "unknown sampler \"mine\""),
    (
        "reset",
        "lg_sample=9",
        "lg_sample=9 is out of range 10..=24",
    ),
    (
        "reset",
        "lg_sample=25",
        "lg_sample=25 is out of range 10..=24",
    ),
    (
        "reset",
        "for=1m",
        "unknown argument \"for\"; valid arguments: ",
    ),
    ("fetch", "", "argument \"id\" is missing"),
    (
        "fetch",
        "id=",
        "no kept dump has the id \"\"; send `list` for the ids",
    ),
    ("fetch", "id=../../etc/passwd", "no kept dump has the id"),
    (
        "fetch",
        "id=a path=/etc",
        "unknown argument \"path\"; valid arguments: ",
    ),
    (
        "stats",
        "opts=Jz",
        "opts=\"Jz\" has the unknown letter 'z'; valid letters: Jgmdablxeh",
    ),
    ("stats", "opts=aa", "opts=\"aa\" has a letter twice"),
    (
        "stats",
        "format=xml",
        "unknown format \"xml\"; valid formats: text, json",
    ),
    ("stats", "opts=J format=text", "contradicts J in opts"),
    (
        "stats",
        "arenas=on",
        "unknown argument \"arenas\"; valid arguments: ",
    ),
    ("ledger", "smaps=yes", "smaps=\"yes\" is neither on nor off"),
    (
        "ledger",
        "rows=7",
        "unknown argument \"rows\"; valid arguments: ",
    ),
    ("gdump", "", "argument \"state\" is missing"),
    ("stats", "log=no", "log=\"no\" is neither on nor off"),
    (
        "background_thread",
        "state=yes",
        "state=\"yes\" is neither on nor off",
    ),
    (
        "background_thread",
        "state=ON",
        "state=\"ON\" is neither on nor off",
    ),
    (
        "background_thread",
        "state=on max=0",
        "max=0 is out of range 1..=",
    ),
    (
        "background_thread",
        "state=on max=many",
        "max=\"many\" is not a number",
    ),
    (
        "background_thread",
        "state=on n=1",
        "unknown argument \"n\"; valid arguments: ",
    ),
    ("gdump", "state=1", "state=\"1\" is neither on nor off"),
    (
        "gdump",
        "state=on files=0",
        "files=0 is out of range 1..=1000; for example state=on",
    ),
    (
        "gdump",
        "state=on files=1001",
        "files=1001 is out of range 1..=1000",
    ),
    (
        "gdump",
        "state=on files=all",
        "files=\"all\" is not a number",
    ),
    ("gdump", "state=on for=8d", "for=\"8d\" is too long"),
    (
        "gdump",
        "state=off files=1",
        "files and for belong to state=on",
    ),
    (
        "gdump",
        "state=on step=1MiB",
        "unknown argument \"step\"; valid arguments: ",
    ),
    (
        "recent",
        "max=513",
        "max=513 is out of range 0..=512; for example max=100",
    ),
    ("recent", "max=-1", "max=\"-1\" is not a number"),
    (
        "recent",
        "count=1",
        "unknown argument \"count\"; valid arguments: ",
    ),
];

#[test]
fn malformed_arguments_are_named_and_change_nothing() {
    for program in ["c_host", "rust_host"] {
        let host = Setup::of(program).start();
        host.memprof("activate", &["for=1h"]).exits(0);
        let state = || {
            let mut status = host.memprof("status", &["--json"]).exits(0).json();
            // Its counters move with each sample.
            let setting = status["unwinder"]["setting"].take();
            status["unwinder"] = setting;
            status
        };
        let before = state();
        let messages = host.memprof("msg", &["memory_profile", "help", "--json"]);
        let messages = messages.exits(0).json()["messages"].clone();
        for message in messages.as_array().unwrap() {
            let name = message["name"].as_str().unwrap();
            let tried = |(tried, _, _): &(&str, &str, &str)| *tried == name;
            assert!(MALFORMED.iter().any(tried), "{name} is not tried");
        }
        for (message, args, expected) in MALFORMED {
            let reply = host.client().message("memory_profile", message, args, None);
            let reply = reply.unwrap();
            assert_eq!(reply.result.status_code, -2, "{message} {args}");
            let body = reply.result.body.unwrap();
            assert_eq!(body["error"]["kind"], "invalid_argument");
            let text = body["text"].as_str().unwrap();
            assert!(text.contains(expected), "{message} {args}: {text}");
        }
        assert_eq!(before, state(), "{program}");
        assert!(!host.threads().contains(&"jemalloc_bg_thd".to_owned()));
    }
}

#[test]
fn object_without_newline_counts_before_shutdown() {
    let host = Setup::of("c_host").start();
    let mut stream = connect(&host);
    stream
        .write_all(br#"{"jsonrpc":"2.0","id":1,"method":"memprof.host"}"#)
        .unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(answer(&stream)["result"]["pid"], host.pid());
}

#[test]
fn junk_gets_an_error_and_the_next_request_a_reply() {
    let host = Setup::of("c_host").start();
    for junk in [
        &b"{\n"[..],
        b"\xff\xfe\n",
        b"[]\n",
        b"null\n",
        b"\n",
        b"GET / HTTP/1.1\r\n",
    ] {
        let mut stream = connect(&host);
        stream.write_all(junk).unwrap();
        let code = answer(&stream)["error"]["code"].as_i64().unwrap();
        assert!([-32700, -32600].contains(&code), "{junk:?}: {code}");
        let pid = &ask(
            &mut stream,
            r#"{"jsonrpc":"2.0","id":1,"method":"memprof.host"}"#,
        )["result"]["pid"];
        assert_eq!(*pid, host.pid());
    }
}

#[test]
fn notification_gets_no_reply() {
    let host = Setup::of("c_host").start();
    let mut stream = connect(&host);
    stream
        .write_all(b"{\"jsonrpc\":\"2.0\",\"method\":\"memprof.host\"}\n")
        .unwrap();
    let pid = &ask(
        &mut stream,
        r#"{"jsonrpc":"2.0","id":7,"method":"memprof.host"}"#,
    );
    assert_eq!(pid["id"], 7);
}

#[test]
fn oversized_message_is_refused_and_the_connection_closed() {
    let host = Setup::of("c_host").start();
    let mut stream = connect(&host);
    let long = format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"{}\"}}\n",
        "x".repeat(1 << 20)
    );
    // The host stops reading at 4 KiB, so the rest may not be taken.
    drop(stream.write_all(long.as_bytes()));
    let mut rest = String::new();
    // A reset after the answer is as good as an end.
    drop(stream.read_to_string(&mut rest));
    assert!(
        rest.is_empty() || rest.contains("at most 4096 bytes"),
        "{rest}"
    );
    host.memprof("status", &[]).exits(0);
}

#[test]
fn slow_message_is_cut_off_after_a_second() {
    let host = Setup::of("c_host").start();
    let mut stream = connect(&host);
    let begun = Instant::now();
    stream.write_all(b"{").unwrap();
    let refused = answer(&stream);
    assert!(
        refused["error"]["message"]
            .as_str()
            .unwrap()
            .contains("within a second"),
        "{refused}"
    );
    assert!(
        begun.elapsed() >= Duration::from_millis(900),
        "{:?}",
        begun.elapsed()
    );
    host.memprof("status", &[]).exits(0);
}

#[test]
fn unread_client_delays_no_other() {
    let host = Setup::of("c_host").start();
    let mut deaf = connect(&host);
    deaf.set_nonblocking(true).unwrap();
    let request = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"memprof.plugins\"}\n";
    while deaf.write(request).is_ok() {}
    host.memprof("status", &[]).exits(0);
}

#[test]
fn vanished_client_leaves_a_complete_dump() {
    let host = Setup::of("c_host").start();
    host.memprof("activate", &[]).exits(0);
    let request = r#"{"jsonrpc":"2.0","id":1,"method":"memprof.message","params":{"plugin":"memory_profile","message":"dump"}}"#;
    for _ in 0..10 {
        let mut stream = connect(&host);
        stream.write_all(format!("{request}\n").as_bytes()).unwrap();
    }
    host.wait_for_log("dumped ");
    host.dump_of(0);
    for dump in std::fs::read_dir(host.dump_dir()).unwrap() {
        let text = std::fs::read_to_string(dump.unwrap().path()).unwrap();
        assert!(
            text.starts_with("heap_v2/") && text.contains("\n# build-id: "),
            "{text}"
        );
    }
}

#[test]
fn silent_connections_are_evicted_at_the_limit() {
    let host = Setup::of("c_host").start();
    let before = host.descriptors();
    let silent: Vec<_> = (0..100).map(|_| connect(&host)).collect();
    let mut late = connect(&host);
    let answered = ask(
        &mut late,
        r#"{"jsonrpc":"2.0","id":1,"method":"memprof.host"}"#,
    );
    assert_eq!(answered["result"]["pid"], host.pid());
    host.wait_for_descriptors(before + 32);
    let mut byte = [0];
    assert_eq!(
        (&silent[0]).read(&mut byte).unwrap(),
        0,
        "the first one was not pushed out"
    );
}

#[test]
fn slow_senders_are_evicted_at_the_limit() {
    let host = Setup::of("c_host").start();
    let slow: Vec<_> = (0..32)
        .map(|_| {
            let mut stream = connect(&host);
            stream.write_all(b"{").unwrap();
            stream
        })
        .collect();
    let request = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"memprof.host\"}\n";
    let answered = loop {
        let mut late = connect(&host);
        // Refused, maybe before it asks, while the host has not come to read any of those bytes.
        if late.write_all(request).is_ok() {
            let answered = answer(&late);
            if answered["error"]["code"] != TOO_MANY_CONNECTIONS {
                break answered;
            }
        }
    };
    assert_eq!(answered["result"]["pid"], host.pid());
    drop(slow);
}

#[test]
fn fifty_thousand_connections_leak_no_descriptor() {
    let host = Setup::of("c_host").start();
    host.memprof("status", &[]).exits(0);
    let before = host.descriptors();
    // Bounded in count; the host has to take each one.
    for _ in 0..50_000 {
        drop(connect(&host));
    }
    host.wait_for_descriptors(before);
    host.memprof("status", &[]).exits(0);
}

#[test]
fn socket_and_directory_are_private() {
    let host = Setup::of("c_host").start();
    let mode = |path: &std::path::Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&host.socket()), 0o600);
    assert_eq!(mode(&host.socket_dir()), 0o700);
}

#[test]
fn configured_socket_is_listed() {
    let place = tempfile::tempdir().unwrap();
    let socket = place.path().join("my.sock");
    let more = format!("[control]\nsocket = {socket:?}\nname = \"web\"");
    let mut host = Setup::of("c_host").more(&more).start();
    let listing = crate::memprof::memprof(&host.socket_dir(), &["status", "-t", "web"]);
    assert!(listing.exits(0).stdout.contains("profiling is inactive"));
    assert!(host.terminate().success());
    assert!(!socket.exists() && !host.socket().is_symlink());
}

#[test]
fn socket_of_a_killed_host_is_reused() {
    let place = tempfile::tempdir().unwrap();
    let socket = place.path().join("my.sock");
    let more = format!("[control]\nsocket = {socket:?}");
    let mut first = Setup::of("c_host").more(&more).start();

    let second = Setup::of("c_host").more(&more);
    let second = second.start();
    second.wait_for_log("another process listens there");
    first.signal(Signal::SIGKILL);
    while first.is_alive() {
        testkit::pause();
    }
    assert!(socket.exists());
    let _third = Setup::of("c_host").more(&more).start();
    Client::connect(&socket).unwrap().host_info().unwrap();
}

#[test]
fn missing_host_is_exit_code_3() {
    let nowhere = tempfile::tempdir().unwrap();
    let run = crate::memprof::memprof(nowhere.path(), &["status", "-t", "/no/such.sock"]).exits(3);
    assert!(
        run.stderr.contains("/no/such.sock: cannot reach the host"),
        "{run:?}"
    );
    let run = crate::memprof::memprof(nowhere.path(), &["status", "-t", "nobody"]).exits(3);
    assert!(
        run.stderr.contains("no host is named \"nobody\""),
        "{run:?}"
    );
    crate::memprof::memprof(nowhere.path(), &["dump", "--nope"]).exits(2);
}

#[test]
fn large_replies_are_passed_as_a_file() {
    let host = Setup::of("c_host").start();
    host.memprof("activate", &[]).exits(0);
    let dump = host.dump_of(1_000_000);
    let mut client = host.client();
    let id = format!("id={}", dump["id"].as_str().unwrap());
    let reply = client
        .message("memory_profile", "fetch", &id, Some(Delivery::Fd))
        .unwrap();
    assert_eq!(
        reply.result.content_type,
        "application/x-jemalloc-heap-profile"
    );
    assert_eq!(reply.result.size, dump["bytes"].as_u64());
    assert!(reply.file.is_some(), "{reply:?}");
    let kept = std::fs::read(dump["path"].as_str().unwrap()).unwrap();
    assert_eq!(reply.into_bytes().unwrap(), kept);
}

#[test]
fn unknown_plugins_are_refused_with_the_list() {
    let host = Setup::of("c_host").start();
    let refused = host.client().message("nope", "x", "", None).unwrap_err();
    let ClientError::Refused { code, message } = refused else {
        panic!("{refused}")
    };
    assert_eq!(
        (code, message.as_str()),
        (
            -32001,
            "no such plugin: \"nope\"; this host has memory_profile"
        )
    );
}

#[test]
fn msg_without_a_message_says_so() {
    let host = Setup::of("c_host").start();
    let pid = host.pid().to_string();
    let run = |words: &[&str]| {
        let args = [&["msg"], words].concat();
        crate::memprof::memprof(&host.socket_dir(), &args)
            .exits(2)
            .stderr
    };
    let missing = run(&[&pid, "memory_profile"]);
    let expected = format!("`memprof msg {pid} memory_profile help` lists its messages");
    assert!(missing.contains(&expected), "{missing}");
    // Without a target, the hosts of other tests make "several hosts" of it.
    let unknown = run(&["--target", &pid, "nope", "memory_profile"]);
    assert!(unknown.contains("no such plugin: \"nope\""), "{unknown}");
}
