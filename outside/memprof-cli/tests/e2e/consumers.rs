//! Every file and answer that is meant for `go tool pprof` and speedscope, read by them.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;
use webdriver::Browser;

use crate::curl::curl;
use crate::fleet::Fleet;
use crate::host::Host;
use crate::http_tools::{go, served};
use crate::memprof::memprof;

const SPEEDSCOPE: &str = "speedscope@1.25.0";

/// All that memprof writes in a format: reports of two dumps and of their difference, a recording, and answers over
/// HTTP.
fn outputs(program: &str, format: &str) -> (Host, Vec<PathBuf>) {
    let (host, server) = served(program);
    let path = |name: &str| host.place().join(format!("{name}.{format}"));
    let text = |file: &Path| file.to_str().unwrap().to_owned();
    let dump = || host.memprof("dump", &["--json"]).exits(0).json();
    let before = dump();
    let bytes = before["estimated_inuse_bytes"].as_u64().unwrap();
    let after = host.dump_of(bytes + (1 << 20));
    let [old, new] = [&before, &after].map(|dump| dump["path"].as_str().unwrap());
    let report = |name: &str, args: &[&str]| {
        let file = path(name);
        let output = text(&file);
        let all = ["report", new, "--format", format, "-o", &output];
        memprof(&host.socket_dir(), &[&all[..], args].concat()).exits(0);
        file
    };
    let mut files = vec![
        report("report", &[]),
        report("difference", &["--base", old]),
    ];
    let recorded = path("recorded");
    let record = ["--for", "1s", "--format", format, "-o", &text(&recorded)];
    host.memprof("record", &record).exits(0);
    files.push(recorded);
    let id = after["id"].as_str().unwrap();
    let dump = format!("H/api/v1/dumps/{id}?format={format}");
    let own = [
        ("heap", "H/debug/pprof/heap"),
        ("allocs", "H/debug/pprof/allocs"),
    ];
    let answers = match format {
        "pprof" => [&[("api", dump.as_str())], &own[..]].concat(),
        _ => vec![("api", dump.as_str())],
    };
    for (name, request) in answers {
        let file = path(name);
        fs::write(&file, curl(&server.address, request).is(200).body).unwrap();
        files.push(file);
    }
    (host, files)
}

/// Go's command reads a file in each of its views, and names the function.
#[track_caller]
fn go_shows_every_view(host: &Host, file: &Path, function: &str) {
    let file = file.to_str().unwrap();
    let value = "-sample_index=inuse_space";
    for view in [
        vec!["-top"],
        vec!["-peek", function],
        vec!["-list", function],
        vec!["-traces"],
    ] {
        let text = go(host, &[&view[..], &[value, file]].concat());
        assert!(text.contains(function), "{file} {view:?}: {text}");
    }
    // Without a label there is nothing to print.
    go(host, &["-tags", value, file]);
    let same = go(host, &["-top", "-diff_base", file, value, file]);
    assert!(same.contains("accounting for 0, 0% of"), "{file}: {same}");
}

#[test]
fn go_reads_every_pprof_file() {
    for program in ["c_host", "rust_host"] {
        let (host, files) = outputs(program, "pprof");
        for file in files {
            go_shows_every_view(&host, &file, "grow_cache");
        }
    }
}

/// Opens a file in speedscope as its command does, by a script with the file's bytes. Returns the table of functions.
fn speedscope_table(browser: &Browser, program: &Path, file: &Path) -> String {
    let (name, bytes) = (file.file_name().unwrap(), fs::read(file).unwrap());
    let (name, bytes) = (json!(name.to_str()), json!(bytes));
    let load =
        format!("speedscope.loadFileFromBase64({name}, btoa(String.fromCharCode(...{bytes})))");
    let script = file.with_added_extension("js");
    fs::write(&script, load).unwrap();
    let page = program.join("dist/release/index.html");
    // The page reads its fragment only when it is loaded.
    browser.navigate("about:blank");
    browser.navigate(&format!(
        "file://{}#localProfilePath={}",
        page.display(),
        script.display()
    ));
    browser.wait_for(&format!("document.title.includes({name})"));
    // Its key of the view that has a table.
    browser.run_script("window.dispatchEvent(new KeyboardEvent('keypress', { key: '3' }))");
    browser.wait_for("document.querySelector('table td')");
    browser.text("body")
}

#[test]
fn speedscope_reads_every_file() {
    let program = testkit::node::install_package(SPEEDSCOPE).unwrap();
    let browser = Browser::open();
    let check = |file: &Path, function: &str| {
        let table = speedscope_table(&browser, &program, file);
        assert!(table.contains(function), "{}: {table}", file.display());
        // What a text counts, it does not say.
        let is_text = file.extension().is_some_and(|format| format == "collapsed");
        let is_bytes = is_text || table.contains("B (");
        assert!(is_bytes, "{}: {table}", file.display());
    };
    for program in ["c_host", "rust_host"] {
        for format in ["pprof", "collapsed"] {
            let (_host, files) = outputs(program, format);
            for file in files {
                check(&file, "grow_cache");
            }
        }
    }
    let fleet = Fleet::start();
    fleet.until_grown();
    for format in ["pprof", "collapsed"] {
        let file = fleet.path(&format!("fleet.{format}"));
        let args = [
            "fleet",
            "flame",
            "--format",
            format,
            "-o",
            file.to_str().unwrap(),
        ];
        fleet.memprof(&args).exits(0);
        check(&file, "remember_visitor");
        if format == "pprof" {
            go_shows_every_view(&fleet.processes[0], &file, "remember_visitor");
        }
    }
}
