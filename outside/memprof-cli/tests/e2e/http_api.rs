//! The server's own API, in front of real hosts.

use std::collections::BTreeSet;
use std::time::Instant;

use nix::sys::signal::Signal;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use crate::curl::curl;
use crate::host::{Setup, TEST_TIMEOUT};
use crate::memprof::memprof;
use crate::schema;
use crate::server::Server;

#[test]
fn messages_have_replies() {
    let host = Setup::of("rust_host").start();
    let server = Server::of(&host, &[]);
    let post = |line: &str| curl(&server.address, &format!("-X POST {line}"));
    let active = post("-d {\"for\":\"10m\",\"lg_sample\":13} H/api/v1/activate")
        .is(200)
        .json();
    assert_eq!(active["profiling"], "active");
    assert_eq!(active["sample_interval"], 1 << 13);
    assert!(active["active_until"].is_string(), "{active}");
    let status = curl(&server.address, "H/api/v1/status").is(200).json();
    assert_eq!(status["profiling"], "active");
    let ledger = curl(&server.address, "H/api/v1/ledger").is(200).json();
    assert!(ledger["rss_bytes"].as_u64().unwrap() > 0);
    let stats = curl(&server.address, "H/api/v1/stats").is(200).json();
    assert!(stats["allocators"][0]["allocated"].as_u64().unwrap() > 0);
    let stats = curl(&server.address, "H/api/v1/stats?opts=Ja").is(200);
    assert!(
        stats.text().contains("\\\"jemalloc\\\""),
        "{}",
        stats.text()
    );
    let metrics = curl(&server.address, "H/metrics").is(200).text();
    let labels = "jemalloc_allocated_bytes{allocator=\"jemalloc\",version=\"5.";
    assert!(metrics.contains(labels), "{metrics}");
    let plain = curl(&server.address, "H/api/v1/stats?format=text").is(200);
    assert!(plain.header("content-type").starts_with("text/plain"));
    let smaps = curl(&server.address, "H/api/v1/ledger?smaps=on")
        .is(200)
        .json();
    assert!(smaps["smaps"].is_object(), "{smaps}");
    curl(&server.address, "H/api/v1/status?x=1").is(400);
    assert_eq!(
        post("H/api/v1/deactivate").is(200).json()["profiling"],
        "inactive"
    );
    assert!(post("H/api/v1/purge").is(200).json()["released_bytes"].is_u64());
    assert_eq!(
        post("-d {\"state\":true} H/api/v1/gdump").is(200).json()["status"],
        "ok"
    );
    assert_eq!(
        post("-d {\"state\":\"off\"} H/api/v1/gdump").is(200).json()["status"],
        "ok"
    );
}

#[test]
fn errors_name_the_cause() {
    let host = Setup::that_cannot_profile("rust_host").start();
    let server = Server::of(&host, &[]);
    let check = |line: &str, status: u16, kind: &str, message: &str| {
        let error = curl(&server.address, line).is(status).json()["error"].take();
        assert_eq!(error["kind"], kind, "{line}");
        let said = error["message"].as_str().unwrap();
        assert!(said.contains(message), "{line}: {said}");
    };
    check(
        "-X POST H/api/v1/activate",
        409,
        "unavailable",
        "opt.prof=false",
    );
    check(
        "-X POST H/api/v1/dump",
        409,
        "unavailable",
        "opt.prof=false",
    );
    check(
        "-X POST -d [] H/api/v1/activate",
        400,
        "invalid_argument",
        "not a JSON object",
    );
    check(
        "-X POST -d {\"for\":[]} H/api/v1/activate",
        400,
        "invalid_argument",
        "the value of \"for\" is not plain",
    );
    check(
        "-X POST -d {\"x=1\":1} H/api/v1/activate",
        400,
        "invalid_argument",
        "unknown argument",
    );
    check(
        "-X POST -d {\"path\":\"/x\"} H/api/v1/dump",
        400,
        "invalid_argument",
        "\"path\"",
    );
    check(
        "-X POST H/api/v1/gdump",
        400,
        "invalid_argument",
        "\"state\" is missing",
    );
    check("H/nothing", 404, "not_found", "no such page");
    check("H/api/v1/dumps/x", 404, "not_found", "\"x\"");
    check("H/host/1/api/v1/status", 404, "host_gone", "pid 1");
    // What a doctor finds is an answer.
    let doctor = curl(&server.address, "H/api/v1/doctor").is(200).json();
    assert_eq!(doctor["healthy"], false);
}

