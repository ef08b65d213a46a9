//! The lines of scripts that were written for five other systems, unmodified, by curl: beside a
//! host, and in a host that serves HTTP itself.

use std::path::Path;

use crate::curl::curl;
use crate::host::{Host, Setup};
use crate::server::Server;

/// Expected body of a response.
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
const NATIVE: &str = "application/x-jemalloc-heap-profile";
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

/// Retention must not take away what a test counts.
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
fn userver() {
    each_way(|address, host| {
        let check = |line: &str, status: u16, kind: &str, body: Body<'_>| {
            check(address, line, status, kind, body);
        };
        check(
            "-X POST H/service/jemalloc/prof/enable",
            200,
            PLAIN,
            Is("OK\n"),
        );
        let stat = "-s -X POST H/service/jemalloc/prof/stat";
        check(stat, 200, PLAIN, Has("\n  prof.active: true\n"));
        check(stat, 200, PLAIN, Has("arenas[0]:"));
        check(
            "-X POST H/service/jemalloc/prof/disable",
            200,
            PLAIN,
            Is("OK\n"),
        );
        check(stat, 200, PLAIN, Has("\n  prof.active: false\n"));
        let before = kept(&host.dump_dir());
        check(
            "-X POST H/service/jemalloc/prof/dump",
            200,
            PLAIN,
            Is("OK\n"),
        );
        assert_eq!(kept(&host.dump_dir()), before + 1);
        for command in [
            "bg_threads_enable",
            "bg_threads_disable",
            "bg_threads_set_max?count=1",
        ] {
            let line = format!("-X POST H/service/jemalloc/prof/{command}");
            check(&line, 200, PLAIN, Is("OK\n"));
        }
        let max = "-X POST H/service/jemalloc/prof/bg_threads_set_max";
        check(max, 400, PLAIN, Is("missing 'count' argument"));
        let line = format!("{max}?count=many");
        check(&line, 400, PLAIN, Has("invalid 'count' value: "));
        let line = format!("{max}?count=100000");
        let refused = "mallctl() returned error: Invalid argument\nmax=100000 is out of range 1..=";
        check(&line, 200, PLAIN, Starts(refused.as_bytes()));
        let unknown = "-X POST H/service/jemalloc/prof/purge";
        check(unknown, 200, PLAIN, Is("Unsupported command"));
        let needs_post = "the header Allow names those that it takes";
        check("H/service/jemalloc/prof/enable", 405, JSON, Has(needs_post));
    });
}

#[test]
fn userver_without_profiling() {
    let host = Setup::that_cannot_profile("rust_host").start();
    let server = Server::of(&host, &[]);
    for command in ["enable", "dump"] {
        let line = format!("-X POST H/service/jemalloc/prof/{command}");
        let got = curl(&server.address, &line).is(200);
        let text = got.text();
        let mut lines = text.lines();
        let first = lines.next().unwrap();
        assert_eq!(first, "mallctl() returned error: No such file or directory");
        let reason = lines.next().unwrap();
        assert!(
            reason.contains("was started with opt.prof=false; restart"),
            "{reason}"
        );
        assert_eq!(got.header("x-memprof-reason"), reason);
    }
    check(
        &server.address,
        "-X POST H/service/jemalloc/prof/stat",
        200,
        PLAIN,
        Has("\n  prof.active: false\n"),
    );
}

