//! Allocators other than jemalloc: real ones of Debian's, and some that lie.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::Value;
use tempfile::TempDir;

use crate::bus::{CONF, Load, Server};
use crate::bus_redis::Redis;
use crate::curl::curl;
use crate::dist::{dist, source, tool_text};
use crate::host::{Host, Setup, TEST_TIMEOUT};
use crate::memprof::{Run, memprof};

fn host_under(program: &str, preload: &str) -> Host {
    let setup = Setup::without_profiling(program);
    match preload {
        "" => setup.start(),
        library => setup.env("LD_PRELOAD", library).start(),
    }
}

/// The allocators that `status` tells, as `kind owns_malloc: messages`.
fn allocators(host: &Host) -> Vec<String> {
    let status = host.memprof("status", &["--json"]).exits(0).json();
    let words = |list: &Value| {
        let words = list.as_array().unwrap().iter();
        words
            .map(|word| word.as_str().unwrap())
            .collect::<Vec<_>>()
            .join(", ")
    };
    let describe = |allocator: &Value| {
        let (kind, owns) = (&allocator["kind"], &allocator["owns_malloc"]);
        let kind = kind.as_str().unwrap();
        format!("{kind} {owns}: {}", words(&allocator["can"]))
    };
    let all = status["allocators"].as_array().unwrap();
    all.iter().map(describe).collect()
}

/// The share of all bytes that `function` and what it calls have, by `memprof report`.
fn reported_percent(dump: &Path, function: &str) -> f64 {
    let args = ["report", "--format", "json", dump.to_str().unwrap()];
    let report = memprof(dump, &args).exits(0).json();
    let functions = report["functions"].as_array().unwrap();
    let is_it = |row: &&Value| row["name"].as_str().unwrap().ends_with(function);
    let row = functions.iter().find(is_it);
    let total = report["totals"]["inuse_space"].as_f64().unwrap();
    row.map_or(0.0, |row| row["cum"].as_f64().unwrap() / total * 100.0)
}

/// jemalloc does not clean up after a thread that did not use it since its hooks were changed.
#[test]
fn threads_of_memprof_leave_a_jemalloc_whose_hooks_change() {
    let mut host = Setup::of("rust_host").start();
    for _ in 0..60 {
        for sampler in ["sampler=memprof", "sampler=allocator"] {
            host.memprof("activate", &[sampler]).exits(0);
        }
        host.memprof("stats", &[]).exits(0);
    }
    assert!(host.is_alive());
}

/// A profile of growth in which `function` is: the heap grows by the MiB, under whichever
/// function needs the next one, and a dump needs some memory too.
fn growth_with(host: &Host, function: &str) -> PathBuf {
    let begun = Instant::now();
    loop {
        wait_for_growth(host);
        let growth = host.memprof("dump", &["--json", "kind=growth"]).exits(0);
        let growth = growth.json();
        assert_eq!(growth["kind"], "growth", "{growth}");
        let path = PathBuf::from(growth["path"].as_str().unwrap());
        if reported_percent(&path, function) > 0.0 {
            return path;
        }
        assert!(
            begun.elapsed() < TEST_TIMEOUT,
            "{function} is not in {growth}"
        );
    }
}

/// Waits until the program took some MiB more.
fn wait_for_growth(host: &Host) {
    let begun = Instant::now();
    let resident = || {
        let ledger = host.memprof("ledger", &["--json"]).exits(0).json();
        ledger["rss_bytes"].as_u64().unwrap()
    };
    let enough = resident() + (4 << 20);
    while resident() < enough {
        assert!(begun.elapsed() < TEST_TIMEOUT, "it does not grow");
    }
}

