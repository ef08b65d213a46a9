//! Traffic Server of Debian's, with its manager, which owns the management socket.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, User, geteuid};
use tempfile::TempDir;

use crate::abi::server_plugins;
use crate::bus::{self, CONF, Load, Server, free_port};
use crate::dist::{dist, tool_text};
use crate::host::{Host, TEST_TIMEOUT};
use crate::root::skip_without_root;

struct TrafficServer {
    host: Host,
    port: u16,
}

const DROP_IN: &str =
    include_str!("../../../../hosts-examples/traffic-server/trafficserver.service.d.conf");

/// Part of each line that the plugin logs.
const REPLY: &str = "memprof: ";
/// Part of the first line of the reply to `stats`.
const STATS_START: &str = "memprof: jemalloc 5.3.0-";
/// The last line of the reply to `stats`.
const STATS_END: &str = "memprof: --- End jemalloc statistics ---";

impl Server for TrafficServer {
    const NAME: &'static str = "traffic_server";
    const PROGRAM: &'static str = "/usr/bin/traffic_server";
    const FUNCTION: &'static str = "EThread::execute";
    const ENV: &'static [(&'static str, &'static str)] =
        &[("LD_PRELOAD", "libjemalloc.so.2"), CONF];
    const UNAVAILABLE: &'static str = "has no profiler";

    fn start(load: &Load<'_>) -> Self {
        let place = tempfile::tempdir().unwrap();
        let plugins = configured_plugins(load, place.path());
        Self::start_by(
            as_its_user("traffic_manager"),
            "#-1",
            place,
            &plugins,
            load.env,
        )
    }

    fn host(&self) -> &Host {
        &self.host
    }

    /// Returns the reply from the log, because the bus takes none.
    fn send(&self, plugin: &str, message: &str) -> String {
        let log = self.host.log();
        let count = |text: &str| log.iter().filter(|line| line.contains(text)).count();
        let (before, ended) = (count(REPLY), count(STATS_END));
        let mut command = as_its_user("traffic_ctl");
        command
            .args(["plugin", "msg", plugin, message])
            .env("TS_RUNROOT", self.host.place().join("runroot.yaml"));
        tool_text("trafficserver", &mut command);
        // A failed dump has a line of the plugin's before the reply's.
        let reply = self.host.wait_for_lines(REPLY, before + 1)[before..].join("\n");
        // Its other lines would be read as the next message's reply. A refusal has one line.
        if message == "stats"
            && reply
                .lines()
                .next()
                .is_some_and(|line| line.contains(STATS_START))
        {
            self.host.wait_for_lines(STATS_END, ended + 1);
        }
        reply
    }

    /// Waits for the text: a plugin's own lines may come before the reply.
    fn check_reply(&self, plugin: &str, message: &str, expected: &str) {
        let reply = self.send(plugin, message);
        if !reply.contains(expected) {
            self.host.wait_for_log(expected);
        }
    }

    fn work(&self) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1."), "{answer}");
    }
}

impl TrafficServer {
    /// Starts it by `command`, as a server that changes to `user`, with the plugins: the file of each, and its words.
    fn start_by(
        mut command: Command,
        user: &str,
        place: TempDir,
        plugins: &[(PathBuf, String)],
        env: &[(&str, &str)],
    ) -> Self {
        let port = free_port();
        lay_out(place.path(), port, user, plugins);
        command
            .env("TS_RUNROOT", place.path().join("runroot.yaml"))
            .envs(env.iter().copied());
        let host = Host::spawn(command, place);
        // Only then does it take the messages of traffic_ctl.
        host.wait_for_log("traffic server running");
        Self { host, port }
    }
}

impl Drop for TrafficServer {
    fn drop(&mut self) {
        // The manager takes the server with it.
        self.host.terminate();
    }
}

/// As an unprivileged user from its start: started as root it changes its user, and a process
/// that did so ignores `LD_PRELOAD` and `MALLOC_CONF`.
fn as_its_user(program: &str) -> Command {
    if !geteuid().is_root() {
        return Command::new(program);
    }
    let (inherited, ambient) = (
        format!("--inh-caps={}", capabilities()),
        format!("--ambient-caps={}", capabilities()),
    );
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=trafficserver", "--regid=trafficserver"])
        .args(["--init-groups", &inherited, &ambient, program]);
    command
}

/// Capabilities in the example's drop-in, in the form of setpriv(1).
fn capabilities() -> String {
    let line = DROP_IN
        .lines()
        .find_map(|line| line.strip_prefix("AmbientCapabilities="));
    let names = line.unwrap().split(' ').map(|name| {
        let name = name.strip_prefix("CAP_").unwrap();
        format!("+{}", name.to_lowercase())
    });
    names.collect::<Vec<_>>().join(",")
}

/// `memory_profile` and `hello_rust` as `load` says, with the words of each.
fn configured_plugins(load: &Load<'_>, place: &Path) -> Vec<(PathBuf, String)> {
    let words = load.words(place);
    let words = words.iter().map(|(key, value)| match value.as_str() {
        "" => format!(" {key}"),
        value => format!(" {key}={value}"),
    });
    let profile = (dist("plugins/memory_profile.so"), words.collect());
    let mut plugins = vec![profile; 1 + usize::from(load.twice)];
    plugins.push((dist("plugins/hello_rust.so"), String::new()));
    plugins
}

