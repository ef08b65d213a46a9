//! Suite `sampler`: memprof's sampler is activated and deactivated repeatedly, while the program allocates, forks, is
//! interrupted, and loads and unloads libraries.

use anyhow::{Context, Result, ensure};
use memprof_host::client::Client;

use super::SuiteLength;
use super::dump_dir::scan_dump_dir;
use super::host::{HostSetup, send_successfully};
use super::slots::Slots;
use xtask::dist::dist_dir;

/// Allocators with their environment. `LD_BIND_NOW` fills the GOT slots at the start; from then on only the sampler
/// writes to them, so that they can be compared.
const ALLOCATORS: [(&str, &[(&str, &str)]); 3] = [
    ("glibc", &[("LD_BIND_NOW", "1")]),
    (
        "mimalloc",
        &[("LD_BIND_NOW", "1"), ("LD_PRELOAD", "libmimalloc.so.2")],
    ),
    (
        "jemalloc without prof:true",
        &[("LD_BIND_NOW", "1"), ("LD_PRELOAD", "libjemalloc.so.2")],
    ),
];

/// Arguments of `activate` for many samples.
const ACTIVATE_ARGS: &str = "sampler=memprof sample_interval=1KiB";

/// Messages between `activate` and `deactivate`, one in each cycle, in turn.
const MESSAGES: [&str; 5] = ["dump", "status", "reset", "ledger", "deactivate"];

/// Runs the suite `sampler` with each allocator, and returns its figures in one line. Fails if a message fails, if a
/// slot is not restored, or if a sample is lost.
pub(super) fn run_suite(length: SuiteLength) -> Result<String> {
    let cycles = length.pick(60, 1000);
    let (mut dumps, mut reloads, mut forks, mut slots) = (0, 0, 0, 0);
    for (name, env) in ALLOCATORS {
        let library = dist_dir().join("torture/library_a.so");
        let options = format!("allocate=8 fork=1 alarms=1 reload={}", library.display());
        let mut host = HostSetup {
            config: "",
            env,
            ..HostSetup::with_options(&options)
        }
        .start()?;
        let is_permanent = |path: &str| !path.contains("library_a.so");
        let before = Slots::read_permanent(host.pid(), is_permanent)?;
        let mut client = host.client()?;
        for cycle in 0..cycles {
            run_cycle(&mut client, cycle)
                .with_context(|| format!("{name}, cycle {cycle}: {}", host.log()))?;
            // `MESSAGES` begins with `dump`.
            dumps += usize::from(cycle % MESSAGES.len() == 0);
        }
        check_slots_restored(&mut client)?;
        let after = Slots::read_permanent(host.pid(), is_permanent)?;
        after.check_equal(&before).context(name)?;
        host.check_alive()?;
        let counters = host.counters()?;
        ensure!(counters.failures == 0, "{name}: {counters:?}");
        ensure!(counters.forks > 0 && counters.reloads > 0, "{counters:?}");
        let found = scan_dump_dir(&host.dir().dump_dir())?;
        ensure!(found.bad.is_empty(), "bad files: {:?}", found.bad);
        reloads += counters.reloads;
        forks += counters.forks;
        slots += after.count();
        let ended = host.terminate().context("deadlock")?;
        ensure!(ended.success(), "{name}: the host ended with {ended}");
    }
    Ok(format!(
        "{} cycles in {} allocators, {dumps} dumps, {reloads} libraries loaded and unloaded, {forks} \
         forks: 0 deaths, 0 corrupt blocks, {slots} words of slots as before",
        cycles * ALLOCATORS.len(),
        ALLOCATORS.len()
    ))
}

/// Activates sampling, sends the message whose turn it is in this cycle, and deactivates sampling. Fails if one of
/// these messages fails, or if sampling is not active after the first.
fn run_cycle(client: &mut Client, cycle: usize) -> Result<()> {
    let active = send_successfully(client, "activate", ACTIVATE_ARGS)?;
    ensure!(active["profiling"] == "active", "{active}");
    send_successfully(client, MESSAGES[cycle % MESSAGES.len()], "")?;
    send_successfully(client, "deactivate", "").map(drop)
}

/// Deactivates sampling and removes the samples. Checks that no slot is patched, and that no sample was lost.
fn check_slots_restored(client: &mut Client) -> Result<()> {
    send_successfully(client, "deactivate", "")?;
    send_successfully(client, "reset", "")?;
    let status = send_successfully(client, "status", "")?;
    let allocators = status["allocators"].as_array().context("allocators")?;
    let status_of_sampler = allocators.iter().find(|each| each["sampler"] == "memprof");
    let status_of_sampler = status_of_sampler.context("no allocator is sampled by memprof")?;
    ensure!(
        status_of_sampler["slots"]["patched"] == 0,
        "{status_of_sampler}"
    );
    ensure!(
        status_of_sampler["samples"] == 0 && status_of_sampler["lost"] == 0,
        "{status_of_sampler}"
    );
    Ok(())
}
