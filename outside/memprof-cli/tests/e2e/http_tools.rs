//! The field's own tools over HTTP, as they come from Debian.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::curl::curl;
use crate::dist::{source, tool, tool_text};
use crate::host::{Host, Setup};
use crate::memprof::memprof;
use crate::server::Server;

/// A host whose leak is in the profile, and its server.
pub(crate) fn served(program: &str) -> (Host, Server) {
    let host = Setup::of(program).start();
    host.memprof("activate", &[]).exits(0);
    host.dump_of(4 << 20);
    let server = Server::of(&host, &[]);
    (host, server)
}

fn address_without_scheme(server: &Server) -> &str {
    server
        .address
        .trim_start_matches("http://")
        .trim_end_matches('/')
}

/// Output of a tool that writes its files to the host's directory.
fn run(host: &Host, package: &str, program: &str, args: &[&str]) -> String {
    let mut command = Command::new(program);
    command
        .args(args)
        .env("HOME", host.place())
        .current_dir(host.place());
    tool_text(package, &mut command)
}

pub(crate) fn go(host: &Host, args: &[&str]) -> String {
    run(
        host,
        "golang-go",
        "go",
        &[&["tool", "pprof"], args].concat(),
    )
}

/// The bytes after `Total:`, which jeprof and google-pprof print with `--show_bytes`.
fn total(text: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix("Total: "));
    let words = line.unwrap_or_else(|| panic!("no total in {text}"));
    words.trim().trim_end_matches(" B").parse().unwrap()
}

/// The share of a function with all it calls, in percent, of a line as all three print it.
fn cumulative(text: &str, function: &str) -> f64 {
    let line = text.lines().find(|line| line.contains(function));
    let line = line.unwrap_or_else(|| panic!("no {function} in {text}"));
    let mut percents = line
        .split_whitespace()
        .filter_map(|word| word.strip_suffix('%'));
    percents.next_back().unwrap().parse().unwrap()
}

#[test]
fn jeprof_and_google_pprof_read_a_served_heap() {
    for program in ["rust_host", "c_host", "c_host_static"] {
        let (host, server) = served(program);
        let profile = format!("{}/pprof/heap", address_without_scheme(&server));
        for (package, tool) in [
            ("libjemalloc-dev", "jeprof"),
            ("google-perftools", "google-pprof"),
        ] {
            let text = run(&host, package, tool, &["--text", "--show_bytes", &profile]);
            assert!(total(&text) > 3 << 20, "{program} {tool}: {text}");
            let share = cumulative(&text, "grow_cache");
            assert!(share > 80.0, "{program} {tool}: {text}");
        }
    }
}

/// The function of the first row, which holds most itself.
fn largest(text: &str) -> &str {
    let mut rows = text.lines().skip_while(|line| !line.starts_with("Total: "));
    let row = rows
        .nth(1)
        .unwrap_or_else(|| panic!("no row in {text}"))
        .trim();
    let at = row
        .rfind("% ")
        .unwrap_or_else(|| panic!("no share in {row}"));
    row[at + 2..].trim()
}

#[test]
fn served_heap_blames_no_allocator() {
    let of = Setup::of;
    let preload = |library| Setup::without_profiling("c_host").env("LD_PRELOAD", library);
    let setups = [
        of("rust_host"),
        of("c_host"),
        of("c_host_static"),
        // memprof's sampler, in front of glibc and mimalloc.
        Setup::without_profiling("c_host"),
        preload("libmimalloc.so.2"),
        preload("libtcmalloc.so.4"),
        preload("libtcmalloc_minimal.so.4"),
    ];
    for setup in setups {
        let host = setup.start();
        host.memprof("activate", &["sample_interval=4KiB"]).exits(0);
        let dump = host.dump_of(4 << 20);
        let server = Server::of(&host, &[]);
        let (file, path) = (
            host.place().join("reported"),
            dump["path"].as_str().unwrap(),
        );
        let format = ["report", "--format", "jeprof", "-o"];
        let args = [&format[..], &[file.to_str().unwrap(), path]].concat();
        memprof(&host.socket_dir(), &args).exits(0);
        let jeprof = |args: &[&str]| run(&host, "libjemalloc-dev", "jeprof", args);
        let reported = jeprof(&["--text", file.to_str().unwrap()]);
        let text = jeprof(&[
            "--text",
            &format!("{}/pprof/heap", address_without_scheme(&server)),
        ]);
        assert_eq!(largest(&text), largest(&reported), "{text}{reported}");
        for text in ["jemalloc", "tcmalloc", "mimalloc", "hook", "memory_profile"] {
            assert!(!largest(&reported).contains(text), "{reported}");
        }
        // Callers have names, too.
        let google = ["--text", file.to_str().unwrap()];
        let google = run(&host, "google-perftools", "google-pprof", &google);
        assert!(cumulative(&google, "grow_cache") > 80.0, "{google}");
        assert!(!google.contains(" 0x"), "{google}");
    }
}

