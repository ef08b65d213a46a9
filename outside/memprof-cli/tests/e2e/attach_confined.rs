//! `memprof attach`: programs that confined themselves, or that may write nowhere.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use nix::unistd::geteuid;

use crate::dist::dist;
use crate::host::{Host, TEST_TIMEOUT};
use crate::memprof::{Run, memprof};
use crate::place::copy_program;
use crate::root::skip_without_root;

/// State of a process that an attachment may change and must restore.
#[derive(Debug, PartialEq)]
struct Seen {
    /// Every name below its root directory.
    names: BTreeSet<PathBuf>,
    /// Its line of /proc/PID/limits.
    thread_limit: String,
    threads: usize,
    /// Targets of the descriptors, except sockets, of which a server has others at each moment.
    descriptors: Vec<String>,
}

impl Seen {
    fn of(pid: u32, root: &Path) -> Self {
        let of = PathBuf::from(format!("/proc/{pid}"));
        let entries = |directory: &str| fs::read_dir(of.join(directory)).unwrap().flatten();
        let open = entries("fd").filter_map(|entry| fs::read_link(entry.path()).ok());
        let kind = |path: PathBuf| path.to_str().unwrap().split('[').next().unwrap().to_owned();
        let mut descriptors: Vec<String> =
            open.map(kind).filter(|kind| kind != "socket:").collect();
        descriptors.sort();
        let limits = fs::read_to_string(of.join("limits")).unwrap();
        let limit = limits
            .lines()
            .find(|line| line.starts_with("Max processes"));
        Self {
            names: names_below(root),
            thread_limit: limit.unwrap().to_owned(),
            threads: entries("task").count(),
            descriptors,
        }
    }
}

fn names_below(directory: &Path) -> BTreeSet<PathBuf> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(directory).unwrap().flatten() {
        if entry.file_type().unwrap().is_dir() {
            names.extend(names_below(&entry.path()));
        }
        names.insert(entry.path());
    }
    names
}

/// Waits until the threads of `before` are there again, and no others, and compares the rest.
fn is_left(pid: u32, root: &Path, before: &Seen) {
    let begun = Instant::now();
    while Seen::of(pid, root) != *before {
        let now = Seen::of(pid, root);
        assert!(begun.elapsed() < TEST_TIMEOUT, "{before:?}, now {now:?}");
        testkit::pause();
    }
}

/// Debian's `HAProxy` as its package configures it, but for its paths, with a frontend.
struct Haproxy {
    host: Host,
    port: u16,
    jail: PathBuf,
}