/// Like [`reported_percent`], by google-pprof.
fn pprof_percent(program: &str, dump: &Path, function: &str) -> f64 {
    let mut pprof = Command::new("google-pprof");
    pprof.args(["--text", "--cum", "--show_bytes"]);
    pprof.arg(dist("examples").join(program)).arg(dump);
    let report = tool_text("google-perftools", &mut pprof);
    let line = report.lines().find(|line| line.ends_with(function));
    let line = line.unwrap_or_else(|| panic!("{function} is not in {report}"));
    let percent = line.split_whitespace().nth(4).unwrap();
    percent.strip_suffix('%').unwrap().parse().unwrap()
}

#[test]
fn tcmalloc_profile_names_the_leak() {
    let host = host_under("c_host", "libtcmalloc.so.4");
    let can = "tcmalloc true: activate, dump, dump kind=growth, stats, purge";
    assert_eq!(allocators(&host), [can]);
    let args = ["--json", "sample_interval=4KiB"];
    let active = host.memprof("activate", &args).exits(0).json();
    assert_eq!(active["profiling"], "active", "{active}");
    assert_eq!(active["sample_interval"], 4096);
    let lag = "within its next 16 MiB of allocations";
    assert!(active["warnings"].to_string().contains(lag), "{active}");

    let dump = host.dump_of(3_000_000);
    assert_eq!(dump["sample_interval"], 4096);
    let heap = Path::new(dump["path"].as_str().unwrap());
    assert!(reported_percent(heap, "grow_cache") >= 80.0);
    assert!(pprof_percent("c_host", heap, "grow_cache") >= 80.0);
    let text = std::fs::read_to_string(heap).unwrap();
    assert_eq!(text.matches("MAPPED_LIBRARIES:").count(), 1);
    assert!(text.contains("\n# allocator: tcmalloc 2."), "{text}");
    assert!(text.contains("\n# build-id: "), "{text}");

    let growth = growth_with(&host, "grow_cache");
    assert!(pprof_percent("c_host", &growth, "grow_cache") > 0.0);

    let status = host.memprof("deactivate", &["--json"]).exits(0).json();
    assert_eq!(status["profiling"], "inactive");
    // tcmalloc itself would tell an interval of 0 now, which readers refuse.
    let after = host.memprof("dump", &["--json"]).exits(0).json();
    assert_eq!(after["sample_interval"], 4096);
    let inuse = after["estimated_inuse_bytes"].as_u64().unwrap();
    assert!(inuse >= 3_000_000, "{after}");
    let after = Path::new(after["path"].as_str().unwrap());
    assert!(reported_percent(after, "grow_cache") >= 80.0);

    let reset = host.memprof("reset", &["--json"]).exits(4).json();
    assert_eq!(reset["error"]["kind"], "unsupported", "{reset}");
    host.memprof("fetch", &["id=none"]).exits(2);
}

#[test]
fn tcmalloc_dump_is_fetched_unchanged() {
    let host = Setup::without_profiling("c_host")
        .env("LD_PRELOAD", "libtcmalloc.so.4")
        .env("TCMALLOC_SAMPLE_PARAMETER", "4096")
        .start();
    let status = host.memprof("status", &["--json"]).exits(0).json();
    assert_eq!(status["profiling"], "active", "{status}");
    let dump = host.dump_of(100_000);
    let id = format!("id={}", dump["id"].as_str().unwrap());
    let mut client = host.client();
    let reply = client
        .message("memory_profile", "fetch", &id, None)
        .unwrap();
    let kind = reply.result.content_type.clone();
    assert_eq!(kind, "application/x-tcmalloc-heap-profile");
    let bytes = reply.into_bytes().unwrap();
    assert!(bytes.starts_with(b"heap profile: "));
    assert_eq!(bytes.len() as u64, dump["bytes"].as_u64().unwrap());
    let server = crate::server::Server::of(&host, &[]);
    let id = dump["id"].as_str().unwrap();
    let served = curl(&server.address, &format!("H/api/v1/dumps/{id}?format=heap")).is(200);
    assert_eq!(served.header("content-type"), kind);
    assert_eq!(served.body, bytes);
}

