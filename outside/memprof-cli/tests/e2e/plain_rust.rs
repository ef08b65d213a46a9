//! A Rust program on tikv-jemallocator that knows nothing of memprof, as the linker leaves it, and
//! as `strip` does.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::dist::dist;
use crate::host::Host;
use crate::memprof::memprof;

const OWN_CONF: &str = "_RJEM_MALLOC_CONF";
const PROF: &str = "prof:true,prof_active:false,lg_prof_sample:12";

#[derive(Clone, Copy, Debug)]
enum Start {
    /// `memprof run`.
    Run,
    /// `memprof run --allocator jemalloc`, which preloads one too.
    RunReplaced,
    /// With the plugin preloaded, and profiling possible.
    Profiling,
    /// With the plugin preloaded, as any other time.
    Bare,
}

fn plain_rust() -> PathBuf {
    dist("examples/plain_rust")
}

/// The program after `objcopy OPTIONS`.
fn copy(place: &TempDir, options: &[&str]) -> PathBuf {
    let copy = place.path().join("plain_rust");
    let mut command = Command::new("objcopy");
    command.args(options).arg(plain_rust()).arg(&copy);
    let done = command.status().unwrap();
    assert!(done.success(), "{command:?}");
    copy
}

fn start(program: &Path, how: Start) -> Host {
    let mut command = match how {
        Start::Run | Start::RunReplaced => {
            let mut run = Command::new(dist("bin/memprof"));
            run.args(["run", "--lg-sample", "12"]);
            if let Start::RunReplaced = how {
                run.args(["--allocator", "jemalloc"]);
            }
            run.arg("--").arg(program);
            run
        }
        Start::Profiling | Start::Bare => {
            let mut command = Command::new(program);
            command
                .env("LD_PRELOAD", dist("plugins/memory_profile.so"))
                .env("MEMPROF_RUN", "1");
            command
        }
    };
    if let Start::Profiling = how {
        command.env(OWN_CONF, PROF);
    }
    command.env("MEMPROF_LOG", "info").stdin(Stdio::piped());
    let host = Host::spawn(command, tempfile::tempdir().unwrap());
    host.wait_for_log("control socket ");
    host
}

/// Entry of `status` about the program's own jemalloc.
fn own_jemalloc(host: &Host) -> Value {
    let status = host.memprof("status", &["--json"]).exits(0).json();
    let allocators = status["allocators"].as_array().unwrap().iter();
    let is_own = |each: &&Value| {
        let found_by = each["found_by"].as_str().unwrap();
        found_by.starts_with("symtab") && found_by.ends_with("plain_rust")
    };
    allocators.clone().find(is_own).cloned().unwrap_or_default()
}

#[test]
fn jemalloc_is_found_and_the_dump_names_the_function() {
    let check = |program: &Path, how: Start| {
        let mut host = start(program, how);
        assert_eq!(own_jemalloc(&host)["opt_prof"], true, "{program:?} {how:?}");
        let activated = host.memprof("activate", &["--json"]).exits(0).json();
        assert_eq!(activated["warnings"], serde_json::json!([]), "{activated}");
        host.type_line("one");
        host.wait_for_log("served one");
        let dump = host.dump_of(1_500_000);
        let report = memprof(
            &host.socket_dir(),
            &["report", dump["path"].as_str().unwrap()],
        );
        let text = report.exits(0).stdout;
        assert!(text.contains("keep_entries"), "{how:?}: {text}");
        host.memprof("stats", &[]).exits(0);
    };
    let place = tempfile::tempdir().unwrap();
    let without_debug = copy(&place, &["--strip-debug"]);
    for how in [Start::Run, Start::RunReplaced, Start::Profiling] {
        check(&plain_rust(), how);
        check(&without_debug, how);
    }
}

#[test]
fn earlier_allocations_are_reported_as_missing() {
    let mut host = start(&plain_rust(), Start::Profiling);
    for line in 0..12 {
        host.type_line(&line.to_string());
        host.wait_for_log(&format!("served {line}"));
    }
    let activated = host.memprof("activate", &["--json"]).exits(0).json();
    let unseen = activated["unseen_bytes"].as_u64().unwrap();
    assert!((24_000_000..48_000_000).contains(&unseen), "{activated}");
    let text = activated["text"].as_str().unwrap();
    assert!(
        text.contains("MiB that were allocated before are not in its profile"),
        "{text}"
    );
    assert!(text.contains("`memprof run --active`"), "{text}");
    let again = host.memprof("activate", &["--json"]).exits(0).json();
    assert_eq!(again["begun"], false, "{again}");

    let dump = host.memprof("dump", &["--json"]).exits(0).json();
    let warning = dump["warnings"]
        .as_array()
        .unwrap()
        .last()
        .unwrap()
        .as_str()
        .unwrap();
    assert!(warning.contains("live bytes are not in it"), "{dump}");
    for line in 12..48 {
        host.type_line(&line.to_string());
        host.wait_for_log(&format!("served {line}"));
    }
    let dump = host.memprof("dump", &["--json"]).exits(0).json();
    assert_eq!(dump["warnings"], serde_json::json!([]), "{dump}");
}

