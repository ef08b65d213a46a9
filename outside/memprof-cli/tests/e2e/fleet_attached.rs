//! An agent attaches to the programs that the policy names, to no other ones, and leaves with its end.

use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};
use tempfile::TempDir;
use testkit::processes::plugin_threads;

use crate::dist::{dist, tool_text};
use crate::memprof::memprof;
use crate::place::copy_program;

/// An unmodified process, ended when dropped.
struct Unprepared(Child);

impl Unprepared {
    /// A copy of the example, under another name.
    fn start(place: &Path, name: &str) -> Self {
        let program = place.join(name);
        copy_program(dist("examples/unprepared"), &program);
        Self::run(&program)
    }

    fn run(program: &Path) -> Self {
        let mut command = Command::new(program);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().unwrap())
    }

    fn is_attached(&self) -> bool {
        !plugin_threads(self.0.id()).unwrap().is_empty()
    }
}

impl Drop for Unprepared {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// A program without a loader, into which nothing can be loaded.
fn static_program(place: &Path) -> PathBuf {
    let (source, program) = (place.join("static.c"), place.join("basket-static"));
    fs::write(
        &source,
        "#include <unistd.h>\nint main(void) { for (;;) pause(); }\n",
    )
    .unwrap();
    let mut cc = Command::new("cc");
    cc.arg("-static").arg("-o").arg(&program).arg(&source);
    tool_text("gcc", &mut cc);
    program
}

/// An agent that attaches to programs of these names.
fn agent(place: &TempDir, program: &Path, names: &str) -> Child {
    let path = |name: &str| place.path().join(name);
    let config = format!(
        "store = \"file://{}\"\nspool = {:?}\nbatch = \"1s\"\n[[service]]\nname = {names:?}\n\
         period = \"1s\"\npause = 0\nattach = [{names:?}]\n",
        path("store").display(),
        path("spool")
    );
    fs::write(path("fleet.toml"), config).unwrap();
    let mut command = Command::new(program);
    command.args(["agent", "--config"]).arg(path("fleet.toml"));
    command.env("MEMPROF_SOCKET_DIR", path("run"));
    command.stderr(Stdio::piped()).spawn().unwrap()
}

/// Reads until the second profile of a process is reported, which takes several rounds.
fn read_two_profiles(
    lines: &mut Lines<BufReader<ChildStderr>>,
    of: &Unprepared,
    said: &mut Vec<String>,
) {
    let process = format!("/{}: ", of.0.id());
    for _ in 0..2 {
        read_until(lines, &[&process, " stack"], said);
    }
}

/// Reads until a line with all of these.
fn read_until(lines: &mut Lines<BufReader<ChildStderr>>, texts: &[&str], said: &mut Vec<String>) {
    let has_all = |line: &String| texts.iter().all(|text| line.contains(text));
    loop {
        let line = lines.next().unwrap_or_else(|| panic!("{said:#?}")).unwrap();
        let is_it = has_all(&line);
        said.push(line);
        if is_it {
            return;
        }
    }
}

/// The agent's program in a directory where `memprof` waits for a line of `gate` before it attaches to this process.
fn agent_with_slow_memprof(place: &Path, slow: &Unprepared) -> PathBuf {
    let path = |name: &str| place.join(name);
    let program = path("memprof-fleet");
    copy_program(dist("bin/memprof-fleet"), &program);
    mkfifo(&path("gate"), Mode::S_IRWXU).unwrap();
    let script = format!(
        "#!/bin/sh\nif [ \"$1 $2\" = \"attach {}\" ]; then : > {:?}; read -r line < {:?}; fi\nexec {:?} \"$@\"\n",
        slow.0.id(),
        path("begun"),
        path("gate"),
        dist("bin/memprof"),
    );
    fs::write(path("memprof"), script).unwrap();
    fs::set_permissions(path("memprof"), Permissions::from_mode(0o755)).unwrap();
    program
}

#[test]
fn agent_attaches_only_to_processes_of_the_policy() {
    let place = tempfile::tempdir().unwrap();
    let named = Unprepared::start(place.path(), "basket-7");
    let other = Unprepared::start(place.path(), "shop-7");
    let refusing = Unprepared::run(&static_program(place.path()));
    let mut agent = agent(&place, &dist("bin/memprof"), "basket-*");
    let mut lines = BufReader::new(agent.stderr.take().unwrap()).lines();
    let mut said = Vec::new();
    read_two_profiles(&mut lines, &named, &mut said);
    assert!(named.is_attached() && !other.is_attached(), "{said:#?}");
    kill(Pid::from_raw(agent.id().cast_signed()), Signal::SIGTERM).unwrap();
    said.extend(lines.map_while(Result::ok));
    assert!(agent.wait().unwrap().success(), "{said:#?}");
    let count = |text: String| said.iter().filter(|line| line.contains(&text)).count();
    assert_eq!(
        count(format!("/{}: attached", named.0.id())),
        1,
        "{said:#?}"
    );
    assert_eq!(
        count(format!("/{}: detached", named.0.id())),
        1,
        "{said:#?}"
    );
    // A refusal is said once, however often it is tried.
    let refused = format!("/{}: memprof attach failed: ", refusing.0.id());
    assert_eq!(count(refused), 1, "{said:#?}");
    assert_eq!(count("shop-7".to_owned()), 0, "{said:#?}");
    assert!(!named.is_attached() && !other.is_attached(), "{said:#?}");

    let config = place.path().join("fleet.toml");
    let ps = [
        "fleet",
        "ps",
        "--json",
        "--config",
        config.to_str().unwrap(),
    ];
    let processes = memprof(&place.path().join("run"), &ps).exits(0).json();
    assert_eq!(processes[0]["pid"], named.0.id(), "{processes}");
    assert_eq!(processes[0]["service"], "basket-7", "{processes}");
    assert!(
        processes[0]["inuse_bytes"].as_i64().unwrap() > 0,
        "{processes}"
    );
}

#[test]
fn slow_attachment_delays_no_other() {
    let place = tempfile::tempdir().unwrap();
    let slow = Unprepared::start(place.path(), "kiosk-1");
    let other = Unprepared::start(place.path(), "kiosk-2");
    let program = agent_with_slow_memprof(place.path(), &slow);
    // For reading too: so it is open before the other end is.
    let mut gate = File::options();
    let gate = gate.read(true).write(true).open(place.path().join("gate"));
    let mut agent = agent(&place, &program, "kiosk-*");
    let mut lines = BufReader::new(agent.stderr.take().unwrap()).lines();
    let mut said = Vec::new();
    read_two_profiles(&mut lines, &other, &mut said);
    assert!(place.path().join("begun").exists(), "{said:#?}");
    assert!(other.is_attached() && !slow.is_attached(), "{said:#?}");
    // The end waits for the attempt, and undoes it.
    kill(Pid::from_raw(agent.id().cast_signed()), Signal::SIGTERM).unwrap();
    let detached = |process: &Unprepared| format!("/{}: detached", process.0.id());
    read_until(&mut lines, &[&detached(&other)], &mut said);
    gate.unwrap().write_all(b"go\n").unwrap();
    read_until(&mut lines, &[&detached(&slow)], &mut said);
    said.extend(lines.map_while(Result::ok));
    assert!(agent.wait().unwrap().success(), "{said:#?}");
    assert!(!other.is_attached() && !slow.is_attached(), "{said:#?}");
}
