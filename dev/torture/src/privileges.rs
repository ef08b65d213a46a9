//! Programs that give up their privileges after memprof came: none of memprof's threads keeps more
//! than they have, and changing the user works.

use std::fs;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use nix::unistd::geteuid;

use super::SuiteLength;
use super::host::{REPLY_TIMEOUT, send_message};
use super::preloaded_program::PreloadedProgram;

/// What a program does, one after the other; see `guest.c`.
const PROGRAMS: [&[&str]; 4] = [
    &["become"],
    &["drop", "same"],
    &["lower", "become"],
    &["effective", "become"],
];

pub(super) fn run(length: SuiteLength) -> Result<String> {
    if !geteuid().is_root() {
        return Ok("not root: nothing to give up".to_owned());
    }
    let rounds = length.pick(1, 20);
    for steps in PROGRAMS.iter().cycle().take(rounds * PROGRAMS.len()) {
        let mut guest = PreloadedProgram::start("guest", &[])?;
        let mut client = guest.client()?;
        // The threads that look after the walk and the end of an activation, too.
        let activated = send_message(&mut client, "activate", "for=1h")?;
        ensure!(activated["status"] == "ok", "{activated}");
        for step in *steps {
            // On its way, new threads are made.
            let status = guest
                .client()
                .and_then(|mut client| send_message(&mut client, "status", ""))?;
            ensure!(status["status"] == "ok", "{status}");
            guest.send_line(step)?;
            guest
                .expect_line("done")
                .with_context(|| format!("{steps:?}: {step}"))?;
        }
        // The threads look at the program's privileges now and then.
        let start = Instant::now();
        loop {
            let dumped = send_message(&mut client, "dump", "")?;
            let is_answered = dumped["status"] == "ok" || dumped["error"]["kind"] == "io";
            ensure!(is_answered, "{dumped}");
            send_message(&mut guest.client()?, "status", "")?;
            match check(guest.pid()) {
                Err(error) if start.elapsed() > REPLY_TIMEOUT => {
                    return Err(error.context(format!("{steps:?}")));
                }
                Err(_) => {}
                Ok(()) => break,
            }
        }
    }
    Ok(format!(
        "{} programs gave up privileges in {} ways: memprof's threads have none beyond theirs",
        rounds * PROGRAMS.len(),
        PROGRAMS.len()
    ))
}

/// No thread that works for messages has a capability that the main thread has not, or another
/// user.
fn check(pid: u32) -> Result<()> {
    let of_main = Credentials::read(pid, pid)?;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let id = task?.file_name().to_string_lossy().parse()?;
        let own = Credentials::read(pid, id)?;
        ensure!(own.users == of_main.users, "{own:?} beside {of_main:?}");
        let works = ["memprof-conn", "memprof-dumper", "memprof-control"];
        if works.contains(&own.name.as_str()) {
            ensure!(
                own.permitted & !of_main.permitted == 0,
                "{own:?} beside {of_main:?}"
            );
        }
    }
    Ok(())
}

#[derive(Debug)]
struct Credentials {
    name: String,
    users: String,
    permitted: u64,
}

impl Credentials {
    fn read(pid: u32, task: u32) -> Result<Self> {
        let path = format!("/proc/{pid}/task/{task}/status");
        let status = fs::read_to_string(&path).context(path)?;
        let field = |name: &str| {
            let value = status.lines().find_map(|line| line.strip_prefix(name));
            value.map(str::trim).with_context(|| name.to_owned())
        };
        Ok(Self {
            name: field("Name:")?.to_owned(),
            users: field("Uid:")?.to_owned(),
            permitted: u64::from_str_radix(field("CapPrm:")?, 16)?,
        })
    }
}
