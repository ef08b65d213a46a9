//! `memprof run`: programs of Debian's, as they are.

use std::collections::BTreeSet;
use std::io::Read;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::dist::dist;
use crate::host::{Host, TEST_TIMEOUT};
use crate::hosts::cumulative_percent;
use crate::memprof::memprof;
use crate::place::copy_program;

/// Grows without end, and answers a line with a line.
const GROWING: &str = r#"
    $| = 1;
    my @kept;
    sub grow { push @kept, "x" x 1000 for 1 .. 2000 }
    while (<STDIN>) { grow(); print STDERR "served $_" }
"#;

/// `memprof run ARGS`, which reads what the test writes.
fn run(args: &[&str], env: &[(&str, &str)]) -> Host {
    let mut command = Command::new(dist("bin/memprof"));
    command.arg("run").args(args);
    start(command, env)
}

fn start(mut command: Command, env: &[(&str, &str)]) -> Host {
    command
        .env("MEMPROF_LOG", "info")
        .stdin(Stdio::piped())
        .envs(env.iter().copied());
    Host::spawn(command, tempfile::tempdir().unwrap())
}

/// Checks that the program answers a line.
fn serves(host: &mut Host, line: &str) {
    host.type_line(line);
    host.wait_for_log(&format!("served {line}"));
}

fn listed(host: &Host, pid: u32) -> Option<Value> {
    let listing = memprof(&host.socket_dir(), &["ps", "--json"])
        .exits(0)
        .json();
    let hosts = listing["hosts"].as_array().unwrap();
    hosts.iter().find(|row| row["pid"] == pid).cloned()
}

fn wait_until_listed(host: &Host, pid: u32) -> Value {
    let begun = Instant::now();
    loop {
        if let Some(row) = listed(host, pid) {
            return row;
        }
        assert!(
            begun.elapsed() < TEST_TIMEOUT,
            "{pid} is not listed: {:?}",
            host.log()
        );
    }
}

#[test]
fn unmodified_perl_is_profiled() {
    let check = |options: &[&str], allocator: &str, sampler: &str, prints: &str| {
        let args = [options, &["--lg-sample", "12", "--", "perl", "-e", GROWING]].concat();
        let mut host = run(&args, &[]);
        host.wait_for_log("control socket ");
        let row = wait_until_listed(&host, host.pid());
        assert_eq!(row["name"], "perl");
        assert_eq!(row["profiling"], "inactive");
        let found = row["allocator"].as_str().unwrap();
        assert!(found.starts_with(allocator), "{row}");
        let command = row["command"].as_str().unwrap();
        assert!(command.starts_with("perl -e"), "{row}");

        let active = host.memprof("activate", &["--json"]).exits(0).json();
        assert_eq!(active["allocators"][0]["sampler"], sampler, "{active}");
        // A thread of tcmalloc's begins to sample within 16 MiB.
        for line in [
            "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
        ] {
            serves(&mut host, line);
        }
        let dump = host.dump_of(1_000_000);
        assert_eq!(dump["sample_interval"], 4096, "{dump}");
        let perl = Path::new("/usr/bin/perl").canonicalize().unwrap();
        let path = Path::new(dump["path"].as_str().unwrap());
        let percent = cumulative_percent(&perl, path, "Perl_runops_standard");
        assert!(percent >= 80.0, "{percent} %");
        let stats = host.memprof("stats", &[]).exits(0);
        assert!(stats.stdout.contains(prints), "{stats:?}");
        host.memprof("deactivate", &[]).exits(0);
        serves(&mut host, "still");
    };
    check(&[], "glibc 2", "memprof", "\narena 0 ");
    let jemalloc = "End jemalloc statistics";
    check(
        &["--allocator", "jemalloc"],
        "jemalloc 5",
        "allocator",
        jemalloc,
    );
    check(
        &["--allocator", "tcmalloc"],
        "tcmalloc 2",
        "allocator",
        "MALLOC:",
    );
    let minimal = "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4";
    check(
        &["--allocator", minimal],
        "tcmalloc 2",
        "memprof",
        "MALLOC:",
    );
}

