//! Suite `memory`: in a memory cgroup that is nearly full, a dump is complete or refused, and the host survives.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use memprof_host::client::Client;
use memprof_host::protocol::Delivery;
use serde_json::Value;

use super::SuiteLength;
use super::dump_dir::scan_dump_dir;
use super::host::{HostSetup, REPLY_TIMEOUT, StressHost, dump};
use super::memory_cgroup::MemoryCgroup;

const MIB: u64 = 1 << 20;
/// Headroom given to the host, in sixteenths of its dump's size.
const HEADROOMS: &[u64] = &[1, 2, 4, 8, 12, 14, 15, 16, 17, 18, 20, 24, 32, 48, 64, 80];
/// Configuration of a rule that fires as soon as the cgroup has a limit.
const RULE: &str = "activate_at_start = true\n[[plugin.config.watch]]\ncgroup_above = \"10%\"\n\
                    min_interval = \"0s\"\n";
/// Text of the log line for a refused dump.
const REFUSED_TEXT: &str = "tried again from time to time";

/// Number of dumps by their result.
#[derive(Debug, Default)]
struct Tally {
    complete: usize,
    refused: usize,
    aborted: usize,
}

/// Runs the suite `memory`, and returns its figures in one line; without a memory cgroup, runs no case. Fails if the
/// host dies, or if a refusal does not name the cause.
pub(super) fn run_suite(length: SuiteLength) -> Result<String> {
    let Some(group) = MemoryCgroup::create() else {
        eprintln!("no memory cgroup can be created here");
        return Ok("0 cases".to_owned());
    };
    let mut tally = Tally::default();
    let mut host = start_host(&group, length, "activate_at_start = true")?;
    let mut client = host.client()?;
    let first = dump(&mut client)?;
    ensure!(first["status"] == "ok", "{first}");
    let size = first["bytes"].as_u64().context("bytes")?;
    for sixteenth in HEADROOMS {
        group.set_headroom(size / 16 * sixteenth)?;
        let context = || format!("{sixteenth}/16 of {size} bytes were left; {}", host.log());
        count_reply(&dump(&mut client).with_context(context)?, &mut tally)?;
        check_fetch(&mut client, &group, &first)?;
        host.check_alive()
            .with_context(|| format!("{sixteenth}/16 of {size} bytes were left"))?;
        group.remove_limit()?;
    }
    for _ in 0..length.pick(3, 30) {
        // The headroom is less than the dump must leave, but enough for the bytes that it writes until it checks again.
        // With less, the kernel would kill the host between two checks.
        let reply = dump_with_falling_limit(&host, &group, size + 2 * MIB);
        let reply = reply.with_context(|| format!("the limit fell; {}", host.log()))?;
        count_reply(&reply, &mut tally)?;
        host.check_alive().context("the limit fell during a dump")?;
        group.remove_limit()?;
    }
    ensure!(
        tally.complete > 0 && tally.refused > 0,
        "the limits had no effect: {tally:?}"
    );
    let found = scan_dump_dir(&host.dir().dump_dir())?;
    ensure!(found.bad.is_empty(), "bad files: {:?}", found.bad);
    drop(host);
    check_rule(&group, length)?;
    Ok(format!(
        "dumps of {:.0} MB under {} limits of a cgroup: {} complete, {} refused, {} aborted while \
         they ran; a rule refused and logged once, then dumped; every host alive",
        size as f64 / 1e6,
        tally.complete + tally.refused + tally.aborted,
        tally.complete,
        tally.refused,
        tally.aborted
    ))
}

/// Starts a host in the cgroup, with further keys of the plugin in `config`. Long suites have larger dumps.
fn start_host(
    group: &MemoryCgroup,
    length: SuiteLength,
    config: &'static str,
) -> Result<StressHost> {
    let stacks = length.pick("stacks=14", "stacks=16");
    HostSetup {
        wrapper: group.wrapper(),
        config,
        ..HostSetup::with_options(stacks)
    }
    .start()
}

/// Counts a dump by its reply as complete, refused or aborted. Fails if an error does not name ENOMEM as its cause.
fn count_reply(reply: &Value, tally: &mut Tally) -> Result<()> {
    let message = reply["error"]["message"].as_str();
    match message {
        None => {
            ensure!(reply["status"] == "ok", "{reply}");
            tally.complete += 1;
        }
        Some(message) => {
            ensure!(
                message.contains("(ENOMEM)"),
                "the cause is not named: {reply}"
            );
            let aborted = message.starts_with("the dump was given up");
            *(if aborted {
                &mut tally.aborted
            } else {
                &mut tally.refused
            }) += 1;
        }
    }
    Ok(())
}

/// Fetches a kept dump; `dump` is the reply that announced it. Fails if the cgroup then uses 2 MiB more, or if the size
/// is not the announced one.
fn check_fetch(client: &mut Client, group: &MemoryCgroup, dump: &Value) -> Result<()> {
    let id = format!("id={}", dump["id"].as_str().context("id")?);
    let before = group.usage()?;
    let reply = client.message("memory_profile", "fetch", &id, Some(Delivery::Fd))?;
    ensure!(
        reply.result.size == dump["bytes"].as_u64(),
        "{:?}",
        reply.result
    );
    let growth = group.usage()?.saturating_sub(before);
    ensure!(growth < 2 * MIB, "fetch used {growth} bytes");
    Ok(())
}

/// Requests a dump, and returns the reply. Once the dump's memfd exists, which the host creates after it has estimated
/// the memory that it needs, limits the cgroup to `headroom` bytes more than it uses.
fn dump_with_falling_limit(
    host: &StressHost,
    group: &MemoryCgroup,
    headroom: u64,
) -> Result<Value> {
    thread::scope(|scope| {
        let reply = scope.spawn(|| dump(&mut host.client()?));
        while !reply.is_finished() && !host.has_dump_in_memory()? {
            thread::yield_now();
        }
        group.set_headroom(headroom)?;
        reply.join().expect("no panic")
    })
}

/// Checks that a rule on the cgroup's memory refuses a dump without headroom, logs that once, and later dumps.
fn check_rule(group: &MemoryCgroup, length: SuiteLength) -> Result<()> {
    let mut host = start_host(group, length, RULE)?;
    group.set_headroom(8 * MIB)?;
    wait_for_log(&host, REFUSED_TEXT)?;
    host.check_alive()?;
    // The usage is still above the rule's threshold, and a dump has headroom.
    let limit = group.usage()? * 5;
    group.set_limit(&limit.to_string())?;
    wait_for_log(&host, "dumped ")?;
    host.check_alive()?;
    let log = host.log();
    ensure!(
        log.matches(REFUSED_TEXT).count() == 1,
        "not logged once: {log}"
    );
    Ok(())
}

/// Waits until the host's log contains a text. Fails after [`REPLY_TIMEOUT`].
fn wait_for_log(host: &StressHost, text: &str) -> Result<()> {
    let start = Instant::now();
    while !host.log().contains(text) {
        ensure!(
            start.elapsed() < REPLY_TIMEOUT,
            "no {text:?}; {}",
            host.log()
        );
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
