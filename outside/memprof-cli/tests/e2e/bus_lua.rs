//! Servers of Debian's with Lua in them, which load the plugin while they run, by the commands of hosts-examples.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use nix::unistd::geteuid;

use crate::bus::free_port;
use crate::dist::{dist, source};
use crate::host::{Host, TEST_TIMEOUT};
use crate::languages::{INACTIVE, TOO_LONG, UNKNOWN};
use crate::memprof::memprof;
use crate::place::{in_place, not_as_root, open_place, wait_for_hosts};

/// Differences between the servers.
struct Server {
    /// Its directory of hosts-examples.
    example: &'static str,
    /// Writes its config into the place, and starts it in the foreground.
    start: fn(&Path, u16) -> Command,
    /// Texts of its commands, and their replacements here, where `PLACE` is the place.
    stand_ins: &'static [(&'static str, &'static str)],
    /// A request, to which there is an answer.
    request: &'static [u8],
    /// End of the reply.
    answer: &'static [u8],
}

/// The address of `answer.site`, asked for over TCP (RFC 1035, 4.2.2).
const QUESTION: &[u8] = b"\0\x1d\0\x07\x01\0\0\x01\0\0\0\0\0\0\x06answer\x04site\0\0\x01\0\x01";
const ADDRESS: &[u8] = &[127, 0, 0, 7];

const KRESD: Server = Server {
    example: "knot-resolver",
    start: |place, port| {
        let config = format!(
            "net.listen('127.0.0.1', {port}, {{ kind = 'dns' }})\n\
             net.listen('{0}/control', nil, {{ kind = 'control' }})\n\
             cache.size = 10 * MB\nmodules = {{ 'hints' }}\nhints['answer.site'] = '127.0.0.7'\n",
            place.display()
        );
        let file = place.join("kresd.conf");
        fs::write(&file, config).unwrap();
        let mut command = Command::new("/usr/sbin/kresd");
        not_as_root(command.args(["-n", "-c"]).arg(file).arg(place));
        command
    },
    stand_ins: &[("/run/knot-resolver/control/1", "PLACE/control")],
    request: QUESTION,
    answer: ADDRESS,
};

const DNSDIST: Server = Server {
    example: "dnsdist",
    start: |place, port| {
        let console = free_port();
        let config = format!(
            "setSecurityPollSuffix('')\nsetLocal('127.0.0.1:{port}')\n\
             controlSocket('127.0.0.1:{console}')\n\
             setKey('d9I0cRYUdcdMvFwmZ6tZwVdLBn8Yy3oDPKXvuxk7UHI=')\n\
             addAction(AllRule(), SpoofAction('127.0.0.7'))\n"
        );
        let file = place.join("dnsdist.conf");
        fs::write(&file, config).unwrap();
        let mut command = Command::new("/usr/bin/dnsdist");
        command.args(["--supervised", "--disable-syslog", "-C"]);
        not_as_root(command.arg(file));
        command
    },
    stand_ins: &[("/etc/dnsdist/", "PLACE/")],
    request: QUESTION,
    answer: ADDRESS,
};

const RECURSOR: Server = Server {
    example: "pdns-recursor",
    start: |place, port| {
        let here = place.display();
        let config = format!(
            "local-address=127.0.0.1\nlocal-port={port}\nsocket-dir={here}\nthreads=2\n\
             security-poll-suffix=\netc-hosts-file={here}/hosts\nexport-etc-hosts=yes\n"
        );
        fs::write(place.join("recursor.conf"), config).unwrap();
        fs::write(place.join("hosts"), "127.0.0.7 answer.site\n").unwrap();
        let mut command = Command::new("/usr/sbin/pdns_recursor");
        command.arg(format!("--config-dir={here}"));
        not_as_root(command.args(["--daemon=no", "--write-pid=no", "--disable-syslog"]));
        command
    },
    stand_ins: &[("rec_control ", "rec_control --config-dir=PLACE ")],
    request: QUESTION,
    answer: ADDRESS,
};

/// Texts of `HAProxy`'s commands, and their replacements here.
const OF_HAPROXY: &[(&str, &str)] = &[
    ("/etc/haproxy/haproxy.cfg", "PLACE/haproxy.cfg"),
    ("/run/haproxy/", "PLACE/"),
    ("/var/lib/haproxy", "PLACE/jail"),
    (
        "systemctl reload haproxy",
        "kill -USR2 $(cat PLACE/haproxy.pid)",
    ),
];