/// Memory that perl itself allocates before the plugin is loaded, and keeps.
const GROWN: &str = r#"
    my @kept = map { "x" x 1000 } 1 .. 4000;
    print STDERR "grown\n";
    1 while <STDIN>;
"#;

#[test]
fn sampling_can_start_with_the_program() {
    let check = |options: &[&str], least: u64| {
        let args = ["--active", "--lg-sample", "12", "perl", "-e", GROWN];
        let host = run(&[options, &args].concat(), &[]);
        host.wait_for_log("grown");
        host.wait_for_log("control socket ");
        let status = host.memprof("status", &["--json"]).exits(0).json();
        assert_eq!(status["profiling"], "active", "{status}");
        let dump = host.memprof("dump", &["--json"]).exits(0).json();
        let inuse = dump["estimated_inuse_bytes"].as_u64().unwrap();
        assert!(inuse >= least, "{options:?}: {dump}");
        assert_eq!(dump["sample_interval"], 4096, "{dump}");
    };
    check(&[], 3_000_000);
    check(&["--allocator", "jemalloc"], 3_000_000);
    // It allocates before it reads its environment, and then skips the next 16 MiB.
    check(&["--allocator", "tcmalloc"], 0);
}

#[test]
fn dumps_go_to_the_directory_of_run() {
    let place = tempfile::tempdir().unwrap();
    let dumps = place.path().join("dumps");
    let config = place.path().join("plugin.toml");
    std::fs::write(&config, "lg_sample = 13\nactivate_at_start = true\n").unwrap();
    let (dumps, config) = (dumps.to_str().unwrap(), config.to_str().unwrap());
    let options = ["--dump-dir", dumps, "--config", config];
    let host = run(&[&options[..], &["perl", "-e", GROWING]].concat(), &[]);
    host.wait_for_log("control socket ");
    let dump = host.memprof("dump", &["--json"]).exits(0).json();
    let path = dump["path"].as_str().unwrap();
    assert!(path.starts_with(dumps), "{path}");
    assert_eq!(dump["sample_interval"], 8192, "{dump}");
    let missing = memprof(place.path(), &["run", "--config", "/no/such", "true"]).exits(1);
    assert!(
        missing.stderr.contains("no config file at /no/such"),
        "{missing:?}"
    );
}

#[test]
fn invalid_dump_directory_is_reported_at_the_start() {
    // A user without a home meets this one, and root too.
    let nowhere = ["--dump-dir", "/etc/passwd/dumps"];
    let host = run(&[&nowhere[..], &["perl", "-e", GROWING]].concat(), &[]);
    let line = host.wait_for_log("keep dumps in /etc/passwd/dumps");
    assert!(line.contains("memprof run --dump-dir DIR"), "{line}");
}

#[test]
fn user_settings_are_kept() {
    let env = [
        ("MALLOC_CONF", "lg_prof_sample:16"),
        ("LD_PRELOAD", "libm.so.6"),
    ];
    let options = ["--allocator", "jemalloc", "--lg-sample", "12"];
    let host = run(&[&options[..], &["perl", "-e", GROWING]].concat(), &env);
    host.wait_for_log("MALLOC_CONF already sets lg_prof_sample:16, which is kept");
    host.wait_for_log("control socket ");
    let status = host.memprof("status", &["--json"]).exits(0).json();
    assert_eq!(status["sample_interval"], 65536, "{status}");
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", host.pid())).unwrap();
    assert!(maps.contains("libm.so.6"), "{maps}");
}

/// Whatever memprof does while the program does nothing, the profile stays empty.
#[test]
fn memprof_s_own_memory_is_not_in_a_profile() {
    for options in [&[][..], &["--allocator", "jemalloc"]] {
        let args = [options, &["--lg-sample", "10", "--", "cat"]].concat();
        let host = run(&args, &[]);
        host.wait_for_log("control socket ");
        host.memprof("activate", &[]).exits(0);
        for _ in 0..20 {
            for message in ["status", "stats", "ledger", "doctor", "list", "help"] {
                let mut client = host.client();
                let answered = client.message("memory_profile", message, "", None);
                assert_eq!(answered.unwrap().result.status_code, 0, "{message}");
            }
        }
        let dump = host.memprof("dump", &["--json"]).exits(0).json();
        assert_eq!(dump["stacks"], 0, "{options:?}: {dump}");
        let text = std::fs::read_to_string(dump["path"].as_str().unwrap()).unwrap();
        let plugin = dist("plugins/memory_profile.so");
        let image = format!("# memprof-image: {}\n", plugin.display());
        assert!(text.contains(&image), "{text}");
    }
}

