//! `memprof attach`: jumps at the functions of an allocator that is linked into the program, so that no GOT slot holds
//! its malloc, and with `--entries` at those of a library.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use testkit::processes::plugin_threads;

use crate::attach::{attach, detach};
use crate::dist::{dist, source, tool_text};
use crate::host::{Host, TEST_TIMEOUT};
use crate::memprof::{Run, memprof};

/// Kind of linking of a program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Linked {
    pub(crate) name: &'static str,
    pub(crate) options: &'static [&'static str],
    /// Start of the name of the library, which `--entries` patches; `None` for the program.
    pub(crate) library: Option<&'static str>,
}

const LINKED: [Linked; 7] = [
    Linked {
        name: "tcmalloc",
        options: &["-l:libtcmalloc_minimal.a", "-lstdc++", "-lm"],
        library: None,
    },
    Linked {
        name: "tcmalloc",
        options: &["-no-pie", "-l:libtcmalloc_minimal.a", "-lstdc++", "-lm"],
        library: None,
    },
    Linked {
        name: "jemalloc",
        options: &["-l:libjemalloc.a", "-lstdc++", "-lm"],
        library: None,
    },
    Linked {
        name: "glibc",
        options: &[],
        library: Some("/libc.so.6"),
    },
    Linked {
        name: "jemalloc",
        options: &["-Wl,--no-as-needed", "-l:libjemalloc.so.2"],
        library: Some("/libjemalloc.so"),
    },
    Linked {
        name: "tcmalloc",
        options: &["-Wl,--no-as-needed", "-l:libtcmalloc_minimal.so.4"],
        library: Some("/libtcmalloc_minimal.so"),
    },
    Linked {
        name: "mimalloc",
        options: &["-Wl,--no-as-needed", "-l:libmimalloc.so.2"],
        library: Some("/libmimalloc.so"),
    },
];

pub(crate) const FUNCTIONS: [&str; 8] = [
    "malloc",
    "calloc",
    "realloc",
    "new",
    "memalign",
    "aligned_alloc",
    "valloc",
    "posix_memalign",
];

/// The program, waiting for a line.
pub(crate) struct Program {
    pub(crate) host: Host,
    linked: Linked,
    lines: u32,
}

impl Linked {
    pub(crate) fn start(self, more: &[&str]) -> Program {
        self.start_by(&[], more)
    }

    /// Compiles and starts the program. It is executed by `starter`, unless that is empty.
    pub(crate) fn start_by(self, starter: &[&str], more: &[&str]) -> Program {
        let place = tempfile::tempdir().unwrap();
        let program = place.path().join("linked");
        let mut cc = Command::new("cc");
        cc.args(["-O1", "-g", "-pthread", "-o"]).arg(&program);
        cc.arg(source(
            "outside/memprof-cli/tests/fixtures/allocators/linked.c",
        ));
        tool_text("gcc", cc.args(self.options).args(more));
        let words = [starter, &[program.to_str().unwrap()]].concat();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).stdin(Stdio::piped());
        let host = Host::spawn(command, place);
        host.wait_for_log("ready");
        Program {
            host,
            linked: self,
            lines: 0,
        }
    }
}

impl Program {
    /// Makes it do something, and waits until it is done.
    pub(crate) fn does(&mut self, what: &str) {
        self.lines += 1;
        let line = format!("{what} #{}", self.lines);
        self.host.type_line(&line);
        self.host.wait_for_log(&format!("served {line}"));
    }

    /// Attaches, with `args` and with what its allocator needs.
    pub(crate) fn attach(&self, args: &[&str]) -> Run {
        let needed: &[&str] = match self.linked.library {
            Some(_) => &["--entries", "sampler=memprof"],
            None => &[],
        };
        attach(&self.host, &[needed, args].concat())
    }

    pub(crate) fn activate(&self) {
        let sampler: &[&str] = match self.linked.library {
            Some(_) => &["sampler=memprof"],
            None => &[],
        };
        let args = [&["sample_interval=1KiB"], sampler].concat();
        self.host.memprof("activate", &args).exits(0);
    }

    /// Code of its allocator's file.
    pub(crate) fn text(&self) -> Vec<u8> {
        let pid = self.host.pid();
        let file = self.linked.library.unwrap_or("/linked");
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        let memory = File::open(format!("/proc/{pid}/mem")).unwrap();
        let code = maps
            .lines()
            .filter(|line| line.contains(file) && line.contains(" r-xp "));
        let bytes = code.flat_map(|line| {
            let (start, rest) = line.split_once('-').unwrap();
            let hex = |text| u64::from_str_radix(text, 16).unwrap();
            let (start, end) = (hex(start), hex(rest.split(' ').next().unwrap()));
            let mut bytes = vec![0; (end - start) as usize];
            memory.read_exact_at(&mut bytes, start).unwrap();
            bytes
        });
        bytes.collect()
    }

