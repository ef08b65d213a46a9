//! MariaDB of Debian's: a loadable function.

use std::process::{Command, Output};
use std::time::Instant;

use crate::bus::free_port;
use crate::dist::{dist, tool, tool_text};
use crate::host::{Host, TEST_TIMEOUT};
use crate::memprof::memprof;
use crate::place::{copy_of_the_plugin, give, not_as_root, open_place, wait_for_hosts};

struct MariaDb(Host);

impl MariaDb {
    fn start() -> Self {
        Self::start_with(&["--skip-networking"])
    }

    fn start_with(options: &[&str]) -> Self {
        let place = open_place();
        let plugins = place.path().join("plugins");
        std::fs::create_dir(&plugins).unwrap();
        copy_of_the_plugin(&plugins.join("memory_profile.so"));
        let data = place.path().join("data");
        std::fs::create_dir(&data).unwrap();
        give(&data);
        let mut create = Command::new("mariadb-install-db");
        create
            .args(["--no-defaults", "--skip-test-db", "--skip-name-resolve"])
            .arg("--auth-root-authentication-method=normal")
            .arg(format!("--datadir={}", data.display()))
            // Two at once take each other's temporary tables from a common one.
            .arg(format!("--tmpdir={}", place.path().display()));
        tool_text("mariadb-server", not_as_root(&mut create));
        Self::start_in(place, options)
    }

    fn start_in(place: tempfile::TempDir, options: &[&str]) -> Self {
        let file = |name: &str| place.path().join(name).display().to_string();
        let mut command = Command::new("/usr/sbin/mariadbd");
        command
            .arg("--no-defaults")
            .args(options)
            .arg(format!("--datadir={}", file("data")))
            .arg(format!("--plugin-dir={}", file("plugins")))
            .arg(format!("--socket={}", file("socket")))
            .arg(format!("--pid-file={}", file("data/pid")))
            .arg("--innodb-buffer-pool-size=16M")
            .env("MEMPROF_CONFIG", file("memprof.toml"));
        let config = format!(
            "allow = [\"activate\"]\ndump_dir = {:?}\n",
            file("data/dumps")
        );
        std::fs::write(file("memprof.toml"), config).unwrap();
        not_as_root(&mut command);
        let host = Host::spawn(command, place);
        host.wait_for_log("ready for connections");
        Self(host)
    }

    fn client(&self, user: &str, statements: &str) -> Output {
        let mut client = Command::new("mariadb");
        client
            .args([
                "--no-defaults",
                "-N",
                "-B",
                "--raw",
                "-u",
                user,
                "-e",
                statements,
            ])
            .arg(format!(
                "--socket={}",
                self.0.place().join("socket").display()
            ));
        tool("mariadb-client", &mut client)
    }

    fn sql(&self, user: &str, statements: &str) -> String {
        let output = self.client(user, statements);
        let notes = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{statements}: {notes}");
        String::from_utf8_lossy(&output.stdout)
            .trim_end()
            .to_owned()
    }

    fn refused(&self, user: &str, statement: &str) -> String {
        let output = self.client(user, statement);
        assert!(!output.status.success(), "{statement}");
        String::from_utf8_lossy(&output.stderr)
            .trim_end()
            .to_owned()
    }

    fn threads(&self) -> usize {
        let ours = |name: &&String| name.starts_with("memprof");
        self.0.threads().iter().filter(ours).count()
    }
}

const CREATE: &str = include_str!("../../../../hosts-examples/mariadb/install.sql");
const DROP: &str = include_str!("../../../../hosts-examples/mariadb/uninstall.sql");

