//! The main job on every host: activate, dump, and stock jeprof names the leak.

use std::fs;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::Signal;

use crate::dist::{dist, tool_text};
use crate::host::Setup;

/// The share of all bytes that jeprof puts on `function` and what it calls.
pub(crate) fn cumulative_percent(program: &Path, dump: &Path, function: &str) -> f64 {
    let mut jeprof = Command::new("jeprof");
    jeprof
        .args(["--text", "--cum", "--show_bytes"])
        .arg(program)
        .arg(dump);
    let report = tool_text("libjemalloc-dev", &mut jeprof);
    let line = report.lines().filter(|line| line.contains(function));
    let percent = line.filter_map(|line| line.split_whitespace().nth(4)?.strip_suffix('%'));
    percent
        .map(|percent| percent.parse().unwrap())
        .reduce(f64::max)
        .unwrap_or_else(|| panic!("jeprof does not name {function}:\n{report}"))
}

#[test]
fn jeprof_names_the_leak() {
    let check = |program: &str, found_by: &str| {
        let mut host = Setup::of(program).start();
        let status = host.memprof("status", &["--json"]).exits(0).json();
        assert_eq!(status["profiling"], "inactive", "{status}");
        let allocator = &status["allocators"][0];
        assert!(
            allocator["found_by"]
                .as_str()
                .unwrap()
                .starts_with(found_by),
            "{status}"
        );

        let active = host.memprof("activate", &["--json"]).exits(0).json();
        assert_eq!(active["profiling"], "active", "{active}");
        assert!(active["active_since"].is_string(), "{active}");

        let dump = host.dump_of(3_000_000);
        let path = Path::new(dump["path"].as_str().unwrap());
        assert_eq!(
            path.metadata().unwrap().len(),
            dump["bytes"].as_u64().unwrap()
        );
        let percent = cumulative_percent(&dist("examples").join(program), path, "grow_cache");
        assert!(percent >= 80.0, "{program}: grow_cache has {percent} %");

        let inactive = host.memprof("deactivate", &["--json"]).exits(0).json();
        assert_eq!(inactive["profiling"], "inactive", "{inactive}");
        assert!(host.terminate().success(), "{program}");
        assert!(!host.socket().exists(), "{program} left its socket");
    };
    check("rust_host", "host");
    check("c_host", "dlsym");
    check("c_host_static", "symtab /");
    check("cpp_host", "dlsym");
}

#[test]
fn two_jemallocs_are_both_controlled() {
    let conf = "prof:true,prof_active:false,lg_prof_sample:12";
    let host = Setup::of("rust_host")
        .env("LD_PRELOAD", "libjemalloc.so.2")
        .env("MALLOC_CONF", conf)
        .start();
    let status = host.memprof("activate", &["--json"]).exits(0).json();
    let allocators = status["allocators"].as_array().unwrap();
    let shown: Vec<_> = allocators
        .iter()
        .map(|a| {
            (
                a["found_by"].as_str().unwrap(),
                a["owns_malloc"].as_bool().unwrap(),
            )
        })
        .collect();
    assert_eq!(shown, [("host", false), ("dlsym", true)]);
    assert!(
        allocators.iter().all(|a| a["prof_active"] == true),
        "{status}"
    );

    let dump = host.dump_of(3_000_000);
    assert_eq!(dump["dumps"].as_array().unwrap().len(), 2, "{dump}");
    let path = Path::new(dump["path"].as_str().unwrap());
    let percent = cumulative_percent(&dist("examples/rust_host"), path, "grow_cache");
    assert!(percent >= 80.0, "grow_cache has {percent} %");
}

#[test]
fn bare_header_suffices_for_a_host() {
    let state = tempfile::tempdir().unwrap();
    let mut command = Command::new(dist("examples/c_minimal"));
    command
        .arg(dist("plugins/memory_profile.so"))
        .arg("status")
        .env("LD_PRELOAD", "libjemalloc.so.2")
        .env("MALLOC_CONF", "prof:true")
        .env("XDG_STATE_HOME", state.path());
    let reply = tool_text("libjemalloc2", &mut command);
    let reply: serde_json::Value = serde_json::from_str(&reply).unwrap();
    assert_eq!(reply["profiling"], "active", "{reply}");
    let mut command = Command::new(dist("examples/c_minimal"));
    command.arg(dist("plugins/hello_c.so")).arg("hello");
    assert_eq!(tool_text("gcc", &mut command), "hello from C\n");
}