impl Haproxy {
    fn start(more: &str) -> Self {
        let place = tempfile::tempdir().unwrap();
        fs::set_permissions(place.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let jail = place.path().join("jail");
        fs::create_dir(&jail).unwrap();
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let config = fs::read_to_string("/etc/haproxy/haproxy.cfg").unwrap();
        assert!(config.contains("chroot /var/lib/haproxy") && config.contains("user haproxy"));
        let config = config.replace("/var/lib/haproxy", jail.to_str().unwrap());
        let config = config.replace("/run/haproxy/", &format!("{}/", place.path().display()));
        let serves = format!(
            "\nfrontend f\nbind 127.0.0.1:{port}\n\
             http-request return status 200 content-type text/plain lf-string \"hello %[path]\"\n\
             global\n{more}\n"
        );
        let file = place.path().join("haproxy.cfg");
        fs::write(&file, config + &serves).unwrap();
        let mut command = Command::new("env");
        command.args([
            "-u",
            "MEMPROF_SOCKET_DIR",
            "-u",
            "XDG_RUNTIME_DIR",
            "-u",
            "XDG_STATE_HOME",
        ]);
        command.args(["/usr/sbin/haproxy", "-Ws", "-f"]).arg(file);
        let haproxy = Self {
            host: Host::spawn(command, place),
            port,
            jail,
        };
        let begun = Instant::now();
        while haproxy.ask("/").is_none() {
            assert!(begun.elapsed() < TEST_TIMEOUT, "{:?}", haproxy.host.log());
            testkit::pause();
        }
        haproxy
    }

    fn worker(&self) -> u32 {
        let children = format!("/proc/{0}/task/{0}/children", self.host.pid());
        let children = fs::read_to_string(children).unwrap();
        children.trim().parse().unwrap()
    }

    fn ask(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        let request = format!("GET {path} HTTP/1.0\r\n\r\n");
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    /// A client that has not asked for anything yet.
    fn begin(&self) -> TcpStream {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: ").unwrap();
        stream
    }

    /// Has it work, and compares what all clients get.
    fn is_loaded(&self) {
        for path in 0..500 {
            let path = format!("/{path}");
            let answer = self.ask(&path).unwrap();
            assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
            assert!(answer.ends_with(&format!("hello {path}")), "{answer}");
        }
    }

    fn memprof(&self, args: &[&str]) -> Run {
        memprof(&self.host.socket_dir(), args)
    }
}

/// Whether this user may raise the limits of others (capabilities(7), `CAP_SYS_RESOURCE`).
fn raises_limits() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    u64::from_str_radix(line.unwrap().trim(), 16).unwrap() & 1 << 24 != 0
}

#[test]
fn stock_haproxy_is_profiled_in_its_chroot_and_detached() {
    if skip_without_root("attach_confined::stock_haproxy_is_profiled_in_its_chroot_and_detached") {
        return;
    }
    let stock = Haproxy::start("");
    stock.is_loaded();
    let before = Seen::of(stock.worker(), &stock.jail);
    assert!(before.thread_limit.contains(" 0 "), "{before:?}");
    let worker = stock.worker().to_string();
    let attached = stock.memprof(&["attach", &worker]);
    let mut haproxy = if raises_limits() {
        let words = "its limit of threads (RLIMIT_NPROC) is ";
        assert!(attached.exits(0).stdout.contains(words));
        stock.memprof(&["detach", &worker]).exits(0);
        is_left(stock.worker(), &stock.jail, &before);
        stock
    } else {
        let refused = attached.exits(4).stderr;
        let words = "may have no more threads (RLIMIT_NPROC is 0), and the limit could not be raised: Operation not \
                     permitted; run memprof as root with CAP_SYS_RESOURCE";
        assert!(refused.contains(words), "{refused}");
        is_left(stock.worker(), &stock.jail, &before);
        stock.is_loaded();
        drop(stock);
        Haproxy::start("insecure-fork-wanted")
    };
    haproxy.is_loaded();
    let pid = haproxy.worker();
    let before = Seen::of(pid, &haproxy.jail);
    let worker = pid.to_string();
    for round in 1..3 {
        haproxy.memprof(&["attach", &worker]).exits(0);
        let listed = haproxy.memprof(&["ps", "--json"]).exits(0).json();
        let hosts = listed["hosts"].as_array().unwrap();
        let host = hosts.iter().find(|host| host["pid"] == pid).unwrap();
        let socket = host["socket"].as_str().unwrap();
        assert!(
            socket.starts_with(&format!("/proc/{pid}/ns/net/@memprof-")),
            "{socket}"
        );
        haproxy
            .memprof(&["activate", "-t", &worker, "sample_interval=1KiB"])
            .exits(0);
        // More than before, because HAProxy keeps what it has allocated.
        let open: Vec<TcpStream> = (0..100 * round).map(|_| haproxy.begin()).collect();
        haproxy.is_loaded();
        assert_eq!(names_below(&haproxy.jail), before.names);
        let kept = haproxy.host.place().join("kept.heap");
        let kept = kept.to_str().unwrap();
        haproxy
            .memprof(&["dump", "-t", socket, "-o", kept])
            .exits(0);
        let report = haproxy.memprof(&["report", kept]).exits(0).stdout;
        // Of what its file exports.
        assert!(report.contains("run_poll_loop"), "{report}");
        haproxy.memprof(&["detach", &worker]).exits(0);
        is_left(pid, &haproxy.jail, &before);
        drop(open);
        haproxy.is_loaded();
    }
    haproxy.host.terminate();
}

/// Grows without end, and answers a line with a line.
const GROWING: &str = r#"
    $| = 1;
    my @kept;
    sub grow { push @kept, "x" x 1000 for 1 .. 20000 }
    print STDERR "ready\n";
    while (<STDIN>) { grow(); print STDERR "served $_" }
"#;

/// Perl, after a shell's commands.
fn perl_after(command: &[&str], script: &str) -> Host {
    let mut unshared = Command::new(command[0]);
    unshared.args(&command[1..]);
    unshared.args([
        "sh",
        "-ec",
        &format!("{script}; exec env -u MEMPROF_SOCKET_DIR -u XDG_RUNTIME_DIR perl -e \"$0\""),
    ]);
    unshared.arg(GROWING).stdin(Stdio::piped());
    let host = Host::spawn(unshared, tempfile::tempdir().unwrap());
    host.wait_for_log("ready");
    host
}

#[test]
fn process_without_writable_directory_sends_its_dump() {
    if skip_without_root("attach_confined::process_without_writable_directory_sends_its_dump") {
        return;
    }
    // As a container with a read-only root directory, and with a network of its own.
    let script = "mount --make-rprivate / && for place in $(findmnt -rno TARGET); do \
                  case $place in /proc*) ;; *) mount -o remount,bind,ro $place || true ;; esac; done; \
                  ! touch /tmp/x /run/x /var/lib/x /dev/shm/x 2>/dev/null";
    let check = |unshare: &[&str]| {
        let mut host = perl_after(unshare, script);
        let pid = host.pid().to_string();
        let run = |args: &[&str]| memprof(&host.socket_dir(), args).exits(0);
        run(&["attach", &pid]);
        run(&["activate", "-t", &pid, "sample_interval=4KiB"]);
        host.type_line("one");
        host.wait_for_log("served one");
        let run = |args: &[&str]| memprof(&host.socket_dir(), args).exits(0);
        let kept = host.place().join("kept.heap");
        let dumped = run(&["dump", "-t", &pid, "-o", kept.to_str().unwrap()]);
        assert!(
            dumped.stderr.contains("the host keeps no copy"),
            "{dumped:?}"
        );
        let report = run(&["report", kept.to_str().unwrap()]).stdout;
        assert!(report.contains("Perl_sv_"), "{report}");
        run(&["detach", &pid]);

        fs::remove_file(&kept).unwrap();
        let mut recording = Command::new(dist("bin/memprof"));
        recording
            .args(["record", "--for", "2s", "--pid", &pid, "-o"])
            .arg(&kept)
            // Found by itself, the interval may drop the samples of the only request.
            .args(["--sample-interval", "16KiB"]);
        recording
            .env("MEMPROF_SOCKET_DIR", host.socket_dir())
            .stdout(Stdio::piped());
        let mut recording = recording.spawn().unwrap();
        let is_active = || {
            let status = memprof(&host.socket_dir(), &["status", "-t", &pid, "--json"]);
            status.code == 0 && status.json()["profiling"] == "active"
        };
        let begun = Instant::now();
        while !is_active() {
            assert!(begun.elapsed() < TEST_TIMEOUT, "{:?}", host.log());
        }
        host.type_line("two");
        let mut table = String::new();
        recording
            .stdout
            .take()
            .unwrap()
            .read_to_string(&mut table)
            .unwrap();
        assert!(recording.wait().unwrap().success(), "{table}");
        assert!(table.contains("Perl_sv_"), "{table}");
        assert!(kept.metadata().unwrap().len() > 0);
    };
    check(&["unshare", "--mount"]);
    check(&["unshare", "--mount", "--net"]);
}

/// Where a process may write in its own root directory, as in a container, nothing stays there.
#[test]
fn record_leaves_nothing_in_another_root() {
    assert!(
        geteuid().is_root(),
        "this test changes a root directory, and needs root"
    );
    let root = tempfile::tempdir().unwrap();
    for directory in ["tmp", "var/lib", "run"] {
        fs::create_dir_all(root.path().join(directory)).unwrap();
    }
    let script = "my @held; chroot $ARGV[0] or die; chdir '/'; print STDERR \"ready\\n\"; \
                  while (1) { push @held, 'x' x 100000; shift @held if @held > 300; select(undef, undef, undef, 0.001) }";
    let mut perl = Command::new("env");
    // Its own defaults, as in a container: /tmp and /var/lib.
    for variable in ["XDG_STATE_HOME", "XDG_RUNTIME_DIR", "MEMPROF_SOCKET_DIR"] {
        perl.args(["-u", variable]);
    }
    perl.args(["perl", "-e", script]).arg(root.path());
    let host = Host::spawn(perl, tempfile::tempdir().unwrap());
    host.wait_for_log("ready");
    let before = names_below(root.path());
    let pid = host.pid().to_string();
    let mut record = Command::new(dist("bin/memprof"));
    record
        .args(["record", &pid, "--for", "1s"])
        .env_remove("XDG_RUNTIME_DIR");
    let recording = Run::from_command(&mut record).exits(0);
    assert_eq!(names_below(root.path()), before, "{}", recording.stderr);
}

#[test]
fn low_thread_limit_is_raised_for_the_attachment() {
    if skip_without_root("attach_confined::low_thread_limit_is_raised_for_the_attachment") {
        return;
    }
    const USER: &str = "54321";
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), PermissionsExt::from_mode(0o755)).unwrap();
    // Another user's, who may not be able to enter where the original lies.
    let files = ["bin/memprof", "plugins/memory_profile.so"].map(|file| {
        let copy = place.path().join(Path::new(file).file_name().unwrap());
        copy_program(dist(file), &copy);
        copy
    });
    let [program, plugin] = files;
    let user = [
        "setpriv",
        "--reuid",
        USER,
        "--regid",
        USER,
        "--clear-groups",
    ];
    let host = perl_after(
        &[&user[..], &["prlimit", "--nproc=0:1000"]].concat(),
        "cd /",
    );
    let pid = host.pid();
    let before = Seen::of(pid, place.path());
    let run = |args: &[&str]| {
        let mut command = Command::new(user[0]);
        command
            .args(&user[1..])
            .arg(&program)
            .args(args)
            .env_remove("XDG_RUNTIME_DIR");
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{args:?}: {output:?}");
        text
    };
    let attached = run(&[
        "attach",
        &pid.to_string(),
        "--plugin",
        plugin.to_str().unwrap(),
    ]);
    let words = "its limit of threads (RLIMIT_NPROC) is ";
    assert!(
        attached.contains(words) && attached.contains("until then; it was 0"),
        "{attached}"
    );
    assert_ne!(
        Seen::of(pid, place.path()).thread_limit,
        before.thread_limit
    );
    // Each connection gets a thread.
    run(&["activate", "-t", &pid.to_string()]);
    run(&["detach", &pid.to_string()]);
    is_left(pid, place.path(), &before);
}