#[test]
fn invalid_messages_get_a_reply() {
    let mut host = run(&["perl", "-e", GROWING], &[]);
    host.wait_for_log("control socket ");
    let check = |message: &str| {
        let args = ["memory_profile", message, "--json"];
        let refused = host.memprof("msg", &args).exits(2).json();
        assert_eq!(
            refused["error"]["kind"], "unknown_message",
            "{message:?}: {refused}"
        );
    };
    check("d");
    check("dumpp");
    check("DUMP");
    check("");
    let huge = "x".repeat(100_000);
    let refused = host.memprof("msg", &["memory_profile", &huge]).exits(2);
    assert!(refused.stderr.contains("at most 4096 bytes"), "{refused:?}");
    serves(&mut host, "still");
}

/// The environment of a process, as it was started.
fn environment(pid: u32) -> String {
    let bytes = std::fs::read(format!("/proc/{pid}/environ")).unwrap();
    String::from_utf8_lossy(&bytes).replace('\0', "\n")
}

#[test]
fn only_profiling_jemalloc_gets_options() {
    let place = tempfile::tempdir().unwrap();
    let config = place.path().join("host.toml");
    std::fs::write(&config, "[control]\nsocket = \"off\"\n").unwrap();
    let rust_host = dist("examples/rust_host");
    let rust_host = [
        rust_host.to_str().unwrap(),
        "--config",
        config.to_str().unwrap(),
    ];
    // With another text in the place of the one that only builds with profiling have.
    let unprofiled = place.path().join("rust_host");
    let mut file = std::fs::read(rust_host[0]).unwrap();
    let text = b"<jemalloc>: Leak approximation";
    let at = file.windows(text.len()).position(|window| window == text);
    file[at.unwrap()] = b'!';
    std::fs::write(&unprofiled, file).unwrap();
    std::fs::set_permissions(&unprofiled, PermissionsExt::from_mode(0o755)).unwrap();
    let unprofiled = [unprofiled.to_str().unwrap(), rust_host[1], rust_host[2]];
    let check = |options: &[&str], program: &[&str], expected: &[&str]| {
        let host = run(&[options, &["--"], program].concat(), &[]);
        host.wait_for_log("control socket ");
        let environment = environment(host.pid());
        let set = environment
            .lines()
            .filter(|line| line.contains("MALLOC_CONF="));
        assert_eq!(set.collect::<Vec<_>>(), expected, "{options:?} {program:?}");
    };
    let cat = &["cat"];
    let both = "MALLOC_CONF=prof:true,prof_active:false";
    let own = "_RJEM_MALLOC_CONF=prof:true,prof_active:false";
    check(&[], cat, &[]);
    check(&["--active"], cat, &[]);
    check(&["--allocator", "jemalloc"], cat, &[both]);
    check(&["--allocator", "tcmalloc"], cat, &[]);
    check(&[], &rust_host, &[own]);
    check(&[], &unprofiled, &[]);
    check(&["--allocator", "jemalloc"], &unprofiled, &[both]);
}

#[test]
fn program_linked_to_jemalloc_is_profiled_by_it() {
    let place = tempfile::tempdir().unwrap();
    let socket = place.path().join("redis.sock").display().to_string();
    let args = ["--", "redis-server", "--port", "0", "--unixsocket", &socket];
    let host = run(&args, &[]);
    host.wait_for_log("control socket ");
    let active = host.memprof("activate", &["--json"]).exits(0).json();
    let own = &active["allocators"][0];
    assert_eq!(own["kind"], "jemalloc", "{active}");
    assert_eq!(
        (&own["opt_prof"], &own["sampler"]),
        (&true.into(), &"allocator".into())
    );
}

