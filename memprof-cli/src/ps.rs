//! `memprof ps`: the hosts that are running.

use std::path::PathBuf;
use std::time::Duration;

use memprof_host::client::Client;
use serde::Serialize;
use serde_json::Value;

use crate::exit::Outcome;
use crate::output;
use crate::target::{self, Running};

const ANSWER: Duration = Duration::from_secs(2);

#[derive(Serialize)]
struct Listing {
    schema_version: u32,
    hosts: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    pid: u32,
    name: String,
    command: String,
    socket: PathBuf,
    plugins: Vec<String>,
    profiling: String,
}

pub(crate) fn run(json: bool) -> Outcome {
    let hosts: Vec<Row> = target::running()?.into_iter().map(describe).collect();
    if json {
        output::print(&serde_json::to_string(&Listing {
            schema_version: 1,
            hosts,
        })?)?;
    } else if hosts.is_empty() {
        eprintln!("no host is running that this user may talk to");
    } else {
        output::print(&table(&hosts))?;
    }
    Ok(0.into())
}

fn describe(Running { socket, info }: Running) -> Row {
    let (plugins, profiling) = ask(&socket).unwrap_or_else(|error| (Vec::new(), error.to_string()));
    Row {
        pid: info.pid,
        name: info.name,
        command: info.command,
        socket,
        plugins,
        profiling,
    }
}

fn ask(socket: &std::path::Path) -> anyhow::Result<(Vec<String>, String)> {
    let mut client = Client::connect(socket)?;
    client.set_timeout(ANSWER)?;
    let plugins: Vec<_> = client
        .plugins()?
        .into_iter()
        .map(|plugin| plugin.id)
        .collect();
    if !plugins.iter().any(|id| id == "memory_profile") {
        return Ok((plugins, "no memory_profile".to_owned()));
    }
    let status = client.message("memory_profile", "status", "", None)?;
    let profiling = status
        .result
        .body
        .as_ref()
        .and_then(|body| body.get("profiling"));
    let profiling = profiling
        .and_then(Value::as_str)
        .unwrap_or("unavailable")
        .to_owned();
    Ok((plugins, profiling))
}

fn table(hosts: &[Row]) -> String {
    let width = hosts
        .iter()
        .map(|host| host.name.len())
        .max()
        .unwrap_or(0)
        .max("NAME".len());
    let mut lines = vec![format!(
        "{:>7}  {:<width$}  {:<11}  COMMAND",
        "PID", "NAME", "PROFILING"
    )];
    lines.extend(hosts.iter().map(|host| {
        let Row {
            pid,
            name,
            command,
            profiling,
            ..
        } = host;
        format!("{pid:>7}  {name:<width$}  {profiling:<11}  {command}")
    }));
    lines.join("\n")
}