/// gperftools samples through libunwind, which locks and calls the loader: a thread that allocates under the
/// loader's lock may wait for a thread that waits for the loader.
#[test]
fn messages_while_every_thread_samples() {
    let host = Setup::without_profiling("c_host")
        .env("LD_PRELOAD", "libtcmalloc.so.4")
        .env("TCMALLOC_SAMPLE_PARAMETER", "4096")
        .start();
    let ask_often = |messages: &[(&str, &str)]| {
        let mut client = host.client();
        client.set_timeout(TEST_TIMEOUT);
        for (message, args) in messages.iter().cycle().take(300) {
            let reply = client.message("memory_profile", message, args, None);
            let status = reply.unwrap().result.status_code;
            assert!([0, -5].contains(&status), "{message} {args}: {status}");
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| ask_often(&[("dump", ""), ("dump", "kind=growth")]));
        scope.spawn(|| ask_often(&[("doctor", ""), ("ledger", ""), ("purge", "")]));
        scope.spawn(|| ask_often(&[("deactivate", ""), ("activate", "")]));
        scope.spawn(|| ask_often(&[("stats", ""), ("status", "")]));
    });
    assert!(host.dump_of(100_000)["stacks"].as_u64().unwrap() > 0);
}

#[test]
fn allocator_without_profiler_is_sampled_by_memprof() {
    let check = |preload: &str, kind: &str, reason: &str, remedy: &str, prints: &str| {
        let host = host_under("c_host", preload);
        let can = format!("{kind} true: activate, dump, reset, stats, purge");
        assert_eq!(allocators(&host), [can]);
        let args = ["--json", "sampler=allocator"];
        let refused = host.memprof("activate", &args).exits(4).json();
        let error = &refused["error"];
        assert_eq!(error["kind"], "unsupported", "{refused}");
        let text = |key: &str| error[key].as_str().unwrap().to_owned();
        assert!(text("message").contains(reason), "{refused}");
        assert!(text("remedy").contains(remedy), "{refused}");
        host.memprof("dump", &["kind=growth"]).exits(4);
        host.memprof("deactivate", &[]).exits(0);
        host.memprof("background_thread", &["state=on"]).exits(4);
        host.memprof("stats", &["opts=J"]).exits(4);
        let stats = host.memprof("stats", &["format=text"]).exits(0).stdout;
        assert!(stats.contains(prints), "{stats}");
        let ledger = host.memprof("ledger", &["--json"]).exits(0).json();
        let rows = ledger["rows"].as_array().unwrap().iter();
        let sum: u64 = rows.map(|row| row["bytes"].as_u64().unwrap()).sum();
        assert_eq!(sum, ledger["rss_bytes"].as_u64().unwrap(), "{ledger}");
        assert_eq!(ledger["allocators"][0]["kind"], kind);
        host.memprof("purge", &[]).exits(0);
        let found = host.memprof("doctor", &["--json"]).exits(0).json();
        assert_eq!(found["findings"][0]["severity"], "notice", "{found}");
        assert_eq!(found["findings"][0]["kind"], "sampled_by_memprof");
    };
    check(
        "libtcmalloc_minimal.so.4",
        "tcmalloc",
        "was built without its profiler",
        "LD_PRELOAD=libtcmalloc.so.4",
        "Bytes in page heap freelist",
    );
    check(
        "libmimalloc.so.2",
        "mimalloc",
        "mimalloc 2.0.9 has no profiler",
        "start it with `memprof run --allocator jemalloc`",
        "heap stats:",
    );
    check(
        "",
        "glibc",
        "has no profiler",
        "start it with `memprof run --allocator jemalloc`",
        "\narena 0 ",
    );
}

