//! `memprof attach`: profiles an unmodified program, and restores it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use object::read::elf::{FileHeader, Rela};
use object::{Endianness, elf};
use testkit::processes::{children, plugin_threads};

use crate::dist::tool_text;
use crate::fixture::{serves, start};
use crate::host::{Host, TEST_TIMEOUT};
use crate::memprof::{Run, memprof};
use crate::place::copy_program;

/// Grows without end, and answers a line with a line.
const GROWING: &str = r#"
    $| = 1;
    my @kept;
    sub grow { push @kept, "x" x 1000 for 1 .. 2000 }
    print STDERR "ready\n";
    while (<STDIN>) { grow(); print STDERR "served $_" }
"#;

/// Like the program before, in C, for a small stack: perl needs more.
const SMALL: &str = r#"
    #include <string.h>
    #include <unistd.h>
    int main(void) {
        char line[64] = "served ";
        write(2, "ready\n", 6);
        for (ssize_t n; (n = read(0, line + 7, 50)) > 0;) write(2, line, 7 + n);
    }
"#;

/// Perl as it is, waiting for a line.
fn unmodified() -> Host {
    let mut command = Command::new("perl");
    command.args(["-e", GROWING]);
    start(command)
}

pub(crate) fn attach(host: &Host, args: &[&str]) -> crate::memprof::Run {
    let (pid, dumps) = (host.pid().to_string(), host.dump_dir());
    let dump_dir = format!("dump_dir={}", dumps.display());
    let args = [&["attach", &pid, "--json", &dump_dir], args].concat();
    memprof(&host.socket_dir(), &args)
}

pub(crate) fn detach(host: &Host, args: &[&str]) -> crate::memprof::Run {
    let pid = host.pid().to_string();
    memprof(&host.socket_dir(), &[&["detach", &pid], args].concat())
}

fn is_listed(host: &Host) -> bool {
    let listing = memprof(&host.socket_dir(), &["ps", "--json"])
        .exits(0)
        .json();
    let has_it = |list: &str| {
        let rows = listing[list].as_array().unwrap();
        rows.iter().any(|row| row["pid"] == host.pid())
    };
    has_it("hosts") || has_it("unreached")
}

fn memprof_threads(host: &Host) -> Vec<String> {
    plugin_threads(host.pid()).unwrap()
}

fn wait_until_gone(host: &Host) {
    let begun = Instant::now();
    while !memprof_threads(host).is_empty() {
        assert!(
            begun.elapsed() < TEST_TIMEOUT,
            "{:?}",
            memprof_threads(host)
        );
        testkit::pause();
    }
}

/// Contents of the GOT slots of the program and its libraries, by address.
fn slots(pid: u32) -> BTreeMap<u64, u64> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let memory = File::open(format!("/proc/{pid}/mem")).unwrap();
    let mut slots = BTreeMap::new();
    for line in maps.lines().filter(|line| line.contains(" 00000000 ")) {
        let Some(path) = line.find('/').map(|at| &line[at..]) else {
            continue;
        };
        let (Ok(bytes), false) = (fs::read(path), path.contains("memory_profile")) else {
            continue;
        };
        let base = u64::from_str_radix(line.split('-').next().unwrap(), 16).unwrap();
        for at in slot_addresses(&bytes) {
            let mut word = [0; 8];
            memory.read_exact_at(&mut word, base + at).unwrap();
            slots.insert(base + at, u64::from_le_bytes(word));
        }
    }
    slots
}