/// Config, state and plugins, where its user can read and write.
fn lay_out(place: &Path, port: u16, user: &str, plugins: &[(PathBuf, String)]) {
    for directory in ["etc", "log", "state", "cache", "dumps", "plugins"] {
        fs::create_dir(place.join(directory)).unwrap();
    }
    for entry in fs::read_dir("/etc/trafficserver").unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            fs::copy(&path, place.join("etc").join(path.file_name().unwrap())).unwrap();
        }
    }
    let line = |(file, words): &(PathBuf, String)| {
        let copy = place.join("plugins").join(file.file_name().unwrap());
        fs::copy(file, &copy).unwrap();
        format!("{}{words}\n", copy.display())
    };
    let plugins = plugins.iter().map(line).collect();
    let here = place.display();
    let files = [
        (
            "runroot.yaml",
            format!(
                "prefix: /usr\nexec_prefix: /usr\nbindir: /usr/bin\nsbindir: /usr/sbin\n\
                 sysconfdir: {here}/etc\ndatadir: {here}/cache\nincludedir: /usr/include\n\
                 libdir: /usr/lib\nlibexecdir: /usr/lib/trafficserver/modules\n\
                 localstatedir: {here}/state\nruntimedir: {here}/state\nlogdir: {here}/log\n\
                 cachedir: {here}/cache\n"
            ),
        ),
        (
            "etc/records.config",
            format!(
                "CONFIG proxy.config.http.server_ports STRING {port}:ip-in=127.0.0.1\n\
                 CONFIG proxy.config.admin.user_id STRING {user}\n\
                 CONFIG proxy.config.exec_thread.autoconfig INT 0\n\
                 CONFIG proxy.config.exec_thread.limit INT 2\n\
                 CONFIG proxy.config.diags.output.note STRING E\n\
                 CONFIG proxy.config.diags.output.warning STRING E\n\
                 CONFIG proxy.config.diags.output.error STRING E\n"
            ),
        ),
        ("etc/storage.config", format!("{here}/cache 16M\n")),
        ("etc/plugin.config", plugins),
    ];
    for (name, text) in files {
        fs::write(place.join(name), text).unwrap();
    }
    if geteuid().is_root() {
        let user = User::from_name("trafficserver")
            .unwrap()
            .expect("the package's user");
        give(place, &user);
    }
}

fn give(path: &Path, user: &User) {
    chown(path, Some(user.uid.as_raw()), Some(user.gid.as_raw())).unwrap();
    if path.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            give(&entry.unwrap().path(), user);
        }
    }
}

#[test]
fn does_the_main_job() {
    bus::does_the_main_job::<TrafficServer>();
}

#[test]
fn plugins_of_every_compiler_reply() {
    let built = tempfile::tempdir().unwrap();
    let plugins = server_plugins(built.path());
    let files = plugins
        .iter()
        .map(|plugin| (plugin.file.clone(), String::new()));
    let files: Vec<_> = files.collect();
    let place = tempfile::tempdir().unwrap();
    let manager = as_its_user("traffic_manager");
    let server = TrafficServer::start_by(manager, "#-1", place, &files, &[]);
    bus::plugins_of_every_compiler_reply(&server, &plugins);
}

#[test]
fn manager_with_the_capabilities_of_the_example_starts_a_crashed_server_again() {
    let server = TrafficServer::start(&Load {
        env: TrafficServer::ENV,
        ..Load::default()
    });
    let manager = server.host.pid();
    let children = fs::read_to_string(format!("/proc/{manager}/task/{manager}/children")).unwrap();
    let is_server = |pid: &&str| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        name.contains("TS_MAIN") || name.contains("traffic_server")
    };
    let crashed = children.split_whitespace().find(is_server);
    let crashed: i32 = crashed.expect(&children).parse().unwrap();
    kill(Pid::from_raw(crashed), Signal::SIGSEGV).unwrap();
    server.host.wait_for_lines("traffic server running", 2);
    server.work();
}

#[test]
fn stats_are_printed_to_the_log() {
    let server = TrafficServer::start(&Load {
        env: TrafficServer::ENV,
        ..Load::default()
    });
    server.send("memory_profile", "stats");
    let last = server.host().wait_for_log(STATS_END);
    assert!(last.ends_with(STATS_END), "{last}");
    let log = server.host().log();
    let cut = log.iter().find(|line| line.ends_with("[...]"));
    assert_eq!(cut, None);
    let version = log
        .iter()
        .find(|line| line.contains("memprof: Version: "))
        .unwrap();
    assert!(version.len() < 200, "{version}");
}

#[test]
fn refuses_invalid_messages() {
    bus::refuses_invalid_messages::<TrafficServer>();
}

#[test]
fn survives_any_misuse() {
    bus::survives_any_misuse::<TrafficServer>(&[
        (&[("dump_dirr", "/x")], "unknown field `dump_dirr`"),
        (
            &[("nonsense", "")],
            "config word \"nonsense\" is not of the form key=value",
        ),
    ]);
}

#[test]
fn server_that_changes_its_user_ignores_environment_but_is_sampled() {
    if skip_without_root(
        "bus_traffic_server::server_that_changes_its_user_ignores_environment_but_is_sampled",
    ) {
        return;
    }
    let load = Load {
        env: TrafficServer::ENV,
        ..Load::default()
    };
    let manager = Command::new("traffic_manager");
    let place = tempfile::tempdir().unwrap();
    let plugins = configured_plugins(&load, place.path());
    let server = TrafficServer::start_by(manager, "trafficserver", place, &plugins, load.env);
    let refused = server.send("memory_profile", "activate sampler=allocator");
    assert!(refused.contains("AT_SECURE"), "{refused}");
    let sampled = server.send("memory_profile", "activate");
    assert!(sampled.contains("profiling is active"), "{sampled}");
    server.work();
}