#[test]
fn two_kinds_of_allocators_are_both_profiled() {
    let host = Setup::of("rust_host")
        .env("LD_PRELOAD", "libtcmalloc.so.4")
        .start();
    let jemalloc = "jemalloc false: activate, dump, reset, stats, purge, background_thread";
    let tcmalloc = "tcmalloc true: activate, dump, dump kind=growth, stats, purge";
    assert_eq!(allocators(&host), [jemalloc, tcmalloc]);
    host.memprof("activate", &["lg_sample=12"]).exits(0);
    let dump = host.dump_of(3_000_000);
    let taken = dump["dumps"].as_array().unwrap().iter();
    let taken: Vec<_> = taken
        .map(|dump| {
            dump["allocator"]
                .as_str()
                .unwrap()
                .split(' ')
                .next()
                .unwrap()
        })
        .collect();
    assert_eq!(taken, ["jemalloc", "tcmalloc"]);
    let largest = dump["allocator"].as_str().unwrap();
    assert!(largest.starts_with("jemalloc"), "{dump}");

    // Named, it is driven alone.
    host.memprof("deactivate", &["allocator=tcmalloc"]).exits(0);
    let status = host.memprof("status", &["--json"]).exits(0).json();
    let active = |at: usize| status["allocators"][at]["prof_active"].as_bool().unwrap();
    assert_eq!((active(0), active(1)), (true, false), "{status}");
    let args = ["--json", "allocator=tcmalloc"];
    let dump = host.memprof("dump", &args).exits(0).json();
    assert_eq!(dump["dumps"].as_array().unwrap().len(), 1, "{dump}");
    assert_eq!(dump["allocator"], "tcmalloc 2.10");
    let refused = host.memprof("purge", &["allocator=mimalloc"]).exits(4);
    let reason = "this process has no mimalloc";
    assert!(refused.stderr.contains(reason), "{refused:?}");

    let stats = host.memprof("stats", &["--json"]).exits(0).json();
    assert_eq!(stats["allocators"].as_array().unwrap().len(), 2);
    let found = host.memprof("doctor", &["--json"]).exits(0).json();
    let kinds = found["findings"].to_string();
    assert!(kinds.contains("several_allocators"), "{found}");
}

#[test]
fn redis_uses_only_its_own_jemalloc() {
    let redis = Redis::start(&Load {
        env: &[CONF],
        config: &[("control", "on")],
        twice: false,
    });
    redis.host().wait_for_log("control socket ");
    let jemalloc = "jemalloc true: activate, dump, reset, stats, purge, background_thread";
    assert_eq!(allocators(redis.host()), [jemalloc]);
}

#[test]
fn allocator_beside_malloc_is_profiled_only_by_name() {
    let host = Setup::of("c_host")
        .env("LD_PRELOAD", "libjemalloc.so.2:libtcmalloc.so.4")
        .start();
    let owners: Vec<_> = allocators(&host)
        .iter()
        .map(|line| line.split(':').next().unwrap().to_owned())
        .collect();
    assert_eq!(owners, ["jemalloc true", "tcmalloc false"]);
    let status = host.memprof("activate", &["--json"]).exits(0).json();
    let active = |status: &Value, at: usize| status["allocators"][at]["prof_active"].clone();
    assert_eq!(
        (active(&status, 0), active(&status, 1)),
        (true.into(), false.into())
    );
    let args = ["--json", "allocator=tcmalloc"];
    let status = host.memprof("activate", &args).exits(0).json();
    assert_eq!(active(&status, 1), true);
    // What samples is driven, and ended, without being named.
    let dump = host.memprof("dump", &["--json"]).exits(0).json();
    assert_eq!(dump["dumps"].as_array().unwrap().len(), 2, "{dump}");
    let status = host.memprof("deactivate", &["--json"]).exits(0).json();
    assert_eq!(
        (active(&status, 0), active(&status, 1)),
        (false.into(), false.into())
    );
}