fn slot_addresses(bytes: &[u8]) -> Vec<u64> {
    let Ok(header) = elf::FileHeader64::<Endianness>::parse(bytes) else {
        return Vec::new();
    };
    let endian = header.endian().unwrap();
    let sections = header.sections(endian, bytes).unwrap();
    let mut addresses = Vec::new();
    for section in sections.iter() {
        use object::read::elf::SectionHeader;
        let Some((relocations, _)) = section.rela(endian, bytes).unwrap() else {
            continue;
        };
        let is_slot = |rela: &&elf::Rela64<Endianness>| {
            let kind = rela.r_type(endian, false);
            [elf::R_X86_64_JUMP_SLOT, elf::R_X86_64_GLOB_DAT].contains(&kind)
        };
        let offsets = relocations.iter().filter(is_slot);
        addresses.extend(offsets.map(|rela| rela.r_offset(endian)));
    }
    addresses
}

/// Slots that the loader had filled, and which hold something else now. Lazy ones point into their own
/// object until they are called.
fn changed(before: &BTreeMap<u64, u64>, after: &BTreeMap<u64, u64>, ours: (u64, u64)) -> usize {
    let is_ours = |value: &u64| (ours.0..ours.1).contains(value);
    assert!(before.values().all(|value| !is_ours(value)));
    after.values().filter(|value| is_ours(value)).count()
}

fn plugin_range(pid: u32) -> (u64, u64) {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let of_plugin = |line: &&str| line.ends_with("memory_profile.so");
    let ranges = maps.lines().filter(of_plugin).map(|line| {
        let (start, rest) = line.split_once('-').unwrap();
        let end = rest.split(' ').next().unwrap();
        let hex = |text| u64::from_str_radix(text, 16).unwrap();
        (hex(start), hex(end))
    });
    let ranges: Vec<_> = ranges.collect();
    (ranges[0].0, ranges[ranges.len() - 1].1)
}

#[test]
fn unmodified_program_is_profiled_and_restored() {
    let mut host = unmodified();
    // Lazy slots are filled by the first calls.
    serves(&mut host, "zero");
    let before = slots(host.pid());
    let attached = attach(&host, &[]).exits(0).json();
    assert_eq!(attached["status"], "ok", "{attached}");
    assert_eq!(attached["pid"], host.pid());
    assert_eq!(attached["name"], "perl");
    assert_eq!(attached["allocators"][0]["kind"], "glibc", "{attached}");
    let stopped = attached["stopped_ms"].as_f64().unwrap();
    assert!(stopped > 0.0 && stopped < 1000.0, "{attached}");
    let status = host.memprof("status", &["--json"]).exits(0).json();
    assert_eq!(status["profiling"], "inactive", "{status}");

    host.memprof("activate", &["sample_interval=4KiB"]).exits(0);
    let ours = plugin_range(host.pid());
    assert!(changed(&before, &slots(host.pid()), ours) > 2);
    serves(&mut host, "one");
    let dump = host.dump_of(1_000_000);
    let path = dump["path"].as_str().unwrap();
    let report = memprof(host.place(), &["report", path]).exits(0).stdout;
    assert!(report.contains("Perl_sv_"), "{report}");

    detach(&host, &[]).exits(0);
    assert_eq!(memprof_threads(&host), [""; 0]);
    assert!(!is_listed(&host));
    assert_eq!(changed(&before, &slots(host.pid()), ours), 0);
    serves(&mut host, "two");

    // The same image wakes.
    attach(&host, &[]).exits(0);
    assert_eq!(plugin_range(host.pid()), ours);
    let note = attach(&host, &[]).exits(0).json();
    let text = note["text"].as_str().unwrap();
    assert!(text.ends_with("(perl) has the plugin already"), "{text}");
    detach(&host, &[]).exits(0);
    serves(&mut host, "three");
}

#[test]
fn expired_attachment_ends_the_activation() {
    let mut host = unmodified();
    serves(&mut host, "zero");
    let before = slots(host.pid());
    attach(&host, &["--for", "1500ms"]).exits(0);
    host.memprof("activate", &["for=1h"]).exits(0);
    wait_until_gone(&host);
    assert!(!is_listed(&host));
    let ours = plugin_range(host.pid());
    assert_eq!(changed(&before, &slots(host.pid()), ours), 0);
    serves(&mut host, "one");
}