#[test]
fn kept_dump_is_served_in_every_format() {
    let host = Setup::of("rust_host").config("keep.count = 10000").start();
    host.memprof("activate", &[]).exits(0);
    let first = host.dump_of(1 << 20);
    let second = host.dump_of(3 << 20);
    let server = Server::of(&host, &[]);
    let dumps = curl(&server.address, "H/api/v1/dumps").is(200).json();
    assert_eq!(dumps["dumps"][0]["id"], second["id"]);
    let (first, second) = (
        first["id"].as_str().unwrap(),
        second["id"].as_str().unwrap(),
    );
    let get = |query: &str| curl(&server.address, &format!("H/api/v1/dumps/{second}?{query}"));
    let check = |query: &str, content_type: &str, text: &str| {
        let got = get(query).is(200);
        assert!(
            got.header("content-type").starts_with(content_type),
            "{query}: {got:?}"
        );
        assert!(got.text().contains(text), "{query}: {}", got.text());
    };
    check(
        "format=heap",
        "application/x-jemalloc-heap-profile",
        "heap_v2/4096\n",
    );
    check("format=pprof", "application/octet-stream", "");
    check("format=collapsed", "text/plain", "grow_cache");
    check("format=flamegraph", "image/svg+xml", "grow_cache");
    check("format=html", "text/html", "grow_cache");
    check("format=view", "application/json", "grow_cache");
    check("format=json", "application/json", "grow_cache");
    check("format=text", "text/plain", "grow_cache");
    check("format=tree", "text/plain", "grow_cache");
    check("format=jeprof", "text/plain", "grow_cache");
    check("format=dot", "text/vnd.graphviz", "grow_cache");
    check("format=svg", "image/svg+xml", "grow_cache");
    check("", "text/plain", "inuse_space: ");
    check("sample_type=inuse_objects", "text/plain", "inuse_objects: ");
    for on in ["on", "1", "true", "yes"] {
        check(&format!("lines={on}"), "text/plain", "work.rs:");
    }
    let whole = get("lines=no").is(200).text();
    assert!(!whole.contains("work.rs:"), "{whole}");
    let refused = get("lines=perhaps").is(400).json()["error"].take();
    assert!(
        refused["remedy"].as_str().unwrap().contains("on, off"),
        "{refused}"
    );
    let top = get("format=json&top=2").is(200).json();
    assert_eq!(top["functions"].as_array().unwrap().len(), 2);
    let leaker = |query: &str| {
        let report = get(&format!("format=json&top=1&{query}")).is(200).json();
        let name = report["functions"][0]["name"].as_str();
        name.is_some_and(|name| name.contains("grow_cache"))
    };
    assert!(leaker("flat=off"));
    assert!(!leaker("flat=on"));
    assert!(!leaker("plumbing=grow_cache"));
    assert!(leaker("plumbing=grow_cache&own=grow_cache"));
    get("flat=on&own=x").is(409);
    check(&format!("base={first}"), "text/plain", "changed by ");
    get("focus=no_such_function").is(409);
    get("focus=(").is(400);
    get("format=x").is(400);
    get("sample_type=x").is(400);
    get("unknown=1").is(400);
}

#[test]
fn memory_of_reports_is_released() {
    /// The names of a program with all its debug information take several times this.
    const KEPT_KIB: u64 = 24 << 10;
    let host = Setup::of("rust_host").start();
    host.memprof("activate", &[]).exits(0);
    let dump = host.dump_of(1 << 20);
    let id = dump["id"].as_str().unwrap();
    let server = Server::of(&host, &[]);
    for format in ["html", "text", "pprof", "json"] {
        let line = format!("H/api/v1/dumps/{id}?format={format}");
        curl(&server.address, &line).is(200);
    }
    let begun = Instant::now();
    while server.anonymous_kib() > KEPT_KIB {
        assert!(
            begun.elapsed() < TEST_TIMEOUT,
            "{} KiB",
            server.anonymous_kib()
        );
        testkit::pause();
    }
}

#[test]
fn several_hosts_are_served_below_their_pids() {
    let one = Setup::of("rust_host").start();
    let two = Setup::of("c_host").sockets(&one.socket_dir()).start();
    let server = Server::start(&one.socket_dir(), &[]);
    let hosts = curl(&server.address, "H/api/v1/hosts").is(200).json();
    let hosts = hosts["hosts"].as_array().unwrap();
    for host in [&one, &two] {
        assert!(
            hosts.iter().any(|known| known["pid"] == host.pid()),
            "{hosts:?}"
        );
        let status = curl(
            &server.address,
            &format!("H/host/{}/api/v1/status", host.pid()),
        );
        let directory = status.is(200).json()["dump_dir"].clone();
        assert_eq!(directory, host.dump_dir().display().to_string());
        curl(&server.address, &format!("H/host/{}/memory", host.pid())).is(200);
        let page = curl(&server.address, &format!("H/host/{}", host.pid())).is(308);
        assert_eq!(page.header("location"), format!("{}/", host.pid()));
    }
    let ambiguous = curl(&server.address, "H/api/v1/status").is(404).text();
    assert!(ambiguous.contains("/host/PID"), "{ambiguous}");
}

