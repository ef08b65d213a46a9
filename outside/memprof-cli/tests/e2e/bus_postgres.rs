//! PostgreSQL of Debian's: the extension.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::dist::{source, tool, tool_text};
use crate::host::{Host, TEST_TIMEOUT};
use crate::memprof::memprof;
use crate::place::{
    copy_of, copy_of_the_plugin, copy_program, give, in_place, not_as_root, open_place, plugin,
    wait_for_hosts,
};

const PACKAGE: &str = "postgresql";

struct Postgres(Host);

/// Major version of the newest server that is installed.
fn major() -> String {
    let versions = fs::read_dir("/usr/lib/postgresql").expect("apt-get install postgresql");
    let names = versions.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names
        .max_by_key(|name| name.parse::<u32>().unwrap())
        .unwrap()
}

/// An installation of its own, which has the extension: the server looks for its files beside its program.
fn install(place: &Path) -> PathBuf {
    let (root, own) = (Path::new("/usr"), place.join("usr"));
    let lib = Path::new("lib/postgresql").join(major());
    let share = Path::new("share/postgresql").join(major());
    let link_all = |from: &Path, to: &Path, but: &str| {
        fs::create_dir_all(to).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            if entry.file_name() != but {
                symlink(entry.path(), to.join(entry.file_name())).unwrap();
            }
        }
    };
    link_all(&root.join(&lib), &own.join(&lib), "bin");
    link_all(&root.join(&share), &own.join(&share), "extension");
    let extensions = Path::new("extension");
    link_all(
        &root.join(&share).join(extensions),
        &own.join(&share).join(extensions),
        "",
    );
    let programs = own.join(&lib).join("bin");
    fs::create_dir(&programs).unwrap();
    for program in ["postgres", "initdb"] {
        let original = root.join(&lib).join("bin").join(program);
        copy_program(original, programs.join(program));
    }
    for file in ["memory_profile.control", "memory_profile--1.0.sql"] {
        let text = fs::read_to_string(source("hosts-examples/postgresql").join(file)).unwrap();
        let own_file = own.join(&share).join(extensions).join(file);
        fs::write(own_file, in_place(place, &text)).unwrap();
    }
    programs
}

impl Postgres {
    /// Starts a server with these lines in its config, in which `PLACE` stands for its directory.
    fn start(config: &str) -> Self {
        let server = Self::spawn(config);
        server.0.wait_for_log("ready to accept connections");
        server
    }

    /// Like [`start`](Self::start), but does not wait until the server is ready.
    fn spawn(config: &str) -> Self {
        let place = open_place();
        let programs = install(place.path());
        let data = place.path().join("data");
        let mut create = Command::new(programs.join("initdb"));
        create
            .args(["-U", "postgres", "-A", "trust", "--no-sync", "-D"])
            .arg(&data);
        tool_text(PACKAGE, not_as_root(&mut create));
        let here = place.path().display().to_string();
        let config = config.replace("PLACE", &here);
        let file = data.join("postgresql.auto.conf");
        fs::write(
            &file,
            format!(
                "listen_addresses = ''\nunix_socket_directories = '{here}'\nfsync = off\n{config}\n"
            ),
        )
        .unwrap();
        give(&file);
        let mut command = Command::new(programs.join("postgres"));
        not_as_root(command.arg("-D").arg(&data));
        command.env("MEMPROF_DUMP_DIR", place.path().join("dumps"));
        command.env("MEMPROF_LOG", "info");
        Self(Host::spawn(command, place))
    }

    fn psql(&self, user: &str) -> Command {
        let mut client = Command::new("psql");
        client
            .arg("-h")
            .arg(self.0.place())
            .args(["-U", user, "-d", "postgres", "-XAtq"]);
        client
    }

    /// Output of statements, with their errors.
    fn says(&self, user: &str, statements: &str) -> String {
        let mut client = self.psql(user);
        let mut child = client
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(statements.as_bytes())
            .unwrap();
        let output = child.wait_with_output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        String::from_utf8(said).unwrap().trim_end().to_owned()
    }

