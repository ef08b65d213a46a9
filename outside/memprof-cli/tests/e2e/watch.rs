//! Automatic dumps: by watch rules, at high water and at the exit.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::host::{Host, Setup};

fn watched(program: &str, rules: &str) -> Host {
    Setup::of(program)
        .config(&format!("activate_at_start = true\n{rules}"))
        .start()
}

/// The path in a line that tells of a dump.
fn dumped(line: &str) -> PathBuf {
    let (_, path) = line.rsplit_once(" to ").unwrap();
    PathBuf::from(path)
}

/// Checks that name, comment lines and `list` of a dump tell of its trigger.
fn tells_of(host: &Host, line: &str, word: &str, trigger: &str) {
    let path = dumped(line);
    let name = path.file_stem().unwrap().to_str().unwrap();
    let (_, cause) = name.split_once(&format!(".{word}.")).unwrap();
    let rss: u64 = cause.strip_suffix("kib").unwrap().parse().unwrap();
    assert!(rss > 1000, "{name}");
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains(&format!("\n# trigger: {trigger}")), "{text}");
    assert!(
        text.contains(&format!("\n# rss: {}\n", rss * 1024)),
        "{text}"
    );
    let list = host.memprof("list", &["--json"]).exits(0).json();
    let kept = list["dumps"].as_array().unwrap().iter();
    let kept = kept.clone().find(|dump| dump["id"] == name).unwrap();
    assert_eq!(kept["trigger"], word);
    assert_eq!(kept["rss_bytes"], rss * 1024);
}

fn rule<'a>(status: &'a Value, rule: &str) -> &'a Value {
    let rules = status["watch"].as_array().unwrap();
    rules
        .iter()
        .find(|watch| watch["rule"] == rule)
        .unwrap_or_else(|| panic!("no {rule}: {status}"))
}

#[test]
fn growth_is_dumped_each_time() {
    for program in ["c_host", "rust_host"] {
        let rules = "[[plugin.config.watch]]\nrss_growth = \"1MiB\"\nmin_interval = \"0s\"";
        let host = watched(program, rules);
        let lines = host.wait_for_lines("rss_growth = \"1MiB\" at ", 2);
        tells_of(&host, &lines[0], "rss-growth", "rss_growth = \"1MiB\" at ");
        let status = host.memprof("status", &["--json"]).exits(0).json();
        let rule = rule(&status, "rss_growth = \"1MiB\"");
        assert!(rule["fired"].as_u64().unwrap() >= 2, "{status}");
        assert!(rule["last_fired"].is_string(), "{status}");
        assert!(rule["next"].is_string(), "{status}");
        let shown = host.memprof("status", &[]).exits(0).stdout;
        assert!(
            shown.contains("watch rss_growth = \"1MiB\": fired "),
            "{shown}"
        );
    }
}

#[test]
fn exceeded_threshold_is_dumped_once() {
    let rules = "[[plugin.config.watch]]\nrss_above = \"1MiB\"\nmin_interval = \"0s\"\n\
                 [[plugin.config.watch]]\nevery = \"1s\"";
    let host = watched("c_host", rules);
    let line = host.wait_for_log("rss_above = \"1MiB\" at ");
    tells_of(&host, &line, "rss-above", "rss_above = \"1MiB\" at ");
    let lines = host.wait_for_lines("every = \"1s\" at ", 2);
    tells_of(&host, &lines[1], "every", "every = \"1s\" at ");
    let status = host.memprof("status", &["--json"]).exits(0).json();
    assert_eq!(rule(&status, "rss_above = \"1MiB\"")["fired"], 1);
    let shown = host.memprof("status", &[]).exits(0).stdout;
    let once = "watch rss_above = \"1MiB\": fired once, last ";
    assert!(shown.contains(once), "{shown}");
}

/// Without a memory cgroup for the process, the log says that the rule has no effect.
#[test]
fn cgroup_is_watched_if_there_is_one() {
    let host = watched("c_host", "[[plugin.config.watch]]\ncgroup_above = \"1MiB\"");
    let ledger = host.memprof("ledger", &["--json"]).exits(0).json();
    if ledger["cgroup"].is_null() {
        host.wait_for_log("cgroup_above never fires: no memory cgroup");
        return;
    }
    let line = host.wait_for_log("cgroup_above = \"1MiB\" at ");
    tells_of(&host, &line, "cgroup-above", "cgroup_above = \"1MiB\" at ");
}

#[test]
fn rule_activates_only_if_configured() {
    let rules = "[[plugin.config.watch]]\nrss_above = \"1MiB\"";
    let quiet = Setup::of("c_host").config(rules).start();
    quiet.wait_for_log("rss_above = \"1MiB\" at ");
    let status = quiet.memprof("status", &["--json"]).exits(0).json();
    assert_eq!(status["profiling"], "inactive");

    let rules = "[[plugin.config.watch]]\nrss_above = \"1MiB\"\nmin_interval = \"1s\"\n\
                 activate = true";
    let host = Setup::of("c_host").config(rules).start();
    host.wait_for_log("profiling is active: rss_above = \"1MiB\" at ");
    let line = host.wait_for_log(" bytes: dumped ");
    assert!(line.contains("rss_above = \"1MiB\" at "), "{line}");
    let status = host.memprof("status", &["--json"]).exits(0).json();
    assert_eq!(status["profiling"], "active");
}