/// A library of fixtures/allocators, built with some misbehaviours.
fn liar(name: &str, misbehaviours: &[&str]) -> (TempDir, PathBuf) {
    let place = tempfile::tempdir().unwrap();
    let library = place.path().join(format!("lib{name}.so"));
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library);
    cc.args(misbehaviours.iter().map(|each| format!("-D{each}")));
    cc.arg(source("outside/memprof-cli/tests/fixtures/allocators").join(format!("{name}.c")));
    // For the operator delete that frees a std::string.
    cc.args(["-Wl,--no-as-needed", "-lstdc++"]);
    tool_text("gcc", &mut cc);
    (place, library)
}

/// A host with such a library, after it was asked for everything; and what it said to `message`.
fn lied_to(name: &str, misbehaviours: &[&str], message: &str) -> (Host, Run) {
    let (_place, library) = liar(name, misbehaviours);
    let mut host = host_under("c_host", library.to_str().unwrap());
    for each in ["status", "stats", "ledger", "purge", "doctor", "deactivate"] {
        let run = host.memprof(each, &[]);
        assert!([0, 1, 4].contains(&run.code), "{each}: {run:?}");
    }
    let allocator = format!("allocator={name}");
    let mut words = message.split(' ');
    let message = words.next().unwrap();
    let args: Vec<&str> = ["--json", &allocator].into_iter().chain(words).collect();
    let run = host.memprof(message, &args);
    assert!(host.is_alive());
    (host, run)
}

#[test]
fn lying_tcmalloc_is_reported_and_harmless() {
    let check = |misbehaviours: &[&str], message: &str, code: i32, expected: &str| {
        let (_host, run) = lied_to("tcmalloc", misbehaviours, message);
        let run = run.exits(code);
        let text = run.json()["text"].as_str().unwrap().to_owned();
        assert!(text.contains(expected), "{misbehaviours:?}: {text}");
    };
    check(&[], "dump", 1, "answered with an empty profile");
    check(&["WILD"], "dump", 1, "damaged the string of its profile");
    check(&["LONG"], "dump", 1, "damaged the string of its profile");
    let junk = "TEXT=\"This malloc implementation does not support sampling.\"";
    check(&[junk], "dump", 1, "found \"This malloc implementation");
    let cut = "TEXT=\"heap profile: 1: 2 [1: 2] @ heap_v2/9\\n\"";
    check(&[cut], "dump", 1, "expected 1 objects of 2 bytes");
    check(&["WITHOUT_INSTANCE"], "dump", 1, "has no instance");
    check(
        &["PARAMETER=7"],
        "deactivate",
        1,
        "accepted tcmalloc.sample_parameter and ignored it",
    );
    check(
        &["WITHOUT_FLAG"],
        "activate sampler=allocator",
        4,
        "does not let its sampling be switched",
    );
    check(
        &["OTHER_CXX"],
        "activate sampler=allocator",
        4,
        "in another std::string than libstdc++'s",
    );
    check(
        &["MINIMAL"],
        "activate sampler=allocator",
        4,
        "was built without its profiler",
    );
    check(
        &["HALF"],
        "activate sampler=allocator",
        4,
        "was built without its profiler",
    );
    check(
        &["HALF"],
        "purge",
        4,
        "lacks MallocExtension_ReleaseFreeMemory",
    );
    check(
        &["PROPERTIES=0"],
        "stats",
        0,
        "does not report generic.heap_size",
    );
    check(&["PROPERTIES=1"], "stats", 0, "16777216.0 TiB");
}

#[test]
fn lying_mimalloc_is_reported_and_harmless() {
    let (host, run) = lied_to("mimalloc", &[], "stats");
    let text = run.exits(0).json()["text"].as_str().unwrap().to_owned();
    assert!(text.starts_with("mimalloc -7\n"), "{text}");
    assert!(text.contains("… cut after 262144 bytes"));
    // It claims the memory that malloc returns, as no other allocator does.
    let mimalloc = "mimalloc true: activate, dump, reset, stats, purge";
    assert_eq!(allocators(&host)[0], mimalloc);
    let (host, run) = lied_to("mimalloc", &["HALF"], "stats");
    let text = run.exits(0).json()["text"].as_str().unwrap().to_owned();
    assert!(text.contains("lacks mi_process_info"), "{text}");
    let found = host.memprof("doctor", &[]).exits(0).stdout;
    assert!(
        found.contains("mimalloc -7 lacks mi_is_in_heap_region"),
        "{found}"
    );
    let glibc = "glibc true: activate, dump, reset, stats, purge";
    assert_eq!(allocators(&host)[1], glibc);
}

