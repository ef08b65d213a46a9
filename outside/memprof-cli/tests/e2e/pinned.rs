//! Who keeps free memory from being given back.

use std::process::Command;

use serde_json::Value;
use webdriver::Browser;

use crate::dist::{source, tool_text};
use crate::host::{Host, Setup};
use crate::memprof::Run;
use crate::page::{is_quiet, screenshot};
use crate::server::Server;

/// A program under stock jemalloc that plants few objects among many.
fn planted() -> Host {
    let place = tempfile::tempdir().unwrap();
    let program = place.path().join("pins");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-o"]).arg(&program);
    tool_text(
        "gcc",
        cc.arg(source("outside/memprof-cli/tests/fixtures/pins.c")),
    );
    Host::run(&program, &["--allocator", "jemalloc"], place)
}

fn pinned(host: &Host, args: &[&str]) -> Run {
    host.memprof("ledger", &[&["--pinned"], args].concat())
}

/// Bytes of the slabs of all size classes beyond their objects, as jemalloc prints them.
fn free_in_slabs(host: &Host) -> u64 {
    let stats = host.memprof("stats", &["--json", "log=off", "format=json"]);
    let stats = stats.exits(0).json();
    let printed = stats["allocators"][0]["report"].as_str().unwrap();
    let printed: Value = serde_json::from_str(printed).unwrap();
    let jemalloc = &printed["jemalloc"];
    let classes = jemalloc["arenas"]["bin"].as_array().unwrap();
    let counts = jemalloc["stats.arenas"]["merged"]["bins"]
        .as_array()
        .unwrap();
    let number = |of: &Value, name: &str| of[name].as_u64().unwrap();
    let free = classes.iter().zip(counts).map(|(class, count)| {
        let slabs = number(count, "curslabs") * number(class, "slab_size");
        slabs - number(count, "curregs") * number(class, "size")
    });
    free.sum()
}

fn row<'a>(report: &'a Value, function: &str) -> Option<&'a Value> {
    let mut rows = report["functions"].as_array().unwrap().iter();
    rows.find(|row| row["name"] == function)
}

#[test]
fn few_live_objects_among_freed_ones_are_reported_with_jemalloc_s_sum() {
    let mut host = planted();
    host.memprof("activate", &["sampler=memprof", "sample_interval=4KiB"])
        .exits(0);
    host.type_line("work");
    host.wait_for_log("served work");
    let report = pinned(&host, &["--json"]).exits(0).json();
    let free = free_in_slabs(&host);
    let total = report["totals"]["inuse_space"].as_u64().unwrap();
    let bytes =
        |function: &str| row(&report, function).map_or(0, |row| row["flat"].as_u64().unwrap());
    let reported = [
        "open_session",
        "parse_node",
        "fill_cache",
        "load_plugins",
        "[not attributable]",
    ]
    .map(bytes);
    eprintln!("{reported:?} of {total}; jemalloc: {free}");
    // memprof's own threads allocate a little of it too.
    assert!(total.abs_diff(free) < 256 << 10, "{total} and {free}");
    let rows = report["functions"].as_array().unwrap().iter();
    let sum: u64 = rows.map(|row| row["flat"].as_u64().unwrap()).sum();
    assert_eq!(sum, total);
    let [session, node, cache, plugins, unknown] = reported;
    // 63 of 64 objects of 64 bytes are free.
    let expected = 600_000 / 64 * 63 * 64;
    assert!(
        session.abs_diff(expected) < expected / 20,
        "{session} of {expected}"
    );
    assert_eq!((node, plugins), (0, 0));
    assert!(cache < 1 << 20, "{cache}");
    // 2000 objects of 3000 bytes lie in the slabs of two or four, of which four live.
    assert!((100 << 10..8 << 20).contains(&unknown), "{unknown}");
    let first = &report["functions"][0];
    assert_eq!(first["name"], "open_session", "{report}");
    assert!(first["samples"].as_u64().unwrap() > 50, "{first}");
    assert_eq!(report["pinned"], true);

    let text = pinned(&host, &[]).exits(0);
    assert!(text.stdout.starts_with("pinned: "), "{}", text.stdout);
    assert!(
        text.stdout.contains(" [not attributable]\n"),
        "{}",
        text.stdout
    );
    assert!(text.stderr.contains("too few samples"), "{}", text.stderr);
    let collapsed = pinned(&host, &["--format", "collapsed"]).exits(0).stdout;
    let values = collapsed
        .lines()
        .map(|line| line.rsplit(' ').next().unwrap());
    let sum: u64 = values.map(|value| value.parse::<u64>().unwrap()).sum();
    assert!(sum.abs_diff(total) < 256 << 10, "{sum}");
    assert!(collapsed.contains("main;work;open_session"), "{collapsed}");
    let picture = host.place().join("pinned.svg");
    let args = ["--format", "flamegraph", "-o", picture.to_str().unwrap()];
    pinned(&host, &args).exits(0);
    let picture = std::fs::read_to_string(picture).unwrap();
    assert!(picture.contains("open_session"));
}

