//! Databases, and stores of keys and values.

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
    names: "createStringObject",
    forks: None,
    command: |place| {
        let mut command = Command::new("/usr/bin/redis-server");
        command.args(["--bind", "127.0.0.1", "--save", "", "--port"]);
        command.arg(place.port.to_string());
        Ok(command)
    },
    answer: |running| redis(running, "SET answer hello\r\nGET answer"),
    load: |running| {
        let fill = "EVAL \"for i=1,5000 do redis.call('SET','k'..i,string.rep('x',1000)) end\" 0";
        redis(running, fill).map(drop)
    },
};

fn redis(running: &RunningServer, commands: &str) -> Result<String> {
    let request = format!("{commands}\r\nQUIT\r\n");
    let reply = exchange(running.place().port, request.as_bytes())?;
    let reply = String::from_utf8(reply)?;
    ensure!(
        reply.ends_with("+OK\r\n") && !reply.contains("-ERR"),
        "{reply}"
    );
    Ok(reply)
}

pub(crate) const MEMCACHED: Server = Server {
    name: "memcached",
    packages: &["memcached"],
    user: User::Starter,
    profiled: ProfiledProcess::Main,
    names: "memcached",
    forks: None,
    command: |place| {
        let mut command = Command::new("/usr/bin/memcached");
        command.args(["-l", "127.0.0.1", "-u", "memcache", "-p"]);
        command.arg(place.port.to_string());
        Ok(command)
    },
    answer: |running| {
        let request = b"set answer 0 0 5\r\nhello\r\nget answer\r\nquit\r\n";
        Ok(String::from_utf8(exchange(running.place().port, request)?)?)
    },
    load: |running| {
        let mut request = String::new();
        for number in 0..2000 {
            let value = "x".repeat(4000);
            write!(request, "set k{number} 0 0 4000 noreply\r\n{value}\r\n")?;
        }
        request += "get k1999\r\nquit\r\n";
        let reply = exchange(running.place().port, request.as_bytes())?;
        ensure!(
            reply.ends_with(b"END\r\n") && reply.len() > 4000,
            "no k1999"
        );
        Ok(())
    },
};

const POSTGRES: &[&str] = &["postgresql"];
/// Where Debian 12 has its programs.
const POSTGRES_PROGRAMS: &str = "/usr/lib/postgresql/15/bin";

pub(crate) const POSTGRES_BACKEND: Server = Server {
    name: "postgres backend",
    packages: POSTGRES,
    user: User::Nobody,
    profiled: ProfiledProcess::Session,
    names: "PrepareQuery",
    forks: None,
    command: postgres,
    answer: |running| {
        if running.session.is_none() {
            // It fails as long as the server does not answer.
            run_client(psql(running.place()).args(["-c", "select 1"]))?;
            running.session = Some(PsqlSession::start(&mut psql(running.place()))?);
        }
        let session = running.session.as_mut().expect("it is open");
        session.ask("select 40 + 2, current_setting('server_version');")
    },
    load: |running| {
        let session = running.session.as_mut().expect("it answered");
        let prepare = "do $$ begin execute 'deallocate all'; for i in 1..500 loop execute \
                       format('prepare p%s as select %s from pg_class where oid = $1', i, i); \
                       end loop; end $$;";
        session.ask(prepare)?;
        let count = session.ask("select count(*) from pg_prepared_statements;")?;
        ensure!(count.trim() == "500", "{count} prepared statements");
        Ok(())
    },
};

pub(crate) const POSTMASTER: Server = Server {
    name: "postmaster",
    profiled: ProfiledProcess::Main,
    names: "ProcessConfigFile",
    forks: Some(|running| {
        let mut session = PsqlSession::start(&mut psql(running.place()))?;
        let backend = session.ask("select pg_backend_pid();")?;
        running.session = Some(session);
        Ok(backend.trim().parse()?)
    }),
    answer: |running| run_client(psql(running.place()).args(["-c", "select 40 + 2"])),
    // What it keeps itself are settings.
    load: |running| {
        let mut settings = String::new();
        for number in 0..500 {
            let value = running.loads.to_string().repeat(1000);
            writeln!(settings, "my.v{number} = '{value}'")?;
        }
        running.place().write("data/load.conf", &settings)?;
        running.signal(Signal::SIGHUP)?;
        let expected = running.loads.to_string().repeat(1000);
        running.wait_for("the new setting", |running| {
            let show = "select current_setting('my.v499', true)";
            let found = run_client(psql(running.place()).args(["-c", show]))?;
            Ok((found.trim() == expected).then_some(()))
        })
    },
    ..POSTGRES_BACKEND
};

fn postgres(place: &ServerDir) -> Result<Command> {
    let data = place.file("data");
    let mut create = Command::new(Path::new(POSTGRES_PROGRAMS).join("initdb"));
    create.args(["-D", &data, "-U", "postgres", "-A", "trust", "--no-sync"]);
    run_client(place.run_as_server_user(&mut create))?;
    let config = format!(
        "listen_addresses = ''\nunix_socket_directories = '{}'\nfsync = off\n\
         include_if_exists = 'load.conf'\n",
        place.path().display()
    );
    place.write("data/postgresql.auto.conf", &config)?;
    let mut command = Command::new(Path::new(POSTGRES_PROGRAMS).join("postgres"));
    command.args(["-D", &data, "-p", &place.port.to_string()]);
    Ok(command)
}

fn psql(place: &ServerDir) -> Command {
    let mut client = Command::new(Path::new(POSTGRES_PROGRAMS).join("psql"));
    client.arg("-h").arg(place.path());
    client.args([
        "-p",
        &place.port.to_string(),
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
    user: User::Nobody,
    profiled: ProfiledProcess::Main,
    names: "handler::ha_write_row",
    forks: None,
    command: |place| {
        let data = format!("--datadir={}", place.directory("data")?);
        let mut create = Command::new("mariadb-install-db");
        create.args(["--no-defaults", &data, "--skip-test-db"]);
        create.args([
            "--auth-root-authentication-method=normal",
            "--skip-name-resolve",
        ]);
        run_client(place.run_as_server_user(&mut create))?;
        let mut command = Command::new("/usr/sbin/mariadbd");
        command.args(["--no-defaults", &data, "--skip-networking"]);
        command.arg(format!("--socket={}", place.file("socket")));
        command.arg(format!("--pid-file={}", place.file("mariadbd.pid")));
        command.args([
            "--innodb-buffer-pool-size=16M",
            "--innodb-flush-log-at-trx-commit=0",
        ]);
        Ok(command)
    },
    answer: |running| mariadb(running, "select 40 + 2"),
    load: |running| {
        let fill = "create database if not exists w; use w; \
                    create or replace table m (v varchar(1000)) engine=memory charset=latin1; \
                    insert into m select repeat('x', 1000) from seq_1_to_5000; \
                    select count(*) from m";
        let count = mariadb(running, fill)?;
        ensure!(count.trim() == "5000", "{count} rows");
        Ok(())
    },
};

fn mariadb(running: &RunningServer, statements: &str) -> Result<String> {
    let mut client = Command::new("mariadb");
    client.args(["--no-defaults", "-u", "root", "-N", "-B"]);
    client.arg(format!("--socket={}", running.place().file("socket")));
    run_client(client.args(["-e", statements]))
}