#[test]
fn ended_host_is_reported_and_found_again() {
    // Of all hosts on this machine, none else is called so.
    let name = format!("comes_back_{}", std::process::id());
    let setup = || Setup::of("rust_host").more(&format!("[control]\nname = {name:?}"));
    let mut host = setup().start();
    let sockets = host.socket_dir();
    let server = Server::start(&sockets, &["-t", &name]);
    curl(&server.address, "H/api/v1/status").is(200);
    host.terminate();
    let gone = curl(&server.address, "H/api/v1/status").is(503);
    assert_eq!(gone.header("retry-after"), "2");
    assert_eq!(gone.json()["error"]["kind"], "host_gone");
    curl(&server.address, "H/pprof/heap").is(503);
    let again = setup().sockets(&sockets).start();
    let status = curl(&server.address, "H/api/v1/status").is(200).json();
    assert_eq!(status["dump_dir"], again.dump_dir().display().to_string());
}

#[test]
fn unix_socket_serves_only_its_user() {
    use std::os::unix::fs::PermissionsExt;
    let host = Setup::of("rust_host").start();
    let socket = host.place().join("http.sock");
    let path = socket.to_str().unwrap();
    {
        let _server = Server::at(&host, path);
        let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let line = format!("--unix-socket {path} http://localhost/api/v1/status");
        curl("", &line).is(200);
        let taken = memprof(&host.socket_dir(), &["serve", "--socket", path]).exits(1);
        assert!(
            taken.stderr.contains("another process listens there"),
            "{taken:?}"
        );
    }
    // The socket of a killed server does not block a new one.
    assert!(socket.exists());
    let _server = Server::at(&host, path);
    curl(
        "",
        &format!("--unix-socket {path} http://localhost/api/v1/status"),
    )
    .is(200);
}

#[test]
fn file_at_the_socket_path_is_kept() {
    let host = Setup::of("rust_host").start();
    let file = host.place().join("precious");
    std::fs::write(&file, "kept").unwrap();
    let link = host.place().join("link");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    for path in [&file, &link] {
        let path = path.to_str().unwrap();
        let refused = memprof(&host.socket_dir(), &["serve", "--socket", path]).exits(1);
        let why = format!("failed to listen at {path}: the path exists and is not a socket");
        assert!(refused.stderr.contains(&why), "{refused:?}");
    }
    assert_eq!(std::fs::read_to_string(&link).unwrap(), "kept");
    // Somebody else's socket, which is not listened at with our lock.
    let other = host.place().join("other.sock");
    let _listener = std::os::unix::net::UnixListener::bind(&other).unwrap();
    let path = other.to_str().unwrap();
    let refused = memprof(&host.socket_dir(), &["serve", "--socket", path]).exits(1);
    assert!(
        refused.stderr.contains("another process listens there"),
        "{refused:?}"
    );
    std::os::unix::net::UnixStream::connect(&other).unwrap();
}

#[test]
fn api_matches_its_description() {
    let host = Setup::of("rust_host").start();
    host.memprof("activate", &[]).exits(0);
    host.dump_of(1 << 20);
    let server = Server::of(&host, &[]);
    let document = curl(&server.address, "H/api/v1/openapi.json")
        .is(200)
        .json();
    assert_eq!(document["openapi"], "3.1.0");
    let dumps = curl(&server.address, "H/api/v1/dumps").json();
    let id = dumps["dumps"][0]["id"].as_str().unwrap();
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.len() > 28, "{}", paths.len());
    let mut validated = 0;
    for (path, operations) in paths {
        let address = path
            .replace("{pid}", &host.pid().to_string())
            .replace("{id}", id);
        for (method, operation) in operations.as_object().unwrap() {
            // These need an argument to have something to do.
            let body = match path.rsplit('/').next() {
                Some("gdump") => "{\"state\":\"off\"}",
                Some("recent") => "{\"max\":9}",
                _ => "{}",
            };
            let line = match method.as_str() {
                "get" => format!("H{address}"),
                _ => format!("-X POST -d {body} H{address}"),
            };
            // The host loaded the plugin itself.
            let (status, described) = match path.ends_with("/detach") {
                true => (409, "default"),
                false => (200, "200"),
            };
            let got = curl(&server.address, &line).is(status);
            let reply = operation["responses"][described]["content"]
                .as_object()
                .unwrap();
            let (kind, content) = reply.iter().next().unwrap();
            assert!(
                kind == "*/*" || got.header("content-type").starts_with(kind.as_str()),
                "{line}"
            );
            if let Some(schema) = content.get("schema") {
                let replied = got.json();
                let types = &document["components"]["schemas"];
                let described = schema::check(&replied, schema, types);
                assert_eq!(described, Ok(()), "{line}: {replied}");
                validated += 1;
            }
        }
        let other = if operations.get("get").is_some() {
            "-X DELETE"
        } else {
            "-X GET"
        };
        curl(&server.address, &format!("{other} H{address}")).is(405);
    }
    assert!(validated > 28, "{validated}");
}

