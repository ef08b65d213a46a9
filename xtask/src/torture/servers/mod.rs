//! Debian's servers in their usual state, sampled by memprof while they serve.

mod sampled;
mod slots;
mod tools;

use anyhow::{Context, Result, bail, ensure};
use testkit::{Ending, SERVERS, Server};

use super::Form;
use crate::packages;
use sampled::{Seen, sample};
use tools::Tools;

/// What the short form takes: servers that other tests have installed, and small ones.
const SHORT: [&str; 5] = ["redis", "memcached", "mosquitto", "nginx worker", "python"];

pub(super) fn run(form: Form) -> Result<String> {
    let chosen: Vec<&Server> = SERVERS
        .iter()
        .filter(|server| form == Form::Long || SHORT.contains(&server.name))
        .collect();
    let mut needed: Vec<&str> = chosen
        .iter()
        .flat_map(|server| server.packages)
        .copied()
        .collect();
    needed.dedup();
    packages::require(&needed)?;
    let tools = Tools::install()?;
    let mut failed = Vec::new();
    for server in &chosen {
        match one_server(&tools, server) {
            Ok(seen) => println!("  {}: {seen}; answers and end the same", server.name),
            Err(error) => {
                println!("  {}: FAILED: {error:#}", server.name);
                failed.push(server.name);
            }
        }
    }
    if !failed.is_empty() {
        bail!(
            "{} of {}: {}",
            failed.len(),
            chosen.len(),
            failed.join(", ")
        );
    }
    Ok(format!(
        "{} servers, sampled with their own allocators while they served: their load named, 0 lost, \
         every slot as before, answers and ends as without memprof",
        chosen.len()
    ))
}

fn one_server(tools: &Tools, server: &Server) -> Result<Seen> {
    let plain = without(server).context("without memprof")?;
    let dumps = tempfile::tempdir()?;
    let mut running = server.start_under(&tools.wrapper(dumps.path()))?;
    let pid = running.pid()?;
    tools.wait_for(pid).with_context(|| running.log())?;
    tools.give_to(dumps.path(), pid)?;
    let before = running.answer()?;
    let seen = sample(tools, server, &mut running).with_context(|| running.log())?;
    let found = Behaviour {
        answers: [before, running.answer()?],
        ending: running.end()?,
    };
    ensure!(found == plain, "{found:?}, without memprof {plain:?}");
    Ok(seen)
}

/// What a client and an operator see of a server.
#[derive(Debug, PartialEq, Eq)]
struct Behaviour {
    /// Before and after the load.
    answers: [String; 2],
    ending: Ending,
}

fn without(server: &Server) -> Result<Behaviour> {
    let mut running = server.start()?;
    let before = running.answer()?;
    running.load()?;
    Ok(Behaviour {
        answers: [before, running.answer()?],
        ending: running.end()?,
    })
}