#[test]
fn refusal_without_prof_names_the_variable() {
    let host = start(&plain_rust(), Start::Bare);
    let args = ["--json", "sampler=allocator"];
    let refused = host.memprof("activate", &args).exits(4).json();
    let remedy = refused["error"]["remedy"].as_str().unwrap();
    assert!(remedy.contains("_RJEM_MALLOC_CONF=prof:true"), "{refused}");
    let conf = memprof(
        &host.socket_dir(),
        &["malloc-conf", plain_rust().to_str().unwrap()],
    );
    assert!(conf.exits(0).stdout.starts_with("_RJEM_MALLOC_CONF="));
}

#[test]
fn malloc_conf_reports_a_jemalloc_without_profiling() {
    let place = tempfile::tempdir().unwrap();
    let program = copy(&place, &[]);
    let mut bytes = std::fs::read(&program).unwrap();
    // What prof_leakcheck prints: only builds with profiling have it.
    const TEXT: &[u8] = b"<jemalloc>: Leak approximation summary";
    let mut at = 0;
    while let Some(next) = bytes[at..]
        .windows(TEXT.len())
        .position(|part| part == TEXT)
    {
        at += next;
        bytes[at..][..TEXT.len()].fill(b'-');
    }
    std::fs::write(&program, bytes).unwrap();
    let conf = |program: &Path| {
        let run = memprof(place.path(), &["malloc-conf", program.to_str().unwrap()]);
        let run = run.exits(0);
        assert_eq!(
            run.stdout.trim_end(),
            format!("{OWN_CONF}=prof:true,prof_active:false")
        );
        run.stderr
    };
    assert_eq!(conf(&plain_rust()), "");
    let said = conf(&program);
    assert!(
        said.contains("was built without profiling and refuses this"),
        "{said}"
    );
}

#[test]
fn functions_dropped_by_the_linker_are_not_needed() {
    let place = tempfile::tempdir().unwrap();
    let dropped = [
        "--strip-symbol=_rjem_mallctlnametomib",
        "--strip-symbol=_rjem_mallctlbymib",
        "--strip-symbol=_rjem_malloc_stats_print",
    ];
    let host = start(&copy(&place, &dropped), Start::Profiling);
    host.memprof("activate", &[]).exits(0);
    let stats = host.memprof("stats", &["--json"]).exits(0).json();
    let own = &stats["allocators"][0];
    assert!(own["allocated"].as_u64().unwrap() > 0, "{stats}");
    let report = own["report"].as_str().unwrap();
    assert!(
        report.contains("-Wl,-u,_rjem_malloc_stats_print"),
        "{report}"
    );
}

#[test]
fn stripped_jemalloc_is_reported() {
    let check = |options: &[&str]| {
        let place = tempfile::tempdir().unwrap();
        let program = copy(&place, options);
        let path = program.canonicalize().unwrap();
        let expected = format!(
            "{} contains a jemalloc that memprof cannot control",
            path.display()
        );

        // Beside a preloaded one, which profiles nothing of the program's.
        let host = start(&program, Start::RunReplaced);
        let activated = host.memprof("activate", &["--json"]).exits(0).json();
        let warning = activated["warnings"][0].as_str().unwrap();
        assert!(warning.contains(&expected), "{activated}");
        let doctor = host.memprof("doctor", &["--json"]).exits(0).json();
        let kinds = doctor["findings"].as_array().unwrap();
        assert!(
            kinds.iter().any(|found| found["kind"] == "hidden_jemalloc"),
            "{doctor}"
        );

        let host = start(&program, Start::Profiling);
        let refused = host.memprof("activate", &["--json"]).exits(4).json();
        assert!(
            refused["error"]["message"]
                .as_str()
                .unwrap()
                .contains(&expected),
            "{refused}"
        );
        let doctor = host.memprof("doctor", &["--json"]).exits(4).json();
        assert_eq!(doctor["findings"][0]["kind"], "hidden_jemalloc", "{doctor}");
        let status = host.memprof("status", &["--json"]).exits(0).json();
        assert_eq!(status["profiling"], "unavailable", "{status}");
        assert_eq!(
            status["stripped_jemalloc"],
            path.to_str().unwrap(),
            "{status}"
        );
    };
    check(&["--strip-all"]);
    check(&["--strip-symbol=_rjem_mallctl"]);
}
