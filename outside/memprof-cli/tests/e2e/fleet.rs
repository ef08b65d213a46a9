//! `memprof agent` and `memprof fleet`: README's commands, over processes of two builds.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;
use tempfile::TempDir;

use crate::dist::{dist, tool_text};
use crate::host::{Host, TEST_TIMEOUT};
use crate::memprof::{Run, memprof};
use crate::place::copy_program;

/// The fleets of this run of the tests.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// A program that holds 4 MiB, and in its second build adds to a list that is never cleared.
const CART: &str = r"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#define KEEP __attribute__((noinline))
static void *held[4096], *list;
KEEP static void load_prices(void) {
    for (int i = 0; i < 4096; i++) held[i] = memset(malloc(1024), 1, 1024);
}
KEEP static void remember_visitor(void) {
    void **entry = malloc(1024);
    *entry = list;
    list = entry;
}
int main(void) {
    load_prices();
    for (;;) {
#ifdef LEAK
        for (int i = 0; i < 100; i++) remember_visitor();
#endif
        usleep(1000);
    }
}
";

pub(crate) struct Fleet {
    place: TempDir,
    /// Program name of this fleet, which no other test uses.
    pub(crate) service: String,
    pub(crate) processes: Vec<Host>,
}

impl Fleet {
    /// Two processes of the first build and one of the second.
    pub(crate) fn start() -> Self {
        let mut fleet = Self {
            place: tempfile::tempdir().unwrap(),
            service: format!(
                "cart-{}-{}",
                std::process::id(),
                COUNT.fetch_add(1, Ordering::Relaxed)
            ),
            processes: Vec::new(),
        };
        let builds = [
            fleet.build("first", &[]),
            fleet.build("second", &["-DLEAK"]),
        ];
        for program in [&builds[0], &builds[0], &builds[1]] {
            let mut command = Command::new(dist("bin/memprof"));
            command.args(["run", "--active", "--lg-sample", "12", "--dump-dir"]);
            command.arg(fleet.path("dumps")).arg("--").arg(program);
            let place = tempfile::tempdir().unwrap();
            command.env("MEMPROF_LOG", "info");
            fleet
                .processes
                .push(Host::spawn_in(command, place, fleet.path("run")));
        }
        for process in &fleet.processes {
            process.wait_for_log("control socket ");
        }
        fleet
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    fn build(&self, name: &str, options: &[&str]) -> PathBuf {
        let (directory, source) = (self.path(name), self.path("cart.c"));
        std::fs::create_dir(&directory).unwrap();
        std::fs::write(&source, CART).unwrap();
        let program = directory.join(&self.service);
        let mut cc = Command::new("cc");
        cc.args(["-g", "-O1", "-Wl,--build-id", "-o"])
            .arg(&program)
            .arg(&source)
            .args(options);
        tool_text("gcc", &mut cc);
        program
    }

    pub(crate) fn store(&self) -> String {
        format!("file://{}", self.path("store").display())
    }

    /// The configuration's file, with `more` behind what all tests have.
    pub(crate) fn config(&self, more: &str) -> PathBuf {
        let config = self.path("fleet.toml");
        // Other tests' hosts are left alone.
        let text = format!(
            "store = {:?}\nspool = {:?}\n{more}\n[[service]]\nname = {:?}\n",
            self.store(),
            self.path("spool"),
            self.service
        );
        std::fs::write(&config, text).unwrap();
        config
    }

    pub(crate) fn memprof(&self, args: &[&str]) -> Run {
        let config = self.config("");
        let config = config.to_str().unwrap();
        memprof(&self.path("run"), &[args, &["--config", config]].concat())
    }

    /// Takes profiles until the leak is seen. Returns what grew most.
    pub(crate) fn until_grown(&self) -> Value {
        let begun = std::time::Instant::now();
        self.memprof(&["agent", "--once"]).exits(0);
        loop {
            self.memprof(&["agent", "--once"]).exits(0);
            let growth = self.memprof(&["fleet", "growth", "--json"]);
            let growth = growth.exits(0).json();
            if growth[0]["growth_bytes"].as_i64() > Some(1 << 20) {
                return growth[0].clone();
            }
            assert!(begun.elapsed() < TEST_TIMEOUT, "{growth}");
        }
    }
}

#[test]
fn diff_of_two_builds_names_the_leaking_function() {
    let fleet = Fleet::start();
    let of_service = format!("@{}", fleet.service);
    let grown = fleet.until_grown();
    let leaking = fleet.processes[2].pid();
    let instance = grown["instance"].as_str().unwrap();
    assert!(instance.contains(&format!("/{leaking}.")), "{grown}");

    let processes = fleet
        .memprof(&["fleet", "ps", "-t", &of_service, "--json"])
        .exits(0)
        .json();
    let processes = processes.as_array().unwrap();
    assert_eq!(processes.len(), 3, "{processes:?}");
    let build_of = |pid: u32| {
        let of = processes
            .iter()
            .find(|process| process["pid"] == pid)
            .unwrap();
        of["build_id"].as_str().unwrap().to_owned()
    };
    let [base, build] = [0, 2].map(|at| build_of(fleet.processes[at].pid()));
    assert_ne!(base, build);

    let diff = [
        "fleet",
        "diff",
        "-t",
        &of_service,
        "--build",
        &build,
        "--base",
        &base,
    ];
    let diff = fleet.memprof(&diff).exits(0).stdout;
    // The first build does not have the function.
    let mut new = diff
        .lines()
        .skip_while(|line| !line.starts_with("new (flat)"));
    let first = new.nth(2).unwrap_or_default();
    assert!(first.ends_with("remember_visitor"), "{diff}");

    let top = fleet.memprof(&["fleet", "top"]).exits(0).stdout;
    assert!(top.contains("load_prices"), "{top}");
    let flame = fleet
        .memprof(&["fleet", "flame", "-t", &of_service])
        .exits(0)
        .stdout;
    assert!(flame.contains("remember_visitor"));
    fleet.memprof(&["fleet", "doctor"]).exits(0);
}

#[test]
fn command_without_its_program_names_the_package() {
    let place = tempfile::tempdir().unwrap();
    let alone = place.path().join("memprof");
    copy_program(dist("bin/memprof"), &alone);
    let output = Command::new(&alone)
        .args(["fleet", "ps"])
        .env("PATH", "/nowhere")
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    let expected = format!(
        "memprof-fleet is neither at {} nor in PATH",
        find_installed(&alone).display()
    );
    assert!(error.contains(&expected), "{error}");
}

fn find_installed(program: &Path) -> PathBuf {
    program
        .canonicalize()
        .unwrap()
        .with_file_name("memprof-fleet")
}