/// Loads its extensions, which call the C library's free for what php itself allocated.
const PHP: &str = r#"
    class Cache { public $kept = []; function grow() { $this->kept[] = str_repeat("x", 6000000); } }
    $cache = new Cache;
    while (($line = fgets(STDIN)) !== false) {
        $cache->grow();
        fprintf(STDERR, "%d %s\nserved %s", count($cache->kept), md5(json_encode($cache)), $line);
    }
"#;

#[test]
fn php_keeps_its_allocator_and_its_output() {
    let script = ["php", "-r", PHP];
    let answers = |host: &mut Host| {
        for line in ["one", "two", "three"] {
            serves(host, line);
        }
        let lines = host.log();
        let answer = |line: &&String| line.len() > 33 && !line.contains("memprof");
        lines.iter().filter(answer).cloned().collect::<Vec<_>>()
    };
    // php's own arenas are mappings, which no allocator's profile shows.
    let env = [("USE_ZEND_ALLOC", "0")];
    let mut command = Command::new(script[0]);
    command.args(&script[1..]);
    let mut without = start(command, &env);
    let expected = answers(&mut without);
    assert_eq!(expected.len(), 3, "{expected:?}");
    let options = ["--active", "--lg-sample", "12", "--"];
    let mut host = run(&[&options, &script[..]].concat(), &env);
    host.wait_for_log("control socket ");
    assert_eq!(answers(&mut host), expected);
    let dump = host.dump_of(18_000_000);
    let php = Path::new("/usr/bin/php").canonicalize().unwrap();
    let path = Path::new(dump["path"].as_str().unwrap());
    let percent = cumulative_percent(&php, path, "zend_execute");
    assert!(percent >= 80.0, "{percent} %");
    host.memprof("deactivate", &[]).exits(0);
    host.memprof("reset", &[]).exits(0);
    serves(&mut host, "four");
}

/// A program with threads that allocate, which forks one child that stays and one that executes
/// another program. Both end with it.
const FORKING: &str = r#"
    use threads;
    $| = 1;
    sub grow { my @kept; while (1) { @kept = map { "x" x 1000 } 1 .. 500 } }
    threads->create(\&grow)->detach for 1 .. 3;
    pipe(my $end, my $alive) or die;
    my $stays = fork // die;
    if (!$stays) { close $alive; 1 while <$end>; exit }
    my $runs = fork // die;
    if (!$runs) { close $alive; open STDIN, "<&", $end or die; exec "cat" or die }
    print STDERR "forked $stays $runs\n";
    while (<STDIN>) { last if /end/; print STDERR "served $_" }
    exit;
"#;

#[test]
fn forked_and_executed_children_have_separate_sockets() {
    let mut host = run(
        &["--active", "--lg-sample", "12", "perl", "-e", FORKING],
        &[],
    );
    let line = host.wait_for_log("forked ");
    let mut children = line
        .split(' ')
        .skip(1)
        .map(|pid| pid.parse::<u32>().unwrap());
    let (stays, runs) = (children.next().unwrap(), children.next().unwrap());
    let check = |pid: u32, name: &str| {
        assert_eq!(wait_until_listed(&host, pid)["name"], name);
        let target = pid.to_string();
        let args = ["dump", "-t", &target, "--json"];
        let dump = memprof(&host.socket_dir(), &args).exits(0).json();
        assert!(
            dump["id"].as_str().unwrap().contains(&format!(".{pid}.")),
            "{dump}"
        );
    };
    check(host.pid(), "perl");
    check(stays, "perl");
    check(runs, "cat");
    let own = listening(host.pid());
    assert_eq!(own.len(), 1, "{own:?}");
    for child in [stays, runs] {
        let shared = listening(child).iter().any(|inode| own.contains(inode));
        assert!(!shared, "{child} holds the socket of its parent");
    }
    serves(&mut host, "still");
    host.type_line("end");
    assert!(host.wait().success());
    assert!(!host.socket().exists(), "its socket is left over");
}

