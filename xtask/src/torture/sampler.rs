//! memprof's own sampler goes into the calls of a program and out of them again, again and again,
//! while the program allocates, forks, is interrupted, and loads and unloads libraries.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result, ensure};
use memprof_host::client::Client;
use object::{Object, ObjectSection, ObjectSegment};

use super::Form;
use super::host::{Host, Setup, send};
use super::survey::survey;
use crate::dist::dist;

/// With slots that the loader fills at the start, so that they can be compared: from then on only
/// the sampler writes to them.
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

const FINE: &str = "sampler=ours sample_interval=1KiB";

/// What a cycle sends between `activate` and the end, in turn.
const MESSAGES: [&str; 5] = ["dump", "status", "reset", "ledger", "deactivate"];

pub(super) fn run(form: Form) -> Result<String> {
    let cycles = form.pick(60, 1000);
    let (mut dumps, mut reloads, mut forks, mut slots) = (0, 0, 0, 0);
    for (name, env) in ALLOCATORS {
        let library = dist().join("torture/library_a.so");
        let options = format!("allocate=8 fork=1 alarms=1 reload={}", library.display());
        let mut host = Setup {
            config: "",
            env,
            ..Setup::with(&options)
        }
        .start()?;
        let before = slots_of(&host)?;
        let mut client = host.client()?;
        for cycle in 0..cycles {
            one_cycle(&mut client, cycle)
                .with_context(|| format!("{name}, cycle {cycle}: {}", host.log()))?;
            dumps += usize::from(cycle % MESSAGES.len() == 0);
        }
        ensure_given_back(&mut client)?;
        let after = slots_of(&host)?;
        ensure!(
            before == after,
            "{name}: slots differ: {before:x?} {after:x?}"
        );
        host.check_alive()?;
        let counters = host.counters()?;
        ensure!(counters.failures == 0, "{name}: {counters:?}");
        ensure!(counters.forks > 0 && counters.reloads > 0, "{counters:?}");
        let found = survey(&host.place().dumps())?;
        ensure!(found.bad.is_empty(), "bad files: {:?}", found.bad);
        reloads += counters.reloads;
        forks += counters.forks;
        slots += after.values().map(Vec::len).sum::<usize>() / size_of::<usize>();
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

fn one_cycle(client: &mut Client, cycle: usize) -> Result<()> {
    let active = send(client, "activate", FINE)?;
    ensure!(active["profiling"] == "active", "{active}");
    let message = MESSAGES[cycle % MESSAGES.len()];
    let reply = send(client, message, "")?;
    ensure!(reply["status"] == "ok", "{message}: {reply}");
    send(client, "deactivate", "").map(drop)
}

fn ensure_given_back(client: &mut Client) -> Result<()> {
    send(client, "deactivate", "")?;
    send(client, "reset", "")?;
    let status = send(client, "status", "")?;
    let allocators = status["allocators"].as_array().context("allocators")?;
    let ours = allocators.iter().find(|each| each["sampler"] == "ours");
    let ours = ours.context("no allocator is sampled by memprof")?;
    ensure!(ours["slots"]["patched"] == 0, "{ours}");
    ensure!(ours["samples"] == 0 && ours["lost"] == 0, "{ours}");
    Ok(())
}

/// What the slots of each object hold that is loaded all the time (`.got`, `.got.plt`).
fn slots_of(host: &Host) -> Result<BTreeMap<String, Vec<u8>>> {
    let memory = File::open(format!("/proc/{}/mem", host.pid()))?;
    let maps = fs::read_to_string(format!("/proc/{}/maps", host.pid()))?;
    let mut slots = BTreeMap::new();
    for line in maps.lines() {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let [range, _, "00000000", _, _, path] = words[..] else {
            continue;
        };
        let is_here = path.starts_with('/') && !path.contains("library_a.so");
        if !is_here || slots.contains_key(path) {
            continue;
        }
        let start = range.split('-').next().context("a range")?;
        let start = u64::from_str_radix(start, 16)?;
        let Ok(bytes) = fs::read(path) else {
            continue;
        };
        let Ok(elf) = object::File::parse(&*bytes) else {
            continue;
        };
        let first = elf.segments().map(|segment| segment.address()).min();
        let bias = start - first.context("segments")?;
        let mut held = Vec::new();
        let is_slots = |name: &str| matches!(name, ".got" | ".got.plt");
        for section in elf
            .sections()
            .filter(|each| each.name().is_ok_and(is_slots))
        {
            let mut words = vec![0; section.size() as usize];
            memory.read_exact_at(&mut words, bias + section.address())?;
            held.extend(words);
        }
        slots.insert(path.to_owned(), held);
    }
    ensure!(slots.len() > 2, "no slots: {maps}");
    Ok(slots)
}
