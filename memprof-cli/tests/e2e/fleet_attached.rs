//! An agent attaches to the programs that the policy names, to no other ones, and leaves with its end.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::attach::our_threads_of;
use crate::dist::{dist, tool_text};
use crate::memprof::memprof;

/// A process that nobody prepared, ended when dropped.
struct Unprepared(Child);

impl Unprepared {
    /// A copy of the example, under another name.
    fn start(place: &Path, name: &str) -> Self {
        let program = place.join(name);
        std::fs::copy(dist("examples/unprepared"), &program).unwrap();
        Self::run(&program)
    }

    fn run(program: &Path) -> Self {
        let mut command = Command::new(program);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().unwrap())
    }

    fn is_attached(&self) -> bool {
        !our_threads_of(self.0.id()).is_empty()
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
    std::fs::write(
        &source,
        "#include <unistd.h>\nint main(void) { for (;;) pause(); }\n",
    )
    .unwrap();
    let mut cc = Command::new("cc");
    cc.arg("-static").arg("-o").arg(&program).arg(&source);
    tool_text("gcc", &mut cc);
    program
}

fn agent(place: &TempDir) -> Child {
    let path = |name: &str| place.path().join(name);
    let config = format!(
        "store = \"file://{}\"\nspool = {:?}\nbatch = \"1s\"\n[[service]]\nname = \"basket-*\"\n\
         period = \"1s\"\npause = 0\nattach = [\"basket-*\"]\n",
        path("store").display(),
        path("spool")
    );
    std::fs::write(path("fleet.toml"), config).unwrap();
    let mut command = Command::new(dist("bin/memprof"));
    command.args(["agent", "--config"]).arg(path("fleet.toml"));
    command.env("MEMPROF_SOCKET_DIR", path("run"));
    command.stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn an_agent_attaches_to_what_the_policy_names_and_to_nothing_else() {
    let place = tempfile::tempdir().unwrap();
    let named = Unprepared::start(place.path(), "basket-7");
    let other = Unprepared::start(place.path(), "shop-7");
    let refusing = Unprepared::run(&static_program(place.path()));
    let mut agent = agent(&place);
    let mut lines = BufReader::new(agent.stderr.take().unwrap()).lines();
    let mut said = Vec::new();
    // Until its second profile is told of, which is behind several turns.
    let ending = format!("/{}: ", named.0.id());
    let mut profiles = 0;
    while profiles < 2 {
        let line = lines.next().unwrap_or_else(|| panic!("{said:#?}")).unwrap();
        profiles += u32::from(line.contains(&ending) && line.contains(" stacks"));
        said.push(line);
    }
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