    /// Output of statements of the superuser, which must succeed.
    fn sql(&self, statements: &str) -> String {
        let mut client = self.psql("postgres");
        tool_text(
            PACKAGE,
            client.args(["-v", "ON_ERROR_STOP=1", "-c", statements]),
        )
        .trim_end()
        .to_owned()
    }

    fn install_extension(&self) {
        self.sql("CREATE EXTENSION memory_profile");
    }

    /// Sends a message to all processes until `are` accepts their rows, and returns these.
    fn cluster(&self, message: &str, are: impl Fn(&[Row]) -> bool) -> Vec<Row> {
        let begun = Instant::now();
        loop {
            let query = format!("SELECT json_agg(c) FROM memory_profile_cluster('{message}') AS c");
            let rows: Vec<Value> = serde_json::from_str(&self.sql(&query)).unwrap();
            let rows: Vec<Row> = rows.iter().map(Row::of).collect();
            if are(&rows) {
                return rows;
            }
            assert!(begun.elapsed() < TEST_TIMEOUT, "{rows:#?}");
        }
    }
}

/// A row of `memory_profile_cluster`.
#[derive(Debug)]
struct Row {
    pid: u32,
    kind: String,
    reply: Option<String>,
    error: Option<String>,
}

impl Row {
    fn of(row: &Value) -> Self {
        let text = |name: &str| row[name].as_str().map(str::to_owned);
        Self {
            pid: row["pid"].as_u64().unwrap().try_into().unwrap(),
            kind: text("backend_type").unwrap(),
            reply: text("reply"),
            error: text("error"),
        }
    }
}

struct Session {
    client: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    backend: Pid,
}

impl Session {
    fn open(server: &Postgres) -> Self {
        let mut client = server.psql("postgres");
        let mut client = client
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut session = Self {
            input: client.stdin.take().unwrap(),
            output: BufReader::new(client.stdout.take().unwrap()),
            client,
            backend: Pid::this(),
        };
        let pid = session.ask("SELECT pg_backend_pid();");
        session.backend = Pid::from_raw(pid.parse().unwrap());
        session
    }

    fn ask(&mut self, statement: &str) -> String {
        writeln!(self.input, "{statement}").unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.client.kill().unwrap();
        self.client.wait().unwrap();
    }
}

/// On an unmodified server: nothing is restarted, and only this session has loaded the library.
#[test]
fn session_loads_the_plugin_and_replies() {
    let server = Postgres::start("");
    let library = plugin(server.0.place()).display().to_string();
    let second = server.0.place().join("second.so");
    copy_of_the_plugin(&second);
    let script = format!(
        "LOAD '{library}';
         CREATE FUNCTION memory_profile(text) RETURNS text AS '{library}', 'pg_memory_profile' LANGUAGE C STRICT;
         REVOKE ALL ON FUNCTION memory_profile FROM PUBLIC;
         GRANT EXECUTE ON FUNCTION memory_profile TO pg_monitor;
         CREATE ROLE anybody LOGIN; CREATE ROLE monitor LOGIN IN ROLE pg_monitor;
         SELECT split_part(memory_profile('stats'), ' ', 1);
         SELECT memory_profile('status format=json')::json ->> 'profiling';
         SELECT memory_profile(NULL) IS NULL;
         SELECT split_part(memory_profile('activate'), ' since', 1);
         SELECT split_part(memory_profile('dump'), ' ', 1);
         LOAD '{0}';
         CREATE FUNCTION second(text) RETURNS text AS '{0}', 'pg_memory_profile' LANGUAGE C STRICT;
         SELECT split_part(second('status'), ' since', 1);",
        second.display()
    );
    let said = server.says("postgres", &script);
    assert_eq!(
        said,
        "glibc\ninactive\nt\nprofiling is active\ndumped\nprofiling is active"
    );

    let check = |user: &str, statement: &str, expected: &str| {
        let said = server.says(user, &format!("{statement}; SELECT 'alive'"));
        assert!(
            said.lines().any(|line| line == "alive"),
            "{statement}: {said}"
        );
        assert!(said.contains(expected), "{statement}: {said}");
    };
    let status = "SELECT memory_profile('status')";
    check(
        "anybody",
        status,
        "permission denied for function memory_profile",
    );
    let monitored = server.says("monitor", status);
    assert!(
        monitored.starts_with("profiling is inactive\n"),
        "{monitored}"
    );
    let foreign = format!("SET memory_profile.config = '/etc/passwd'; LOAD '{library}'");
    check("anybody", &foreign, "access to library");
    let set = format!("{status}; SET memory_profile.config = '/etc/passwd'");
    check(
        "monitor",
        &set,
        "parameter \"memory_profile.config\" cannot be changed now",
    );
    let junk = "ERROR:  memory_profile has no message \"junk\"; valid messages: activate,";
    check("monitor", "SELECT memory_profile('junk')", junk);
    check(
        "monitor",
        "SELECT memory_profile('')",
        "valid messages: activate,",
    );
    check(
        "monitor",
        "SELECT memory_profile('dump x=1')",
        "unknown argument \"x\"",
    );
    check(
        "monitor",
        "SELECT memory_profile(repeat('x', 1000000))",
        "ERROR:  a message has at most 4096 bytes, this one has 1000000",
    );
    check(
        "monitor",
        "DO $$ BEGIN PERFORM memory_profile('junk'); EXCEPTION WHEN external_routine_exception THEN \
         RAISE NOTICE 'caught'; END $$",
        "NOTICE:  caught",
    );
    let hello = server.0.place().join("hello_rust.so");
    copy_of("hello_rust.so", &hello);
    let said = server.says(
        "postgres",
        &format!(
            "CREATE FUNCTION hello(text) RETURNS text AS '{}', 'pg_hello_rust' LANGUAGE C STRICT;
             SELECT hello('hello name=you')",
            hello.display()
        ),
    );
    assert_eq!(said, "hello, you");
    // Each error leaves by longjmp: a thousand of them leave nothing behind.
    let many = "DO $$ BEGIN FOR i IN 1..1000 LOOP BEGIN PERFORM memory_profile('junk'); \
                EXCEPTION WHEN OTHERS THEN NULL; END; END LOOP; END $$";
    check("monitor", many, "alive");
}

