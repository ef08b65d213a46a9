//! What the plugin does in its process: dumps, the search for allocators, the list of what is kept.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use memprof_host::client::Client;
use memprof_host::protocol::Delivery;
use torture::many_stacks::ManyStacks;
use xtask::run::{root, run};

use super::Growth;
use super::host::{Host, median, plugin, preloaded};
use crate::limits::Measurements;

/// Libraries that are loaded while the plugin runs, one after the other.
const LATER: usize = 7;

/// Has a message done, of any length of reply.
fn ask(client: &mut Client, message: &str) -> Result<Vec<u8>> {
    let reply = client.message("memory_profile", message, "", Some(Delivery::Fd))?;
    let status = reply.result.status_code;
    let body = reply.into_bytes()?;
    ensure!(status == 0, "{message}: {}", String::from_utf8_lossy(&body));
    Ok(body)
}

pub(super) fn dump_with_stacks(place: &Path, figures: &mut Measurements) -> Result<()> {
    let mut growth = Growth::default();
    for stacks in [1_000, 10_000, 100_000] {
        let host = ManyStacks::start(place, stacks)?;
        let mut client = host.client()?;
        growth.add(stacks, median(|| ask(&mut client, "dump").map(drop))?);
    }
    growth.record_exponent("exponent of a dump, by stacks", figures)
}

/// A dump tells of each library; the search for allocators looks into each that is new, while the last one is
/// loaded.
pub(super) fn with_libraries(place: &Path, figures: &mut Measurements) -> Result<()> {
    let (program, library) = (place.join("many_objects"), place.join("object.so"));
    let source = root().join("dev/bench/src/many_objects.c");
    run(Command::new("cc").arg("-o").arg(&program).arg(&source))?;
    run(Command::new("cc")
        .args(["-shared", "-fPIC", "-DLIBRARY", "-o"])
        .arg(&library)
        .arg(&source))?;
    let (mut dump, mut search) = (Growth::default(), Growth::default());
    for count in [10, 100, 1000] {
        // The loader knows a file by its inode, so each is a copy.
        let objects: Vec<PathBuf> = (0..count + LATER)
            .map(|number| place.join(format!("object-{number}.so")))
            .collect();
        for object in &objects {
            fs::copy(&library, object)?;
        }
        let (first, later) = objects.split_at(count);
        let mut command = preloaded(place, &program);
        command.args(first).arg("--").args(later);
        command.env("MALLOC_CONF", "prof:true,lg_prof_sample:12");
        let preload = format!("libjemalloc.so.2:{}", plugin().display());
        let host = Host::start(command.env("LD_PRELOAD", preload), place)?;
        let mut client = host.client(place)?;
        ask(&mut client, "dump")?;
        dump.add(count, median(|| ask(&mut client, "dump").map(drop))?);
        let mut times = Vec::new();
        for object in later {
            load(&host, object)?;
            let begun = Instant::now();
            // Of all messages that look for allocators, the one that does least besides.
            ask(&mut client, "background_thread")?;
            times.push(begun.elapsed());
        }
        times.sort();
        search.add(count, times[LATER / 2].as_secs_f64() * 1e3);
    }
    dump.record_exponent("exponent of a dump, by loaded libraries", figures)?;
    search.record_exponent(
        "exponent of a search for allocators, by loaded libraries",
        figures,
    )
}

/// Has the program load its next library.
fn load(host: &Host, object: &Path) -> Result<()> {
    let pid = host.0.id();
    run(Command::new("kill").arg("-USR1").arg(pid.to_string()))?;
    let begun = Instant::now();
    let name = object.to_string_lossy().into_owned();
    while !fs::read_to_string(format!("/proc/{pid}/maps"))?.contains(&name) {
        ensure!(
            begun.elapsed() < Duration::from_secs(10),
            "{name} is not loaded"
        );
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

pub(super) fn kept_dumps(place: &Path, figures: &mut Measurements) -> Result<()> {
    let config = place.join("kept.toml");
    let mut growth = Growth::default();
    for count in [32, 1000] {
        fs::write(&config, format!("[keep]\ncount = {count}\n"))?;
        let mut command = preloaded(place, Path::new("sleep"));
        command.arg("infinity").env("MEMPROF_CONFIG", &config);
        let host = Host::start(&mut command, place)?;
        let mut client = host.client(place)?;
        ask(&mut client, "activate")?;
        for _ in 0..count {
            ask(&mut client, "dump")?;
        }
        let list = String::from_utf8(ask(&mut client, "list")?)?;
        let kept = list.matches("\"id\"").count();
        ensure!(kept == count, "{kept} dumps are kept, not {count}");
        growth.add(count, median(|| ask(&mut client, "list").map(drop))?);
    }
    growth.record_exponent("exponent of a list, by kept dumps", figures)
}
