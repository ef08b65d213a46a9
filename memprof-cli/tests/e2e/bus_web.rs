//! nginx and Apache httpd of Debian's: modules by which each worker gets a control socket.

use std::path::Path;
use std::process::Command;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::bus::free_port;
use crate::curl::curl;
use crate::dist::{source, tool};
use crate::host::Host;
use crate::memprof::memprof;
use crate::place::{in_place, open_place, plugin, wait_for_hosts};

/// What differs.
struct Web {
    package: &'static str,
    program: &'static str,
    /// Its arguments before the path of its config.
    arguments: &'static [&'static str],
    /// Those that have it check the config alone.
    check: &'static [&'static str],
    config: fn(&Path, &str) -> String,
    /// The file of hosts-examples that loads the plugin.
    load: &'static str,
    /// Has the workers replaced after the config was changed.
    reload: Signal,
    /// Ends it once all requests are answered.
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
    reload: Signal::SIGHUP,
    quit: Signal::SIGQUIT,
};

const HTTPD: Web = Web {
    package: "apache2",
    program: "/usr/sbin/apache2",
    arguments: &["-DFOREGROUND", "-f"],
    check: &["-t", "-f"],
    config: |place, port| {
        let modules = "/usr/lib/apache2/modules";
        std::fs::write(place.join("index.html"), "hello\n").unwrap();
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
    reload: Signal::SIGUSR1,
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
        std::fs::write(&config, (self.config)(place.path(), &port)).unwrap();
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
        let lines = std::fs::read_to_string(source("hosts-examples").join(self.load)).unwrap();
        let lines = in_place(place, &lines);
        let dumps = place.join("dumps");
        let keys = place.join("nginx.toml");
        std::fs::write(keys, format!("dump_dir = {dumps:?}\n")).unwrap();
        let file = place.join("config");
        let config = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, lines + &config).unwrap();
    }

    /// What it prints when it checks the config alone.
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
    /// It is asked until it listens.
    fn says_hello(&self) {
        let got = curl(
            "",
            &format!("-s --retry 100 --retry-connrefused {}", self.address),
        );
        assert_eq!(got.is(200).text(), "hello\n");
    }

    fn sockets(&self) -> std::path::PathBuf {
        self.host.socket_dir()
    }

    fn message(&self, pid: u32, message: &str) -> serde_json::Value {
        let pid = pid.to_string();
        memprof(&self.sockets(), &[message, "-t", &pid, "--json"])
            .exits(0)
            .json()
    }
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
    running.host.signal(web.reload);
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
    // And all of them at the next reload.
    running.host.signal(web.reload);
    wait_for_hosts(&running.sockets(), |pids| {
        pids.len() == 2 && !pids.iter().any(|pid| second.contains(pid))
    });
    running.says_hello();
    running.host.signal(web.quit);
    assert!(running.host.wait().success());
    let left = std::fs::read_dir(running.sockets()).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    // Of the one that was killed: whoever looks for hosts removes them.
    let killed = first[0].to_string();
    let others = left
        .iter()
        .filter(|name| !name.to_string_lossy().starts_with(&killed));
    assert_eq!(others.count(), 0, "{left:?}");
}

#[test]
fn workers_of_nginx_answer_by_their_sockets() {
    workers_answer_by_their_sockets(&NGINX);
}

#[test]
fn children_of_httpd_answer_by_their_sockets() {
    workers_answer_by_their_sockets(&HTTPD);
}
