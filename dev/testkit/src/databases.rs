//! Databases and key-value stores.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use nix::sys::signal::Signal;

use crate::net_client::{exchange, run_client};
use crate::psql_session::PsqlSession;
use crate::server::RunningServer;
use crate::server::{ProfiledProcess, Server};
use crate::server_dir::ServerDir;
use crate::server_dir::User;

pub(crate) const REDIS: Server = Server {
    name: "redis",
    packages: &["redis-server"],
    user: User::Starter,
    profiled: ProfiledProcess::Main,
    load_symbol: "createStringObject",
    fork: None,
    command: |dir| {
        let mut command = Command::new("/usr/bin/redis-server");
        command.args(["--bind", "127.0.0.1", "--save", "", "--port"]);
        command.arg(dir.port.to_string());
        Ok(command)
    },
    query: |running| run_redis_commands(running, "SET answer hello\r\nGET answer"),
    load: |running| {
        let fill = "EVAL \"for i=1,5000 do redis.call('SET','k'..i,string.rep('x',1000)) end\" 0";
        run_redis_commands(running, fill).map(drop)
    },
};

/// Sends commands over a connection of their own and returns all replies. Fails if one is an error, or the connection
/// ends before the reply to the added QUIT.
fn run_redis_commands(running: &RunningServer, commands: &str) -> Result<String> {
    let request = format!("{commands}\r\nQUIT\r\n");
    let reply = exchange(running.dir().port, request.as_bytes())?;
    let reply = String::from_utf8(reply)?;
    ensure!(
        reply.ends_with("+OK\r\n") && !has_redis_error(&reply),
        "{reply}"
    );
    Ok(reply)
}

/// Returns whether one of Redis' replies is an error. Errors begin with a dash and a word for their kind, as `-ERR` and
/// `-WRONGTYPE`; the values that tests store have no such line.
fn has_redis_error(replies: &str) -> bool {
    replies.lines().any(|line| line.starts_with('-'))
}

pub(crate) const MEMCACHED: Server = Server {
    name: "memcached",
    packages: &["memcached"],
    user: User::Starter,
    profiled: ProfiledProcess::Main,
    load_symbol: "memcached",
    fork: None,
    command: |dir| {
        let mut command = Command::new("/usr/bin/memcached");
        command.args(["-l", "127.0.0.1", "-u", "memcache", "-p"]);
        command.arg(dir.port.to_string());
        Ok(command)
    },
    query: |running| {
        let request = b"set answer 0 0 5\r\nhello\r\nget answer\r\nquit\r\n";
        Ok(String::from_utf8(exchange(running.dir().port, request)?)?)
    },
    load: |running| {
        let mut request = String::new();
        for number in 0..2000 {
            let value = "x".repeat(4000);
            write!(request, "set k{number} 0 0 4000 noreply\r\n{value}\r\n")?;
        }
        request += "get k1999\r\nquit\r\n";
        let reply = exchange(running.dir().port, request.as_bytes())?;
        ensure!(
            reply.ends_with(b"END\r\n") && reply.len() > 4000,
            "no k1999"
        );
        Ok(())
    },
};

const POSTGRES: &[&str] = &["postgresql"];
/// Directory of PostgreSQL's programs on Debian 12.
const POSTGRES_PROGRAMS: &str = "/usr/lib/postgresql/15/bin";

pub(crate) const POSTGRES_BACKEND: Server = Server {
    name: "postgres backend",
    packages: POSTGRES,
    user: User::Unprivileged,
    profiled: ProfiledProcess::Session,
    load_symbol: "PrepareQuery",
    fork: None,
    command: postgres_command,
    query: |running| {
        if running.session.is_none() {
            // psql fails until the server accepts connections.
            run_client(psql_command(running.dir()).args(["-c", "select 1"]))?;
            running.session = Some(PsqlSession::start(&mut psql_command(running.dir()))?);
        }
        let session = running.session.as_mut().expect("it is open");
        session.execute("select 40 + 2, current_setting('server_version');")
    },
    load: |running| {
        let session = running.session.as_mut().expect("it answered");
        let prepare = "do $$ begin execute 'deallocate all'; for i in 1..500 loop execute \
                       format('prepare p%s as select %s from pg_class where oid = $1', i, i); \
                       end loop; end $$;";
        session.execute(prepare)?;
        let count = session.execute("select count(*) from pg_prepared_statements;")?;
        ensure!(count.trim() == "500", "{count} prepared statements");
        Ok(())
    },
};

