//! The commands of the book: each page's, in their order, in one shell.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::dist::{dist, source};

/// What a reader is to type, in blocks that are marked `sh,run`.
fn script(page: &str) -> String {
    let text = std::fs::read_to_string(source("docs/src").join(page)).unwrap();
    let blocks = text
        .split("```")
        .filter_map(|block| block.strip_prefix("sh,run\n"));
    blocks.collect()
}

fn check(page: &str) {
    let script = script(page);
    assert!(!script.is_empty(), "{page} has no command");
    let place = tempfile::tempdir().unwrap();
    let directory = |name: &str| {
        let path = place.path().join(name);
        std::fs::create_dir(&path).unwrap();
        path
    };
    let (work, sockets, state) = (directory("work"), directory("run"), directory("state"));
    let programs = [dist("bin/memprof"), dist("examples/unprepared")];
    let paths = programs
        .iter()
        .map(|program| program.parent().unwrap().to_owned());
    let before = std::env::var_os("PATH").unwrap();
    let paths = std::env::join_paths(paths.chain(std::env::split_paths(&before))).unwrap();
    // Processes of its own: pages name their programs alike, and root's memprof finds all that run.
    let mut alone = Command::new("unshare");
    alone.args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
    if !nix::unistd::geteuid().is_root() {
        alone.arg("--map-root-user");
    }
    let shell = alone
        .args(["bash", "-euo", "pipefail", "-c", &script])
        .current_dir(&work)
        .env("PATH", paths)
        .env("XDG_RUNTIME_DIR", sockets)
        .env("XDG_STATE_HOME", state)
        .env("INCLUDE", dist("include/memprof.h").parent().unwrap())
        .env("SOURCE", source(""))
        .env_remove("GITHUB_ACTIONS")
        .stdin(Stdio::null())
        .stdout(std::fs::File::create(place.path().join("out")).unwrap())
        .stderr(std::fs::File::create(place.path().join("err")).unwrap())
        .process_group(0)
        .spawn()
        .unwrap();
    let group = Pid::from_raw(shell.id().cast_signed());
    let ended = shell.wait_with_output().unwrap().status;
    // Nothing is left: the first of the processes took all others with it.
    let _nobody = killpg(group, Signal::SIGKILL);
    let told = |name: &str| std::fs::read_to_string(place.path().join(name)).unwrap();
    assert!(
        ended.success(),
        "{page}: {ended}\n{}\n{}",
        told("out"),
        told("err")
    );
}

#[test]
fn the_first_page() {
    check("start.md");
}

#[test]
fn the_cookbook() {
    check("cookbook.md");
}

#[test]
fn the_gate() {
    check("gate.md");
}

#[test]
fn plugins() {
    check("plugins.md");
}

#[test]
fn every_page_is_in_the_summary_and_what_it_includes_is_there() {
    let pages = source("docs/src");
    let summary = std::fs::read_to_string(pages.join("SUMMARY.md")).unwrap();
    let linked: Vec<&str> = summary
        .split("](")
        .skip(1)
        .filter_map(|rest| Some(rest.split_once(')')?.0))
        .collect();
    let checked = ["start.md", "cookbook.md", "gate.md", "plugins.md"];
    for page in &linked {
        let file = pages.join(page);
        let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{page}: {error}"));
        let included = text.split("{{#include ").skip(1);
        for included in included.filter_map(|rest| Some(rest.split_once("}}")?.0)) {
            let (path, anchor) = included
                .split_once(".md:")
                .map_or((included.to_owned(), None), |(path, anchor)| {
                    (format!("{path}.md"), Some(anchor))
                });
            let target = file.parent().unwrap().join(path);
            let text = std::fs::read_to_string(&target);
            let text = text.unwrap_or_else(|error| panic!("{page}: {}: {error}", target.display()));
            let anchor = anchor.map(|anchor| format!("ANCHOR: {anchor}"));
            assert!(
                anchor.is_none_or(|anchor| text.contains(&anchor)),
                "{page}: {included}"
            );
        }
        assert!(
            checked.contains(page) || !text.contains("```sh,run"),
            "{page} is not run"
        );
    }
    assert_eq!(
        pages_below(&pages),
        linked.len() + 1,
        "a page is not in SUMMARY.md"
    );
}

fn pages_below(directory: &Path) -> usize {
    let entries = std::fs::read_dir(directory).unwrap();
    let count = |path: &Path| match path.is_dir() {
        true => pages_below(path),
        false => 1,
    };
    entries.map(|entry| count(&entry.unwrap().path())).sum()
}

#[test]
fn exit_codes_are_those_of_the_help() {
    let page = std::fs::read_to_string(source("docs/src/exit-codes.md")).unwrap();
    let help = Command::new(dist("bin/memprof"))
        .arg("--help")
        .output()
        .unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let (_, codes) = help.split_once("Exit codes: ").unwrap();
    let told: Vec<&str> = codes
        .split(|char: char| !char.is_ascii_digit())
        .filter(|word| !word.is_empty())
        .collect();
    let listed = page
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split_once(' '));
    let listed = listed
        .map(|(code, _)| code)
        .filter(|code| code.parse::<u8>().is_ok());
    assert_eq!(listed.collect::<Vec<_>>(), told);
}
