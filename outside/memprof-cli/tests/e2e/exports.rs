//! Dumps with labels and ages, as files for other tools.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::curl::curl;
use crate::dist::tool_text;
use crate::host::Host;
use crate::labels::{ALLOCATORS, pushes};
use crate::memprof::memprof;
use crate::server::Server;

/// A program that has served requests with labels and ages.
fn served(allocator: &[&str]) -> Host {
    let mut host = pushes(allocator);
    let fine = ["labels=route", "ages=1s", "sample_interval=4KiB"];
    host.memprof("activate", &fine).exits(0);
    host.type_line("requests");
    host.wait_for_log("served requests");
    host
}

fn text_of(file: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(file).unwrap()).into_owned()
}

/// Output of `memprof report` for a file, without the file's name.
fn report_json(host: &Host, file: &Path, args: &[&str]) -> Value {
    let file = file.to_str().unwrap();
    let args = [&["report", "--format", "json", file], args].concat();
    let run = memprof(&host.socket_dir(), &args).exits(0);
    assert_eq!(run.stderr, "", "{args:?}");
    serde_json::from_str(&run.stdout.replace(file, "FILE")).unwrap()
}

/// Whose memory it is and how old: all that marks tell.
fn answers(host: &Host, file: &Path) -> [Value; 3] {
    let asked: [&[&str]; 3] = [&["--by", "route"], &["--ages"], &["--label", "route=/1"]];
    asked.map(|args| report_json(host, file, args))
}

fn tool(host: &Host, package: &str, command: &[&str], file: &Path) -> String {
    let mut tool = Command::new(command[0]);
    tool.args(&command[1..]).arg(file).env("HOME", host.place());
    let text = tool_text(package, tool.current_dir(host.place()));
    for kind in ["4d5001", "4d5002"] {
        assert!(!text.contains(kind), "{command:?}: {text}");
    }
    text
}

/// The bytes after `Total:`, or of Go's `accounting for 1B, 100% of 1B total`.
fn total(text: &str) -> f64 {
    let words = match text.split_once("Total: ") {
        Some((_, rest)) => rest.split_once(" B").unwrap().0,
        None => {
            text.split_once("% of ")
                .unwrap()
                .1
                .split_once("B total")
                .unwrap()
                .0
        }
    };
    words.trim().parse().unwrap()
}

/// The total that memprof has of a file is that of the tool.
fn agree(host: &Host, package: &str, command: &[&str], file: &Path) {
    let ours = report_json(host, file, &[])["totals"]["inuse_space"]
        .as_f64()
        .unwrap();
    let text = tool(host, package, command, file);
    let theirs = total(&text);
    assert!((theirs / ours - 1.0).abs() < 1e-3, "{ours}: {text}");
}

#[test]
fn other_tools_read_written_dumps_without_loss() {
    for allocator in ALLOCATORS {
        let host = served(allocator);
        let file = host.place().join("written.heap");
        let args = ["--json", "-o", file.to_str().unwrap()];
        let dump = host.memprof("dump", &args).exits(0).json();
        let kept = Path::new(dump["path"].as_str().unwrap());
        assert!(text_of(kept).contains(" 0x4d5001"));
        assert!(!text_of(&file).contains("0x4d50"));
        assert_eq!(answers(&host, &file), answers(&host, kept));

        let program = host.place().join("pushes");
        let program = program.to_str().unwrap();
        let jeprof = ["jeprof", "--text", "--show_bytes", program];
        agree(&host, "libjemalloc-dev", &jeprof, &file);
        let text = tool(&host, "libjemalloc-dev", &jeprof, &file);
        assert!(text.contains("work_nested"), "{text}");
        if text_of(kept).starts_with("heap profile:") {
            google_pprof_and_go_agree(&host, &file);
        }
    }
}

/// These read tcmalloc's text alone, which memprof's sampler writes too.
fn google_pprof_and_go_agree(host: &Host, file: &Path) {
    let program = host.place().join("pushes");
    let program = program.to_str().unwrap();
    let google = ["google-pprof", "--text", "--show_bytes", program];
    agree(host, "google-perftools", &google, file);
    let go = ["go", "tool", "pprof", "-top", "-unit=B", "-symbolize=none"];
    agree(host, "golang-go", &go, file);
}

#[test]
fn other_tools_read_recorded_files() {
    let host = served(ALLOCATORS[1]);
    let file = host.place().join("recorded.heap");
    let args = ["--for", "1s", "-o", file.to_str().unwrap()];
    host.memprof("record", &args).exits(0);
    assert!(!text_of(&file).contains("0x4d50"));
    let by = report_json(&host, &file, &["--by", "route"]);
    assert_eq!(by["by"]["values"][0]["value"], "nested", "{by}");
}

#[test]
fn google_pprof_and_go_read_served_dumps_without_loss() {
    let host = served(ALLOCATORS[1]);
    let dump = host.memprof("dump", &["--json"]).exits(0).json();
    let kept = Path::new(dump["path"].as_str().unwrap());
    let server = Server::of(&host, &[]);
    let get = |name: &str, path: &str| {
        let file = host.place().join(name);
        std::fs::write(&file, curl(&server.address, path).is(200).body).unwrap();
        assert!(!text_of(&file).contains("0x4d50"), "{path}");
        file
    };
    let id = dump["id"].as_str().unwrap();
    let same = get("same.heap", &format!("H/api/v1/dumps/{id}?format=heap"));
    assert_eq!(answers(&host, &same), answers(&host, kept));

    let text = get("text.heap", "H/pprof/heap");
    let values = |file: &Path| {
        let by = report_json(&host, file, &["--by", "route"]);
        let values = by["by"]["values"].as_array().unwrap().iter();
        let values = values.filter(|value| value["value"] != "[none]");
        values
            .map(|value| value["flat"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(values(&text).len(), 5);
    assert_eq!(values(&text), values(kept));
    google_pprof_and_go_agree(&host, &text);
}