pub(crate) const POSTMASTER: Server = Server {
    name: "postmaster",
    profiled: ProfiledProcess::Main,
    load_symbol: "ProcessConfigFile",
    fork: Some(|running| {
        let mut session = PsqlSession::start(&mut psql_command(running.dir()))?;
        let backend = session.execute("select pg_backend_pid();")?;
        running.session = Some(session);
        Ok(backend.trim().parse()?)
    }),
    query: |running| run_client(psql_command(running.dir()).args(["-c", "select 40 + 2"])),
    // The postmaster itself keeps only settings in memory.
    load: |running| {
        let mut settings = String::new();
        for number in 0..500 {
            let value = running.loads.to_string().repeat(1000);
            writeln!(settings, "my.v{number} = '{value}'")?;
        }
        running.dir().write_file("data/load.conf", &settings)?;
        running.signal(Signal::SIGHUP)?;
        let expected = running.loads.to_string().repeat(1000);
        running.wait_for("the new setting", |running| {
            let show = "select current_setting('my.v499', true)";
            let found = run_client(psql_command(running.dir()).args(["-c", show]))?;
            Ok((found.trim() == expected).then_some(()))
        })
    },
    ..POSTGRES_BACKEND
};

/// Creates the database directory with its configuration, and returns the command of the postmaster.
fn postgres_command(dir: &ServerDir) -> Result<Command> {
    let data = dir.file_path("data");
    let mut create = Command::new(Path::new(POSTGRES_PROGRAMS).join("initdb"));
    create.args(["-D", &data, "-U", "postgres", "-A", "trust", "--no-sync"]);
    run_client(dir.run_as_server_user(&mut create))?;
    let config = format!(
        "listen_addresses = ''\nunix_socket_directories = '{}'\nfsync = off\n\
         include_if_exists = 'load.conf'\n",
        dir.path().display()
    );
    dir.write_file("data/postgresql.auto.conf", &config)?;
    let mut command = Command::new(Path::new(POSTGRES_PROGRAMS).join("postgres"));
    command.args(["-D", &data, "-p", &dir.port.to_string()]);
    Ok(command)
}

/// Returns the command `psql` for the server's socket, which prints only the values of rows.
fn psql_command(dir: &ServerDir) -> Command {
    let mut client = Command::new(Path::new(POSTGRES_PROGRAMS).join("psql"));
    client.arg("-h").arg(dir.path());
    client.args([
        "-p",
        &dir.port.to_string(),
        "-U",
        "postgres",
        "-d",
        "postgres",
        "-XAtq",
    ]);
    client
}

pub(crate) const MARIADB: Server = Server {
    name: "mariadb",
    packages: &["mariadb-server"],
    user: User::Unprivileged,
    profiled: ProfiledProcess::Main,
    load_symbol: "handler::ha_write_row",
    fork: None,
    command: |dir| {
        let data = format!("--datadir={}", dir.create_subdir("data")?);
        let mut create = Command::new("mariadb-install-db");
        create.args(["--no-defaults", &data, "--skip-test-db"]);
        create.args([
            "--auth-root-authentication-method=normal",
            "--skip-name-resolve",
        ]);
        run_client(dir.run_as_server_user(&mut create))?;
        let mut command = Command::new("/usr/sbin/mariadbd");
        command.args(["--no-defaults", &data, "--skip-networking"]);
        command.arg(format!("--socket={}", dir.file_path("socket")));
        command.arg(format!("--pid-file={}", dir.file_path("mariadbd.pid")));
        command.args([
            "--innodb-buffer-pool-size=16M",
            "--innodb-flush-log-at-trx-commit=0",
        ]);
        Ok(command)
    },
    query: |running| run_sql(running, "select 40 + 2"),
    load: |running| {
        let fill = "create database if not exists w; use w; \
                    create or replace table m (v varchar(1000)) engine=memory charset=latin1; \
                    insert into m select repeat('x', 1000) from seq_1_to_5000; \
                    select count(*) from m";
        let count = run_sql(running, fill)?;
        ensure!(count.trim() == "5000", "{count} rows");
        Ok(())
    },
};

/// Executes SQL statements on `MariaDB` as root. Returns the rows without column names. Fails as [`run_client`] does.
fn run_sql(running: &RunningServer, statements: &str) -> Result<String> {
    let mut client = Command::new("mariadb");
    client.args(["--no-defaults", "-u", "root", "-N", "-B"]);
    client.arg(format!("--socket={}", running.dir().file_path("socket")));
    run_client(client.args(["-e", statements]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redis_error_of_any_kind_is_an_error() {
        let check = |replies, expected| assert_eq!(has_redis_error(replies), expected, "{replies}");
        check("+OK\r\n$5\r\nhello\r\n+OK\r\n", false);
        check(":-1\r\n$-1\r\n+OK\r\n", false);
        check("$4\r\na-ER\r\n+OK\r\n", false);
        check("-ERR unknown command\r\n+OK\r\n", true);
        check("+OK\r\n-OOM command not allowed\r\n+OK\r\n", true);
        check("-WRONGTYPE Operation\r\n+OK\r\n", true);
    }
}
