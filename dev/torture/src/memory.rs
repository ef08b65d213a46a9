//! A memory cgroup that is nearly full: a dump is whole or refused, and never costs the host its
//! life.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use memprof_host::client::Client;
use memprof_host::protocol::Delivery;
use serde_json::Value;

use super::SuiteLength;
use super::dump_dir::survey;
use super::host::{Host, HostSetup, PATIENCE, dump};
use super::memory_cgroup::MemoryCgroup;

const MIB: u64 = 1 << 20;
/// What is left to the host, in 1/16 of its dump.
const SPARE: &[u64] = &[1, 2, 4, 8, 12, 14, 15, 16, 17, 18, 20, 24, 32, 48, 64, 80];
/// Fires as soon as there is a limit.
const RULE: &str = "activate_at_start = true\n[[plugin.config.watch]]\ncgroup_above = \"10%\"\n\
                    min_interval = \"0s\"\n";
const REFUSED: &str = "tried again from time to time";

/// What dumps came to.
#[derive(Debug, Default)]
struct Tally {
    whole: usize,
    refused: usize,
    given_up: usize,
}

pub(super) fn run(form: SuiteLength) -> Result<String> {
    let Some(group) = MemoryCgroup::make() else {
        eprintln!("no memory cgroup can be made here");
        return Ok("0 cases".to_owned());
    };
    let mut tally = Tally::default();
    let mut host = start(&group, form, "activate_at_start = true")?;
    let mut client = host.client()?;
    let first = dump(&mut client)?;
    ensure!(first["status"] == "ok", "{first}");
    let size = first["bytes"].as_u64().context("bytes")?;
    for sixteenth in SPARE {
        group.set_headroom(size / 16 * sixteenth)?;
        let left = || format!("{sixteenth}/16 of {size} bytes were left; {}", host.log());
        judge(&dump(&mut client).with_context(left)?, &mut tally)?;
        fetch(&mut client, &group, &first)?;
        host.check_alive()
            .with_context(|| format!("{sixteenth}/16 of {size} bytes were left"))?;
        group.unlimit()?;
    }
    for _ in 0..form.pick(3, 30) {
        // Less than the dump must leave, and enough for what is written until that is seen: a limit that falls
        // below that between two looks ends the host.
        let reply = dump_while_the_limit_falls(&host, &group, size + 2 * MIB);
        let reply = reply.with_context(|| format!("the limit fell; {}", host.log()))?;
        judge(&reply, &mut tally)?;
        host.check_alive().context("the limit fell during a dump")?;
        group.unlimit()?;
    }
    ensure!(
        tally.whole > 0 && tally.refused > 0,
        "the limits met nothing: {tally:?}"
    );
    let found = survey(&host.place().dumps())?;
    ensure!(found.bad.is_empty(), "bad files: {:?}", found.bad);
    drop(host);
    rule(&group, form)?;
    Ok(format!(
        "dumps of {:.0} MB under {} limits of a cgroup: {} whole, {} refused, {} given up while \
         they ran; a rule refused and logged once, then dumped; every host alive",
        size as f64 / 1e6,
        tally.whole + tally.refused + tally.given_up,
        tally.whole,
        tally.refused,
        tally.given_up
    ))
}

fn start(group: &MemoryCgroup, form: SuiteLength, config: &'static str) -> Result<Host> {
    let stacks = form.pick("stacks=14", "stacks=16");
    HostSetup {
        wrapper: group.wrapper(),
        config,
        ..HostSetup::with(stacks)
    }
    .start()
}

fn judge(reply: &Value, tally: &mut Tally) -> Result<()> {
    let message = reply["error"]["message"].as_str();
    match message {
        None => {
            ensure!(reply["status"] == "ok", "{reply}");
            tally.whole += 1;
        }
        Some(message) => {
            ensure!(
                message.contains("(ENOMEM)"),
                "the cause is not named: {reply}"
            );
            let given_up = message.starts_with("the dump was given up");
            *(if given_up {
                &mut tally.given_up
            } else {
                &mut tally.refused
            }) += 1;
        }
    }
    Ok(())
}

/// The bytes of a kept dump cost the host nothing.
fn fetch(client: &mut Client, group: &MemoryCgroup, dump: &Value) -> Result<()> {
    let id = format!("id={}", dump["id"].as_str().context("id")?);
    let before = group.usage()?;
    let reply = client.message("memory_profile", "fetch", &id, Some(Delivery::Fd))?;
    ensure!(
        reply.result.size == dump["bytes"].as_u64(),
        "{:?}",
        reply.result
    );
    let more = group.usage()?.saturating_sub(before);
    ensure!(more < 2 * MIB, "fetch took {more} bytes");
    Ok(())
}

/// Lowers the limit as soon as the dump's memory appears: what was estimated is of no use then.
fn dump_while_the_limit_falls(host: &Host, group: &MemoryCgroup, rest: u64) -> Result<Value> {
    thread::scope(|scope| {
        let reply = scope.spawn(|| dump(&mut host.client()?));
        while !reply.is_finished() && !writes_a_dump(host)? {
            thread::yield_now();
        }
        group.set_headroom(rest)?;
        reply.join().expect("no panic")
    })
}

fn writes_a_dump(host: &Host) -> Result<bool> {
    for descriptor in fs::read_dir(format!("/proc/{}/fd", host.pid()))? {
        // It may have been closed meanwhile.
        let name = fs::read_link(descriptor?.path()).unwrap_or_default();
        if name.to_string_lossy().starts_with("/memfd:memprof-dump") {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A rule that watches the cgroup never ends what it watches.
fn rule(group: &MemoryCgroup, form: SuiteLength) -> Result<()> {
    let mut host = start(group, form, RULE)?;
    group.set_headroom(8 * MIB)?;
    wait_for_log(&host, REFUSED)?;
    host.check_alive()?;
    // Still above the rule's threshold, and room enough.
    let roomy = group.usage()? * 5;
    group.limit(&roomy.to_string())?;
    wait_for_log(&host, "dumped ")?;
    host.check_alive()?;
    let log = host.log();
    ensure!(log.matches(REFUSED).count() == 1, "not logged once: {log}");
    Ok(())
}

fn wait_for_log(host: &Host, text: &str) -> Result<()> {
    let begun = Instant::now();
    while !host.log().contains(text) {
        ensure!(begun.elapsed() < PATIENCE, "no {text:?}; {}", host.log());
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