#[test]
fn unknown_malloc_is_named() {
    let place = tempfile::tempdir().unwrap();
    let (code, library) = (place.path().join("own.c"), place.path().join("own.so"));
    let text = "#include <stddef.h>\nvoid *__libc_malloc(size_t);\n\
                void *malloc(size_t size) { return __libc_malloc(size); }\n";
    std::fs::write(&code, text).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-o"]).args([&library, &code]);
    tool_text("gcc", &mut cc);
    let host = host_under("c_host", library.to_str().unwrap());
    let status = host.memprof("status", &["--json"]).exits(0).json();
    let name = library.to_str().unwrap();
    assert_eq!(status["unknown_malloc"], name, "{status}");
    assert_eq!(allocators(&host), ["glibc false: stats, purge"]);
    let refused = host.memprof("activate", &[]).exits(4).stderr;
    assert!(
        refused.contains(&format!("malloc is served by {name}")),
        "{refused}"
    );
    let found = host.memprof("doctor", &[]).exits(4).stdout;
    assert!(found.contains("which memprof does not know"), "{found}");
}

/// The total of a dump, in bytes, and the share of `grow_cache` in percent, by each tool that reads it.
fn read_by_each(host: &Host, program: &str, dump: &Path) -> Vec<(&'static str, f64, f64)> {
    let program = dist("examples").join(program);
    let run = |package: &str, command: &[&str]| {
        let mut tool = Command::new(command[0]);
        tool.args(&command[1..]).arg(&program).arg(dump);
        tool.env("HOME", host.place()).current_dir(host.place());
        tool_text(package, &mut tool)
    };
    // `Total: 123 B`; `Showing nodes accounting for 120B, 97.56% of 123B total`.
    let total = |text: &str, before: &str, behind: &str| -> f64 {
        let line = text.lines().find(|line| line.contains(before)).unwrap();
        let (_, rest) = line.split_once(before).unwrap();
        let (number, _) = rest.split_once(behind).unwrap();
        number.parse().unwrap()
    };
    let share = |text: &str| -> f64 {
        let line = text.lines().find(|line| line.contains("grow_cache"));
        let percents = line.unwrap().split_whitespace();
        let last = percents
            .filter_map(|word| word.strip_suffix('%'))
            .next_back();
        last.unwrap().parse().unwrap()
    };
    let mut read: Vec<_> = [
        ("libjemalloc-dev", "jeprof"),
        ("google-perftools", "google-pprof"),
    ]
    .map(|(package, tool)| {
        let text = run(package, &[tool, "--text", "--cum", "--show_bytes"]);
        (tool, total(&text, "Total: ", " B"), share(&text))
    })
    .into();
    let go = [
        "go",
        "tool",
        "pprof",
        "-top",
        "-cum",
        "-unit=B",
        "-sample_index=inuse_space",
    ];
    let go = run("golang-go", &go);
    // Go 1.19 gets wrong names for programs that lld linked, as Rust's are.
    let is_lld = program.ends_with("rust_host");
    let go_share = if is_lld { 100.0 } else { share(&go) };
    read.push(("go", total(&go, "% of ", "B total"), go_share));
    let args = ["report", "--format", "json", dump.to_str().unwrap()];
    let report = memprof(dump, &args).exits(0).json();
    let total = report["totals"]["inuse_space"].as_f64().unwrap();
    read.push(("memprof", total, reported_percent(dump, "grow_cache")));
    read
}