/// The inodes of the unix sockets that threads of a process listen on.
fn listening(pid: u32) -> Vec<String> {
    let listening: Vec<String> = std::fs::read_to_string("/proc/net/unix")
        .unwrap()
        .lines()
        .filter(|line| line.split_whitespace().nth(3) == Some("00010000"))
        .filter_map(|line| Some(format!("socket:[{}]", line.split_whitespace().nth(6)?)))
        .collect();
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let tables = threads.filter_map(|thread| thread.unwrap().path().join("fd").read_dir().ok());
    let sockets: BTreeSet<String> = tables
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path().read_link().ok()?.display().to_string()))
        .filter(|target| listening.contains(target))
        .collect();
    sockets.into_iter().collect()
}

/// Closes every descriptor once the control socket is open, and listens on sockets of its own
/// under the same numbers.
const CLOSING: &str = r#"
    use POSIX ();
    use IO::Socket::INET;
    $| = 1;
    <STDIN>;
    POSIX::close($_) for 3 .. 255;
    my @own = map { IO::Socket::INET->new(Listen => 5, LocalAddr => "127.0.0.1") or die } 1 .. 9;
    print STDERR "closed ", join(" ", map { $_->sockport } @own), "\n";
    for my $own (@own) { my $client = $own->accept; print $client "hello\n"; close $client }
    print STDERR "served all\n";
    1 while <STDIN>;
"#;

#[test]
fn daemon_that_closes_all_descriptors_is_reachable_again() {
    let mut host = run(&["perl", "-e", CLOSING], &[]);
    host.wait_for_log("control socket ");
    host.type_line("close");
    let line = host.wait_for_log("closed ");
    // If no thread waited in accept(2), the socket is missing until the thread opens another one.
    wait_until_listed(&host, host.pid());
    for _ in 0..3 {
        host.memprof("status", &[]).exits(0);
    }
    for port in line.split(' ').skip(1) {
        let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
        stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        let mut greeting = String::new();
        stream.read_to_string(&mut greeting).unwrap();
        assert_eq!(greeting, "hello\n", "port {port}");
    }
    host.wait_for_log("served all");
    host.memprof("status", &[]).exits(0);
}

/// Forks twice and lets the parents end, as a daemon does.
const DAEMON: &str = r#"
    use POSIX ();
    $| = 1;
    fork and POSIX::_exit(0);
    POSIX::setsid();
    fork and POSIX::_exit(0);
    print STDERR "daemon $$\n";
    while (<STDIN>) { print STDERR "served $_" }
"#;

/// A program that forks a child on command; the child exits after a request.
const ENDING: &str = r#"
    $| = 1;
    <STDIN>;
    my $child = fork // die;
    if (!$child) { my $asked = 0; $SIG{USR1} = sub { $asked = 1 }; print STDERR "child $$\n";
                   select(undef, undef, undef, 0.01) until $asked; exit }
    waitpid $child, 0;
    print STDERR "child ended\n";
    while (<STDIN>) { exit if /end/ }
"#;

/// A forked child follows the config of the process that loaded the plugin: it watches and dumps at its end as that
/// does, and may have a gdump of its own.
#[test]
fn forked_child_has_the_watch_rules_of_its_parent() {
    let place = tempfile::tempdir().unwrap();
    let config = place.path().join("memprof.toml");
    let dumps = place.path().join("dumps");
    let rules = "[[watch]]\nrss_growth = \"1MiB\"\n[[watch]]\nat_exit = true\n";
    std::fs::write(&config, format!("dump_dir = {dumps:?}\n{rules}")).unwrap();
    let config = ("MEMPROF_CONFIG", config.to_str().unwrap());
    let mut host = run(&["--active", "perl", "-e", ENDING], &[config]);
    // The plugin is there by now; a child forked before would load its own copy.
    wait_until_listed(&host, host.pid());
    host.type_line("fork");
    let line = host.wait_for_log("child ");
    let child: u32 = line.trim_start_matches("child ").parse().unwrap();
    wait_until_listed(&host, child);
    let ask = |pid: u32, args: &[&str]| {
        let pid = pid.to_string();
        let args = [args, &["-t", &pid, "--json"]].concat();
        memprof(&host.socket_dir(), &args).exits(0).json()
    };
    for pid in [host.pid(), child] {
        assert_eq!(ask(pid, &["status"])["watch"][1]["rule"], "at_exit = true");
    }
    assert_eq!(ask(child, &["gdump", "state=on"])["gdump"]["files"], 16);
    assert_eq!(ask(host.pid(), &["status"])["gdump"], Value::Null);
    kill(Pid::from_raw(child.cast_signed()), Signal::SIGUSR1).unwrap();
    host.wait_for_log("child ended");
    host.type_line("end");
    assert!(host.wait().success());
    let names = std::fs::read_dir(&dumps).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let at_exit: Vec<_> = names.filter(|name| name.contains(".at-exit.")).collect();
    for pid in [host.pid(), child] {
        let of_process = at_exit
            .iter()
            .filter(|name| name.contains(&format!(".{pid}.")));
        assert_eq!(of_process.count(), 1, "{at_exit:?}");
    }
}

