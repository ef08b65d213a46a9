//! `memprof ps`: the hosts that are running.

use std::path::{Path, PathBuf};
use std::time::Duration;

use memprof_host::Running;
use memprof_host::client::Client;
use serde::Serialize;
use serde_json::Value;

use crate::exit::Outcome;
use crate::output;

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
    /// The allocators of the process, by kind and version.
    allocator: String,
    profiling: String,
}

/// What the plugins of a host say of it.
struct Answer {
    plugins: Vec<String>,
    allocator: String,
    profiling: String,
}

pub(crate) fn run(json: bool) -> Outcome {
    let hosts: Vec<Row> = memprof_host::running()?.into_iter().map(describe).collect();
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
    let answer = ask(&socket).unwrap_or_else(|error| Answer {
        plugins: Vec::new(),
        allocator: String::new(),
        profiling: error.to_string(),
    });
    Row {
        pid: info.pid,
        name: info.name,
        command: info.command,
        socket,
        plugins: answer.plugins,
        allocator: answer.allocator,
        profiling: answer.profiling,
    }
}

fn ask(socket: &Path) -> anyhow::Result<Answer> {
    let mut client = Client::connect(socket)?;
    client.set_timeout(ANSWER)?;
    let plugins: Vec<_> = client
        .plugins()?
        .into_iter()
        .map(|plugin| plugin.id)
        .collect();
    if !plugins.iter().any(|id| id == "memory_profile") {
        return Ok(Answer {
            plugins,
            allocator: String::new(),
            profiling: "no memory_profile".to_owned(),
        });
    }
    let status = client.message("memory_profile", "status", "", None)?;
    let status = status.result.body.unwrap_or(Value::Null);
    let allocators = status["allocators"].as_array();
    let names = allocators.into_iter().flatten().map(allocator);
    Ok(Answer {
        plugins,
        allocator: names.collect::<Vec<_>>().join(", "),
        profiling: status["profiling"]
            .as_str()
            .unwrap_or("unavailable")
            .to_owned(),
    })
}

/// `jemalloc 5.3.0`: what stands behind the first dash is the commit.
fn allocator(allocator: &Value) -> String {
    let text = |key: &str| allocator[key].as_str().unwrap_or_default();
    let version = text("version").split('-').next().unwrap_or_default();
    format!("{} {version}", text("kind"))
}

fn table(hosts: &[Row]) -> String {
    let width = |title: &str, column: fn(&Row) -> &str| {
        let longest = hosts.iter().map(|host| column(host).len()).max();
        longest.unwrap_or(0).max(title.len())
    };
    let name_width = width("NAME", |host| &host.name);
    let allocator_width = width("ALLOCATOR", |host| &host.allocator);
    let line = |pid: &str, name: &str, allocator: &str, profiling: &str, command: &str| {
        format!(
            "{pid:>7}  {name:<name_width$}  {allocator:<allocator_width$}  {profiling:<11}  \
             {command}"
        )
    };
    let title = line("PID", "NAME", "ALLOCATOR", "PROFILING", "COMMAND");
    let rows = hosts.iter().map(|host| {
        line(
            &host.pid.to_string(),
            &host.name,
            &host.allocator,
            &host.profiling,
            &host.command,
        )
    });
    std::iter::once(title)
        .chain(rows)
        .collect::<Vec<_>>()
        .join("\n")
}