/// A server that writes a binary log, and one that replicates it and has no file of the plugin's.
fn replicated() -> (MariaDb, MariaDb) {
    let port = free_port();
    let log = [
        "--server-id=1",
        "--log-bin",
        "--bind-address=127.0.0.1",
        &format!("--port={port}"),
    ];
    let primary = MariaDb::start_with(&log);
    let replica = MariaDb::start_with(&["--server-id=2", "--skip-networking"]);
    std::fs::remove_file(replica.0.place().join("plugins/memory_profile.so")).unwrap();
    primary.sql(
        "root",
        "CREATE USER copier@'127.0.0.1'; GRANT REPLICATION SLAVE ON *.* TO copier@'127.0.0.1'",
    );
    let start = format!(
        "CHANGE MASTER TO master_host = '127.0.0.1', master_port = {port}, master_user = 'copier', \
         master_use_gtid = slave_pos; START SLAVE"
    );
    replica.sql("root", &start);
    (primary, replica)
}

/// Waits up to 10 s until the replica has done everything that the primary logged. The error is its status.
fn catch_up(primary: &MariaDb, replica: &MariaDb) -> Result<(), String> {
    let position = primary.sql("root", "SELECT @@gtid_binlog_pos");
    let wait = format!("SELECT master_gtid_wait('{position}', 10)");
    match replica.sql("root", &wait).as_str() {
        "0" => Ok(()),
        _ => Err(replica.sql("root", "SHOW SLAVE STATUS")),
    }
}

#[test]
fn replica_without_the_plugin_goes_on_through_install_and_uninstall() {
    let (primary, replica) = replicated();
    primary.sql("root", CREATE);
    primary.sql("root", "SELECT memory_profile('status')");
    primary.sql("root", "CREATE DATABASE after_install");
    // By default (MIXED) the rows are logged, not the call.
    primary.sql("root", "CREATE TABLE after_install.kept (status text)");
    let insert = "INSERT INTO after_install.kept SELECT memory_profile('status')";
    primary.sql("root", insert);
    catch_up(&primary, &replica).unwrap();
    let kept = replica.sql("root", "SELECT status FROM after_install.kept");
    assert!(kept.starts_with("profiling is inactive"), "{kept}");
    primary.sql("root", DROP);
    primary.sql("root", "CREATE DATABASE after_uninstall");
    catch_up(&primary, &replica).unwrap();
    let databases = replica.sql("root", "SHOW DATABASES LIKE 'after%'");
    assert_eq!(databases, "after_install\nafter_uninstall");
}

#[test]
fn all_users_may_read_and_the_config_allows_more() {
    let server = MariaDb::start();
    server.sql("root", "CREATE USER guest");
    assert_eq!(server.threads(), 0);
    server.sql("root", CREATE);
    assert_eq!(server.threads(), 0, "loading alone does nothing");
    let status = server.sql("guest", "SELECT memory_profile('status')");
    assert!(status.starts_with("profiling is inactive\n"), "{status}");
    let json = server.sql("guest", "SELECT memory_profile('status format=json')");
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["profiling"], "inactive");
    for message in ["help", "stats", "ledger", "doctor", "list"] {
        let answer = server.sql(
            "guest",
            &format!("SELECT length(memory_profile('{message}'))"),
        );
        assert!(answer.parse::<u32>().is_ok(), "{message}: {answer}");
    }
    let doctor = server.sql("guest", "SELECT memory_profile('doctor')");
    let first_line = doctor.lines().next().unwrap();
    assert!(first_line.contains("InnoDB's buffer pool"), "{doctor}");
    let refused = server.refused("guest", "SELECT memory_profile('dump')");
    let expected = "ERROR 1105 (HY000) at line 1: \"dump\" is not a message for everybody, who may call this \
                    function: it takes help, stats, status, ledger, doctor, list; allow = [\"dump\"] in the file";
    assert!(refused.starts_with(expected), "{refused}");
    let active = server.sql("guest", "SELECT memory_profile('activate')");
    assert!(active.starts_with("profiling is active since "), "{active}");
    // Whoever may use the control socket may send all of them.
    let sockets = server.0.socket_dir();
    wait_for_hosts(&sockets, |pids| pids == [server.0.pid()]);
    let dump = memprof(&sockets, &["dump", "-t", "mariadbd", "--json"]);
    assert_eq!(dump.exits(0).json()["status"], "ok");
}

