//! Dumps under trouble: a named cause or a whole dump, never a partial one, and the host lives.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::dist::tool_text;
use crate::host::{Host, Setup};

/// Every file in a directory, hidden ones too.
fn files(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

/// True when the dump at `path` is whole: head, mappings, and our last comment.
fn is_whole(path: &Path) -> bool {
    let text = fs::read_to_string(path).unwrap();
    text.starts_with("heap_v2/")
        && text.contains("\nMAPPED_LIBRARIES:\n")
        && text
            .lines()
            .last()
            .unwrap()
            .starts_with("# estimated-inuse-bytes: ")
}

fn dump_over(client: &mut memprof_host::client::Client) -> Value {
    client
        .message("memory_profile", "dump", "", None)
        .unwrap()
        .result
        .body
        .unwrap()
}

/// Takes a dump that must fail for `why`, leave nothing, and not harm the host.
fn check_refused(host: &Host, directory: &Path, why: &str) {
    let refused = host.memprof("dump", &["--json"]).exits(1).json();
    assert_eq!(refused["error"]["kind"], "io", "{refused}");
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(message.contains(why), "{message}");
    assert_eq!(files(directory), Vec::<String>::new());
    let status = host.memprof("status", &["--json"]).exits(0).json();
    assert_eq!(status["busy"], false);
}

#[test]
fn full_and_read_only_dump_directories_are_named() {
    let check = |options: &str, why: &str| {
        let script = format!("mount -t tmpfs -o mode=700,{options} none $DUMPS");
        let host = Setup::of("c_host").mounts(&script).start();
        host.memprof("activate", &[]).exits(0);
        let seen = format!("/proc/{}/root{}", host.pid(), host.dump_dir().display());
        check_refused(&host, Path::new(&seen), why);

        let copy = host.place().join("copy.heap");
        let taken = host.memprof("dump", &["-o", copy.to_str().unwrap()]);
        let reported = taken.exits(0).stderr;
        assert!(reported.contains(why), "{reported}");
        assert!(reported.contains("the host keeps no copy"), "{reported}");
        assert!(is_whole(&copy));
        assert_eq!(files(Path::new(&seen)), Vec::<String>::new());
    };
    check("size=4k", "No space left on device (ENOSPC)");
    check("ro", "Read-only file system (EROFS)");
}

#[test]
fn damage_to_a_kept_dump_is_named() {
    let host = Setup::of("c_host").start();
    host.memprof("activate", &[]).exits(0);
    let dump = host.dump_of(100_000);
    let path = dump["path"].as_str().unwrap();
    let said = || {
        let mut report = Command::new(env!("CARGO_BIN_EXE_memprof"));
        let output = report.args(["report", path]).output().unwrap();
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(!said().contains("damaged"), "{}", said());
    // Code that is none any more has no names.
    let whole = fs::read_to_string(path).unwrap();
    fs::write(path, whole.replacen(" r-xp ", " r--p ", 1)).unwrap();
    assert!(
        said().contains("the dump is damaged: its checksum differs"),
        "{}",
        said()
    );
}

#[test]
fn shared_dump_directory_is_refused() {
    let host = Setup::of("c_host").start();
    host.memprof("activate", &[]).exits(0);
    fs::create_dir(host.dump_dir()).unwrap();
    fs::set_permissions(host.dump_dir(), PermissionsExt::from_mode(0o777)).unwrap();
    check_refused(
        &host,
        &host.dump_dir(),
        "is not safe: others may write to it",
    );
    fs::remove_dir(host.dump_dir()).unwrap();

    let elsewhere = host.place().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, host.dump_dir()).unwrap();
    check_refused(&host, &elsewhere, "ENOTDIR");
    fs::remove_file(host.dump_dir()).unwrap();

    let dump = host.memprof("dump", &["--json"]).exits(0).json();
    assert!(is_whole(Path::new(dump["path"].as_str().unwrap())));
}

#[test]
fn limits_on_files_and_descriptors() {
    let host = Setup::of("c_host").start();
    host.memprof("activate", &[]).exits(0);
    host.dump_of(100_000);
    let pid = host.pid().to_string();
    let limit = |what: &str| {
        tool_text(
            "util-linux",
            Command::new("prlimit").args(["--pid", &pid, what]),
        );
    };
    // Over an open connection: to accept one takes a descriptor.
    let mut client = host.client();
    let mut check = |tight: &str, wide: &str, why: &str| {
        limit(tight);
        let refused = dump_over(&mut client);
        limit(wide);
        assert_eq!(refused["error"]["kind"], "io", "{refused}");
        let message = refused["error"]["message"].as_str().unwrap();
        assert!(message.contains(why), "{message}");
        assert_eq!(dump_over(&mut client)["status"], "ok");
    };
    // After one byte jemalloc believes that it wrote everything.
    for limit in [4096, 1, 0] {
        check(
            &format!("--fsize={limit}:unlimited"),
            "--fsize=unlimited:unlimited",
            "File too large (EFBIG)",
        );
    }
    // Three are open at once, and a waiting accept(2) holds the number of one that is not visible.
    let enough = 4;
    for spare in 0..=enough {
        // Which act fails depends on how many are spare; the cause is always named.
        let tight = format!("--nofile={}:1024", host.descriptors() + spare);
        limit(&tight);
        let reply = dump_over(&mut client);
        limit("--nofile=1024:1024");
        let ok = reply["status"] == "ok";
        assert!(
            ok || reply["text"].as_str().unwrap().contains("(EMFILE)"),
            "{spare}: {reply}"
        );
        assert!(ok || spare < enough, "{spare}: {reply}");
    }
    for name in files(&host.dump_dir()) {
        assert!(is_whole(&host.dump_dir().join(&name)), "{name}");
    }
}

#[test]
fn status_replies_during_a_dump_and_second_dump_is_busy() {
    let host = Setup::of("c_host")
        .config("[plugin.config.keep]\ncount = 5")
        .start();
    host.memprof("activate", &[]).exits(0);
    host.dump_of(1_000_000);
    // Each client asks until it has had three dumps, and keeps the answers it got before.
    let three_dumps = || {
        let mut client = host.client();
        let mut left = 3;
        let mut replies = Vec::new();
        while left > 0 {
            let reply = dump_over(&mut client);
            left -= u32::from(reply["status"] == "ok");
            replies.push(reply);
        }
        replies
    };
    let replies: Vec<Value> = std::thread::scope(|scope| {
        let dumps = (0..8).map(|_| scope.spawn(three_dumps));
        let dumps: Vec<_> = dumps.collect();
        let mut client = host.client();
        for _ in 0..50 {
            let status = client
                .message("memory_profile", "status", "", None)
                .unwrap();
            assert_eq!(status.result.status_code, 0);
        }
        dumps
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect()
    });
    let refused: Vec<_> = replies
        .iter()
        .filter(|reply| reply["status"] != "ok")
        .collect();
    assert!(!refused.is_empty());
    for reply in refused {
        assert_eq!(reply["error"]["kind"], "busy", "{reply}");
        assert!(reply["error"]["retry_after_ms"].is_u64(), "{reply}");
    }
    let kept = files(&host.dump_dir());
    assert!(kept.len() <= 5, "{kept:?}");
    for name in &kept {
        assert!(is_whole(&host.dump_dir().join(name)), "{name}");
    }
}

#[test]
fn dumps_of_the_previous_process_are_kept_and_listed() {
    let place = tempfile::tempdir().unwrap();
    let config = format!("dump_dir = {:?}", place.path().join("d"));
    let dump = |host: &Host| host.memprof("dump", &["--json"]).exits(0).json()["id"].clone();
    let mut first = Setup::of("c_host").config(&config).start();
    let old = dump(&first);
    first.terminate();
    let second = Setup::of("c_host").config(&config).start();
    let new = dump(&second);
    let list = second.memprof("list", &["--json"]).exits(0).json();
    let ids: Vec<_> = list["dumps"]
        .as_array()
        .unwrap()
        .iter()
        .map(|dump| &dump["id"])
        .collect();
    assert!(ids.contains(&&old) && ids.contains(&&new), "{list}");
    let status = second.memprof("status", &["--json"]).exits(0).json();
    assert_eq!(status["kept"], 2);
}

#[test]
fn default_dump_directory_is_named_after_the_program() {
    let host = Setup::of("c_host").config("# dump_dir is left out").start();
    let dump = host.memprof("dump", &["--json"]).exits(0).json();
    let expected = host.place().join("state/memprof/c_host");
    assert_eq!(
        Path::new(dump["path"].as_str().unwrap()).parent().unwrap(),
        expected
    );
    assert_eq!(
        expected.metadata().unwrap().permissions().mode() & 0o777,
        0o700
    );
}

#[test]
fn dumps_without_samples_explain_themselves() {
    let host = Setup::of("c_host")
        .env(
            "MALLOC_CONF",
            "prof:true,prof_active:false,lg_prof_sample:24",
        )
        .start();
    let check = |why: &str| {
        let dump = host.memprof("dump", &["--json"]).exits(0).json();
        assert_eq!(dump["stacks"], 0);
        let warning = dump["warnings"][0].as_str().unwrap();
        assert!(warning.contains(why), "{warning}");
        assert!(is_whole(Path::new(dump["path"].as_str().unwrap())));
    };
    check("profiling is inactive");
    host.memprof("activate", &[]).exits(0);
    check("no samples yet: profiling became active");
}

#[test]
fn dump_is_fetched_over_the_socket() {
    let host = Setup::of("c_host").start();
    host.memprof("activate", &[]).exits(0);
    host.dump_of(1_000_000);
    let file = host.place().join("x.heap");
    let file_name = file.to_str().unwrap();
    let run = host.memprof("dump", &["--json", "-o", file_name]).exits(0);
    let path = run.json()["path"].as_str().unwrap().to_owned();
    assert_eq!(fs::read(&file).unwrap(), fs::read(&path).unwrap());
    assert!(run.stderr.starts_with("wrote "), "{run:?}");

    let run = host.memprof("dump", &["-o", "-"]).exits(0);
    assert!(run.stdout.starts_with("heap_v2/4096\n"), "{run:?}");
    assert!(run.stderr.starts_with("dumped "), "{run:?}");

    let run = host
        .memprof("dump", &["-o", "/no/such/directory/x.heap"])
        .exits(1);
    assert!(
        run.stderr
            .contains("failed to write /no/such/directory/x.heap"),
        "{run:?}"
    );
}

#[test]
fn killed_host_leaves_only_complete_dumps() {
    let place = tempfile::tempdir().unwrap();
    let dumps = place.path().join("d");
    let config = format!("activate_at_start = true\ndump_dir = {dumps:?}");
    for round in 0..12 {
        let host = Setup::of("c_host").config(&config).start();
        let mut client = host.client();
        let dumper = std::thread::spawn(move || {
            // Ends with the host.
            while client.message("memory_profile", "dump", "", None).is_ok() {}
        });
        host.wait_for_log("dumped ");
        for _ in 0..round * 1000 {
            std::thread::yield_now();
        }
        drop(host);
        dumper.join().unwrap();
        for name in files(&dumps) {
            assert!(is_whole(&dumps.join(&name)), "round {round}: {name}");
        }
    }
    assert!(!files(&dumps).is_empty());
}