const HAPROXY: Server = Server {
    example: "haproxy",
    start: |place, port| {
        let config = fs::read_to_string("/etc/haproxy/haproxy.cfg").unwrap();
        // Who is not root gives nothing up.
        let kept = |line: &&str| {
            let first = line.split_whitespace().next();
            geteuid().is_root() || !["chroot", "user", "group"].map(Some).contains(&first)
        };
        let config: Vec<&str> = config.lines().filter(kept).collect();
        let serves = format!(
            "\nfrontend f\nbind 127.0.0.1:{port}\n\
             http-request return status 200 content-type text/plain string hello\n"
        );
        let config = here(OF_HAPROXY, place, &(config.join("\n") + &serves));
        fs::create_dir(place.join("jail")).unwrap();
        fs::write(place.join("haproxy.cfg"), config).unwrap();
        // In mounts of its own; with the default directory, in its jail: the environment names none.
        let mut command = match geteuid().is_root() {
            true => Command::new("unshare"),
            false => Command::new("env"),
        };
        if geteuid().is_root() {
            command.args(["--mount", "env"]);
        }
        command.args(["-u", "MEMPROF_SOCKET_DIR", "-u", "XDG_RUNTIME_DIR"]);
        command.args(["/usr/sbin/haproxy", "-Ws", "-p"]);
        command.arg(place.join("haproxy.pid"));
        command.arg("-f").arg(place.join("haproxy.cfg"));
        command
    },
    stand_ins: OF_HAPROXY,
    request: b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n",
    answer: b"hello",
};

struct Running {
    server: &'static Server,
    host: Host,
    port: u16,
}

impl Server {
    fn run(&'static self) -> Running {
        let place = open_place();
        let port = free_port();
        let example = place.path().join("example");
        fs::create_dir(&example).unwrap();
        for file in fs::read_dir(source("hosts-examples").join(self.example)).unwrap() {
            let file = file.unwrap();
            let text = fs::read_to_string(file.path()).unwrap();
            let text = in_place(place.path(), &text);
            fs::write(example.join(file.file_name()), text).unwrap();
        }
        let command = (self.start)(place.path(), port);
        let running = Running {
            server: self,
            host: Host::spawn(command, place),
            port,
        };
        let begun = Instant::now();
        while !running.answers() {
            let log = running.host.log();
            assert!(begun.elapsed() < TEST_TIMEOUT, "{log:#?}");
            testkit::pause();
        }
        running
    }
}

/// A text with what stands here for what it names.
fn here(stand_ins: &[(&str, &str)], place: &Path, text: &str) -> String {
    let stand_ins = stand_ins.iter();
    let text = stand_ins.fold(text.to_owned(), |text, (named, here)| {
        text.replace(named, here)
    });
    in_place(place, &text.replace("PLACE", place.to_str().unwrap()))
}

impl Running {
    /// The worker that the master has made last, once memprof knows it.
    fn worker(&self) -> u32 {
        let children = format!("/proc/{0}/task/{0}/children", self.host.pid());
        let begun = Instant::now();
        loop {
            let children = fs::read_to_string(&children).unwrap();
            let newest = children.split_whitespace().next_back().unwrap();
            let status = memprof(&self.host.socket_dir(), &["status", "-t", newest]);
            if status.code == 0 {
                return newest.parse().unwrap();
            }
            assert!(begun.elapsed() < TEST_TIMEOUT, "{status:?}");
            testkit::pause();
        }
    }

    fn answers(&self) -> bool {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)) else {
            return false;
        };
        stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        stream.write_all(self.server.request).unwrap();
        let mut answer = Vec::new();
        let mut chunk = [0; 4096];
        while !answer.ends_with(self.server.answer) {
            match stream.read(&mut chunk) {
                Ok(0) | Err(_) => return false,
                Ok(count) => answer.extend_from_slice(&chunk[..count]),
            }
        }
        true
    }

    /// Connections whose requests are not whole: while they are held the server keeps memory for them.
    fn hold(&self) -> Vec<TcpStream> {
        let half = &self.server.request[..10];
        let connect = |_| {
            let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
            stream.write_all(half).unwrap();
            stream
        };
        (0..50).map(connect).collect()
    }

    fn commands(&self) -> Vec<String> {
        let page = self.host.place().join("example/README.md");
        let page = fs::read_to_string(page).unwrap();
        let blocks = page.split("```");
        let blocks = blocks.filter_map(|block| block.strip_prefix("sh\n"));
        blocks.map(str::to_owned).collect()
    }

    /// Output of commands in a shell that sees the server's mounts.
    fn types(&self, commands: &str) -> String {
        let bin = dist("bin/memprof");
        let path = std::env::var("PATH").unwrap();
        let path = format!("{}:{path}", bin.parent().unwrap().display());
        let mut shell = match geteuid().is_root() {
            true => Command::new("nsenter"),
            false => Command::new("bash"),
        };
        if geteuid().is_root() {
            let server = self.host.pid().to_string();
            shell.args(["--mount", "--target", &server, "bash"]);
        }
        let place = self.host.place();
        let commands = here(self.server.stand_ins, place, commands);
        let commands = format!("cd {}/example; exec 2>&1; {commands}", place.display());
        shell
            .args(["-euo", "pipefail", "-c", &commands])
            .env("PATH", path)
            .env("MEMPROF_SOCKET_DIR", self.host.socket_dir());
        let output = shell.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{commands}: {said}");
        said
    }

    /// Commands of its page for a process that has the plugin: activate, dump, report.
    fn is_profiled(&self, commands: &str) {
        let (activate, dump) = commands.split_once("\nmemprof dump").unwrap();
        self.types(&format!("{activate} lg_sample=12"));
        let held = self.hold();
        assert!(self.answers());
        let report = self.types(&format!("memprof dump{dump}"));
        assert!(report.contains("flat"), "{report}");
        drop(held);
    }
}

