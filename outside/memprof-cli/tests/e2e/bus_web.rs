//! nginx and Apache httpd of Debian's: modules by which each worker gets a control socket.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::bus::free_port;
use crate::curl::curl;
use crate::dist::{source, tool};
use crate::host::Host;
use crate::memprof::memprof;
use crate::place::{in_place, open_place, plugin, wait_for_hosts};

/// Differences between the servers.
struct Web {
    package: &'static str,
    program: &'static str,
    /// Its arguments before the path of its config.
    arguments: &'static [&'static str],
    /// Arguments with which it only checks the config.
    check: &'static [&'static str],
    config: fn(&Path, &str) -> String,
    /// The file of hosts-examples that loads the plugin.
    load: &'static str,
    /// Signals that replace the workers after a change of the config.
    reloads: &'static [Signal],
    /// First finding of `doctor`, if it has one.
    hidden: &'static str,
    /// Signal that ends it once all requests are answered.
    quit: Signal,
}

const NGINX: Web = Web {
    package: "nginx",
    program: "/usr/sbin/nginx",
    arguments: &["-e", "stderr", "-c"],
    check: &["-e", "stderr", "-t", "-c"],
    config: |place, port| {
        format!(
            "daemon off;\nuser www-data;\nworker_processes 2;\npid {0}/nginx.pid;\n\
             env MEMPROF_SOCKET_DIR;\nevents {{ }}\nhttp {{ access_log off;\n\
             client_body_temp_path {0}/body; proxy_temp_path {0}/proxy;\n\
             fastcgi_temp_path {0}/fastcgi; uwsgi_temp_path {0}/uwsgi; scgi_temp_path {0}/scgi;\n\
             server {{ listen 127.0.0.1:{port}; location / {{ return 200 \"hello\\n\"; }} }} }}\n",
            place.display()
        )
    },
    load: "nginx/50-memory-profile.conf",
    reloads: &[Signal::SIGHUP],
    hidden: "",
    quit: Signal::SIGQUIT,
};

const HTTPD: Web = Web {
    package: "apache2",
    program: "/usr/sbin/apache2",
    arguments: &["-DFOREGROUND", "-f"],
    check: &["-t", "-f"],
    config: |place, port| {
        let modules = "/usr/lib/apache2/modules";
        fs::write(place.join("index.html"), "hello\n").unwrap();
        format!(
            "ServerRoot {0}\nPidFile {0}/apache.pid\nListen 127.0.0.1:{port}\nServerName localhost\n\
             LoadModule mpm_event_module {modules}/mod_mpm_event.so\n\
             LoadModule authz_core_module {modules}/mod_authz_core.so\n\
             LoadModule dir_module {modules}/mod_dir.so\nDirectoryIndex index.html\n\
             User www-data\nGroup www-data\nErrorLog {0}/error.log\nDocumentRoot {0}\n\
             StartServers 2\nServerLimit 2\nThreadsPerChild 8\nMaxRequestWorkers 16\n\
             MinSpareThreads 9\nMaxSpareThreads 24\n",
            place.display()
        )
    },
    load: "httpd/memory_profile.load",
    reloads: &[Signal::SIGUSR1, Signal::SIGHUP],
    hidden: "APR's pools",
    quit: Signal::SIGTERM,
};

struct Running {
    host: Host,
    address: String,
}

impl Web {
    fn start(&self) -> Running {
        let place = open_place();
        let port = free_port().to_string();
        let config = place.path().join("config");
        fs::write(&config, (self.config)(place.path(), &port)).unwrap();
        let mut command = Command::new(self.program);
        command.args(self.arguments).arg(&config);
        command.env("MEMPROF_DUMP_DIR", place.path().join("dumps"));
        let running = Running {
            host: Host::spawn(command, place),
            address: format!("http://127.0.0.1:{port}/"),
        };
        running.says_hello();
        running
    }

    /// Adds the lines that load the plugin, which are to be the first.
    fn load(&self, running: &Running) {
        let place = running.host.place();
        let lines = fs::read_to_string(source("hosts-examples").join(self.load)).unwrap();
        let lines = in_place(place, &lines);
        let dumps = place.join("dumps");
        let keys = place.join("nginx.toml");
        fs::write(keys, format!("dump_dir = {dumps:?}\n")).unwrap();
        let file = place.join("config");
        let config = fs::read_to_string(&file).unwrap();
        fs::write(&file, lines + &config).unwrap();
    }

    /// Output of a check of the config alone.
    fn check(&self, running: &Running, preloaded: &str) -> String {
        let mut command = Command::new(self.program);
        command
            .args(self.check)
            .arg(running.host.place().join("config"));
        command.env("MEMPROF_SOCKET_DIR", running.host.socket_dir());
        command.env("LD_PRELOAD", preloaded);
        let output = tool(self.package, &mut command);
        let notes = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{notes}");
        notes
    }
}

impl Drop for Running {
    /// Without their master, workers would go on.
    fn drop(&mut self) {
        if self.host.is_alive() {
            self.host.terminate();
        }
    }
}

impl Running {
    fn says_hello(&self) {
        says_hello(&self.address);
    }

    fn sockets(&self) -> PathBuf {
        self.host.socket_dir()
    }

    fn message(&self, pid: u32, message: &str) -> serde_json::Value {
        let pid = pid.to_string();
        memprof(&self.sockets(), &[message, "-t", &pid, "--json"])
            .exits(0)
            .json()
    }
}

/// Checks the reply to a request, which is repeated until the server listens.
fn says_hello(address: &str) {
    let got = curl("", &format!("-s --retry 100 --retry-connrefused {address}"));
    assert_eq!(got.is(200).text(), "hello\n");
}