#[test]
fn daemon_is_reached_under_its_own_pid() {
    let mut host = run(&["perl", "-e", DAEMON], &[]);
    let line = host.wait_for_log("daemon ");
    let pid: u32 = line.trim_start_matches("daemon ").parse().unwrap();
    assert_eq!(wait_until_listed(&host, pid)["profiling"], "inactive");
    serves(&mut host, "daemon");
}

#[test]
fn program_that_is_a_host_keeps_its_own_socket() {
    let place = tempfile::tempdir().unwrap();
    let config = place.path().join("host.toml");
    let plugin = dist("plugins/memory_profile.so");
    std::fs::write(&config, format!("[[plugin]]\npath = {plugin:?}\n")).unwrap();
    let (program, config) = (dist("examples/c_host"), config.display().to_string());
    let keeps_its_socket = |_| {
        let host = run(&[program.to_str().unwrap(), "--config", &config], &[]);
        let own = "this program is a memprof host itself";
        let line = host.wait_for_any(&[own, "memprof: info: control socket "]);
        line.contains(own) && host.memprof("activate", &[]).code == 0
    };
    // On a busy machine the program may start its host later than the plugin starts itself.
    assert!((0..20).any(keeps_its_socket));
}

#[test]
fn two_preloaded_plugins_have_a_socket_each() {
    let [profile, hello] = ["memory_profile", "hello_rust"]
        .map(|name| dist(&format!("plugins/{name}.so")).display().to_string());
    let mut command = Command::new("sleep");
    command.arg("60");
    let preload = format!("{profile}:{hello}");
    let host = start(
        command,
        &[("MEMPROF_RUN", "1"), ("LD_PRELOAD", preload.as_str())],
    );
    let pid = host.pid().to_string();
    for socket in [format!("{pid}.sock"), format!("{pid}.2.sock")] {
        host.wait_for_log(&socket);
    }
    for (plugin, message) in [("memory_profile", "status"), ("hello_rust", "hello")] {
        let args = ["msg", &pid, plugin, message];
        memprof(&host.socket_dir(), &args).exits(0);
    }
}

#[test]
fn command_to_program_that_was_just_started_waits_for_it() {
    for _ in 0..5 {
        let host = run(&["--", "cat"], &[]);
        host.memprof("status", &[]).exits(0);
    }
}

#[test]
fn own_jemalloc_is_reported_and_profiled() {
    let check = |options: &[&str], program: &str, note: &str| {
        let place = tempfile::tempdir().unwrap();
        let config = place.path().join("host.toml");
        std::fs::write(&config, "[control]\nsocket = \"off\"\n").unwrap();
        let (program, config) = (dist("examples").join(program), config.display().to_string());
        let started = [program.to_str().unwrap(), "--config", &config];
        let args = [options, &["--lg-sample", "12"], &started].concat();
        let host = run(&args, &[]);
        host.wait_for_log(note);
        host.wait_for_log("control socket ");
        host.memprof("activate", &[]).exits(0);
        let dump = host.dump_of(3_000_000);
        let path = Path::new(dump["path"].as_str().unwrap());
        let percent = cumulative_percent(&program, path, "grow_cache");
        assert!(percent >= 80.0, "{percent} %");
    };
    for options in [&[][..], &["--allocator", "jemalloc"]] {
        let own = "brings a jemalloc of its own, which reads _RJEM_MALLOC_CONF";
        check(options, "rust_host", own);
        check(
            options,
            "c_host_static",
            "brings its own jemalloc as malloc",
        );
    }
}