#[test]
fn record_attaches_and_detaches() {
    let mut host = unmodified();
    let kept = host.place().join("kept.heap");
    let mut recording = Command::new(crate::dist::dist("bin/memprof"))
        .args(["record", "--for", "2s", "--pid", &host.pid().to_string()])
        // Its own search for an interval would drop what was allocated before.
        .args(["--sample-interval", "512KiB"])
        .arg("-o")
        .arg(&kept)
        .env("MEMPROF_SOCKET_DIR", host.socket_dir())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    let is_active = || {
        let status = host.memprof("status", &["--json"]);
        status.code == 0 && status.json()["profiling"] == "active"
    };
    while !is_active() {
        assert!(begun.elapsed() < TEST_TIMEOUT, "{:?}", host.log());
    }
    // A sample for each 512 KiB: some of 20 MB.
    for _ in 0..10 {
        host.type_line("one");
    }
    let mut table = String::new();
    let mut output = recording.stdout.take().unwrap();
    output.read_to_string(&mut table).unwrap();
    assert!(recording.wait().unwrap().success(), "{table}");
    assert!(table.contains("Perl_sv_"), "{table}");
    assert!(kept.metadata().unwrap().len() > 0);
    assert_eq!(memprof_threads(&host), [""; 0]);
    assert!(!is_listed(&host));
}

/// Runs a command as typed, with `TARGET` in place of the host's.
fn typed(host: &Host, command: &str, target: &str) -> Run {
    let command = command.replace("TARGET", target);
    let words: Vec<_> = command.split(' ').collect();
    memprof(&host.socket_dir(), &words)
}

#[test]
fn every_command_takes_its_process_first() {
    let mut host = unmodified();
    serves(&mut host, "zero");
    let pid = host.pid().to_string();
    attach(&host, &[]).exits(0);
    let socket = host.socket().display().to_string();
    for target in [&*pid, &format!("perl/{pid}"), &socket] {
        for command in [
            "status TARGET",
            "activate TARGET for=1h",
            "stats TARGET",
            "doctor TARGET",
            "ledger TARGET",
            "dump TARGET",
            "list TARGET",
            "record TARGET --for 1",
        ] {
            let done = typed(&host, command, target);
            assert!([0, 5].contains(&done.code), "{command} {target}: {done:?}");
        }
    }
    let check = |command: &str, code: i32, expected: &str| {
        let refused = typed(&host, command, &pid);
        assert_eq!(refused.code, code, "{command}: {refused:?}");
        assert!(refused.stderr.contains(expected), "{command}: {refused:?}");
    };
    check("status TARGET -t web", 2, "and -t web: give one");
    check("record TARGET --pid TARGET", 2, "give one");
    check("status cat/TARGET", 3, "is not called cat");
    check("record cat/TARGET", 2, "is not called cat");
    check(
        "record TARGET foo",
        2,
        "expected allocator=NAME, sampler=NAME, ages=DURATION or labels=KEY",
    );
    check("record sampler=none", 2, "expected sampler=auto");
    check("record --keep-attached", 2, "need a process");
    check("holders no-such-program", 2, "no process has that name");
    typed(&host, "detach TARGET", &format!("perl/{pid}")).exits(0);
    serves(&mut host, "one");
}

#[test]
fn invalid_config_leaves_nothing_behind() {
    let mut host = unmodified();
    let file = host.place().join("plugin.toml");
    fs::write(&file, "lg_sample = 13\n").unwrap();
    let file = file.to_str().unwrap();
    let check = |args: &[&str], expected: &str| {
        let refused = attach(&host, args).exits(4);
        assert!(refused.stderr.contains(expected), "{refused:?}");
        wait_until_gone(&host);
    };
    check(&["no_such_key=1"], "no_such_key");
    check(
        &["dump"],
        "config word \"dump\" is not of the form key=value",
    );
    attach(&host, &["--config", file, "keep.count=3"]).exits(0);
    detach(&host, &[]).exits(0);
    serves(&mut host, "one");
}