#[test]
fn brpc() {
    each_way(|address, host| {
        let check = |line: &str, status: u16, kind: &str, body: Body<'_>| {
            check(address, line, status, kind, body);
        };
        check("H/pprof/heap", 200, PLAIN, Starts(b"heap profile: "));
        check("H/pprof/heap", 200, PLAIN, Has(" @ heap_v2/4096\n"));
        check("H/pprof/heap", 200, PLAIN, Has("\nMAPPED_LIBRARIES:\n"));
        check(
            "H/pprof/heap?display=text",
            200,
            PLAIN,
            Has("work::grow_cache"),
        );
        check("H/pprof/heap?display=svg", 200, SVG, Has("grow_cache"));
        check(
            "H/pprof/heap?display=flamegraph",
            200,
            SVG,
            Has("grow_cache"),
        );
        let objects = "H/pprof/heap?display=text&extra_options=inuse_objects";
        check(objects, 200, PLAIN, Starts(b"inuse_objects: "));
        let objects = "H/pprof/heap?display=svg&extra_options=inuse_objects";
        check(objects, 200, SVG, Has("inuse_objects"));
        let alloc = "H/pprof/heap?display=text&extra_options=alloc_space";
        check(alloc, 400, JSON, Has("ran without prof_accum:true"));
        for ignored in ["show_bytes", "drop_negative"] {
            let line = format!("H/pprof/heap?display=text&extra_options={ignored}");
            check(&line, 200, PLAIN, Starts(b"inuse_space: "));
        }
        check(
            "H/pprof/heap?display=stats&opts=Ja",
            200,
            PLAIN,
            Starts(b"{\"jemalloc\":"),
        );
        check("H/memory", 200, PLAIN, Starts(b"{\"jemalloc\":"));
        check(
            "H/memory?opts=a",
            200,
            PLAIN,
            Starts(b"___ Begin jemalloc statistics ___"),
        );
        check(
            "H/pprof/growth",
            404,
            PLAIN,
            Starts(b"[E1002]Growth profiler is not enabled\n"),
        );
        check("H/pprof/cmdline", 200, PLAIN, Has("\0--config\0"));

        let status = || host.memprof("status", &["--json"]).json();
        let flag = "H/flags/je_prof_active?setvalue=";
        check(
            &format!("{flag}false"),
            200,
            PLAIN,
            Is("Set `je_prof_active' to false"),
        );
        assert_eq!(status()["profiling"], "inactive");
        check(
            "H/flags/je_prof_active",
            200,
            PLAIN,
            Has("\nje_prof_active (R) | false | "),
        );
        check(
            &format!("{flag}true"),
            200,
            PLAIN,
            Is("Set `je_prof_active' to true"),
        );
        assert_eq!(status()["profiling"], "active");
        check(
            &format!("{flag}x"),
            403,
            PLAIN,
            Has("Fail to set `je_prof_active' to x"),
        );
        let before = kept(&host.dump_dir());
        let dump = "H/flags/je_prof_dump?setvalue=/etc/x";
        check(dump, 200, PLAIN, Is("Set `je_prof_dump' to /etc/x"));
        assert_eq!(kept(&host.dump_dir()), before + 1);
        assert!(!Path::new("/etc/x").exists());
        let reset = "H/flags/je_prof_reset?setvalue=19";
        check(reset, 200, PLAIN, Is("Set `je_prof_reset' to 19"));
        assert_eq!(status()["sample_interval"], 1 << 19);
        let reset = "H/flags/je_prof_reset?setvalue=99";
        check(
            reset,
            403,
            PLAIN,
            Has("lg_sample=99 is out of range 10..=24"),
        );
        check("H/flags/other?setvalue=1", 404, PLAIN, Has("No such gflag"));
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
        check("H/hotspots/heap", PLAIN, Has("grow_cache"));
        check(
            &format!("H/hotspots/heap?view={new}"),
            PLAIN,
            Starts(b"inuse_space: "),
        );
        let diff = format!("H/hotspots/heap?view={new}&base={old}");
        let heading = format!("from base {old}");
        check(&diff, PLAIN, Has(&heading));
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
        curl(address, "H/hotspots/growth").is(404);
    });
}