#[test]
fn leak_of_an_extension_is_named() {
    let server = Postgres::start("");
    server.install_extension();
    let library = server.0.place().join("leaking_extension.so");
    let mut cc = Command::new("cc");
    cc.args([
        "-shared", "-fPIC", "-g", "-O1", "-Wall", "-Wextra", "-Werror",
    ])
    .arg(format!("-DMAJOR={}", major()))
    .arg("-o")
    .arg(&library)
    .arg(source(
        "outside/memprof-cli/tests/fixtures/leaking_extension.c",
    ));
    tool_text("gcc", &mut cc);
    let said = server.says(
        "postgres",
        &format!(
            "CREATE FUNCTION leak() RETURNS int AS '{}', 'leak' LANGUAGE C;
             SELECT split_part(memory_profile('activate'), ' since', 1);
             SELECT sum(leak()) FROM generate_series(1, 10);
             SELECT memory_profile('dump format=json');",
            library.display()
        ),
    );
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[..2], ["profiling is active", "10000"], "{said}");
    let dump: Value = serde_json::from_str(lines[2]).unwrap();
    let report = memprof(
        server.0.place(),
        &["report", "--format=json", dump["path"].as_str().unwrap()],
    );
    let report = report.exits(0).json();
    let first = &report["functions"][0];
    assert_eq!(first["name"], "planted_leak", "{report:#}");
    let bytes = first["flat"].as_u64().unwrap();
    assert!((20 << 20..80 << 20).contains(&bytes), "{report:#}");
}

