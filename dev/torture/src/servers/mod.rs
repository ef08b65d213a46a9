//! Suite `servers`: Debian's servers with their own allocators, sampled while they serve.

mod attached;
mod sampled;
mod tools;

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail, ensure};
use testkit::{ExitReport, SERVERS, Server};

use super::SuiteLength;
use attached::{AttachReport, attach_and_sample};
use sampled::{SampleReport, sample};
pub(super) use tools::Tools;
use xtask::packages;

/// Servers of the short suite: small ones, and those that other tests have installed.
const SHORT_SUITE: [&str; 5] = ["redis", "memcached", "mosquitto", "nginx worker", "python"];

/// Attachments under load to all servers together, in the long suite.
const CYCLES: usize = 1000;

/// Runs the suite `servers`: installs the servers, and samples each. Prints lines for each, and returns the figures of
/// all in one line. Fails if one of them failed.
pub(super) fn run_suite(length: SuiteLength) -> Result<String> {
    let chosen: Vec<&Server> = SERVERS
        .iter()
        .filter(|server| length == SuiteLength::Long || SHORT_SUITE.contains(&server.name))
        .collect();
    install(&chosen)?;
    let tools = Tools::install()?;
    let cycles = length.pick(1, CYCLES.div_ceil(SERVERS.len()));
    let (mut cycled, mut answers) = (0, 0);
    let mut failed = Vec::new();
    for server in &chosen {
        match run_server(&tools, server, cycles) {
            Ok((run, attached)) => {
                println!("  {}, under memprof run: {run}", server.name);
                println!("  {}, attached to: {attached}", server.name);
                cycled += attached.cycles;
                answers += attached.answers;
            }
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
        "{} servers, sampled with their own allocators under memprof run and attached to: their load named, \
         0 lost, every slot as before, answers and ends as without memprof; attached to {cycled} times \
         more under load, with {answers} answers meanwhile: 0 deaths, 0 hangs, 0 wrong answers",
        chosen.len()
    ))
}

/// Installs the missing Debian packages of servers.
pub(super) fn install(servers: &[&Server]) -> Result<()> {
    let needed: BTreeSet<&str> = servers
        .iter()
        .flat_map(|server| server.packages)
        .copied()
        .collect();
    packages::ensure_installed(&Vec::from_iter(needed))
}

/// Runs a server without memprof, then under `memprof run`, then attached to `cycles` times under load. Returns the
/// figures of the two runs with memprof. Fails if the server behaves differently in them.
fn run_server(
    tools: &Tools,
    server: &Server,
    cycles: usize,
) -> Result<(SampleReport, AttachReport)> {
    let plain = run_without_memprof(server).context("without memprof")?;
    let run = sample_under_run(tools, server, &plain).context("under memprof run")?;
    let attached = attach_and_sample(tools, server, cycles, &plain).context("attached to")?;
    Ok((run, attached))
}

/// Starts the server under `memprof run`, samples its load, and ends it. Fails if it behaves differently from `plain`.
fn sample_under_run(tools: &Tools, server: &Server, plain: &Behaviour) -> Result<SampleReport> {
    let dumps = tempfile::tempdir()?;
    let mut running = server.start_under(&tools.wrapper(dumps.path()))?;
    let pid = running.pid()?;
    tools
        .wait_for_reply(pid)
        .map_err(|error| running.error_with_log(&error))?;
    tools.chown_to_process_user(dumps.path(), pid)?;
    let before = running.query()?;
    let report =
        sample(tools, server, &mut running).map_err(|error| running.error_with_log(&error))?;
    let found = Behaviour {
        answers: [before, running.query()?],
        exit: running.terminate()?,
    };
    ensure!(found == *plain, "{found:?}, without memprof {plain:?}");
    Ok(report)
}

/// Replies and exit of a server.
#[derive(Debug, PartialEq, Eq)]
struct Behaviour {
    /// Replies before and after the load.
    answers: [String; 2],
    exit: ExitReport,
}

/// Runs the server and its load once, without memprof. Returns its replies before and after the load, and its exit.
fn run_without_memprof(server: &Server) -> Result<Behaviour> {
    let mut running = server.start()?;
    let before = running.query()?;
    running.run_load()?;
    Ok(Behaviour {
        answers: [before, running.query()?],
        exit: running.terminate()?,
    })
}

#[cfg(test)]
mod tests {
    use super::{SERVERS, SHORT_SUITE};

    #[test]
    fn short_suite_names_servers() {
        for name in SHORT_SUITE {
            let is_known = SERVERS.iter().any(|server| server.name == name);
            assert!(is_known, "{name}");
        }
    }
}