#[test]
fn knot_resolver_loads_the_plugin_over_its_control_socket() {
    let mut kresd = KRESD.run();
    let [load, profile] = &kresd.commands()[..] else {
        panic!("{:?}", kresd.commands());
    };
    let said = kresd.types(load);
    assert!(
        said.contains(INACTIVE) && said.contains("'inactive'"),
        "{said}"
    );
    wait_for_hosts(&kresd.host.socket_dir(), |pids| pids == [kresd.host.pid()]);
    kresd.is_profiled(profile);
    let doctor = kresd.types("memprof doctor -t kresd || true");
    let first_line = doctor.lines().next().unwrap();
    assert!(first_line.contains("LuaJIT keeps the objects"), "{doctor}");
    let ask = load.lines().next().unwrap();
    let check = |message: &str, expected: &str| {
        let send = format!("require('memory_profile').send({message})");
        let said = kresd.types(&format!("{ask}; ask \"{send}\"; ask \"'alive'\""));
        assert!(said.contains(expected) && said.contains("alive"), "{said}");
    };
    check("'bogus'", UNKNOWN);
    check("('x'):rep(1000000)", TOO_LONG);
    check("{}", "bad argument #1 to 'send'");
    assert!(kresd.answers());
    assert!(kresd.host.terminate().success());
}

#[test]
fn dnsdist_loads_the_plugin_at_its_console() {
    let mut dnsdist = DNSDIST.run();
    let [load, profile] = &dnsdist.commands()[..] else {
        panic!("{:?}", dnsdist.commands());
    };
    let said = dnsdist.types(load);
    assert!(said.contains(INACTIVE), "{said}");
    wait_for_hosts(&dnsdist.host.socket_dir(), |pids| {
        pids == [dnsdist.host.pid()]
    });
    let (ask, _) = load.trim_end().rsplit_once(" \"return").unwrap();
    let ask = ask.lines().last().unwrap();
    let check = |message: &str, expected: &str| {
        let send = format!("local _, why = require('memory_profile').send({message})");
        let said = dnsdist.types(&format!("{ask} \"{send}; return why\""));
        assert!(said.contains(expected), "{said}");
    };
    check("'bogus'", UNKNOWN);
    check("('x'):rep(1000000)", TOO_LONG);
    check("{}", "bad argument #1 to 'send'");
    dnsdist.is_profiled(profile);
    assert!(dnsdist.answers());
    dnsdist.host.terminate();
}

#[test]
fn recursor_loads_the_plugin_with_its_script() {
    let mut recursor = RECURSOR.run();
    let [load, profile] = &recursor.commands()[..] else {
        panic!("{:?}", recursor.commands());
    };
    recursor.types(load);
    recursor.host.wait_for_log(INACTIVE);
    wait_for_hosts(&recursor.host.socket_dir(), |pids| {
        pids == [recursor.host.pid()]
    });
    recursor.is_profiled(profile);
    assert!(recursor.answers());
    recursor.host.terminate();
}

#[test]
fn haproxy_loads_the_plugin_by_a_reload() {
    let mut haproxy = HAPROXY.run();
    let [load, profile] = &haproxy.commands()[..] else {
        panic!("{:?}", haproxy.commands());
    };
    let (load, ask) = load.trim_end().rsplit_once('\n').unwrap();
    // Who is not root has no jail.
    let is_run = |line: &&str| geteuid().is_root() || !line.contains("mount");
    let load: Vec<&str> = load.lines().filter(is_run).collect();
    haproxy.types(&load.join("\n"));
    let begun = Instant::now();
    // The old worker answers until the new one does.
    let mut said = haproxy.types(ask);
    while !said.contains(INACTIVE) {
        assert!(begun.elapsed() < TEST_TIMEOUT, "{said}");
        said = haproxy.types(ask);
    }
    let worker = haproxy.worker().to_string();
    haproxy.is_profiled(&profile.replace("4711", &worker));
    let bogus = haproxy.types(&ask.replace("status", "bogus"));
    assert!(bogus.contains(UNKNOWN), "{bogus}");
    assert!(haproxy.answers());
    haproxy.host.terminate();
}