/// New sessions get the library by a reload; the others go on without.
#[test]
fn new_sessions_reply_as_a_cluster() {
    let server = Postgres::start("");
    server.install_extension();
    server.sql("CREATE ROLE anybody LOGIN");
    let refused = server.says("anybody", "SELECT * FROM memory_profile_cluster('status')");
    assert!(refused.contains("permission denied"), "{refused}");
    let old = Session::open(&server);
    let library = plugin(server.0.place()).display().to_string();
    server.sql(&format!(
        "ALTER SYSTEM SET session_preload_libraries = '{library}'"
    ));
    server.sql("SELECT pg_reload_conf()");
    let begun = Instant::now();
    while !server
        .sql("SHOW session_preload_libraries")
        .contains(&library)
    {
        assert!(begun.elapsed() < TEST_TIMEOUT);
    }
    let sessions = [Session::open(&server), Session::open(&server)];
    let of = |session: &Session, rows: &[Row]| {
        let pid = session.backend.as_raw().cast_unsigned();
        rows.iter().position(|row| row.pid == pid).unwrap()
    };
    let rows = server.cluster("status", |rows| {
        sessions
            .iter()
            .all(|session| rows[of(session, rows)].reply.is_some())
    });
    let answered = rows.iter().filter(|row| row.reply.is_some());
    assert_eq!(
        answered.count(),
        3,
        "the sessions, and the one that asks: {rows:#?}"
    );
    let without = &rows[of(&old, &rows)];
    assert_eq!(
        without.error.as_deref(),
        Some("it has not loaded the library, or only just")
    );
    assert!(
        rows.iter().any(|row| row.kind == "checkpointer"),
        "{rows:#?}"
    );
    let active = server.cluster("activate", |_| true);
    let active = active.iter().filter_map(|row| row.reply.as_deref());
    assert!(
        active
            .clone()
            .all(|reply| reply.starts_with("profiling is active"))
    );
    assert_eq!(active.count(), 3);
    let junk = server.cluster("junk", |_| true);
    let error = junk[of(&sessions[0], &junk)].error.as_deref().unwrap();
    assert!(error.contains("no message \"junk\""), "{error}");

    let pid = sessions[0].backend.to_string();
    let dump = memprof(&server.0.socket_dir(), &["dump", "-t", &pid, "--json"]);
    assert_eq!(dump.exits(0).json()["status"], "ok");

    // One that does not answer is waited for, but not for long, and not when the query is cancelled.
    kill(sessions[0].backend, Signal::SIGSTOP).unwrap();
    let begun = Instant::now();
    let late = server.says(
        "postgres",
        "SET statement_timeout = '300ms'; SELECT * FROM memory_profile_cluster('status');",
    );
    assert!(
        late.contains("canceling statement due to statement timeout"),
        "{late}"
    );
    assert!(
        begun.elapsed() < Duration::from_secs(4),
        "{:?}",
        begun.elapsed()
    );
    let rows = server.cluster("status", |_| true);
    kill(sessions[0].backend, Signal::SIGCONT).unwrap();
    let silent = &rows[of(&sessions[0], &rows)];
    assert_eq!(silent.error.as_deref(), Some("it did not answer within 5s"));
    assert!(rows[of(&sessions[1], &rows)].reply.is_some(), "{rows:#?}");
    server.cluster("status", |rows| {
        rows[of(&sessions[0], rows)].reply.is_some()
    });
}

/// The server itself has the library, with a config; so has each of its processes.
#[test]
fn server_with_preloaded_plugin_survives_a_crash() {
    let server = Postgres::start(
        "shared_preload_libraries = 'PLACE/memory_profile.so'\nmemory_profile.config = 'PLACE/memprof.toml'\n\
         restart_after_crash = on\n",
    );
    let postmaster = server.0.pid();
    let has = |rows: &[Row], kind: &str| {
        let mut rows = rows.iter().filter(|row| row.kind == kind);
        rows.any(|row| {
            row.reply.is_some()
                || row
                    .error
                    .as_deref()
                    .is_some_and(|error| error.contains("memprof.toml"))
        })
    };
    server.install_extension();
    // There is no such file: the server starts, and says so.
    let reason = format!("config file {}/memprof.toml", server.0.place().display());
    let said = server.says("postgres", "SELECT memory_profile('status');");
    assert!(said.contains(&reason), "{said}");
    let kinds = ["checkpointer", "walwriter", "postmaster or logger"];
    let all = |rows: &[Row]| kinds.iter().all(|kind| has(rows, kind));
    let rows = server.cluster("status", all);
    assert!(rows.iter().any(|row| row.pid == postmaster), "{rows:#?}");

    let session = Session::open(&server);
    kill(session.backend, Signal::SIGKILL).unwrap();
    server.0.wait_for_log("was terminated by signal 9");
    server.0.wait_for_lines("ready to accept connections", 2);
    let again = server.cluster("status", all);
    let kept = |row: &&Row| row.pid != postmaster && rows.iter().any(|old| old.pid == row.pid);
    assert_eq!(again.iter().filter(kept).count(), 0, "{again:#?}");

    // Connections that come and go, many at a time.
    let clients: Vec<_> = (0..8)
        .map(|_| {
            let mut client = server.psql("postgres");
            client.args(["-c", "SELECT 1"]);
            thread::spawn(move || (0..10).all(|_| tool(PACKAGE, &mut client).status.success()))
        })
        .collect();
    assert!(clients.into_iter().all(|client| client.join().unwrap()));
    wait_for_hosts(&server.0.socket_dir(), |pids| pids.contains(&postmaster));
}