#[test]
fn all_tools_agree_on_memprof_samples() {
    for preload in [
        "",
        "libmimalloc.so.2",
        "libtcmalloc_minimal.so.4",
        "libjemalloc.so.2",
    ] {
        let host = host_under("c_host", preload);
        let args = ["--json", "sample_interval=4KiB"];
        let active = host.memprof("activate", &args).exits(0).json();
        assert_eq!(active["allocators"][0]["sampler"], "memprof", "{active}");
        let dump = host.dump_of(3_000_000);
        let path = Path::new(dump["path"].as_str().unwrap());
        let read = read_by_each(&host, "c_host", path);
        let expected = dump["estimated_inuse_bytes"].as_f64().unwrap();
        for (tool, total, share) in read {
            assert!(
                (total / expected - 1.0).abs() < 0.001,
                "{preload} {tool}: {total} {expected}"
            );
            assert!(share >= 80.0, "{preload} {tool}: {share} %");
        }
        let text = std::fs::read_to_string(path).unwrap();
        let time = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
        let since = time("# sampling since: ").unwrap();
        // A second may begin in between.
        let active = active["active_since"].as_str().unwrap();
        assert!(time("# started: ").unwrap() <= since && since <= active);
        let comments = format!("# sampler: ours\n# sampling since: {since}\n# samples: ");
        assert!(text.contains(&comments), "{text}");
        let report = memprof(path, &["report", path.to_str().unwrap()]).exits(0);
        let since = format!("only memory allocated since {since}");
        assert!(report.stdout.contains(&since), "{report:?}");
    }
}

#[test]
fn linked_jemalloc_is_sampled_through_its_hooks() {
    for program in ["rust_host", "c_host_static"] {
        let host = Setup::without_profiling(program).start();
        let args = ["--json", "sampler=memprof", "sample_interval=4KiB"];
        let active = host.memprof("activate", &args).exits(0).json();
        let own = &active["allocators"][0];
        let through = (&own["kind"], &own["sampler"], &own["interception"]);
        let expected = ["jemalloc", "memprof", "jemalloc_hooks"].map(Value::from);
        assert_eq!(
            through,
            (&expected[0], &expected[1], &expected[2]),
            "{active}"
        );
        let text = active["text"].as_str().unwrap();
        assert!(text.contains("take about 45 ns longer"), "{text}");
        // Nobody asked for an end.
        assert!(active["active_until"].is_string(), "{active}");
        let dump = host.dump_of(3_000_000);
        let path = Path::new(dump["path"].as_str().unwrap());
        for (tool, total, share) in read_by_each(&host, program, path) {
            let expected = dump["estimated_inuse_bytes"].as_f64().unwrap();
            assert!(
                (total / expected - 1.0).abs() < 0.001,
                "{tool}: {total} {expected}"
            );
            assert!(share >= 80.0, "{program} {tool}: {share} %");
        }
        // What was freed in between is not known.
        host.memprof("deactivate", &[]).exits(0);
        let samples = || {
            let status = host.memprof("status", &["--json"]).exits(0).json();
            status["allocators"][0]["samples"].as_u64().unwrap()
        };
        let before = samples();
        assert!(before > 100, "{before}");
        assert_eq!(samples(), before, "it samples on");
        host.memprof("activate", &["sampler=memprof", "sample_interval=16MiB"])
            .exits(0);
        assert!(samples() < before);
        host.memprof("deactivate", &[]).exits(0);
        host.memprof("reset", &[]).exits(0);
        assert_eq!(samples(), 0);
    }
}

