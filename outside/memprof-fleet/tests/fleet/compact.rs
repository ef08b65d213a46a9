//! Questions, before and after the files of an hour are merged.

use crate::place::{CART, HOUR, Place, Process, START};

#[test]
fn merged_hours_give_the_same_answers() {
    let place = Place::new();
    let other = Process {
        service: "shop",
        pid: 8,
        build: "3f2a00",
        ..CART
    };
    for at in 0..6 {
        place.spool(
            CART,
            START + at * HOUR / 3,
            &[("leak", 1000 * (at + 1)), ("load", 500)],
        );
        place.spool(other, START + at * HOUR / 3, &[("load", 700)]);
        place.drain();
    }
    let day = ["--at", "2026-11-21T23:00:00Z", "--for", "24h"];
    let ask = |args: &[&str]| place.run(&[args, &day].concat()).exits(0).stdout;
    let questions: [&[&str]; 5] = [
        &["fleet", "top", "--json"],
        &["fleet", "top", "-t", "@cart", "--json"],
        &["fleet", "growth", "--json"],
        &["fleet", "flame", "-t", "node/8", "--format", "collapsed"],
        &[
            "fleet", "diff", "--build", "91cc", "--base", "3f2a", "--json",
        ],
    ];
    let before = questions.map(ask);
    assert_eq!(place.files("incoming/samples").len(), 6);
    let merged = place.run(&["fleet", "compact"]).exits(0);
    // The stacks of an hour are the same each time, and so are their files.
    assert_eq!(merged.stdout, "merged 14 files into 6\n");
    assert!(place.files("incoming").is_empty());
    assert_eq!(questions.map(ask), before);
    // A late one is merged into a file of its own.
    place.spool(CART, START + 1, &[("late", 1)]);
    place.drain();
    let late = questions.map(ask);
    place.run(&["fleet", "compact"]).exits(0);
    assert_eq!(questions.map(ask), late);
    assert_eq!(place.files("samples").len(), 3);
    assert_eq!(
        place
            .run(&["fleet", "doctor"])
            .exits(0)
            .stdout
            .lines()
            .count(),
        1
    );
}

#[test]
fn what_is_older_than_the_retention_goes() {
    let place = Place::new();
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    let now = i64::try_from(now.as_millis()).unwrap();
    place.spool(CART, now - 15 * 24 * HOUR, &[("old", 1)]);
    place.spool(CART, now, &[("new", 2)]);
    place.drain();
    // The store got them today: a machine's clock may have been behind.
    place.run(&["fleet", "prune"]).exits(0);
    assert_eq!(place.files("incoming/samples").len(), 2);
    let two_weeks = std::time::Duration::from_secs(15 * 24 * 3600);
    for table in ["samples", "profiles", "stacks"] {
        let old = &place.files(&format!("incoming/{table}"))[0];
        let file = std::fs::File::options().write(true).open(old).unwrap();
        file.set_modified(std::time::SystemTime::now() - two_weeks)
            .unwrap();
    }
    place.run(&["fleet", "prune"]).exits(0);
    let left = place
        .run(&["fleet", "flame", "--format", "collapsed", "--for", "720h"])
        .exits(0);
    assert_eq!(left.stdout, "main;new 2\n");
    place.run(&["fleet", "prune", "--keep", "0s"]).exits(0);
    // The hour that runs is never over.
    assert_eq!(place.files("incoming/samples").len(), 1);
}

#[test]
fn a_diff_is_of_the_mean_process_of_each_build() {
    let place = Place::new();
    let process = |pid, build| Process { pid, build, ..CART };
    for at in 0..3 {
        let time = START + at * 60_000;
        place.spool(process(1, "91cc00"), time, &[("load", 100)]);
        place.spool(process(2, "91cc00"), time, &[("load", 300)]);
        place.spool(
            process(3, "3f2a00"),
            time,
            &[("load", 200), ("leak", 1000 * (at + 1))],
        );
    }
    place.drain();
    let args = [
        "fleet",
        "diff",
        "-t",
        "@cart",
        "--build",
        "3f2a",
        "--base",
        "91cc",
        "--at",
        "2026-11-21T11:00:00Z",
    ];
    let text = place.run(&args).exits(0).stdout;
    assert!(text.contains("changed by 2000 bytes"), "{text}");
    assert!(text.contains("leak"), "{text}");
    assert!(!text.contains("load"), "{text}");
}

#[test]
fn only_the_hours_of_the_newest_profiles_are_read_for_a_sum_of_these() {
    let place = Place::new();
    for at in 0..2 {
        place.spool(CART, START + at * HOUR, &[("leak", 1000 * (at + 1))]);
    }
    place.drain();
    let before = place.files("incoming/samples").remove(0);
    std::fs::write(&before, "not a table").unwrap();
    let day = ["--at", "2026-11-21T23:00:00Z", "--for", "24h"];
    let top = place.run(&[&["fleet", "top", "--json"][..], &day].concat());
    let top = top.exits(0);
    assert_eq!(top.json()["totals"]["inuse_space"], 2000);
    assert!(!top.stderr.contains("not counted"), "{top:?}");
    // A mean needs both.
    let flame = place.run(&[&["fleet", "flame", "--format", "collapsed"][..], &day].concat());
    assert!(flame.exits(0).stderr.contains("not counted"));
}