#[test]
fn message_to_process_without_plugin_names_attach() {
    let host = unmodified();
    let refused = host.memprof("status", &[]).exits(3);
    let pid = host.pid();
    let remedy = format!("runs without the plugin: `memprof attach {pid}` loads it");
    assert!(refused.stderr.contains(&remedy), "{refused:?}");
    detach(&host, &[]).exits(3);
}

#[test]
fn detach_without_attachment_is_refused() {
    let host = crate::host::Setup::of("c_host").start();
    let refused = detach(&host, &[]).exits(4);
    assert!(refused.stderr.contains("deactivate"), "{refused:?}");
    let note = attach(&host, &[]).exits(0).json();
    assert_eq!(note["thread"], serde_json::Value::Null, "{note}");
}

#[test]
fn refused_process_error_names_the_reason() {
    let host = unmodified();
    let check = |code: i32, expected: &str| {
        let refused = attach(&host, &[]).exits(code);
        assert!(refused.stderr.contains(expected), "{refused:?}");
    };
    let pid = Pid::from_raw(host.pid().cast_signed());
    kill(pid, Signal::SIGSTOP).unwrap();
    let status = format!("/proc/{pid}/status");
    while !fs::read_to_string(&status).unwrap().contains("T (stopped)") {
        testkit::pause();
    }
    check(
        4,
        &format!("process is stopped; continue it first (kill -CONT {pid})"),
    );
    kill(pid, Signal::SIGCONT).unwrap();
    attach(&host, &[]).exits(0);
    detach(&host, &[]).exits(0);
    let none = memprof(host.place(), &["attach", "4194304"]).exits(3);
    assert!(none.stderr.contains("no such process"), "{none:?}");
}

#[test]
fn running_program_is_profiled_and_detached() {
    const COMPUTING: &str = r#"
        my @kept;
        print STDERR "ready\n";
        while (1) { push @kept, "x" x 1000 for 1 .. 100; @kept = () if @kept > 50000 }
    "#;
    let mut command = Command::new("perl");
    command.args(["-e", COMPUTING]);
    let host = Host::spawn(command, tempfile::tempdir().unwrap());
    host.wait_for_log("ready");
    for _ in 0..3 {
        attach(&host, &[]).exits(0);
        host.memprof("activate", &["sample_interval=4KiB"]).exits(0);
        let dump = host.dump_of(100_000);
        let path = dump["path"].as_str().unwrap();
        let report = memprof(host.place(), &["report", path]).exits(0).stdout;
        assert!(report.contains("Perl_sv_"), "{report}");
        detach(&host, &[]).exits(0);
        wait_until_gone(&host);
    }
}

#[test]
fn program_without_safe_point_is_not_attached() {
    // In the handler of a signal, which may have interrupted anything.
    const HANDLING: &str = r#"
        $SIG{USR1} = sub { print STDERR "ready\n"; 1 while 1 };
        kill USR1 => $$;
        1 while 1;
    "#;
    let mut command = Command::new("perl");
    command.args(["-e", HANDLING]).env("PERL_SIGNALS", "unsafe");
    let host = Host::spawn(command, tempfile::tempdir().unwrap());
    host.wait_for_log("ready");
    let refused = attach(&host, &[]).exits(4);
    // Then comes the reason of the last look, which may have met the handler between two of its frames.
    let words = "no thread came to a safe point in time: ";
    assert!(refused.stderr.contains(words), "{refused:?}");
}