/// Attaches with a copy of the plugin's file at a place, and detaches.
fn is_entered_with_plugin_in(place: &Path, host: &Host) {
    let copy = place.join("memory_profile.so");
    let pid = host.pid().to_string();
    let run = |args: &[&str]| {
        let mut command = Command::new(dist("bin/memprof"));
        let output = command.args(args).env_remove("XDG_RUNTIME_DIR").output();
        let output = output.unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
    };
    run(&["attach", &pid, "--plugin", copy.to_str().unwrap()]);
    run(&["detach", &pid]);
}

#[test]
fn unreadable_plugin_is_loaded_as_memfd() {
    assert!(
        geteuid().is_root(),
        "this test takes another user's part, and needs root"
    );
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let file = dist("plugins/memory_profile.so");
    fs::copy(file, place.path().join("memory_profile.so")).unwrap();
    let other_user = [
        "setpriv",
        "--reuid",
        "65534",
        "--regid",
        "65534",
        "--clear-groups",
    ];
    is_entered_with_plugin_in(place.path(), &perl_after(&other_user, "cd /"));
    let directory = place.path().display();
    let noexec =
        format!("mount --bind {directory} {directory} && mount -o remount,bind,noexec {directory}");
    is_entered_with_plugin_in(place.path(), &perl_after(&["unshare", "--mount"], &noexec));
}