#[test]
fn invalid_message_is_an_error_and_the_server_survives() {
    let server = MariaDb::start();
    server.sql("root", CREATE);
    let check = |argument: &str, expected: &str| {
        let refused = server.refused("root", &format!("SELECT memory_profile({argument})"));
        assert!(refused.contains(expected), "{argument}: {refused}");
    };
    check(
        "",
        "Can't initialize function 'memory_profile'; it takes one message",
    );
    check(
        "'status', 1",
        "it takes one message, as in memory_profile('stats')",
    );
    check("'dump'", "\"dump\" is not a message for everybody");
    let valid = "valid messages: activate";
    check("'junk'", valid);
    check("''", valid);
    check("42", valid);
    check("0xff00fe", "");
    check("repeat('x', 1000000)", "a message has at most 4096 bytes");
    check(
        "concat('status ', repeat('x', 1000000))",
        "a message has at most 4096 bytes",
    );
    check("'status x=1'", "unknown argument \"x\"");
    assert_eq!(server.sql("root", "SELECT memory_profile(NULL)"), "NULL");
    let rows =
        "SELECT count(memory_profile(concat('list', repeat(' ', seq)))) FROM mysql.seq_1_to_50";
    assert_eq!(server.sql("root", rows), "50");
}

/// A loadable function stays in the server's tables. The library that was loaded stays mapped when the function is
/// dropped, for its threads are in it; so the function that is created again finds the same profiler.
#[test]
fn function_survives_restart_and_drop_while_running() {
    let mut server = MariaDb::start();
    server.sql("root", CREATE);
    server.sql("root", "SELECT memory_profile('activate')");
    let statements = "SELECT count(memory_profile('stats')) FROM mysql.seq_1_to_2000";
    let mut client = Command::new("mariadb");
    client
        .args(["--no-defaults", "-N", "-B", "-u", "root", "-e", statements])
        .arg(format!(
            "--socket={}",
            server.0.place().join("socket").display()
        ))
        .stdout(std::process::Stdio::piped());
    let running = client.spawn().unwrap();
    let begun = Instant::now();
    let busy = "SELECT count(*) FROM information_schema.processlist WHERE info LIKE '%seq_1_to_2000' \
                AND info NOT LIKE '%processlist%' AND state <> ''";
    while server.sql("root", busy) != "1" {
        assert!(begun.elapsed() < TEST_TIMEOUT);
    }
    server.sql("root", "DROP FUNCTION memory_profile");
    let refused = server.refused("root", "SELECT memory_profile('status')");
    assert!(
        refused.contains("FUNCTION memory_profile does not exist"),
        "{refused}"
    );
    let counted = running.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&counted.stdout).trim(), "2000");
    wait_for_hosts(&server.0.socket_dir(), |pids| pids == [server.0.pid()]);
    server.sql("root", CREATE);
    let status = server.sql("root", "SELECT memory_profile('status')");
    assert!(status.starts_with("profiling is active since "), "{status}");
    // Replaced by rename, the file is another library: it finds the profiler of the first.
    let plugins = server.0.place().join("plugins");
    std::fs::copy(dist("plugins/memory_profile.so"), plugins.join("new")).unwrap();
    std::fs::rename(plugins.join("new"), plugins.join("memory_profile.so")).unwrap();
    server.sql("root", &format!("DROP FUNCTION memory_profile; {CREATE}"));
    let status = server.sql("root", "SELECT memory_profile('status')");
    assert!(status.starts_with("profiling is active since "), "{status}");
    assert!(server.0.terminate().success());
    let server = MariaDb::start_in(server.0.into_place(), &["--skip-networking"]);
    let status = server.sql("root", "SELECT memory_profile('status')");
    assert!(status.starts_with("profiling is inactive\n"), "{status}");
}