/// `past.c` in one of its ways, under `memprof run`.
fn past(place: &TempDir, way: &[&str]) -> Host {
    let program = place.path().join("past");
    let mut cc = Command::new("cc");
    cc.arg("-o").arg(&program);
    cc.arg(source(
        "outside/memprof-cli/tests/fixtures/allocators/past.c",
    ));
    tool_text("gcc", cc.args(["-ldl", "-Wl,-z,relro,-z,now"]));
    let mut command = Command::new(dist("bin/memprof"));
    command.arg("run").arg("--").arg(&program).args(way);
    command.env("MEMPROF_LOG", "info").stdin(Stdio::piped());
    let host = Host::spawn(command, tempfile::tempdir().unwrap());
    host.wait_for_log("control socket ");
    host
}

fn answers(host: &mut Host, line: &str) {
    host.type_line(line);
    host.wait_for_log(&format!("served {line}"));
}

#[test]
fn unsampled_memory_is_counted_and_reported() {
    let place = tempfile::tempdir().unwrap();
    let library = place.path().join("libdeep.so");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-o"]).arg(&library);
    cc.arg(source(
        "outside/memprof-cli/tests/fixtures/allocators/deepbind.c",
    ));
    tool_text("gcc", cc.arg("-fno-builtin"));
    let mut host = past(&place, &["deepbind", library.to_str().unwrap()]);
    let active = host.memprof("activate", &["--json"]).exits(0).json();
    let slots = &active["allocators"][0]["slots"];
    assert_eq!(slots["foreign"], 1, "{active}");
    assert_eq!(slots["other_mallocs"], 1, "{active}");
    // The address of realloc in its data is patched.
    assert_eq!(slots["unseen_objects"], 0, "{active}");
    let text = active["text"].as_str().unwrap();
    let foreign =
        "1 call site uses another allocator than glibc 2.36 (1 library has a malloc of its own)";
    assert!(text.contains(foreign), "{text}");
    host.memprof("deactivate", &[]).exits(0);
    let recorded = host.memprof("record", &["--for=10ms", "allocator=glibc"]);
    assert_eq!(recorded.stderr.matches(foreign).count(), 1, "{recorded:?}");
    let other = host.memprof("record", &["--for=10ms", "allocator=jemalloc"]);
    assert!(other.exits(4).stderr.contains("no jemalloc"));
    answers(&mut host, "on");
}

#[test]
fn refused_mprotect_breaks_nothing() {
    let place = tempfile::tempdir().unwrap();
    let mut host = past(&place, &["mprotect"]);
    answers(&mut host, "before");
    let reply = host.memprof("activate", &["--json"]);
    assert!(
        reply.stdout.contains("mprotect(2) was refused"),
        "{reply:?}"
    );
    answers(&mut host, "meanwhile");
    host.memprof("deactivate", &[]).exits(0);
    answers(&mut host, "after");
}

#[test]
fn vforked_child_allocations_belong_to_the_parent() {
    let place = tempfile::tempdir().unwrap();
    let mut host = past(&place, &["vfork"]);
    host.memprof("activate", &["sample_interval=1KiB"]).exits(0);
    answers(&mut host, "fork");
    let report = flat_report(&host, &place, "inuse_space");
    assert!(report.contains("in_vforked_child"), "{report}");
}

/// All functions of a dump taken now, as JSON.
fn flat_report(host: &Host, place: &tempfile::TempDir, sample_type: &str) -> String {
    let dump = host.memprof("dump", &["--json"]).exits(0).json();
    let path = dump["path"].as_str().unwrap();
    let args = [
        "report",
        "--flat",
        "--sample-type",
        sample_type,
        "--format",
        "json",
        path,
    ];
    memprof(place.path(), &args).exits(0).stdout
}

#[test]
fn custom_stack_is_walked() {
    let place = tempfile::tempdir().unwrap();
    let mut host = past(&place, &["stack"]);
    host.memprof("activate", &["sample_interval=1KiB"]).exits(0);
    for line in ["one", "two", "three"] {
        answers(&mut host, line);
    }
    let report = flat_report(&host, &place, "alloc_space");
    assert!(report.contains("on_another_stack"), "{report}");
}
