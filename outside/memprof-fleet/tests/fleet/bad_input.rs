//! Invalid files and options are named, and damaged data is not counted.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::kill::duckdb_total;
use crate::test_dir::{CART, HOUR, Process, Run, START, TestDir};

/// Creates a store with two profiles of one hour, each in a file of its own.
fn dir_with_two_profiles() -> TestDir {
    let dir = TestDir::new();
    for minute in 0..2 {
        dir.spool(CART, START + minute * 60_000, &[("leak", 1000)]);
        dir.drain();
    }
    dir
}

#[test]
fn foreign_file_is_named_and_not_counted() {
    let dir = dir_with_two_profiles();
    let foreign = [
        "samples/notes.txt",
        "incoming/profiles/date=2026-11-21/hour=10/x.csv",
    ];
    for name in foreign {
        let path = dir.path("store").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "not a table").unwrap();
    }
    assert_eq!(dir.total(), 1000);
    let doctor = dir.run(&["fleet", "doctor"]).exits(1).stdout;
    for name in foreign {
        assert!(
            doctor.contains(&format!("{name} is not a file of memprof's")),
            "{doctor}"
        );
    }
}

#[test]
fn copy_of_a_file_is_named_and_not_counted() {
    let copy_to = |dir: &TestDir, from: &Path, name: &str| {
        let to = dir.path("store").join(name);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(from, to).unwrap();
    };
    let check = |dir: &TestDir, name: &str, expected: &str| {
        assert_eq!(dir.total(), 1000, "{name}");
        assert_eq!(duckdb_total(dir), 2000, "{name}");
        let doctor = dir.run(&["fleet", "doctor"]).exits(1).stdout;
        assert!(
            doctor.contains(&format!("{name} is {expected}")),
            "{doctor}"
        );
        fs::remove_file(dir.path("store").join(name)).unwrap();
    };
    let (hour, next) = ("date=2026-11-21/hour=10", "date=2026-11-21/hour=11");
    let dir = dir_with_two_profiles();
    let file = dir.files("incoming/samples").remove(0);
    let own_name = file.file_name().unwrap().to_str().unwrap();
    for (directory, name, expected) in [
        (hour, "copy.parquet", "not a file of memprof's"),
        (
            hour,
            &*format!("{own_name} (1).parquet"),
            "not a file of memprof's",
        ),
        (hour, "0123456789abcdef.parquet", "not a file of memprof's"),
        (next, own_name, "a copy of another file"),
    ] {
        let name = format!("incoming/samples/{directory}/{name}");
        copy_to(&dir, &file, &name);
        check(&dir, &name, expected);
    }
    dir.run(&["fleet", "compact"]).exits(0);
    let merged = dir.files("samples").remove(0);
    for (directory, name, expected) in [
        (hour, "copy.parquet", "not a file of memprof's"),
        (hour, "00001.parquet", "a copy of another file"),
        (next, "00000.parquet", "a copy of another file"),
    ] {
        let name = format!("samples/{directory}/{name}");
        copy_to(&dir, &merged, &name);
        check(&dir, &name, expected);
    }
    dir.run(&["fleet", "doctor"]).exits(0);
}

#[test]
fn doctor_names_hours_whose_functions_are_missing() {
    let dir = dir_with_two_profiles();
    dir.run(&["fleet", "doctor"]).exits(0);
    fs::remove_dir_all(dir.path("store/incoming/stacks")).unwrap();
    let doctor = dir.run(&["fleet", "doctor"]).exits(1).stdout;
    let expected = "date=2026-11-21/hour=10: the functions of 1 stacks with 2000 bytes are missing";
    assert!(doctor.contains(expected), "{doctor}");
    // Names in another hour do not help a query of this one.
    dir.spool(CART, START + HOUR, &[("leak", 1000)]);
    dir.drain();
    let doctor = dir.run(&["fleet", "doctor"]).exits(1).stdout;
    assert!(doctor.contains(expected), "{doctor}");
    // An agent writes them again.
    dir.spool(CART, START + 1000, &[("leak", 1000)]);
    dir.drain();
    dir.run(&["fleet", "doctor"]).exits(0);
}

#[test]
fn blank_variables_count_as_not_set() {
    let dir = dir_with_two_profiles();
    for blank in ["", " ", "\n"] {
        let mut command = dir.command(&["fleet", "doctor"]);
        command
            .env("MEMPROF_STORE", blank)
            .env("MEMPROF_NATS", blank);
        Run::from_output(command.output().unwrap()).exits(0);
    }
}