#[test]
fn program_runs_with_anything_missing_and_messages_name_it() {
    let check_reported = |env: &[(&str, &str)], kind: &str, reason: &str, reported: usize| {
        let mut command = Command::new("perl");
        command.args(["-e", GROWING]);
        let plugin = dist("plugins/memory_profile.so").display().to_string();
        let preload = format!("{plugin}:{}", env_value(env, "LD_PRELOAD"));
        let mut env = env.to_vec();
        env.retain(|(name, _)| *name != "LD_PRELOAD");
        env.extend([("MEMPROF_RUN", "1"), ("LD_PRELOAD", preload.as_str())]);
        let mut host = start(command, &env);
        wait_until_listed(&host, host.pid());
        for message in ["dump", "activate", "status"] {
            let reply = host.memprof(message, &["--json"]);
            if reply.code == 0 {
                continue;
            }
            let error = &reply.json()["error"];
            assert_eq!(error["kind"], kind, "{message}: {error}");
            assert!(
                error["message"].as_str().unwrap().contains(reason),
                "{error}"
            );
        }
        host.wait_for_log(reason);
        let lines = host.log();
        let about: Vec<_> = lines.iter().filter(|line| line.contains(reason)).collect();
        assert_eq!(about.len(), reported, "{lines:#?}");
        serves(&mut host, "still");
    };
    let check = |env: &[_], kind: &str, reason: &str| check_reported(env, kind, reason, 1);
    let jemalloc = ("LD_PRELOAD", "libjemalloc.so.2");
    let conf = ("MALLOC_CONF", "prof:true,prof_active:true");
    check(&[], "unsupported", "glibc 2.36 has no profiler");
    check(&[jemalloc], "unavailable", "opt.prof=false");
    // When it starts, and when a dump fails.
    check_reported(
        &[jemalloc, conf, ("MEMPROF_DUMP_DIR", "/proc/no/dumps")],
        "io",
        "keep dumps in /proc/no/dumps: no way to write to /proc",
        2,
    );
    check(
        &[jemalloc, conf, ("MEMPROF_CONFIG", "/no/such.toml")],
        "invalid_argument",
        "config file /no/such.toml: No such file",
    );
    check(
        &[jemalloc, conf, ("MEMPROF_DUMP_DIR", "relative")],
        "invalid_argument",
        "dump_dir \"relative\" is not an absolute path",
    );
    check(
        &[jemalloc, conf, ("MEMPROF_LOG", "loud")],
        "invalid_argument",
        "invalid MEMPROF_LOG=loud: expected",
    );
}

fn env_value<'a>(env: &[(&str, &'a str)], name: &str) -> &'a str {
    let found = env.iter().find(|(known, _)| *known == name);
    found.map_or("", |(_, value)| value)
}

#[test]
fn preloaded_plugin_without_marker_does_nothing() {
    let plugin = dist("plugins/memory_profile.so").display().to_string();
    let mut command = Command::new("perl");
    command.args(["-e", GROWING]);
    let mut host = start(command, &[("LD_PRELOAD", plugin.as_str())]);
    serves(&mut host, "one");
    let threads = std::fs::read_dir(format!("/proc/{}/task", host.pid())).unwrap();
    assert_eq!(threads.count(), 1);
    assert!(!host.socket_dir().exists());
}