#[test]
fn limit_without_room_is_named_and_nothing_left_behind() {
    let mut host = unmodified();
    let pid = host.pid().to_string();
    let mappings = || {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        maps.lines().count()
    };
    let hard = |row: &str| {
        let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
        let line = limits.lines().find_map(|line| line.strip_prefix(row));
        line.unwrap().split_whitespace().nth(1).unwrap().to_owned()
    };
    // Perl ends where it has no memory, so its start must be over.
    serves(&mut host, "zero");
    for (option, name, row) in [
        ("--data", "RLIMIT_DATA", "Max data size"),
        ("--as", "RLIMIT_AS", "Max address space"),
        ("--nofile", "RLIMIT_NOFILE", "Max open files"),
    ] {
        let before = mappings();
        let limit = format!("{option}=8:");
        let mut prlimit = Command::new("prlimit");
        tool_text("util-linux", prlimit.args(["--pid", &pid, &limit]));
        let hard_before = hard(row);
        let refused = attach(&host, &[]).exits(4);
        let named = format!("has no room for memprof: {name} is 8, ");
        assert!(refused.stderr.contains(&named), "{refused:?}");
        // Fewer: the stack of the thread that ended last at the detachment before.
        assert!(mappings() <= before);
        let (_, remedy) = refused
            .stderr
            .trim()
            .rsplit_once("raise it as root: ")
            .unwrap();
        tool_text("util-linux", Command::new("sh").args(["-c", remedy]));
        assert_eq!(hard(row), hard_before, "{remedy}");
        attach(&host, &[]).exits(0);
        detach(&host, &[]).exits(0);
        let limit = format!("{option}={hard_before}:");
        let mut prlimit = Command::new("prlimit");
        tool_text("util-linux", prlimit.args(["--pid", &pid, &limit]));
    }
    serves(&mut host, "one");
    attach(&host, &[]).exits(0);
    detach(&host, &[]).exits(0);
}

#[test]
fn fork_in_handlers_of_single_thread_is_warned_of() {
    let mut command = Command::new("perl");
    command
        .args(["-e", &format!("$SIG{{ALRM}} = sub {{}}; {GROWING}")])
        .stdin(Stdio::piped());
    let host = Host::spawn(command, tempfile::tempdir().unwrap());
    host.wait_for_log("ready");
    let text = |run: crate::memprof::Run| run.exits(0).json()["text"].to_string();
    let attached = text(attach(&host, &[]));
    assert!(
        attached.contains("if its handler of SIGALRM forks"),
        "{attached}"
    );
    detach(&host, &[]).exits(0);
    // No handler.
    let host = unmodified();
    let attached = text(attach(&host, &[]));
    assert!(!attached.contains("handler"), "{attached}");
    detach(&host, &[]).exits(0);
}

#[test]
fn program_with_small_stack_is_attached() {
    // Its new threads get stacks of that size, in which the loader finds no room.
    for kibibytes in [48, 64, 256] {
        let mut command = Command::new("sh");
        let script = format!("ulimit -s {kibibytes}; exec \"$0\"");
        let place = tempfile::tempdir().unwrap();
        let program = place.path().join("small");
        let source = place.path().join("small.c");
        fs::write(&source, SMALL).unwrap();
        tool_text(
            "gcc",
            Command::new("cc").arg("-o").arg(&program).arg(&source),
        );
        command
            .args(["-c", &script])
            .arg(&program)
            .stdin(Stdio::piped());
        let mut host = Host::spawn(command, place);
        host.wait_for_log("ready");
        attach(&host, &[]).exits(0);
        detach(&host, &[]).exits(0);
        serves(&mut host, "one");
    }
}