fn workers_answer_by_their_sockets(web: &Web) {
    let mut running = web.start();
    let before = web.check(&running, "");
    let library = plugin(running.host.place()).display().to_string();
    assert_eq!(web.check(&running, &library), before);
    web.load(&running);
    // Checking the config loads the plugin, and does nothing else.
    assert_eq!(web.check(&running, ""), before);
    assert_eq!(web.check(&running, &library), before);
    assert!(!running.sockets().exists());
    running.host.signal(web.reloads[0]);
    let first = wait_for_hosts(&running.sockets(), |pids| pids.len() == 2);
    for pid in &first {
        assert_ne!(*pid, running.host.pid(), "the master has none");
        let status = running.message(*pid, "status");
        assert_eq!(status["profiling"], "inactive", "{status}");
        let active = running.message(*pid, "activate");
        assert_eq!(active["profiling"], "active", "{active}");
        let dump = running.message(*pid, "dump");
        let path = Path::new(dump["path"].as_str().unwrap());
        assert_eq!(
            path.parent(),
            Some(running.host.dump_dir().as_path()),
            "{dump}"
        );
    }
    running.says_hello();
    // The master replaces a worker that was killed.
    kill(Pid::from_raw(first[0].cast_signed()), Signal::SIGKILL).unwrap();
    let second = wait_for_hosts(&running.sockets(), |pids| {
        pids.len() == 2 && !pids.contains(&first[0])
    });
    running.says_hello();
    let pid = second[0].to_string();
    let doctor = memprof(&running.sockets(), &["doctor", "-t", &pid]).stdout;
    let first_line = doctor.lines().next().unwrap();
    assert!(first_line.contains(web.hidden), "{doctor}");
    // And all of them at the next reload.
    let mut old = second;
    for reload in web.reloads {
        running.host.signal(*reload);
        old = wait_for_hosts(&running.sockets(), |pids| {
            pids.len() == 2 && !pids.iter().any(|pid| old.contains(pid))
        });
        running.says_hello();
    }
    running.host.signal(web.quit);
    assert!(running.host.wait().success());
    let left = fs::read_dir(running.sockets()).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    // Files of the killed one; a discovery of hosts removes them.
    let killed = first[0].to_string();
    let others = left
        .iter()
        .filter(|name| !name.to_string_lossy().starts_with(&killed));
    assert_eq!(others.count(), 0, "{left:?}");
}

#[test]
fn nginx_workers_reply_on_their_sockets() {
    workers_answer_by_their_sockets(&NGINX);
}

#[test]
fn httpd_children_reply_on_their_sockets() {
    workers_answer_by_their_sockets(&HTTPD);
}

/// An nginx that made itself a daemon, and the one that takes over from it.
struct Daemon {
    place: tempfile::TempDir,
    address: String,
}

impl Daemon {
    fn start() -> Self {
        let place = open_place();
        let port = free_port().to_string();
        let config = (NGINX.config)(place.path(), &port).replace("daemon off;", "");
        let lines = fs::read_to_string(source("hosts-examples").join(NGINX.load)).unwrap();
        let config = in_place(place.path(), &lines) + &config;
        let file = place.path().join("config");
        fs::write(&file, config).unwrap();
        let dumps = place.path().join("dumps");
        fs::write(
            place.path().join("nginx.toml"),
            format!("dump_dir = {dumps:?}\n"),
        )
        .unwrap();
        // A daemon keeps what it was given open.
        let log = fs::File::create(place.path().join("log")).unwrap();
        let mut command = Command::new(NGINX.program);
        command.args(NGINX.arguments).arg(&file);
        command.env("MEMPROF_SOCKET_DIR", place.path().join("run"));
        let started = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .status();
        assert!(started.unwrap().success());
        let daemon = Self {
            place,
            address: format!("http://127.0.0.1:{port}/"),
        };
        says_hello(&daemon.address);
        daemon
    }

    fn signal(&self, file: &str, signal: Signal) {
        let pid = self.pid(file).unwrap();
        kill(Pid::from_raw(pid), signal).unwrap();
    }

    fn pid(&self, file: &str) -> Option<i32> {
        let text = fs::read_to_string(self.place.path().join(file)).ok()?;
        text.trim().parse().ok()
    }

    fn sockets(&self) -> PathBuf {
        self.place.path().join("run")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        for file in ["nginx.pid", "nginx.pid.oldbin"] {
            if let Some(pid) = self.pid(file) {
                // It may have ended.
                let _: nix::Result<()> = kill(Pid::from_raw(pid), Signal::SIGTERM);
            }
        }
    }
}

/// A new program takes the listening sockets over while the old one serves, as on an upgrade of the package.
#[test]
fn upgraded_nginx_loads_the_plugin_beside_the_old_one() {
    let daemon = Daemon::start();
    let sockets = daemon.sockets();
    let old = wait_for_hosts(&sockets, |pids| pids.len() == 2);
    daemon.signal("nginx.pid", Signal::SIGUSR2);
    let both = wait_for_hosts(&sockets, |pids| pids.len() == 4);
    assert!(old.iter().all(|pid| both.contains(pid)), "{old:?} {both:?}");
    says_hello(&daemon.address);
    daemon.signal("nginx.pid.oldbin", Signal::SIGQUIT);
    let new = wait_for_hosts(&sockets, |pids| pids.len() == 2 && !pids.contains(&old[0]));
    assert!(new.iter().all(|pid| both.contains(pid)), "{new:?} {both:?}");
    for pid in &new {
        let pid = pid.to_string();
        memprof(&sockets, &["activate", "-t", &pid]).exits(0);
        memprof(&sockets, &["dump", "-t", &pid]).exits(0);
    }
    says_hello(&daemon.address);
    daemon.signal("nginx.pid", Signal::SIGQUIT);
    wait_for_hosts(&sockets, <[u32]>::is_empty);
}