#[test]
fn jeprof_names_a_host_that_has_kept_no_dump() {
    let (host, server) = served("c_host");
    fs::remove_dir_all(host.dump_dir()).unwrap();
    let profile = format!("{}/pprof/heap", address_without_scheme(&server));
    let text = run(&host, "libjemalloc-dev", "jeprof", &["--text", &profile]);
    assert!(cumulative(&text, "grow_cache") > 80.0, "{text}");
}

#[test]
fn served_heap_equals_the_native_dump() {
    let (host, server) = served("c_host");
    host.memprof("deactivate", &[]).exits(0);
    // Frees are counted on, but c_host's leak is over; what is left changes by what churns.
    let served = run(
        &host,
        "libjemalloc-dev",
        "jeprof",
        &[
            "--text",
            "--show_bytes",
            &format!("{}/pprof/heap", address_without_scheme(&server)),
        ],
    );
    let native = host.memprof("dump", &["--json"]).exits(0).json();
    let native = run(
        &host,
        "libjemalloc-dev",
        "jeprof",
        &[
            "--text",
            "--show_bytes",
            dist_program("c_host").to_str().unwrap(),
            native["path"].as_str().unwrap(),
        ],
    );
    let (served, native) = (total(&served) as f64, total(&native) as f64);
    assert!(
        (served / native - 1.0).abs() < 0.005,
        "{served} is not {native}"
    );
}

fn dist_program(name: &str) -> PathBuf {
    crate::dist::dist(&format!("examples/{name}"))
}

#[test]
fn jeprof_passes_the_token_in_the_path() {
    const TOKEN: &str = "0123456789abcdef0123456789abcdef";
    let (host, _) = served("rust_host");
    let file = host.place().join("token");
    write_private(&file, TOKEN);
    let args = ["--token-file", file.to_str().unwrap()];
    let server = Server::of(&host, &args);
    let profile = format!("{}/t/{TOKEN}/pprof/heap", address_without_scheme(&server));
    let text = run(
        &host,
        "libjemalloc-dev",
        "jeprof",
        &["--text", "--show_bytes", &profile],
    );
    assert!(cumulative(&text, "grow_cache") > 80.0, "{text}");
    curl(&server.address, "H/pprof/heap").is(401);
}

