//! What is wrong is named, and nothing of it is counted.

use std::fs;

use crate::place::{CART, Place, Process, START};

fn with_two_profiles() -> Place {
    let place = Place::new();
    for at in 0..2 {
        place.spool(CART, START + at * 60_000, &[("leak", 1000)]);
        place.drain();
    }
    place
}

#[test]
fn a_foreign_file_is_named_and_not_counted() {
    let place = with_two_profiles();
    let foreign = [
        "samples/notes.txt",
        "incoming/profiles/date=2026-11-21/hour=10/x.csv",
    ];
    for name in foreign {
        let path = place.path("store").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "not a table").unwrap();
    }
    assert_eq!(place.total(), 1000);
    let doctor = place.run(&["fleet", "doctor"]).exits(1).stdout;
    for name in foreign {
        assert!(
            doctor.contains(&format!("{name} is not a file of memprof's")),
            "{doctor}"
        );
    }
}

#[test]
fn a_damaged_file_is_named_whatever_is_damaged_in_it() {
    let place = with_two_profiles();
    let file = place.files("incoming/samples").remove(0);
    let whole = fs::read(&file).unwrap();
    let name = file
        .strip_prefix(place.path("store"))
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
        let question = [
            "fleet",
            "flame",
            "--format",
            "collapsed",
            "--at",
            "2026-11-21T11:00:00Z",
        ];
        let run = place.run(&question).exits(0);
        assert!(
            run.stderr.contains(&format!("{name} is not counted")),
            "{damage}: {run:?}"
        );
        assert!(
            run.stderr.contains("of them have samples in the store"),
            "{damage}: {run:?}"
        );
        assert_eq!(run.stdout, "main;leak 500\n", "{damage}: {run:?}");
        let doctor = place.run(&["fleet", "doctor"]).exits(1).stdout;
        assert!(
            doctor.contains(&format!("{name} is damaged")),
            "{damage}: {doctor}"
        );
        let merged = place.run(&["fleet", "compact"]).exits(0);
        assert!(
            merged.stderr.contains(&format!("{name} is left as it is")),
            "{damage}: {merged:?}"
        );
    }
    fs::write(&file, whole).unwrap();
    assert_eq!(place.total(), 1000);
}

#[test]
fn a_second_agent_is_refused_by_name() {
    let place = Place::new();
    let lock = fs::File::create(place.path("spool/lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let refused = place.run(&["agent", "--once"]).exits(1).stderr;
    assert!(refused.contains("another agent has the spool"), "{refused}");
}

#[test]
fn a_damaged_dump_in_the_spool_is_put_aside() {
    let place = Place::new();
    fs::write(place.path("spool/dumps/000.json"), "{\"context\":").unwrap();
    place.spool(CART, START, &[("leak", 1000)]);
    let run = place.drain();
    assert!(
        run.stderr.contains("000.json is damaged, and now"),
        "{run:?}"
    );
    assert_eq!(place.total(), 1000);
    assert!(place.path("spool/damaged/000.json").exists());
}

#[test]
fn an_object_of_the_same_name_and_other_bytes_keeps_the_file_in_the_spool() {
    let place = with_two_profiles();
    let file = place.files("incoming/samples").remove(0);
    let whole = fs::read(&file).unwrap();
    let name = file
        .strip_prefix(place.path("store"))
        .unwrap()
        .to_str()
        .unwrap()
        .to_owned();
    let spooled = place.path("spool/outbox").join(name.replace('/', "!"));
    fs::write(&spooled, &whole).unwrap();
    fs::write(&file, vec![0; whole.len()]).unwrap();
    let refused = place.run(&["agent", "--once"]).exits(1).stderr;
    assert!(
        refused.contains(&format!("{name} is not what was written")),
        "{refused}"
    );
    assert!(spooled.exists());
    // The same bytes are what an agent wrote that was killed before it could know.
    fs::write(&file, whole).unwrap();
    place.drain();
    assert!(!spooled.exists());
    assert_eq!(place.total(), 1000);
}

#[test]
fn stores_that_cannot_be_are_refused_with_what_can() {
    let place = Place::new();
    let check = |store: &str, code: i32, expected: &str| {
        let run = place.run(&["fleet", "ps", "--store", store]).exits(code);
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
    let empty = format!("file://{}", place.path("empty").display());
    check(&empty, 5, "there is no profile of the fleet");
}

#[test]
fn a_disk_without_room_for_the_spool_is_told_of_and_loses_nothing() {
    let place = Place::new();
    place.spool(CART, START, &[("leak", 1000)]);
    let mut agent = place.command(&["agent", "--once"]);
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
    full.env("MEMPROF_SOCKET_DIR", place.path("run"));
    let full = full
        .output()
        .expect("strace: run `cargo xtask test`, or apt-get install strace");
    assert!(!full.status.success());
    let agent = agent.output().unwrap();
    assert_eq!(agent.status.code(), Some(5));
    assert_eq!(place.total(), 1000);
}

#[test]
fn clocks_that_are_an_hour_apart_are_told_of_and_change_no_time() {
    let place = with_two_profiles();
    let ahead = Process {
        host: "ahead",
        ..CART
    };
    place.spool(ahead, START, &[("leak", 500)]);
    let dump = place.path("spool/dumps").read_dir().unwrap().next();
    let dump = dump.unwrap().unwrap().path();
    let text = fs::read_to_string(&dump).unwrap();
    let late = text.replace("\"clock_offset_ms\":null", "\"clock_offset_ms\":3600000");
    assert_ne!(late, text);
    fs::write(&dump, late).unwrap();
    place.drain();
    let ps = [
        "fleet",
        "flame",
        "--format",
        "collapsed",
        "--at",
        "2026-11-21T11:00:00Z",
    ];
    let run = place.run(&ps).exits(0);
    let told = "the clock of ahead differed by 3600.0 s from the store's; times are shown by the clock of ahead";
    assert!(run.stderr.contains(told), "{run:?}");
    assert_eq!(run.stdout, "main;leak 1500\n");
}

#[test]
fn lost_samples_are_noted_before_and_after_files_are_merged() {
    let place = with_two_profiles();
    place.spool(CART, START + 120_000, &[("leak", 500)]);
    let dumps = place.path("spool/dumps").read_dir().unwrap();
    let dump = dumps.last().unwrap().unwrap().path();
    let text = fs::read_to_string(&dump).unwrap();
    let counts = r#""clock_offset_ms":null,"sampler":{"samples":1370838,"lost":1193397}"#;
    let lossy = text.replace("\"clock_offset_ms\":null", counts);
    assert_ne!(lossy, text);
    fs::write(&dump, lossy).unwrap();
    place.drain();
    let check = || {
        let asked = |words: &[&str]| {
            let window = ["--at", "2026-11-21T11:00:00Z"];
            place.run(&[words, &window].concat()).exits(0)
        };
        let note = "1 of 1 processes lost samples";
        let growth = asked(&["fleet", "growth", "--json"]);
        assert!(growth.stderr.contains(note), "{growth:?}");
        assert!(
            growth.stdout.contains("\"lost_samples\":1193397"),
            "{growth:?}"
        );
        let top = asked(&["fleet", "top", "--json"]);
        assert!(top.stderr.contains(note), "{top:?}");
        assert!(top.stdout.contains("\"lost_samples\": 1193397"), "{top:?}");
    };
    check();
    place.run(&["fleet", "compact"]).exits(0);
    check();
}