    /// Status of its allocator.
    pub(crate) fn own_malloc(&self) -> serde_json::Value {
        let status = self.host.memprof("status", &["--json"]).exits(0).json();
        let allocators = status["allocators"].as_array().unwrap().iter();
        let own = allocators
            .clone()
            .find(|each| each["kind"] == self.linked.name);
        own.unwrap_or_else(|| panic!("{status}")).clone()
    }

    pub(crate) fn counts(&self) -> [i64; 2] {
        let own = self.own_malloc();
        let count = |name| own[name].as_i64();
        ["samples", "live_samples"].map(|name| count(name).unwrap_or_else(|| panic!("{own}")))
    }

    /// Attaches and detaches; returns the number of patched functions.
    pub(crate) fn leads(&self) -> u64 {
        let attached = self.attach(&[]).exits(0).json();
        let functions = attached["entries"]["functions"].as_u64();
        functions.unwrap_or_else(|| panic!("{attached}"))
    }
}

#[test]
fn linked_allocator_is_patched_sampled_and_restored() {
    for linked in LINKED {
        let mut program = linked.start(&[]);
        let before = program.text();
        let attached = program.attach(&[]).exits(0).json();
        assert!(
            attached["entries"]["functions"].as_u64().unwrap() >= 7,
            "{attached}"
        );
        // The code of Debian's mi_valloc is shorter than a jump.
        let left_out = attached["entries"]["left_out"].as_array().unwrap();
        let is_expected = |note: &serde_json::Value| {
            note.as_str()
                .unwrap()
                .starts_with("not sampled: mi_valloc ")
        };
        assert!(left_out.iter().all(is_expected), "{attached}");
        let changed = program.text();
        assert_ne!(before, changed, "{linked:?}");
        // Blocks of 12 KiB: of a million, six pass.
        program.activate();
        let own = program.own_malloc();
        assert_eq!(
            (&own["kind"], &own["interception"]),
            (&linked.name.into(), &"entry_patches".into()),
            "{own}"
        );
        for function in FUNCTIONS {
            let [samples, live] = program.counts();
            program.does(&format!("keep {function} 400"));
            let [all, alive] = program.counts();
            assert!(
                (399..=400).contains(&(alive - live)),
                "{linked:?} {function}: {}",
                alive - live
            );
            // 64 bytes before each realloc, of which one in 16 is sampled.
            let most = if function == "realloc" { 450 } else { 400 };
            assert!(
                (399..=most).contains(&(all - samples)),
                "{linked:?} {function}: {}",
                all - samples
            );
        }
        let dump = program.host.dump_of(8 * 400 * (12 << 10) * 9 / 10);
        let path = dump["path"].as_str().unwrap();
        let collapsed = memprof(
            program.host.place(),
            &["report", path, "--format", "collapsed"],
        );
        let (mut own, mut total) = (0, 0);
        for line in collapsed.exits(0).stdout.lines() {
            let (stack, bytes) = line.rsplit_once(' ').unwrap();
            let bytes: u64 = bytes.parse().unwrap();
            total += bytes;
            own += if stack.contains("keep") { bytes } else { 0 };
        }
        assert!(own * 10 >= total * 8, "{linked:?}: {own} of {total}");
        // Samples that live are followed.
        program.host.memprof("deactivate", &[]).exits(0);
        program.does("drop");
        assert_eq!(program.counts()[1], 0, "{linked:?}");

        detach(&program.host, &[]).exits(0);
        assert!(program.text() == before, "{linked:?}");
        program.does("keep malloc 10");
        // The same copies of its instructions serve again.
        program.leads();
        assert!(program.text() == changed, "{linked:?}");
        program.activate();
        program.does("keep malloc 100");
        assert!((99..=100).contains(&program.counts()[1]), "{linked:?}");
        detach(&program.host, &[]).exits(0);
        assert!(program.text() == before, "{linked:?}");
        program.does("drop");
    }
}

#[test]
fn allocating_threads_survive_patching() {
    for linked in LINKED {
        let mut program = linked.start(&[]);
        let before = program.text();
        program.does("storm");
        for _ in 0..10 {
            program.leads();
            program.activate();
            detach(&program.host, &[]).exits(0);
            assert!(program.text() == before, "{linked:?}");
        }
        program.does("calm");
        let said = program.host.wait_for_log(" damaged");
        assert!(said.ends_with(" rounds, 0 damaged"), "{linked:?}: {said}");
    }
}

