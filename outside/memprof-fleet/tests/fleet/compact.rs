//! Queries give the same results before and after the files of an hour are merged.

use crate::test_dir::{CART, HOUR, Process, START, TestDir};

#[test]
fn merged_hours_give_same_results() {
    let dir = TestDir::new();
    let other = Process {
        service: "shop",
        pid: 8,
        build: "3f2a00",
        ..CART
    };
    for index in 0..6 {
        dir.spool(
            CART,
            START + index * HOUR / 3,
            &[("leak", 1000 * (index + 1)), ("load", 500)],
        );
        dir.spool(other, START + index * HOUR / 3, &[("load", 700)]);
        dir.drain();
    }
    let day = ["--at", "2026-11-21T23:00:00Z", "--for", "24h"];
    let run = |args: &[&str]| dir.run(&[args, &day].concat()).exits(0).stdout;
    let queries: [&[&str]; 5] = [
        &["fleet", "top", "--json"],
        &["fleet", "top", "-t", "@cart", "--json"],
        &["fleet", "growth", "--json"],
        &["fleet", "flame", "-t", "node/8", "--format", "collapsed"],
        &[
            "fleet", "diff", "--build", "91cc", "--base", "3f2a", "--json",
        ],
    ];
    let before = queries.map(run);
    assert_eq!(dir.files("incoming/samples").len(), 6);
    let merged = dir.run(&["fleet", "compact"]).exits(0);
    // The stacks of an hour, and so their files, are equal each time.
    assert_eq!(merged.stdout, "merged 14 files into 6\n");
    assert!(dir.files("incoming").is_empty());
    assert_eq!(queries.map(run), before);
    // A late profile is merged into a file of its own.
    dir.spool(CART, START + 1, &[("late", 1)]);
    dir.drain();
    let late = queries.map(run);
    dir.run(&["fleet", "compact"]).exits(0);
    assert_eq!(queries.map(run), late);
    assert_eq!(dir.files("samples").len(), 3);
    assert_eq!(
        dir.run(&["fleet", "doctor"])
            .exits(0)
            .stdout
            .lines()
            .count(),
        1
    );
}

#[test]
fn files_older_than_retention_are_pruned() {
    let dir = TestDir::new();
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    let now = i64::try_from(now.as_millis()).unwrap();
    dir.spool(CART, now - 15 * 24 * HOUR, &[("old", 1)]);
    dir.spool(CART, now, &[("new", 2)]);
    dir.drain();
    // The store's clock counts: the files were written today, and the machine's clock may have been behind.
    dir.run(&["fleet", "prune"]).exits(0);
    assert_eq!(dir.files("incoming/samples").len(), 2);
    let two_weeks = std::time::Duration::from_secs(15 * 24 * 3600);
    for table in ["samples", "profiles", "stacks"] {
        let old = &dir.files(&format!("incoming/{table}"))[0];
        let file = std::fs::File::options().write(true).open(old).unwrap();
        file.set_modified(std::time::SystemTime::now() - two_weeks)
            .unwrap();
    }
    dir.run(&["fleet", "prune"]).exits(0);
    let remaining = dir
        .run(&["fleet", "flame", "--format", "collapsed", "--for", "720h"])
        .exits(0);
    assert_eq!(remaining.stdout, "main;new 2\n");
    dir.run(&["fleet", "prune", "--keep", "0s"]).exits(0);
    // The current hour has not ended.
    assert_eq!(dir.files("incoming/samples").len(), 1);
}

#[test]
fn diff_compares_mean_processes_of_builds() {
    let dir = TestDir::new();
    let process = |pid, build| Process { pid, build, ..CART };
    for minute in 0..3 {
        let time = START + minute * 60_000;
        dir.spool(process(1, "91cc00"), time, &[("load", 100)]);
        dir.spool(process(2, "91cc00"), time, &[("load", 300)]);
        dir.spool(
            process(3, "3f2a00"),
            time,
            &[("load", 200), ("leak", 1000 * (minute + 1))],
        );
    }
    dir.drain();
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
    let text = dir.run(&args).exits(0).stdout;
    assert!(text.contains("changed by 2000 bytes"), "{text}");
    assert!(text.contains("leak"), "{text}");
    assert!(!text.contains("load"), "{text}");
}

#[test]
fn sum_of_newest_profiles_reads_their_hours_only() {
    let dir = TestDir::new();
    for hour in 0..2 {
        dir.spool(CART, START + hour * HOUR, &[("leak", 1000 * (hour + 1))]);
    }
    dir.drain();
    let before = dir.files("incoming/samples").remove(0);
    std::fs::write(&before, "not a table").unwrap();
    let day = ["--at", "2026-11-21T23:00:00Z", "--for", "24h"];
    let top = dir.run(&[&["fleet", "top", "--json"][..], &day].concat());
    let top = top.exits(0);
    assert_eq!(top.json()["totals"]["inuse_space"], 2000);
    assert!(!top.stderr.contains("not counted"), "{top:?}");
    // The mean needs both hours.
    let flame = dir.run(&[&["fleet", "flame", "--format", "collapsed"][..], &day].concat());
    assert!(flame.exits(0).stderr.contains("not counted"));
}
