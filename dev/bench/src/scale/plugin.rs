//! Work of the plugin in its process: dumps, the search for allocators, the list of kept dumps.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use memprof_host::client::Client;
use memprof_host::protocol::Delivery;
use torture::many_stacks::ManyStacks;
use xtask::run::{project_root, run};

use super::Growth;
use super::host::{Host, measure_median_milliseconds, plugin_path, preload_command};
use crate::limits::Measurements;

/// Libraries that the program loads one by one while the plugin runs.
const LATER_LIBRARIES: usize = 7;

/// Sends a message and returns the body of its reply, which may have any length.
fn send_message(client: &mut Client, message: &str) -> Result<Vec<u8>> {
    let reply = client.message("memory_profile", message, "", Some(Delivery::Fd))?;
    let status = reply.result.status_code;
    let body = reply.into_bytes()?;
    ensure!(status == 0, "{message}: {}", String::from_utf8_lossy(&body));
    Ok(body)
}

/// Records how the time of a dump grows with the number of stacks, from 1000 to 100,000.
pub(super) fn measure_dumps_by_stacks(dir: &Path, measurements: &mut Measurements) -> Result<()> {
    let mut growth = Growth::default();
    for stacks in [1_000, 10_000, 100_000] {
        let host = ManyStacks::start(dir, stacks)?;
        let mut client = host.client()?;
        growth.add(
            stacks,
            measure_median_milliseconds(|| send_message(&mut client, "dump").map(drop))?,
        );
    }
    growth.record_exponent("exponent of a dump, by stacks", measurements)
}

/// Records how the time of a dump, which lists all libraries, and that of the search for allocators in a new library
/// grow with the number of loaded libraries, from 10 to 1000.
pub(super) fn measure_dumps_and_searches_by_libraries(
    dir: &Path,
    measurements: &mut Measurements,
) -> Result<()> {
    let (program, library) = (dir.join("many_objects"), dir.join("object.so"));
    let source = project_root().join("dev/bench/src/many_objects.c");
    run(Command::new("cc").arg("-o").arg(&program).arg(&source))?;
    run(Command::new("cc")
        .args(["-shared", "-fPIC", "-DLIBRARY", "-o"])
        .arg(&library)
        .arg(&source))?;
    let (mut dump, mut search) = (Growth::default(), Growth::default());
    for count in [10, 100, 1000] {
        // The dynamic loader identifies a file by its inode, so each library is a copy.
        let objects: Vec<PathBuf> = (0..count + LATER_LIBRARIES)
            .map(|number| dir.join(format!("object-{number}.so")))
            .collect();
        for object in &objects {
            fs::copy(&library, object)?;
        }
        let (first, later) = objects.split_at(count);
        let mut command = preload_command(dir, &program);
        command.args(first).arg("--").args(later);
        command.env("MALLOC_CONF", "prof:true,lg_prof_sample:12");
        let preload = format!("libjemalloc.so.2:{}", plugin_path().display());
        let host = Host::start(command.env("LD_PRELOAD", preload), dir)?;
        let mut client = host.client(dir)?;
        send_message(&mut client, "dump")?;
        dump.add(
            count,
            measure_median_milliseconds(|| send_message(&mut client, "dump").map(drop))?,
        );
        let mut times = Vec::new();
        for object in later {
            load_next_library(&host, object)?;
            let start = Instant::now();
            // This message does least besides the search for allocators.
            send_message(&mut client, "background_thread")?;
            times.push(start.elapsed());
        }
        times.sort();
        search.add(count, times[LATER_LIBRARIES / 2].as_secs_f64() * 1e3);
    }
    dump.record_exponent("exponent of a dump, by loaded libraries", measurements)?;
    search.record_exponent(
        "exponent of a search for allocators, by loaded libraries",
        measurements,
    )
}

/// Makes the program load its next library by SIGUSR1, and waits until the file `object` is mapped. Fails after 10 s.
fn load_next_library(host: &Host, object: &Path) -> Result<()> {
    let pid = host.0.id();
    run(Command::new("kill").arg("-USR1").arg(pid.to_string()))?;
    let start = Instant::now();
    let name = object.to_string_lossy().into_owned();
    while !fs::read_to_string(format!("/proc/{pid}/maps"))?.contains(&name) {
        ensure!(
            start.elapsed() < Duration::from_secs(10),
            "{name} is not loaded"
        );
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Records how the time of the message `list` grows with the number of kept dumps, from 32 to 1000.
pub(super) fn measure_lists_by_dumps(dir: &Path, measurements: &mut Measurements) -> Result<()> {
    let config = dir.join("kept.toml");
    let mut growth = Growth::default();
    for count in [32, 1000] {
        fs::write(&config, format!("[keep]\ncount = {count}\n"))?;
        let mut command = preload_command(dir, Path::new("sleep"));
        command.arg("infinity").env("MEMPROF_CONFIG", &config);
        let host = Host::start(&mut command, dir)?;
        let mut client = host.client(dir)?;
        send_message(&mut client, "activate")?;
        for _ in 0..count {
            send_message(&mut client, "dump")?;
        }
        let list = String::from_utf8(send_message(&mut client, "list")?)?;
        let kept = list.matches("\"id\"").count();
        ensure!(kept == count, "{kept} dumps are kept, not {count}");
        growth.add(
            count,
            measure_median_milliseconds(|| send_message(&mut client, "list").map(drop))?,
        );
    }
    growth.record_exponent("exponent of a list, by kept dumps", measurements)
}