/// Two libraries of the user, which do nothing in memprof itself. The constructor of the first runs last, and names the
/// program's threads; that of the second keeps the program's thread until memprof's start has made the socket.
const PRELOADS: [&str; 2] = [
    r#"
    #define _GNU_SOURCE
    #include <errno.h>
    #include <stdio.h>
    #include <string.h>
    #include <unistd.h>
    __attribute__((constructor)) static void begin(void) {
        if (!strcmp(program_invocation_short_name, "memprof")) return;
        fprintf(stderr, "constructor on thread %d of %d\n", gettid(), getpid());
    }"#,
    r#"
    #define _GNU_SOURCE
    #include <errno.h>
    #include <glob.h>
    #include <stdio.h>
    #include <stdlib.h>
    #include <string.h>
    #include <unistd.h>
    __attribute__((constructor)) static void begin(void) {
        char pattern[4096];
        glob_t sockets;
        if (!strcmp(program_invocation_short_name, "memprof")) return;
        snprintf(pattern, sizeof pattern, "%s/*.sock", getenv("MEMPROF_SOCKET_DIR"));
        for (int wait = 0; wait < 10000 && glob(pattern, 0, 0, &sockets); wait++) usleep(1000);
    }"#,
];

#[test]
fn constructors_of_user_libraries_run_on_the_programs_thread() {
    let place = tempfile::tempdir().unwrap();
    let libraries = PRELOADS.iter().enumerate().map(|(index, code)| {
        let source = place.path().join(format!("preload{index}.c"));
        let library = source.with_extension("so");
        std::fs::write(&source, code).unwrap();
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-o"])
            .args([&library, &source]);
        assert!(cc.status().unwrap().success());
        library.display().to_string()
    });
    let libraries: Vec<_> = libraries.collect();
    let mut host = run(
        &["perl", "-e", GROWING],
        &[("LD_PRELOAD", &libraries.join(":"))],
    );
    let pid = host.pid();
    host.wait_for_log(&format!("constructor on thread {pid} of {pid}"));
    serves(&mut host, "one");
}

#[test]
fn program_without_preloading_is_refused_with_the_reason() {
    let place = tempfile::tempdir().unwrap();
    let check = |args: &[&str], code: i32, reason: &str| {
        let refused = memprof(place.path(), &[&["run"], args].concat()).exits(code);
        assert!(refused.stderr.contains(reason), "{refused:?}");
    };
    check(&["/sbin/ldconfig", "-p"], 4, "is statically linked");
    check(
        &["no-such-program"],
        2,
        "no program no-such-program is in PATH",
    );
    check(
        &["--plugin", "/no/such.so", "perl"],
        1,
        "no plugin is at /no/such.so",
    );
    check(&["--lg-sample", "3", "perl"], 2, "3 is not in 10..=24");
    check(
        &["--allocator", "hoard", "perl"],
        2,
        "hoard is not a file; --allocator takes jemalloc, tcmalloc, or the path",
    );
    if nix::unistd::geteuid().is_root() {
        let copy = place.path().join("true");
        copy_program("/bin/true", &copy);
        std::os::unix::fs::chown(&copy, Some(12_345), None).unwrap();
        std::fs::set_permissions(&copy, PermissionsExt::from_mode(0o4755)).unwrap();
        check(
            &[copy.to_str().unwrap()],
            4,
            "runs with other rights than yours",
        );
    }
}

/// Valgrind runs a program without the kernel's vDSO.
#[test]
fn program_in_valgrind_works_and_is_refused_to_others() {
    for tool in ["none", "memcheck"] {
        let tool = format!("--tool={tool}");
        let perl = ["perl", "-e", GROWING];
        let args = [&["--", "valgrind", "--quiet", &tool][..], &perl].concat();
        let mut host = run(&args, &[]);
        serves(&mut host, &tool);
        wait_until_listed(&host, host.pid());
        host.memprof("status", &[]).exits(0);
        serves(&mut host, "after its start");
        let pid = host.pid().to_string();
        for command in [&["leaks", "--prove"][..], &["holders"]] {
            let refused = memprof(&host.socket_dir(), &[command, &[&pid]].concat()).exits(4);
            assert!(refused.stderr.contains("runs in valgrind"), "{refused:?}");
        }
        serves(&mut host, "refused");
    }
    let mut command = Command::new("valgrind");
    command.args(["--quiet", "--tool=none", "perl", "-e", GROWING]);
    let mut host = start(command, &[]);
    serves(&mut host, "started");
    let pid = host.pid().to_string();
    let refused = memprof(&host.socket_dir(), &["attach", &pid]).exits(4);
    assert!(refused.stderr.contains("runs in valgrind"), "{refused:?}");
    serves(&mut host, "refused");
}
