//! What requests of scripts for five other systems do, beside a host and in a host that serves HTTP itself. Their
//! answers are tried in originals.rs.

use std::path::Path;

use crate::curl::curl;
use crate::host::{Host, Setup};
use crate::server::Server;

#[derive(Clone, Copy, Debug)]
enum Body<'a> {
    Is(&'a str),
    Has(&'a str),
    Starts(&'a [u8]),
}
use Body::{Has, Is, Starts};

const PLAIN: &str = "text/plain";
const JSON: &str = "application/json";
const SVG: &str = "image/svg+xml";
const GZIP: Body<'static> = Starts(&[0x1f, 0x8b]);

/// Runs a line of a script, and checks the status, content type and body that it gets.
#[track_caller]
fn check(address: &str, line: &str, status: u16, content_type: &str, body: Body<'_>) {
    let got = curl(address, line);
    assert_eq!(got.status, status, "{line}: {}", got.text());
    let kind = got.header("content-type");
    assert!(kind.starts_with(content_type), "{line}: {kind}");
    let text = got.text();
    match body {
        Is(expected) => assert_eq!(text, expected, "{line}"),
        Has(expected) => assert!(text.contains(expected), "{line}: {text}"),
        Starts(expected) => assert!(got.body.starts_with(expected), "{line}: {text}"),
    }
}

/// Config without retention, which would delete dumps that a test counts.
const KEEP: &str = "keep.count = 10000";

/// Both ways to serve a host that can be profiled and has something to show.
fn each_way(lines: impl Fn(&str, &Host)) {
    let host = Setup::of("rust_host").config(KEEP).start();
    host.memprof("activate", &[]).exits(0);
    host.dump_of(1 << 20);
    let server = Server::of(&host, &[]);
    lines(&server.address, &host);

    let host = Setup::of("rust_http").config(KEEP).start();
    let line = host.wait_for_log("serving http://");
    let (_, address) = line.split_once("serving ").unwrap();
    host.memprof("activate", &[]).exits(0);
    host.dump_of(1 << 20);
    lines(address, &host);
}

fn kept(directory: &Path) -> usize {
    std::fs::read_dir(directory).unwrap().count()
}

#[test]
fn dumps_of_other_systems_are_kept() {
    each_way(|address, host| {
        for line in [
            "-X POST H/service/jemalloc/prof/dump",
            "H/flags/je_prof_dump?setvalue=1",
            "H/mtev/heap_profile?trigger_dump=true",
            "-X POST H/debug/prof/mem?output=proto",
        ] {
            let before = kept(&host.dump_dir());
            curl(address, line).is(200);
            assert_eq!(kept(&host.dump_dir()), before + 1, "{line}");
        }
    });
}

#[test]
fn uploaded_dump_is_named() {
    each_way(|address, host| {
        let file = host.place().join("x.heap");
        std::fs::write(&file, curl(address, "-X POST H/debug/prof/mem").body).unwrap();
        let upload = format!(
            "-X POST --data-binary @{} H/debug/prof/mem/symbol",
            file.display()
        );
        check(address, &upload, 200, SVG, Has("grow_cache"));
    });
}

#[test]
fn flags_of_brpc_change_the_host() {
    each_way(|address, host| {
        let status = || host.memprof("status", &["--json"]).json();
        curl(address, "H/flags/je_prof_active?setvalue=false").is(200);
        assert_eq!(status()["profiling"], "inactive");
        curl(address, "H/flags/je_prof_active?setvalue=true").is(200);
        assert_eq!(status()["profiling"], "active");
        curl(address, "H/flags/je_prof_reset?setvalue=19").is(200);
        assert_eq!(status()["sample_interval"], 1 << 19);
    });
}

#[test]
fn brpc_names_addresses() {
    each_way(|address, _| {
        check(
            address,
            "H/pprof/symbol",
            200,
            PLAIN,
            Is("num_symbols: 1\n"),
        );
        assert!(curl(address, "-I H/pprof/symbol").is(200).body.is_empty());
        let heap = curl(address, "H/pprof/heap").text();
        let largest = heap.lines().skip(1).take_while(|line| line.contains('@'));
        let bytes = |line: &&str| {
            line.split([':', ' '])
                .nth(2)
                .unwrap()
                .parse::<u64>()
                .unwrap()
        };
        let largest = largest.max_by_key(bytes).unwrap();
        // Return addresses; the tools send what comes before.
        let addresses = largest
            .split_once("@ ")
            .unwrap()
            .1
            .split(' ')
            .map(|address| u64::from_str_radix(address.trim_start_matches("0x"), 16).unwrap() - 1);
        let addresses: Vec<u64> = addresses.collect();
        let padded: Vec<_> = addresses.iter().map(|a| format!("{a:#018x}")).collect();
        let body = padded.join("+");
        let names = curl(address, &format!("--data-binary {body} H/pprof/symbol"))
            .is(200)
            .text();
        assert_eq!(names.lines().count(), addresses.len());
        for (line, address) in names.lines().zip(&addresses) {
            let (number, name) = line.split_once('\t').unwrap();
            assert_eq!(number, format!("{address:#010x}"));
            assert!(!name.is_empty());
        }
        assert!(names.contains("grow_cache"), "{names}");
        check(
            address,
            "-d nonsense H/pprof/symbol",
            400,
            JSON,
            Has("not a list of addresses"),
        );
    });
}

#[test]
fn reads_of_other_tools_expire_no_kept_dump() {
    each_way(|address, _| {
        let kept = || curl(address, "H/api/v1/dumps").is(200).text();
        let before = kept();
        let check = |path: &str, kind, body| {
            check(address, &format!("H{path}"), 200, kind, body);
            assert_eq!(kept(), before, "{path}");
        };
        let proto = "application/octet-stream";
        check("/pprof/heap", PLAIN, Starts(b"heap profile: "));
        check(
            "/debug/pprof/heap?debug=1",
            PLAIN,
            Starts(b"heap profile: "),
        );
        check("/debug/pprof/heap", proto, GZIP);
        check("/debug/pprof/heap?seconds=1", proto, GZIP);
        check("/debug/pprof/allocs", proto, GZIP);
    });
}

#[test]
fn brpc_hotspots() {
    each_way(|address, host| {
        let ids: Vec<String> = (0..2)
            .map(|_| {
                let dump = host.memprof("dump", &["--json"]).json();
                dump["id"].as_str().unwrap().to_owned()
            })
            .collect();
        let (old, new) = (&ids[0], &ids[1]);
        let check = |line: &str, kind: &str, body: Body<'_>| {
            check(address, line, 200, kind, body);
        };
        check("H/hotspots/heap", "text/vnd.graphviz", Starts(b"digraph"));
        check(
            &format!("H/hotspots/heap?view={new}&display_type=text"),
            PLAIN,
            Starts(b"inuse_space: "),
        );
        let diff = format!("H/hotspots/heap?view={new}&base={old}");
        let heading = format!("from base {old}");
        check(&format!("{diff}&display_type=text"), PLAIN, Has(&heading));
        check(
            &format!("{diff}&display_type=flame"),
            SVG,
            Has("compared with"),
        );
        check(
            &format!("{diff}&display_type=dot"),
            "text/vnd.graphviz",
            Starts(b"digraph"),
        );
        check(
            &format!("{diff}&display_type=text&console=1"),
            PLAIN,
            Has(&heading),
        );
        let browser = format!("-H Accept:text/html {diff}");
        let got = curl(address, &browser).is(303);
        assert_eq!(got.header("location"), format!("../#view={new}&base={old}"));
        for path in ["/etc/passwd", "../../etc/passwd", "..%2f..%2fetc%2fpasswd"] {
            curl(address, &format!("H/hotspots/heap?view={path}")).is(404);
        }
        curl(address, "H/hotspots/growth").is(403);
    });
}

#[test]
fn pictures_need_no_external_program() {
    let host = Setup::of("rust_host").start();
    host.memprof("activate", &[]).exits(0);
    host.dump_of(1 << 20);
    let socket = host.socket();
    let args = ["-t", socket.to_str().unwrap()];
    let server = Server::start_with(&host.socket_dir(), &args, &[("PATH", "/nonexistent")]);
    for display in ["svg", "flamegraph"] {
        let line = format!("H/pprof/heap?display={display}");
        check(&server.address, &line, 200, SVG, Has("grow_cache"));
    }
}

#[test]
fn groups_can_be_left_out() {
    let host = Setup::of("rust_host").start();
    let groups = [
        ("userver", "-X POST H/service/jemalloc/prof/stat"),
        ("userver", "H/service/jemalloc/pprof/symbol"),
        ("brpc", "H/memory"),
        ("libmtev", "H/mtev/heap_profile"),
        ("greptimedb", "H/debug/prof/mem/status"),
        ("go", "H/debug/pprof/cmdline"),
    ];
    for (name, _) in groups.iter().chain(&[("none", "")]) {
        let server = Server::of(&host, &["--compat", name]);
        for (group, line) in groups {
            let status = if group == *name { 200 } else { 404 };
            curl(&server.address, line).is(status);
        }
        curl(&server.address, "H/api/v1/status").is(200);
    }
}