/// The keys of `[for=10m] [sample_interval=512KiB | lg_sample=10..24]`.
fn keys(usage: &str) -> BTreeSet<String> {
    let words = usage.split([' ', '[', ']', '|']);
    let keys = words.filter_map(|word| Some(word.split_once('=')?.0.to_owned()));
    keys.collect()
}

#[test]
fn api_accepts_the_arguments_of_the_plugin() {
    let host = Setup::of("rust_host").start();
    let server = Server::of(&host, &[]);
    let document = curl(&server.address, "H/api/v1/openapi.json").json();
    let described = |message: &str| -> Option<BTreeSet<String>> {
        let path = document["paths"].get(format!("/api/v1/{message}"))?;
        let query = path["get"]["parameters"].as_array().into_iter().flatten();
        let query = query.map(|one| one["name"].as_str().unwrap().to_owned());
        let body = &path["post"]["requestBody"]["content"]["application/json"]["schema"];
        let body = body["properties"].as_object().into_iter().flatten();
        Some(query.chain(body.map(|(name, _)| name.clone())).collect())
    };
    // The plugin's own table of its messages.
    let help = host
        .client()
        .message("memory_profile", "help", "", None)
        .unwrap();
    let help = serde_json::from_slice::<serde_json::Value>(&help.into_bytes().unwrap()).unwrap();
    let table = help["messages"].as_array().unwrap();
    let mut messages = BTreeSet::new();
    for message in table {
        let name = message["name"].as_str().unwrap();
        // They are not messages there, but documents.
        if ["list", "fetch", "help"].contains(&name) {
            continue;
        }
        messages.insert(format!("/api/v1/{name}"));
        let expected = keys(message["usage"].as_str().unwrap());
        assert_eq!(described(name), Some(expected), "{name}");
    }
    let others =
        ["hosts", "openapi.json", "dumps", "dumps/{id}"].map(|name| format!("/api/v1/{name}"));
    let paths = document["paths"].as_object().unwrap().keys();
    let unknown: Vec<_> = paths
        .filter(|path| path.starts_with("/api/"))
        .filter(|path| !messages.contains(*path) && !others.contains(path))
        .collect();
    assert_eq!(unknown, [""; 0]);
}

#[test]
fn completions_and_manual_pages_are_complete() {
    let nowhere = std::path::Path::new("/nonexistent");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = memprof(nowhere, &["completions", shell]).exits(0).stdout;
        assert!(script.contains("MEMPROF_COMPLETE"), "{shell}: {script}");
    }
    let page = memprof(nowhere, &["man"]).exits(0).stdout;
    assert!(
        page.starts_with(".ie") && page.contains(".TH memprof 1"),
        "{page}"
    );
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("man1");
    memprof(
        nowhere,
        &["man", "--directory", directory.to_str().unwrap()],
    )
    .exits(0);
    let page = std::fs::read_to_string(directory.join("memprof-serve.1")).unwrap();
    assert!(page.contains("token"), "{page}");
}

/// Each request leaves a connection that a stopped host does not accept, until its queue is full.
#[test]
fn stopped_host_with_a_full_queue_stays_in_the_list() {
    let host = Setup::of("c_host").start();
    let pid = host.pid();
    let _other = Setup::of("c_host").sockets(&host.socket_dir()).start();
    let server = Server::start(&host.socket_dir(), &[]);
    let socket = host.socket_dir().join(format!("{pid}.sock"));
    host.signal(Signal::SIGSTOP);
    let address = SocketAddrUnix::new(&socket).unwrap();
    let mut waiting = Vec::new();
    loop {
        let flags = SocketFlags::NONBLOCK;
        let client = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        match connect(&client, &address) {
            Ok(()) => waiting.push(client),
            Err(error) => break assert_eq!(error, Errno::AGAIN),
        }
    }
    let list = curl(&server.address, "H/api/v1/hosts").is(200).json();
    host.signal(Signal::SIGCONT);
    // On a busy machine the other host may be late, too.
    let silent = list["silent"].as_array().unwrap();
    assert!(silent.iter().any(|host| host["pid"] == pid), "{list}");
}