#[test]
fn exit_is_dumped_once() {
    for program in ["c_host", "rust_host"] {
        let mut host = watched(program, "[[plugin.config.watch]]\nat_exit = true");
        let status = host.memprof("status", &["--json"]).exits(0).json();
        assert_eq!(rule(&status, "at_exit = true")["next"], Value::Null);
        host.dump_of(1_000_000);
        assert!(host.terminate().success());
        let lines = host.wait_for_lines("at_exit = true at ", 1);
        assert_eq!(lines.len(), 1);
        assert!(kept(&host.dump_dir(), ".at-exit.") == 1, "{program}");
    }
}

fn kept(dumps: &Path, part: &str) -> usize {
    let names = std::fs::read_dir(dumps).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.contains(part)).count()
}

#[test]
fn no_thread_watches_without_a_rule() {
    let watcher = "memprof-watch".to_owned();
    let none = Setup::of("c_host").start();
    assert!(!none.threads().contains(&watcher));
    let at_exit = watched("c_host", "[[plugin.config.watch]]\nat_exit = true");
    assert!(!at_exit.threads().contains(&watcher));
    let hourly = watched("c_host", "[[plugin.config.watch]]\nevery = \"1h\"");
    hourly.wait_for_thread(&watcher);
}

#[test]
fn invalid_rules_are_named_and_the_host_survives() {
    let rules = "[[plugin.config.watch]]\nrss_above = \"120%\"";
    let host = Setup::of("c_host").config(rules).start();
    let status = host.memprof("status", &[]);
    assert_ne!(status.code, 0);
    let expected = "rss_above = \"120%\" is neither \"1%\" to \"100%\" nor a size";
    assert!(status.stderr.contains(expected), "{status:?}");
    // The line of the host's own file.
    let config = std::fs::read_to_string(host.place().join("host.toml")).unwrap();
    let line = config
        .lines()
        .position(|line| line.contains("120%"))
        .unwrap()
        + 1;
    let place = format!("line {line}, column 13");
    assert!(status.stderr.contains(&place), "{place}: {status:?}");
}

#[test]
fn gdump_ends_after_its_files() {
    for program in ["c_host", "rust_host"] {
        let host = Setup::of(program).start();
        host.memprof("activate", &[]).exits(0);
        let on = host.memprof("gdump", &["--json", "state=on", "files=2", "for=1h"]);
        let on = on.exits(0).json();
        assert_eq!(
            (&on["state"], &on["gdump"]["files"]),
            (&"on".into(), &2.into())
        );
        assert_eq!(on["warnings"], Value::Array(vec![]));
        let lines = host.wait_for_lines("gdump at ", 2);
        tells_of(&host, &lines[1], "gdump", "gdump at ");
        host.wait_for_log("gdump is over: it took 2 dumps");
        let status = host.memprof("status", &["--json"]).exits(0).json();
        assert_eq!(status["gdump"], Value::Null);
        assert_eq!(kept(&host.dump_dir(), ".gdump."), 2);
    }
}

#[test]
fn gdump_disables_jemalloc_s_gdump() {
    let own = "prof:true,prof_active:false,prof_gdump:true,prof_prefix:/no/such/directory/x";
    let host = Setup::of("c_host").env("MALLOC_CONF", own).start();
    let on = host.memprof("gdump", &["state=on"]).exits(0).stdout;
    assert!(on.contains("gdump took 0 of 16 dumps, until "), "{on}");
    assert!(on.contains("profiling is inactive"), "{on}");
    // memprof's dumps take the place of jemalloc's own.
    assert!(on.contains("own prof.gdump was on, and is off now"), "{on}");
    let off = host.memprof("gdump", &["state=off"]).exits(0).stdout;
    assert!(off.contains("gdump is off; before"), "{off}");
    let again = host.memprof("gdump", &["state=off"]).exits(0).stdout;
    assert_eq!(again.trim(), "gdump is off");
    let without = Setup::that_cannot_profile("rust_host").start();
    without.memprof("gdump", &["state=on"]).exits(4);
}

#[test]
fn recent_allocations_come_with_their_stacks() {
    for program in ["c_host", "rust_host"] {
        let host = Setup::of(program).start();
        host.memprof("activate", &[]).exits(0);
        let none = host.memprof("recent", &[]).exits(4).stderr;
        assert!(none.contains("send `recent max=100`"), "{none}");
        let begun = host
            .memprof("recent", &["--json", "max=20"])
            .exits(0)
            .json();
        assert_eq!(begun["allocators"][0]["alloc_max"], 20);
        host.dump_of(2_000_000);
        let recent = host.memprof("recent", &[]).exits(0).stdout;
        let recent: Value = serde_json::from_str(&recent).unwrap();
        assert_eq!(recent["recent_alloc_max"], 20);
        let allocations = recent["recent_alloc"].as_array().unwrap();
        assert!((1..=20).contains(&allocations.len()), "{recent}");
        assert!(allocations[0]["alloc_trace"][0].is_string(), "{recent}");
        host.memprof("recent", &["max=0"]).exits(0);
        host.memprof("recent", &[]).exits(4);
    }
    let without = Setup::without_profiling("c_host").start();
    without.memprof("recent", &["max=9"]).exits(4);
}
