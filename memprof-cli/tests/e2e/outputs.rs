//! Where `-o` leads.

use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::Path;
use std::process::Command;
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
fn links_and_fifos_stay_what_they_are() {
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
fn a_dump_that_is_written_and_opened_is_fetched_once() {
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
