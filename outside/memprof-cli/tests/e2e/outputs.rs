//! Targets of `-o`.

use std::fs::OpenOptions;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::dist::dist;
use crate::host::{Host, Setup};
use crate::memprof::memprof;

fn host() -> Host {
    let host = Setup::of("c_host").start();
    host.memprof("activate", &[]).exits(0);
    host.dump_of(1_000_000);
    host
}

fn is_dump(bytes: &[u8]) -> bool {
    bytes.starts_with(b"heap_v2/4096")
}

#[test]
fn links_and_fifos_are_kept() {
    let host = host();
    let path = |name: &str| host.place().join(name);
    let text = |name: &str| path(name).to_str().unwrap().to_owned();
    mkfifo(&path("fifo"), Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
    symlink("dump.heap", path("link")).unwrap();
    symlink("/dev/null", path("null")).unwrap();
    let fifo = path("fifo");
    let reader = thread::spawn(move || std::fs::read(fifo).unwrap());
    host.memprof("dump", &["-o", &text("fifo")]).exits(0);
    assert!(
        path("fifo")
            .symlink_metadata()
            .unwrap()
            .file_type()
            .is_fifo()
    );
    assert!(is_dump(&reader.join().unwrap()));
    host.memprof("dump", &["-o", &text("link")]).exits(0);
    assert!(path("link").is_symlink());
    assert!(is_dump(&std::fs::read(path("dump.heap")).unwrap()));
    host.memprof("dump", &["-o", &text("null")]).exits(0);
    assert!(path("null").is_symlink());
    let record = ["--for", "1s", "-o", &text("null")];
    let shown = host.memprof("record", &record).exits(0).stdout;
    assert!(shown.contains("grow_cache"), "{shown}");
    assert!(path("null").is_symlink());

    let report = ["report", &text("dump.heap"), "-o", &text("null")];
    memprof(host.place(), &report).exits(0);
    assert!(path("null").is_symlink());
    let to_stdout = memprof(host.place(), &["report", &text("dump.heap"), "-o", "-"]);
    assert!(to_stdout.exits(0).stdout.contains("grow_cache"));
    assert!(!Path::new("-").exists());
}

#[test]
fn dump_written_and_opened_is_fetched_once() {
    let host = host();
    let fetches = |args: &[&str]| {
        let output = Command::new("strace")
            .args(["-f", "-qq", "-s", "300", "-e", "trace=sendto", "-o"])
            .arg(host.place().join("trace"))
            .arg(dist("bin/memprof"))
            .args(["dump", "-t", host.socket().to_str().unwrap(), "--open"])
            .args(args)
            .env("TMPDIR", host.place())
            .env_remove("BROWSER")
            .env_remove("DISPLAY")
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let trace = std::fs::read_to_string(host.place().join("trace")).unwrap();
        assert_eq!(trace.matches("fetch").count(), 1, "{trace}");
        output
    };
    let file = host.place().join("opened.heap");
    let page = fetches(&["-o", file.to_str().unwrap()]).stdout;
    assert!(page.ends_with(b".html\n"), "{page:?}");
    assert!(is_dump(&std::fs::read(file).unwrap()));

    let piped = fetches(&["-o", "-"]);
    assert!(is_dump(&piped.stdout));
    let notes = String::from_utf8(piped.stderr).unwrap();
    assert!(notes.trim_end().ends_with(".html"), "{notes}");
}

#[test]
fn failed_output_changes_no_verdict() {
    let place = tempfile::tempdir().unwrap();
    let budget = place.path().join("budget.toml");
    std::fs::write(&budget, "allocated = 1\n").unwrap();
    let budget = budget.to_str().unwrap();
    let named = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../memprof-report/tests/named.heap"
    );
    let store = format!("file://{}", place.path().join("store").display());
    let full = || Stdio::from(OpenOptions::new().write(true).open("/dev/full").unwrap());
    let closed = || Stdio::from(std::io::pipe().unwrap().1);
    let sinks: [(&str, &dyn Fn() -> Stdio); 2] = [("full", &full), ("closed", &closed)];
    // The code with stdout full, which loses what a success has to say, and in all other cases.
    let check = |args: &[&str], full_code, code| {
        for (stdout_name, stdout) in sinks {
            for (stderr_name, stderr) in sinks {
                let status = Command::new(dist("bin/memprof"))
                    .args(args)
                    .env("MEMPROF_SOCKET_DIR", place.path())
                    .stdout(stdout())
                    .stderr(stderr())
                    .status()
                    .unwrap();
                let expected = if stdout_name == "full" {
                    full_code
                } else {
                    code
                };
                let case = format!("{args:?}, stdout {stdout_name}, stderr {stderr_name}");
                assert_eq!(status.code(), Some(expected), "{case}");
            }
        }
    };
    check(&["test", "--budget", budget, "--", "true"], 7, 7);
    check(&["test", "--budget", "/no/such", "--", "true"], 2, 2);
    check(&["status", "-t", "/no/such/socket"], 3, 3);
    check(&["ps", "--json"], 1, 0);
    check(&["leaks", "--prove", "1000000000"], 3, 3);
    for format in ["text", "json", "html", "collapsed"] {
        check(&["report", named, "--format", format], 1, 0);
    }
    check(&["man"], 1, 0);
    check(&["--help"], 1, 0);
    check(&["report", "--help"], 1, 0);
    check(&["--version"], 1, 0);
    check(&["completions", "bash"], 1, 0);
    check(&["--nonsense"], 2, 2);
    check(&["fleet", "--help"], 1, 0);
    check(&["fleet", "ps", "--store", &store], 5, 5);
    check(&["fleet", "ps", "--store", "nonsense"], 2, 2);
    check(&["fleet", "doctor", "--store", &store], 1, 0);
    std::fs::create_dir_all(place.path().join("store/samples")).unwrap();
    std::fs::write(place.path().join("store/samples/foreign"), "").unwrap();
    check(&["fleet", "doctor", "--store", &store], 1, 1);
}

#[test]
fn started_programs_inherit_the_signals_of_memprof() {
    let place = tempfile::tempdir().unwrap();
    let budget = place.path().join("budget.toml");
    std::fs::write(&budget, "peak = \"1GiB\"\n").unwrap();
    let memprof = dist("bin/memprof");
    let memprof = memprof.display();
    let ways = [
        format!("{memprof} run --"),
        format!("{memprof} test --budget {} --", budget.display()),
        format!("{memprof} leaks --prove --at-exit --"),
    ];
    // Blocked and ignored ones; glibc's own two (nptl(7)) lie behind them.
    let signals = |before: &str, ignored: &str| -> Vec<u64> {
        let script = format!("trap '' {ignored}; exec {before} grep ^Sig[BI] /proc/self/status");
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let masks = text.lines().filter_map(|line| line.split_once(":\t"));
        let mask = |hex| u64::from_str_radix(hex, 16).unwrap() & 0x7fff_ffff;
        masks.map(|(_, hex)| mask(hex)).collect()
    };
    let check = |ignored: &str, way: &str| {
        let direct = signals("", ignored);
        assert_eq!(direct.len(), 2, "{direct:?}");
        let started = signals(way, ignored);
        assert_eq!(started, direct, "{way}, ignored: {ignored:?}");
    };
    for way in &ways {
        check("", way);
        check("PIPE", way);
        check("INT HUP USR1", way);
        check("PIPE TERM CHLD", way);
    }
}