/// The collector takes the place of the standard error that the server was started with, after it loaded the library.
#[test]
fn log_lines_reach_the_server_log() {
    let server = Postgres::spawn(
        "logging_collector = on\nlog_directory = 'PLACE/log'\nlog_filename = 'server.log'\n\
         shared_preload_libraries = 'PLACE/memory_profile.so'\n",
    );
    let file = server.0.place().join("log/server.log");
    let socket = |pid: u32| {
        format!(
            "memprof: info: control socket {}/{pid}.sock",
            server.0.socket_dir().display()
        )
    };
    let wait_for = |line: &str| {
        let begun = Instant::now();
        loop {
            let log = fs::read_to_string(&file).unwrap_or_default();
            if log.contains(line) {
                return log;
            }
            assert!(begun.elapsed() < TEST_TIMEOUT, "no {line}: {log}");
            testkit::pause();
        }
    };
    wait_for(&socket(server.0.pid()));
    wait_for("ready to accept connections");
    let session = Session::open(&server);
    let log = wait_for(&socket(session.backend.as_raw().cast_unsigned()));
    let mut own = log.lines().filter(|line| line.contains("memprof: "));
    assert!(own.all(|line| line.starts_with("memprof: ")), "{log}");
}

/// While backends work, all of them are switched on and off and dumped, again and again.
#[test]
fn query_results_are_equal_while_all_backends_are_profiled() {
    const CLIENTS: u64 = 4;
    const TRANSACTIONS: u64 = 2000;
    let server = Postgres::start("session_preload_libraries = 'PLACE/memory_profile.so'\n");
    server.install_extension();
    let pgbench = |args: &[&str]| {
        let mut pgbench = Command::new(
            Path::new("/usr/lib/postgresql")
                .join(major())
                .join("bin/pgbench"),
        );
        pgbench
            .args(["-U", "postgres", "-n", "-h"])
            .arg(server.0.place());
        pgbench.args(args).arg("postgres");
        pgbench
    };
    tool_text(PACKAGE, &mut pgbench(&["-i", "-q"]));
    let (clients, transactions) = (CLIENTS.to_string(), TRANSACTIONS.to_string());
    let mut storm = pgbench(&["-c", &clients, "-j", "2", "-t", &transactions]);
    let mut storm = storm
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut dumped = 0;
    while storm.try_wait().unwrap().is_none() {
        for message in ["activate lg_sample=12", "dump", "stats", "deactivate"] {
            let rows = server.cluster(message, |_| true);
            let replies = rows.iter().filter_map(|row| row.reply.as_deref());
            dumped += replies.filter(|reply| reply.starts_with("dumped ")).count();
        }
    }
    let output = storm.wait_with_output().unwrap();
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    let all = CLIENTS * TRANSACTIONS;
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains(&format!("processed: {all}/{all}\n")),
        "{said}"
    );
    assert!(said.contains("failed transactions: 0 "), "{said}");
    let sums = "SELECT count(*), sum(delta) = (SELECT sum(abalance) FROM pgbench_accounts), \
                sum(delta) = (SELECT sum(bbalance) FROM pgbench_branches) FROM pgbench_history";
    assert_eq!(server.sql(sums), format!("{all}|t|t"));
    assert!(dumped as u64 > 2 * CLIENTS, "{dumped} dumps");
    let log = server.0.log();
    assert!(
        !log.iter().any(|line| line.contains("terminated by signal")),
        "{log:#?}"
    );
}