#[test]
fn killed_attach_leaves_a_running_program() {
    for linked in [LINKED[0], LINKED[3]] {
        kill_attach(linked);
    }
}

/// Kills `memprof attach` at many moments, while threads of the program allocate.
fn kill_attach(linked: Linked) {
    let mut program = linked.start(&[]);
    let before = program.text();
    program.does("storm");
    for round in 0..20 {
        let mut killed = Command::new(dist("bin/memprof"));
        killed.args(["attach", &program.host.pid().to_string()]);
        if linked.library.is_some() {
            killed.arg("--entries");
        }
        killed.env("MEMPROF_SOCKET_DIR", program.host.socket_dir());
        let mut killed = killed
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let until = Instant::now() + Duration::from_millis(4 * round);
        while Instant::now() < until && killed.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        killed.kill().unwrap();
        killed.wait().unwrap();
    }
    let begun = Instant::now();
    while program.attach(&[]).code != 0 {
        assert!(begun.elapsed() < TEST_TIMEOUT, "{:?}", program.host.log());
    }
    program.activate();
    program.does("calm");
    program.does("keep malloc 100");
    assert!(program.counts()[1] >= 99);
    let said = program.host.wait_for_log(" damaged");
    assert!(said.ends_with(" rounds, 0 damaged"), "{said}");
    let left = detach(&program.host, &[]);
    // The thread that loads the plugin waits ten seconds for the memprof that was killed.
    assert!(
        left.code == 0 || left.stderr.contains("still runs"),
        "{left:?}"
    );
    assert!(program.text() == before);
}

#[test]
fn expired_attachment_keeps_patches_until_detach() {
    for linked in [LINKED[0], LINKED[3]] {
        let_attachment_expire(linked);
    }
}

/// Uses the program after its attachment has ended by itself.
fn let_attachment_expire(linked: Linked) {
    let mut program = linked.start(&[]);
    let before = program.text();
    program.attach(&["--for", "1500ms"]).exits(0);
    program.activate();
    program.does("keep malloc 100");
    let begun = Instant::now();
    while !plugin_threads(program.host.pid()).unwrap().is_empty() {
        assert!(begun.elapsed() < TEST_TIMEOUT);
        testkit::pause();
    }
    assert!(program.text() != before);
    program.does("keep realloc 100");
    program.does("drop");
    detach(&program.host, &[]).exits(0);
    assert!(program.text() == before);
    program.does("keep realloc 100");
    detach(&program.host, &[]).exits(3);
}

#[test]
fn long_pause_is_refused_until_allowed() {
    let program = LINKED[2].start(&[]);
    let before = program.text();
    let text = |args: &[&str]| program.attach(args).exits(0).json()["entries"].to_string();
    let refused = text(&["--max-pause", "1ms"]);
    assert!(
        refused.contains(" ms, more than the 1 ms that are allowed; allow it by"),
        "{refused}"
    );
    assert!(before == program.text());
    let led = text(&["--max-pause", "1s"]);
    assert!(led.contains("functions"), "{led}");
    assert!(before != program.text());
    detach(&program.host, &[]).exits(0);
    assert!(before == program.text());
}

#[test]
fn preloaded_plugin_stays_when_patches_are_restored() {
    let memprof = dist("bin/memprof");
    let mut program = LINKED[0].start_by(&[memprof.to_str().unwrap(), "run", "--"], &[]);
    program.host.wait_for_log("was built without its profiler");
    let before = program.text();
    assert!(program.leads() > 5);
    program.activate();
    program.does("keep malloc 100");
    assert!(program.counts()[1] >= 99);
    let said = detach(&program.host, &["--json"]).exits(0).json();
    let text = said["text"].as_str().unwrap();
    assert!(text.contains("the plugin stays"), "{text}");
    assert!(program.text() == before);
    assert_eq!(program.counts(), [0, 0]);
    program.does("drop");
}

#[test]
fn stripped_program_is_not_patched_with_a_reason() {
    let mut program = LINKED[0].start(&["-s"]);
    let before = program.text();
    let attached = program.attach(&[]).exits(0).json();
    let error = attached["entries"]["error"].as_str().unwrap();
    assert!(error.contains("the program was stripped"), "{error}");
    assert!(error.contains("strip --strip-debug"), "{error}");
    assert!(program.text() == before);
    detach(&program.host, &[]).exits(0);
    program.does("keep malloc 10");
}