#[test]
fn forked_children_enter_user_namespaces_and_can_be_attached() {
    // unshare(2), CLONE_NEWUSER, which fails in a process of more than one thread.
    const SANDBOXING: &str = r#"
        use POSIX ();
        print STDERR "ready\n";
        while (<STDIN>) {
            my $refused = 0;
            for (1..100) {
                my $pid = fork() // die;
                POSIX::_exit(syscall(272, 0x10000000) == 0 ? 0 : 1) unless $pid;
                waitpid($pid, 0);
                $refused++ if $?;
            }
            if (!fork()) { close STDIN; sleep 1 while getppid() != 1 }
            print STDERR "refused $refused\n";
        }
    "#;
    let mut command = Command::new("perl");
    command.args(["-e", SANDBOXING]).stdin(Stdio::piped());
    let mut host = Host::spawn(command, tempfile::tempdir().unwrap());
    host.wait_for_log("ready");
    attach(&host, &[]).exits(0);
    let activated = memprof(
        &host.socket_dir(),
        &["activate", "-t", &host.pid().to_string()],
    );
    activated.exits(0);
    host.type_line("fork");
    host.wait_for_log("refused 0");
    let child = children(host.pid()).unwrap()[0].to_string();
    let run = |args: &[&str]| memprof(&host.socket_dir(), args);
    run(&["status", "-t", &child]).exits(3);
    run(&["attach", &child]).exits(0);
    run(&["detach", &child]).exits(0);
    detach(&host, &[]).exits(0);
}

#[test]
fn forked_children_are_attached_and_detached_as_a_tree() {
    const FORKING: &str = r#"
        print STDERR "ready\n";
        while (<STDIN>) { if (!fork()) { close STDIN; sleep 1 while getppid() != 1 } }
    "#;
    let mut command = Command::new("perl");
    command.args(["-e", FORKING]).stdin(Stdio::piped());
    let mut host = Host::spawn(command, tempfile::tempdir().unwrap());
    host.wait_for_log("ready");
    attach(&host, &["--children"]).exits(0);
    host.type_line("fork");
    let begun = Instant::now();
    let is_host = |pid: u32| {
        let args = ["status", "-t", &pid.to_string()];
        memprof(&host.socket_dir(), &args).code == 0
    };
    while !children(host.pid())
        .unwrap()
        .first()
        .is_some_and(|pid| is_host(*pid))
    {
        assert!(begun.elapsed() < TEST_TIMEOUT, "{:?}", host.log());
        testkit::pause();
    }
    let child = children(host.pid()).unwrap()[0];
    let left = detach(&host, &["--tree", "--json"]).exits(0).json();
    let mut pids = vec![host.pid(), child];
    pids.sort_unstable();
    assert_eq!(left["pids"], serde_json::json!(pids));
    assert!(!is_host(child));
    assert!(!is_listed(&host));
}

#[test]
fn process_in_other_namespaces_gets_the_plugin_as_memfd() {
    let mut command = Command::new("unshare");
    // The plugin's file is hidden there.
    let plugins = crate::dist::dist("plugins");
    let script = format!(
        "mount -t tmpfs none {} && exec perl -e \"$0\"",
        plugins.display()
    );
    command
        .args([
            "--user",
            "--map-root-user",
            "--mount",
            "--pid",
            "--fork",
            "--mount-proc",
            "--kill-child",
            "sh",
            "-c",
        ])
        .args([&script, GROWING])
        .stdin(Stdio::piped());
    let mut host = Host::spawn(command, tempfile::tempdir().unwrap());
    host.wait_for_log("ready");
    let inside = children(host.pid()).unwrap()[0].to_string();
    let dumps = format!("dump_dir={}", host.dump_dir().display());
    let run = |args: &[&str]| memprof(&host.socket_dir(), args).exits(0);
    run(&["attach", &inside, &dumps]);
    run(&["activate", "-t", &inside, "sample_interval=4KiB"]);
    host.type_line("one");
    host.wait_for_log("served one");
    let run = |args: &[&str]| memprof(&host.socket_dir(), args).exits(0);
    let kept = host.place().join("kept.heap");
    run(&["dump", "-t", &inside, "-o", kept.to_str().unwrap()]);
    let report = run(&["report", kept.to_str().unwrap()]).stdout;
    assert!(report.contains("Perl_sv_"), "{report}");
    run(&["detach", &inside]);
    // The next one finds the image under its name.
    run(&["attach", &inside, &dumps]);
    let maps = fs::read_to_string(format!("/proc/{inside}/maps")).unwrap();
    let images = |line: &&str| line.contains("memory_profile") && line.contains(" 00000000 ");
    assert_eq!(maps.lines().filter(images).count(), 1, "{maps}");
    run(&["detach", &inside]);
}