#[test]
fn brpc_without_profiling() {
    let host = Setup::that_cannot_profile("rust_host").start();
    let server = Server::of(&host, &[]);
    let off = "[E1002]Heap profiler is not enabled, (no MALLOC_CONF=prof:true in env)\n";
    for line in [
        "H/pprof/heap",
        "H/pprof/heap?display=text",
        "H/hotspots/heap",
    ] {
        check(&server.address, line, 404, PLAIN, Starts(off.as_bytes()));
    }
    check(
        &server.address,
        "H/memory?opts=Ja",
        200,
        PLAIN,
        Starts(b"{\"jemalloc\":"),
    );
    let stats = "H/pprof/heap?display=stats&opts=a";
    check(
        &server.address,
        stats,
        200,
        PLAIN,
        Starts(b"___ Begin jemalloc"),
    );
    let active = "H/flags/je_prof_active?setvalue=true";
    check(
        &server.address,
        active,
        403,
        PLAIN,
        Has("Fail to set `je_prof_active' to true"),
    );
}

#[test]
fn brpc_over_tcmalloc() {
    let setup = Setup::without_profiling("c_host").env("LD_PRELOAD", "libtcmalloc.so.4");
    let host = setup.start();
    host.memprof("activate", &["sample_interval=4KiB"]).exits(0);
    host.dump_of(1 << 20);
    let server = Server::of(&host, &[]);
    let check = |line: &str, body: Body<'_>| check(&server.address, line, 200, PLAIN, body);
    check("H/pprof/heap", Starts(b"heap profile: "));
    check("H/pprof/heap?display=text", Has("grow_cache"));
    check("H/pprof/growth", Starts(b"heap profile: "));
    check("H/pprof/growth", Has("\nMAPPED_LIBRARIES:\n"));
    check("H/hotspots/growth", Starts(b"inuse_space: "));
    check("H/memory", Has("MALLOC:"));
    let metrics = curl(&server.address, "H/metrics").is(200).text();
    assert!(!metrics.contains("jemalloc_"), "{metrics}");
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
fn libmtev() {
    each_way(|address, _| {
        let check = |line: &str, kind: &str, body: Body<'_>| {
            check(address, line, 200, kind, body);
        };
        check(
            "H/mtev/heap_profile?active=true",
            PLAIN,
            Is("Profiling is activated\n"),
        );
        let state = |active| {
            format!("opt.prof: true\nprof.active: {active}\nprof.thread_active_init: true\n")
        };
        check("H/mtev/heap_profile", PLAIN, Is(&state(true)));
        let off = "H/mtev/heap_profile?active=no&trigger_dump=true";
        check(off, PLAIN, Is("Profiling is deactivated\n"));
        check("H/mtev/heap_profile", PLAIN, Is(&state(false)));
        let dump = "H/mtev/heap_profile?trigger_dump=true";
        check(dump, NATIVE, Starts(b"heap_v2/4096\n"));
        check("H/mtev/memory.json", JSON, Starts(b"{\"jemalloc\":"));
        curl(address, "H/mtev/memory.json").json();
    });
}

#[test]
fn libmtev_without_profiling_and_without_jemalloc() {
    let host = Setup::that_cannot_profile("rust_host").start();
    let server = Server::of(&host, &[]);
    let state = "opt.prof: false\n# needs MALLOC_CONF=\"prof:true\"\nprof.active: false\n\
                 prof.thread_active_init: false\n";
    check(
        &server.address,
        "H/mtev/heap_profile",
        200,
        PLAIN,
        Is(state),
    );
    check(
        &server.address,
        "H/mtev/heap_profile?active=true",
        500,
        PLAIN,
        Starts(b"No such file or directory\n"),
    );

    let host = Setup::without_profiling("c_host").start();
    let server = Server::of(&host, &[]);
    let none = "libjemalloc is not loaded, cannot heap profile\n";
    check(&server.address, "H/mtev/heap_profile", 500, PLAIN, Is(none));
    check(&server.address, "H/mtev/memory.json", 200, JSON, Is("{}\n"));
}