#[test]
fn impossible_activation_names_cause_and_remedy() {
    let check = |setup: Setup<'_>, kind: &str, message: &str, remedy: &str| {
        let host = setup.start();
        let refused = host.memprof("activate", &["--json"]).exits(4).json();
        assert_eq!(refused["status"], "error");
        assert_eq!(refused["error"]["kind"], kind, "{refused}");
        let text = refused["error"]["message"].as_str().unwrap();
        assert!(text.contains(message), "{text}");
        let text = refused["error"]["remedy"].as_str().unwrap();
        assert!(text.contains(remedy), "{text}");
        let status = host.memprof("status", &["--json"]).exits(0).json();
        assert_eq!(status["profiling"], "unavailable");
        assert_eq!(status["reason"], refused["error"]["message"]);
        host.memprof("dump", &[]).exits(4);
        host.memprof("deactivate", &[]).exits(0);
    };
    check(
        Setup::that_cannot_profile("rust_host"),
        "unavailable",
        "was started with opt.prof=false",
        "restart this program with _RJEM_MALLOC_CONF=prof:true,prof_active:false",
    );
    check(
        Setup::that_cannot_profile("c_host_static"),
        "unavailable",
        "was started with opt.prof=false",
        "restart this program with MALLOC_CONF=prof:true,prof_active:false",
    );
}

#[test]
fn concurrent_activations_succeed() {
    let host = Setup::of("c_host").start();
    let switch_often = |message: &str| {
        let mut client = host.client();
        for _ in 0..500 {
            let reply = client.message("memory_profile", message, "", None).unwrap();
            assert_eq!(reply.result.status_code, 0, "{reply:?}");
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| switch_often("activate"));
        scope.spawn(|| switch_often("deactivate"));
    });
}

#[test]
fn stats_are_printed_to_the_log_and_returned() {
    let host = Setup::of("c_host").start();
    let stats = host.memprof("stats", &["--json"]).exits(0).json();
    let allocated = stats["allocators"][0]["allocated"].as_u64().unwrap();
    assert!(allocated > 1000, "{stats}");
    assert!(
        stats["text"]
            .as_str()
            .unwrap()
            .contains("End jemalloc statistics")
    );
    host.wait_for_log(&format!("allocated {allocated:>17}"));
    host.wait_for_log("End jemalloc statistics");
    let json = host.memprof("stats", &["format=json"]).exits(0).json();
    assert!(json["jemalloc"]["stats"].is_object(), "{json}");
}

#[test]
fn host_activates_at_its_start() {
    let setup = Setup::of("c_host").config("activate_at_start = true\nlg_sample = 13");
    let host = setup.start();
    let status = host.memprof("status", &["--json"]).exits(0).json();
    assert_eq!(status["profiling"], "active");
    assert_eq!(status["sample_interval"], 8192);
}

#[test]
fn host_starts_although_it_cannot_activate() {
    let setup = Setup::of("c_host").config("activate_at_start = true\nlg_sample = 99");
    let host = setup.start();
    host.wait_for_log(
        "ERROR memory_profile: activate_at_start: lg_sample=99 is out of range 10..=24",
    );
    let status = host.memprof("status", &["--json"]).exits(0).json();
    assert_eq!(status["profiling"], "inactive");
}

#[test]
fn interval_out_of_range_is_reported_at_the_start() {
    let host = Setup::of("c_host").config("lg_sample = 40").start();
    host.wait_for_log("lg_sample=40 is out of range 10..=24; the default is used instead");
}

#[test]
fn ps_lists_running_hosts() {
    let host = Setup::of("c_host").start();
    let listing = crate::memprof::memprof(&host.socket_dir(), &["ps", "--json"])
        .exits(0)
        .json();
    assert_eq!(listing["schema_version"], 1);
    let hosts = listing["hosts"].as_array().unwrap();
    let row = hosts.iter().find(|row| row["pid"] == host.pid()).unwrap();
    assert_eq!(row["name"], "c_host");
    assert_eq!(row["profiling"], "inactive");
    assert_eq!(row["plugins"][0], "memory_profile");
    assert_eq!(row["socket"], host.socket().to_str().unwrap());
    assert!(
        row["command"].as_str().unwrap().ends_with("host.toml"),
        "{row}"
    );
}