/// Perl after chroot(2), with its libraries, which are the C library's, and these directories.
fn in_chroot(directories: &[&str], has_proc: bool) -> Host {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().join("root");
    fs::create_dir(&root).unwrap();
    for directory in directories {
        fs::create_dir_all(root.join(directory)).unwrap();
    }
    // Perl reads it for `-e`.
    fs::create_dir_all(root.join("dev")).unwrap();
    File::create(root.join("dev/null")).unwrap();
    let perl = fs::canonicalize("/usr/bin/perl").unwrap();
    let libraries = tool_text("libc-bin", Command::new("ldd").arg(&perl));
    assert!(!libraries.contains("libgcc_s"), "{libraries}");
    for file in libraries
        .split_whitespace()
        .filter(|word| word.starts_with('/'))
        .chain(perl.to_str())
    {
        let copy = root.join(file.trim_start_matches('/'));
        fs::create_dir_all(copy.parent().unwrap()).unwrap();
        copy_program(file, copy);
    }
    let script = "test -z \"$PROC\" || mount -t proc proc \"$ROOT/proc\"; \
                  test ! -d \"$ROOT/dev/shm\" || mount -t tmpfs tmpfs \"$ROOT/dev/shm\"; exec env -u \
                  MEMPROF_SOCKET_DIR -u XDG_RUNTIME_DIR -u XDG_STATE_HOME chroot \"$ROOT\" \"$@\"";
    let mut command = Command::new("unshare");
    command.arg("--mount");
    if !nix::unistd::geteuid().is_root() {
        command.arg("--map-root-user");
    }
    command.args(["sh", "-ec", script, "sh"]).arg(&perl);
    command.args(["-e", GROWING]).stdin(Stdio::piped());
    command.env("ROOT", &root);
    command.env("PROC", if has_proc { "yes" } else { "" });
    let host = Host::spawn(command, place);
    host.wait_for_log("ready");
    host
}

/// Mappings that an attachment has added.
fn left_in(host: &Host, directory: &str) -> Vec<String> {
    let entries = fs::read_dir(format!("/proc/{}/root/{directory}", host.pid())).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names
        .filter(|name| name.starts_with("memprof-attach"))
        .collect()
}

#[test]
fn process_in_chroot_is_profiled_and_detached() {
    let check = |directories: &[&str], has_proc: bool| {
        let mut host = in_chroot(directories, has_proc);
        let pid = host.pid().to_string();
        let attached = memprof(&host.socket_dir(), &["attach", &pid]);
        attached.exits(0);
        for directory in [".", "tmp"] {
            if directories.contains(&"tmp") || directory == "." {
                assert_eq!(left_in(&host, directory), [""; 0], "{directories:?}");
            }
        }
        host.memprof("activate", &["sample_interval=4KiB"]).exits(0);
        serves(&mut host, "one");
        let kept = host.place().join("kept.heap");
        host.memprof("dump", &["-o", kept.to_str().unwrap()])
            .exits(0);
        let dump = fs::read_to_string(&kept).unwrap();
        assert!(dump.contains("# estimated-inuse-bytes: "), "{dump}");
        detach(&host, &[]).exits(0);
        wait_until_gone(&host);
        serves(&mut host, "two");
        // What sleeps in it wakes, without a file.
        memprof(&host.socket_dir(), &["attach", &pid]).exits(0);
        detach(&host, &[]).exits(0);
        serves(&mut host, "three");
    };
    check(&["proc", "tmp"], true);
    check(&["tmp", "dev/shm"], false);
    check(&["dev/shm"], false);
    check(&["proc"], true);
}