fn write_private(path: &Path, text: &str) {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = std::fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

#[test]
fn go_reads_a_served_heap() {
    for program in ["rust_host", "c_host"] {
        let (host, server) = served(program);
        for path in ["pprof/heap", "debug/pprof/heap"] {
            let address = format!("{}{path}", server.address);
            let text = go(
                &host,
                &["-sample_index=inuse_space", "-top", "-cum", &address],
            );
            assert!(
                cumulative(&text, "grow_cache") > 80.0,
                "{program} {path}: {text}"
            );
        }
    }
}

#[test]
fn go_reads_the_text_and_requests_symbols() {
    let (host, server) = served("c_host");
    let body = curl(&server.address, "H/pprof/heap").is(200).body;
    let file = host.place().join("legacy.heap");
    std::fs::write(&file, body).unwrap();
    let source = format!("-symbolize=none {}", file.display());
    let args: Vec<_> = ["-top", "-cum"]
        .into_iter()
        .chain(source.split(' '))
        .collect();
    let text = go(&host, &args);
    assert!(text.contains("Type: space"), "{text}");
    // Go asks for names where it got a text; curl's agent is not given a profile of its own.
    let named = go(
        &host,
        &["-top", "-cum", "-symbolize=local", file.to_str().unwrap()],
    );
    assert!(cumulative(&named, "grow_cache") > 80.0, "{named}");
}

#[test]
fn go_reads_the_difference() {
    let (host, server) = served("rust_host");
    let address = format!("{}debug/pprof/heap", server.address);
    let text = go(
        &host,
        &[
            "-seconds",
            "1",
            "-timeout",
            "60",
            "-sample_index=inuse_space",
            "-top",
            "-cum",
            &address,
        ],
    );
    assert!(cumulative(&text, "grow_cache") > 50.0, "{text}");

    let fetch = |name: &str| {
        let file = host.place().join(name);
        std::fs::write(&file, curl(&server.address, "H/debug/pprof/heap").body).unwrap();
        file.display().to_string()
    };
    let before = fetch("before.pb.gz");
    let before_bytes = host.dump_of(0)["estimated_inuse_bytes"].as_u64().unwrap();
    host.dump_of(before_bytes + (1 << 20));
    let after = fetch("after.pb.gz");
    let args = [
        "-diff_base",
        &before,
        "-sample_index=inuse_space",
        "-top",
        "-cum",
        &after,
    ];
    let text = go(&host, &args);
    assert!(text.contains("grow_cache"), "{text}");
    let same = [
        "-diff_base",
        &before,
        "-sample_index=inuse_space",
        "-top",
        &before,
    ];
    let text = go(&host, &same);
    assert!(text.contains("accounting for 0, 0% of"), "{text}");
}

#[test]
fn promtool_accepts_the_metrics() {
    let (host, server) = served("rust_host");
    let metrics = curl(&server.address, "H/metrics").is(200);
    assert!(
        metrics
            .header("content-type")
            .starts_with("application/openmetrics-text")
    );
    let file = host.place().join("metrics");
    std::fs::write(&file, &metrics.body).unwrap();
    let mut command = Command::new("promtool");
    command
        .args(["check", "metrics"])
        .stdin(std::fs::File::open(&file).unwrap());
    let checked = tool("prometheus", &mut command);
    let said = String::from_utf8_lossy(&checked.stderr);
    assert!(checked.status.success() && said.is_empty(), "{said}");
    let text = metrics.text();
    let series = [
        "jemalloc_allocated_bytes{",
        "jemalloc_retained_bytes{",
        "memprof_profiling_active 1\n",
        "memprof_ledger_bytes{part=\"live_heap\"} ",
        "memprof_sample_interval_bytes 4096\n",
    ];
    for name in series {
        assert!(text.contains(name), "{name}: {text}");
    }
    // A scrape every few seconds must not fill the host's log.
    assert!(!host.log().iter().any(|line| line.contains("retained")));
}

#[test]
fn unprofilable_host_has_metrics() {
    let host = Setup::that_cannot_profile("rust_host").start();
    let server = Server::of(&host, &[]);
    let text = curl(&server.address, "H/metrics").is(200).text();
    assert!(text.contains("memprof_profiling_available 0\n"), "{text}");
    let host = Setup::without_profiling("c_host").start();
    let server = Server::of(&host, &[]);
    let text = curl(&server.address, "H/metrics").is(200).text();
    assert!(!text.contains("jemalloc_"), "{text}");
}

/// Profiles for scrapers, held against the rules of their own parsers.
#[test]
fn pyroscope_and_parca_accept_what_is_scraped() {
    let rules = source("outside/memprof-cli/tests/fixtures/pprof_consumers.py");
    for program in ["rust_host", "c_host"] {
        let (host, server) = served(program);
        host.memprof("reset", &[]).exits(0);
        host.memprof("activate", &["labels=thread", "ages=1s"]);
        let id = host.dump_of(1 << 20)["id"].as_str().unwrap().to_owned();
        let paths = [
            "debug/pprof/heap",
            "debug/pprof/allocs",
            "debug/pprof/heap?seconds=1",
            "debug/pprof/allocs?seconds=1",
            &format!("api/v1/dumps/{id}?format=pprof"),
            &format!("api/v1/dumps/{id}?format=pprof&lines=on"),
            &format!("api/v1/dumps/{id}?format=pprof&flat=on"),
        ];
        let fetched = paths.iter().enumerate().map(|(index, path)| {
            let file = host.place().join(format!("{index}.pb.gz"));
            let got = curl(&server.address, &format!("H/{path}")).is(200);
            fs::write(&file, got.body).unwrap();
            file
        });
        let files: Vec<_> = fetched.collect();
        let mut check = Command::new("python3");
        let checked = tool("python3", check.arg(&rules).args(files));
        let faults = String::from_utf8_lossy(&checked.stdout);
        assert!(checked.status.success(), "{program}: {faults}{checked:?}");
    }
}