#[test]
fn host_is_found_with_any_environment() {
    let host = Setup::of("c_host").start();
    let elsewhere = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| crate::memprof::memprof(elsewhere.path(), args);
    let pid = host.pid().to_string();
    let listing = run(&["ps", "--json"]).exits(0).json();
    let hosts = listing["hosts"].as_array().unwrap();
    let row = hosts.iter().find(|row| row["pid"] == host.pid()).unwrap();
    assert_eq!(row["socket"], host.socket().to_str().unwrap());
    run(&["status", "-t", &pid]).exits(0);
    let relative = Command::new(dist("bin/memprof"))
        .args(["status", "-t", &format!("{pid}.sock")])
        .current_dir(host.socket_dir())
        .env("MEMPROF_SOCKET_DIR", elsewhere.path())
        .output()
        .unwrap();
    assert!(relative.status.success(), "{relative:?}");
}

#[test]
fn process_without_plugin_error_names_the_reason() {
    let mut sleeper = Command::new("sleep").arg("600").spawn().unwrap();
    let nowhere = tempfile::tempdir().unwrap();
    let pid = sleeper.id();
    let run = crate::memprof::memprof(nowhere.path(), &["status", "-t", &pid.to_string()]);
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    let expected = format!("{pid} (sleep) runs without the plugin: `memprof attach {pid}`");
    assert!(run.exits(3).stderr.contains(&expected));
}

#[test]
fn files_of_a_killed_host_are_removed() {
    let place = tempfile::tempdir().unwrap();
    let sockets = place.path().join("run");
    let mut killed = Setup::of("c_host").sockets(&sockets).start();
    let alive = Setup::of("c_host").sockets(&sockets).start();
    killed.signal(Signal::SIGKILL);
    killed.wait();
    let left = || std::fs::read_dir(&sockets).unwrap().count();
    assert_eq!(left(), 4, "a socket and a lock each");
    crate::memprof::memprof(&sockets, &["ps"]).exits(0);
    assert!(!killed.socket().exists());
    assert_eq!(left(), 2);
    alive.memprof("status", &[]).exits(0);
}

#[test]
fn malloc_conf_prints_the_variable_of_each_program() {
    let nowhere = tempfile::tempdir().unwrap();
    let check = |program: &str, expected: &str| {
        let path = dist("examples").join(program);
        let run = crate::memprof::memprof(nowhere.path(), &["malloc-conf", path.to_str().unwrap()]);
        assert_eq!(run.exits(0).stdout.trim_end(), expected);
    };
    check("rust_host", "_RJEM_MALLOC_CONF=prof:true,prof_active:false");
    check("c_host_static", "MALLOC_CONF=prof:true,prof_active:false");
    check(
        "c_host",
        "LD_PRELOAD=libjemalloc.so.2 MALLOC_CONF=prof:true,prof_active:false",
    );
    let script = nowhere.path().join("script");
    let refused = |text: &str, expected: &str| {
        fs::write(&script, text).unwrap();
        let run =
            crate::memprof::memprof(nowhere.path(), &["malloc-conf", script.to_str().unwrap()]);
        assert!(run.exits(1).stderr.contains(expected), "{expected}");
    };
    refused(
        "#! /bin/sh\n",
        "is a script; name its interpreter: `memprof malloc-conf /bin/sh`",
    );
    refused(
        "import time\n",
        "is not an ELF file; if it is a script, name its interpreter",
    );
    refused(
        "#!/usr/bin/env -S python3 -u\n",
        "is a script; name its interpreter: `memprof malloc-conf python3`",
    );
    let run = crate::memprof::memprof(nowhere.path(), &["malloc-conf", "perl"]);
    let said = run.exits(0).stderr;
    assert!(said.contains("bin/perl"), "{said}");
    let run = crate::memprof::memprof(nowhere.path(), &["malloc-conf", "no-such-program"]);
    let said = &run.exits(2).stderr;
    assert!(
        said.contains("no program no-such-program is in PATH"),
        "{said}"
    );
    let host = Setup::of("c_host").start();
    let run = crate::memprof::memprof(nowhere.path(), &["malloc-conf", &host.pid().to_string()]);
    assert_eq!(
        run.exits(0).stdout.trim_end(),
        "MALLOC_CONF=prof:true,prof_active:false"
    );
}
