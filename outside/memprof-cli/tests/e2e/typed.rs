//! Commands of the documentation, typed into a shell.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::{Pid, geteuid};

use crate::dist::{dist, source};
use crate::root::skip_without_root;

/// A block of code, and the heading above it.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) heading: String,
    pub(crate) commands: String,
}

/// The blocks of a page that are marked `language`.
pub(crate) fn blocks(page: &Path, language: &str) -> Vec<Block> {
    let text = std::fs::read_to_string(page).unwrap_or_else(|e| panic!("{}: {e}", page.display()));
    let mut blocks = Vec::new();
    let mut heading = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(marked) = line.strip_prefix("```") {
            let body = lines.by_ref().take_while(|line| *line != "```");
            let commands: String = body.flat_map(|line| [line, "\n"]).collect();
            if marked == language {
                let heading = heading.clone();
                blocks.push(Block { heading, commands });
            }
        } else if let Some(title) = line.strip_prefix('#') {
            title
                .trim_start_matches('#')
                .trim()
                .clone_into(&mut heading);
        }
    }
    blocks
}

/// Commands with what a test needs to have there: the first text of each pair must be among them.
pub(crate) fn stand_in(commands: &str, stand_ins: &[(&str, &str)]) -> String {
    let replace = |commands: String, (named, here): &(&str, &str)| {
        assert!(commands.contains(named), "no {named:?} in:\n{commands}");
        commands.replace(named, here)
    };
    stand_ins.iter().fold(commands.to_owned(), replace)
}

/// Longer than a page takes on a busy machine, where one builds crates: what it waits for never comes then.
const MOST: &str = "15m";

/// Directories that commands may write to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum System {
    /// In their working directory.
    Shared,
    /// Everywhere: a copy of the system's directories, with the plugin where packages put it, and a network of its
    /// own. Only root has it.
    Own,
}

/// `pid 4711` is the next process. `until_host NAME` waits until memprof reaches it, `host NAME` then prints its pid.
/// `sampled NAME FILE` writes a dump that has samples.
const WORDS: &str = r#"
pid() { echo $(($1 - 1)) > /proc/sys/kernel/ns_last_pid; }
until_host() { until memprof status -t "$1" > /dev/null 2>&1; do sleep 0.1; done; }
host() {
  until memprof ps 2> /dev/null | awk -v name="$1" '$2 == name { print $1; found = 1; exit } END { exit !found }'
  do sleep 0.1; done
}
sampled() {
  until memprof dump -t "$1" -o "$2" > /dev/null && memprof report "$2" > /dev/null 2>&1; do sleep 0.1; done
}
"#;

const COPY: &str = r#"
ip link set lo up
mount -t tmpfs none /mnt
for directory in /etc /run /tmp /usr /var; do
  upper=/mnt$directory/upper work=/mnt$directory/work
  mkdir -p $upper $work
  chmod --reference=$directory $upper
  mount -t overlay none -o lowerdir=$directory,upperdir=$upper,workdir=$work $directory
done
cd "$PWD"
mkdir /usr/lib/memprof
install -m 755 "$PLUGIN" /usr/lib/memprof/memory_profile.so
"#;

/// Cargo's folder of this user, which has the crates that pages with Rust need.
fn cargo_home() -> PathBuf {
    let home = || std::env::home_dir().unwrap().join(".cargo");
    std::env::var_os("CARGO_HOME").map_or_else(home, PathBuf::from)
}

/// Runs a script to its end, which must be a success, with processes of its own: pages name their programs alike, and
/// root's memprof finds all that run.
pub(crate) fn type_in(page: &str, system: System, script: &str) {
    let mut alone = Command::new("unshare");
    alone.args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
    let mut before = WORDS.to_owned();
    if system == System::Own {
        if skip_without_root(page) {
            return;
        }
        alone.arg("--net");
        before += COPY;
    } else if !geteuid().is_root() {
        alone.arg("--map-root-user");
    }
    let place = tempfile::tempdir().unwrap();
    let directory = |name: &str| {
        let path = place.path().join(name);
        std::fs::create_dir(&path).unwrap();
        path
    };
    let work = directory("work");
    for name in ["XDG_RUNTIME_DIR", "XDG_STATE_HOME"] {
        match system {
            System::Shared => alone.env(name, directory(name)),
            System::Own => alone.env_remove(name),
        };
    }
    // With the HOME of the page, rustup would find no toolchain.
    let programs = [
        dist("bin/memprof"),
        dist("examples/unprepared"),
        PathBuf::from(env!("CARGO")),
    ];
    let paths = programs
        .iter()
        .map(|program| program.parent().unwrap().to_owned());
    let path = std::env::var_os("PATH").unwrap();
    let paths = std::env::join_paths(paths.chain(std::env::split_paths(&path))).unwrap();
    let shell = alone
        .args(["timeout", MOST, "bash", "-euo", "pipefail", "-c"])
        .arg(before + script)
        .current_dir(&work)
        .env("PATH", paths)
        .env("HOME", &work)
        .env("CARGO_HOME", cargo_home())
        .env("SDK", dist("sdk"))
        .env("LIB", dist("lib"))
        .env("PLUGIN", dist("plugins/memory_profile.so"))
        .env("SOURCE", source(""))
        .env_remove("GITHUB_ACTIONS")
        .env_remove("MEMPROF_SOCKET_DIR")
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
    let reported = |name: &str| std::fs::read_to_string(place.path().join(name)).unwrap();
    assert!(
        ended.success(),
        "{page}: {ended}\n{script}\n{}\n{}",
        reported("out"),
        reported("err")
    );
}