#[test]
fn page_links_free_memory_to_its_holders() {
    let mut host = planted();
    let server = Server::of(&host, &[]);
    let browser = Browser::open();
    browser.navigate(&server.address);
    browser.wait_for("document.querySelector('#resident').textContent");
    let is_offered = || browser.run_script("return !document.querySelector('#pinned').hidden");
    assert_eq!(is_offered(), false, "nothing is sampled");
    host.memprof("activate", &["sampler=memprof", "sample_interval=4KiB"])
        .exits(0);
    host.type_line("work");
    host.wait_for_log("served work");
    browser.wait_for("!document.querySelector('#pinned').hidden");
    screenshot(&browser, "pinned_overview");
    browser.click("#pinned");
    browser.wait_for("document.querySelector('#panel-flamegraph').dataset.drawn === '0'");
    let heading = browser.text("#heading");
    assert!(heading.starts_with("pinned: "), "{heading}");
    let meaning = browser.text("#meaning");
    assert!(meaning.starts_with("This memory is free"), "{meaning}");
    let note = browser.text(".note");
    assert!(note.contains("are not attributable: "), "{note}");
    // There are no objects and no allocations in it to be shown.
    let numbers = browser.run_script("return document.querySelector('#numbers').hidden");
    assert_eq!(numbers, true);
    screenshot(&browser, "pinned_flamegraph");
    browser.click("#tab-table");
    let cell = |row: u32, column: &str| {
        browser.text(&format!(
            "#panel-table tbody tr[aria-rowindex='{row}'] td{column}"
        ))
    };
    assert_eq!(cell(2, ".name"), "open_session");
    let share: f64 = cell(2, ":nth-child(2)").replace(" %", "").parse().unwrap();
    assert!(share > 80.0, "{share}");
    let names = browser.run_script(
        "return [...document.querySelectorAll('td.name')].map(cell => cell.textContent)",
    );
    let unknown = Value::from("[not attributable]");
    assert!(names.as_array().unwrap().contains(&unknown), "{names}");
    screenshot(&browser, "pinned_table");
    browser.click("#back");
    let why = "document.querySelector('#dump-rows td:nth-child(3)').textContent";
    browser.wait_for(&format!("{why} === 'asked for: who keeps free memory'"));
    is_quiet(&browser, &server.address);
}

#[test]
fn other_tools_read_a_kept_profile() {
    let mut host = planted();
    host.memprof("activate", &["sampler=memprof", "sample_interval=4KiB"])
        .exits(0);
    host.type_line("work");
    host.wait_for_log("served work");
    let dump = host
        .memprof("dump", &["--json", "kind=pinned"])
        .exits(0)
        .json();
    assert_eq!(dump["kind"], "pinned", "{dump}");
    let total = dump["estimated_inuse_bytes"].as_f64().unwrap();
    let list = host.memprof("list", &["--json"]).exits(0).json();
    assert_eq!(list["dumps"][0]["kind"], "pinned", "{list}");
    let path = dump["path"].as_str().unwrap();
    let jeprof = ["--text", "--show_bytes", "/bin/true", path];
    let text = tool_text("libjemalloc-dev", Command::new("jeprof").args(jeprof));
    let line = text.lines().find_map(|line| line.strip_prefix("Total: "));
    let reported: f64 = line.unwrap().trim_end_matches(" B").parse().unwrap();
    assert!(
        (reported / total - 1.0).abs() < 1e-3,
        "{reported} of {total}"
    );
    let go = [
        "tool",
        "pprof",
        "-top",
        "-sample_index=inuse_space",
        "-unit=B",
        path,
    ];
    let mut go_tool = Command::new("go");
    go_tool
        .args(go)
        .env("HOME", host.place())
        .current_dir(host.place());
    let text = tool_text("golang-go", &mut go_tool);
    assert!(text.contains(&format!("of {total}B total")), "{text}");
}

#[test]
fn unknown_pinned_slabs_name_the_reason() {
    let check = |host: &Host, code, error: &str| {
        let refused = pinned(host, &[]).exits(code);
        assert!(refused.stderr.contains(error), "{}", refused.stderr);
        host.memprof("dump", &["kind=pinned"]).exits(code);
    };
    let glibc = Setup::without_profiling("c_host").start();
    for activation in [None, Some("sampler=memprof")] {
        if let Some(sampler) = activation {
            glibc.memprof("activate", &[sampler]).exits(0);
        }
        check(&glibc, 4, "does not report how full its pages are");
    }
    let jemalloc = Setup::of("c_host").start();
    let moved = "puts each object that it samples itself on pages of its own";
    check(&jemalloc, 4, moved);
    jemalloc
        .memprof("activate", &["sampler=allocator"])
        .exits(0);
    check(&jemalloc, 4, moved);
    // jemalloc would follow addresses of glibc's to where nothing is.
    let both = Setup::without_profiling("rust_host").start();
    for allocator in ["allocator=glibc", "allocator=jemalloc"] {
        both.memprof("activate", &["sampler=memprof", allocator])
            .exits(0);
    }
    check(&both, 4, "another allocator than jemalloc");
    let planted = planted();
    planted
        .memprof("activate", &["sampler=memprof", "sample_interval=16MiB"])
        .exits(0);
    check(&planted, 4, "has no sample of live memory");
}