#[test]
fn greptimedb() {
    each_way(|address, host| {
        let check = |line: &str, kind: &str, body: Body<'_>| {
            check(address, line, 200, kind, body);
        };
        check(
            "-X POST H/debug/prof/mem/activate",
            PLAIN,
            Is("Heap profiling activated"),
        );
        check(
            "-X GET H/debug/prof/mem/status",
            JSON,
            Is("{\"active\": true}"),
        );
        check(
            "-X POST H/debug/prof/mem/deactivate",
            PLAIN,
            Is("Heap profiling deactivated"),
        );
        check(
            "-X GET H/debug/prof/mem/status",
            JSON,
            Is("{\"active\": false}"),
        );
        check(
            "-X GET H/debug/prof/mem/gdump",
            JSON,
            Is("{\"active\": false}"),
        );
        let gdump = "-X POST H/debug/prof/mem/gdump -d activate=";
        check(&format!("{gdump}true"), PLAIN, Is("gdump activated"));
        check(
            "-X GET H/debug/prof/mem/gdump",
            JSON,
            Is("{\"active\": true}"),
        );
        check(&format!("{gdump}false"), PLAIN, Is("gdump deactivated"));
        check(
            "-X GET H/debug/prof/mem/gdump",
            JSON,
            Is("{\"active\": false}"),
        );
        check(
            "-X POST H/debug/prof/mem",
            NATIVE,
            Starts(b"heap_v2/4096\n"),
        );
        let proto = "-X POST H/debug/prof/mem?output=proto";
        check(proto, "application/octet-stream", GZIP);
        check(
            "-X POST H/debug/prof/mem?output=flamegraph",
            SVG,
            Has("grow_cache"),
        );
        let file = host.place().join("x.heap");
        std::fs::write(&file, curl(address, "-X POST H/debug/prof/mem").body).unwrap();
        let upload = format!(
            "-X POST --data-binary @{} H/debug/prof/mem/symbol",
            file.display()
        );
        check(&upload, SVG, Has("grow_cache"));
    });
}

#[test]
fn greptimedb_errors() {
    let host = Setup::that_cannot_profile("rust_host").start();
    let server = Server::of(&host, &[]);
    let off = "{\"error\":\"Memory profiling is not enabled\"}";
    let lines = [
        "-X POST H/debug/prof/mem",
        "-X POST H/debug/prof/mem/activate",
        "-X POST -d activate=true H/debug/prof/mem/gdump",
    ];
    for line in lines {
        check(&server.address, line, 400, JSON, Is(off));
    }
    let wrong = [
        "-X POST H/debug/prof/mem?output=x",
        "-X POST -d on H/debug/prof/mem/gdump",
    ];
    for line in wrong {
        check(&server.address, line, 400, JSON, Starts(b"{\"error\":\""));
    }
    let upload = "-X POST --data-binary nonsense H/debug/prof/mem/symbol";
    check(
        &server.address,
        upload,
        400,
        JSON,
        Has("failed to recognise the input"),
    );
}

#[test]
fn go() {
    each_way(|address, _| {
        let check = |line: &str, kind: &str, body: Body<'_>| {
            check(address, line, 200, kind, body);
        };
        check("H/debug/pprof/", "text/html", Has("heap"));
        let proto = "application/octet-stream";
        check("H/debug/pprof/heap", proto, GZIP);
        check("H/debug/pprof/allocs", proto, GZIP);
        check("H/debug/pprof/heap?seconds=1", proto, GZIP);
        check(
            "H/debug/pprof/heap?debug=1",
            PLAIN,
            Starts(b"heap profile: "),
        );
        check("H/debug/pprof/symbol", PLAIN, Is("num_symbols: 1\n"));
        check("H/debug/pprof/cmdline", PLAIN, Has("\0--config\0"));
        curl(address, "H/debug/pprof/heap?seconds=100000").is(400);
    });
}

#[test]
fn groups_can_be_left_out() {
    let host = Setup::of("rust_host").start();
    let groups = [
        ("userver", "-X POST H/service/jemalloc/prof/stat"),
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