#[test]
fn flamegraph_that_cannot_be_written_leaves_the_old_one() {
    let dir = dir_with_two_profiles();
    let flame = ["fleet", "flame", "--at", "2026-11-21T11:00:00Z", "-o"];
    let file = dir.path("flame.svg");
    fs::write(&file, "old").unwrap();
    // The limit is that of the file, as a quota or a full disk would be.
    let mut command = Command::new("prlimit");
    let run = dir.command(&flame);
    command.arg("--fsize=1000").arg(run.get_program());
    command.args(run.get_args()).arg(&file);
    let refused = Run::from_output(command.output().unwrap());
    assert_ne!(refused.code, 0, "{refused:?}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "old");
    let file = file.to_str().unwrap();
    dir.run(&[&flame[..], &[file]].concat()).exits(0);
    assert!(fs::read_to_string(file).unwrap().contains("<svg"));
    dir.run(&[&flame[..], &["/dev/full"]].concat()).exits(1);
    assert!(
        dir.run(&[&flame[..], &["-"]].concat())
            .exits(0)
            .stdout
            .contains("<svg")
    );
}

#[test]
fn damaged_file_is_named_and_not_counted() {
    let dir = dir_with_two_profiles();
    let file = dir.files("incoming/samples").remove(0);
    let whole = fs::read(&file).unwrap();
    let name = file
        .strip_prefix(dir.path("store"))
        .unwrap()
        .to_str()
        .unwrap()
        .to_owned();
    let damages: [(&str, Vec<u8>); 4] = [
        ("empty", Vec::new()),
        ("cut", whole[..whole.len() / 2].to_vec()),
        ("not a Parquet", vec![b'x'; 4000]),
        (
            "pages",
            [&whole[..4], &vec![0xff; 300], &whole[304..]].concat(),
        ),
    ];
    for (damage, bytes) in damages {
        fs::write(&file, bytes).unwrap();
        let args = [
            "fleet",
            "flame",
            "--format",
            "collapsed",
            "--at",
            "2026-11-21T11:00:00Z",
        ];
        let run = dir.run(&args).exits(0);
        assert!(
            run.stderr.contains(&format!("{name} is not counted")),
            "{damage}: {run:?}"
        );
        assert!(
            run.stderr.contains("of them have samples in the store"),
            "{damage}: {run:?}"
        );
        assert_eq!(run.stdout, "main;leak 500\n", "{damage}: {run:?}");
        let doctor = dir.run(&["fleet", "doctor"]).exits(1).stdout;
        assert!(
            doctor.contains(&format!("{name} is damaged")),
            "{damage}: {doctor}"
        );
        let merged = dir.run(&["fleet", "compact"]).exits(0);
        assert!(
            merged.stderr.contains(&format!("{name} is left as it is")),
            "{damage}: {merged:?}"
        );
    }
    fs::write(&file, whole).unwrap();
    assert_eq!(dir.total(), 1000);
}

#[test]
fn second_agent_of_spool_is_refused() {
    let dir = TestDir::new();
    let lock = fs::File::create(dir.path("spool/lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let refused = dir.run(&["agent", "--once"]).exits(1).stderr;
    assert!(refused.contains("another agent has the spool"), "{refused}");
}

#[test]
fn damaged_dump_in_spool_is_moved_away() {
    let dir = TestDir::new();
    fs::write(dir.path("spool/dumps/000.json"), "{\"context\":").unwrap();
    dir.spool(CART, START, &[("leak", 1000)]);
    let run = dir.drain();
    assert!(
        run.stderr.contains("000.json is damaged, and now"),
        "{run:?}"
    );
    assert_eq!(dir.total(), 1000);
    assert!(dir.path("spool/damaged/000.json").exists());
}

#[test]
fn foreign_object_of_same_name_keeps_file_in_spool() {
    let dir = dir_with_two_profiles();
    let file = dir.files("incoming/samples").remove(0);
    let whole = fs::read(&file).unwrap();
    let name = file
        .strip_prefix(dir.path("store"))
        .unwrap()
        .to_str()
        .unwrap()
        .to_owned();
    let spooled = dir.path("spool/outbox").join(name.replace('/', "!"));
    fs::write(&spooled, &whole).unwrap();
    fs::write(&file, vec![0; whole.len()]).unwrap();
    let refused = dir.run(&["agent", "--once"]).exits(1).stderr;
    assert!(
        refused.contains(&format!("{name} is not what was written")),
        "{refused}"
    );
    assert!(spooled.exists());
    // An agent that was killed before it got the reply has written the same bytes.
    fs::write(&file, whole).unwrap();
    dir.drain();
    assert!(!spooled.exists());
    assert_eq!(dir.total(), 1000);
}

#[test]
fn invalid_stores_are_refused() {
    let dir = TestDir::new();
    let check = |store: &str, code: i32, expected: &str| {
        let run = dir.run(&["fleet", "ps", "--store", store]).exits(code);
        assert!(run.stderr.contains(expected), "{run:?}");
    };
    check(
        "http://x",
        2,
        "give file:///DIRECTORY or s3://BUCKET/PREFIX",
    );
    check("file://relative", 2, "is not a store");
    check(
        "file:///proc/nothing",
        1,
        "failed to open the store /proc/nothing",
    );
    let empty = format!("file://{}", dir.path("empty").display());
    check(&empty, 5, "there is no profile of the fleet");
}

#[test]
fn full_disk_of_spool_fails_and_loses_nothing() {
    let dir = TestDir::new();
    dir.spool(CART, START, &[("leak", 1000)]);
    let mut agent = dir.command(&["agent", "--once"]);
    let strace = [
        "-f",
        "-qq",
        "-o",
        "/dev/null",
        "-e",
        "inject=write,pwrite64:error=ENOSPC:when=1..50",
    ];
    let mut full = std::process::Command::new("strace");
    full.args(strace)
        .arg(agent.get_program())
        .args(agent.get_args());
    full.env("MEMPROF_SOCKET_DIR", dir.path("run"));
    let full = full
        .output()
        .expect("strace: run `cargo xtask test`, or apt-get install strace");
    assert!(!full.status.success());
    let agent = agent.output().unwrap();
    assert_eq!(agent.status.code(), Some(5));
    assert_eq!(dir.total(), 1000);
}

#[test]
fn clock_offset_of_an_hour_is_noted_and_changes_no_time() {
    let dir = dir_with_two_profiles();
    let ahead = Process {
        host: "ahead",
        ..CART
    };
    dir.spool(ahead, START, &[("leak", 500)]);
    let dump = dir.path("spool/dumps").read_dir().unwrap().next();
    let dump = dump.unwrap().unwrap().path();
    let text = fs::read_to_string(&dump).unwrap();
    let late = text.replace("\"clock_offset_ms\":null", "\"clock_offset_ms\":3600000");
    assert_ne!(late, text);
    fs::write(&dump, late).unwrap();
    dir.drain();
    let ps = [
        "fleet",
        "flame",
        "--format",
        "collapsed",
        "--at",
        "2026-11-21T11:00:00Z",
    ];
    let run = dir.run(&ps).exits(0);
    let note = "the clock of ahead differed by 3600.0 s from the store's; times are shown by the clock of ahead";
    assert!(run.stderr.contains(note), "{run:?}");
    assert_eq!(run.stdout, "main;leak 1500\n");
}

#[test]
fn what_the_sampler_missed_is_noted_before_and_after_merge() {
    let dir = dir_with_two_profiles();
    dir.spool(CART, START + 120_000, &[("leak", 500)]);
    let dumps = dir.path("spool/dumps").read_dir().unwrap();
    let dump = dumps.last().unwrap().unwrap().path();
    let text = fs::read_to_string(&dump).unwrap();
    let counts = r#""clock_offset_ms":null,"sampler":{"samples":1370838,"lost":1193397,"unseen_free_bytes":5368709120,
        "unseen_free_samples":3,"unseen_allocation_bytes":20971520,"early_end_samples":7}"#;
    let lossy = text.replace("\"clock_offset_ms\":null", counts);
    assert_ne!(lossy, text);
    fs::write(&dump, lossy).unwrap();
    dir.drain();
    let check = || {
        let run = |args: &[&str]| {
            let window = ["--at", "2026-11-21T11:00:00Z"];
            dir.run(&[args, &window].concat()).exits(0)
        };
        let notes = [
            "1 of 1 processes lost samples",
            "1 of 1 processes show memory in use that was freed",
            "1 of 1 processes lack memory in use",
            "1 of 1 processes have samples whose stacks end early",
        ];
        let growth = run(&["fleet", "growth", "--json"]);
        let top = run(&["fleet", "top", "--json"]);
        for note in notes {
            assert!(growth.stderr.contains(note), "{growth:?}");
            assert!(top.stderr.contains(note), "{top:?}");
        }
        for field in [
            "\"lost_samples\":1193397",
            "\"unseen_free_bytes\":5368709120",
            "\"unseen_allocation_bytes\":20971520",
            "\"early_end_samples\":7",
        ] {
            assert!(growth.stdout.contains(field), "{growth:?}");
        }
        assert!(top.stdout.contains("\"lost_samples\": 1193397"), "{top:?}");
        assert!(top.stdout.contains("5368709120"), "{top:?}");
    };
    check();
    dir.run(&["fleet", "compact"]).exits(0);
    check();
}

#[test]
fn growth_without_two_profiles_of_a_process_is_refused() {
    let dir = TestDir::new();
    for (number, host) in ["a", "b"].into_iter().enumerate() {
        let process = Process { host, ..CART };
        dir.spool(process, START + number as i64, &[("leak", 1000)]);
    }
    dir.drain();
    for more in [&[][..], &["--json"]] {
        let window = ["fleet", "growth", "--at", "2026-11-21T11:00:00Z"];
        let run = dir.run(&[&window, more].concat()).exits(5);
        assert_eq!(run.stdout, "", "{run:?}");
        let why = "each of 2 processes has one profile in the fleet from 2026-11-21T10:";
        assert!(run.stderr.contains(why), "{run:?}");
    }
}
