//! Suite `privileges`: programs drop privileges after memprof was loaded. memprof's threads then have no more than the
//! program, and changing the user works.

use std::fs;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use nix::unistd::geteuid;

use super::SuiteLength;
use super::host::{REPLY_TIMEOUT, send_message, send_successfully};
use super::preloaded_program::PreloadedProgram;

/// Commands for the program, in order; see `guest.c`.
const PROGRAMS: [&[&str]; 4] = [
    &["become"],
    &["drop", "same"],
    &["lower", "become"],
    &["effective", "become"],
];

/// Runs the suite `privileges`, and returns its figures in one line; users other than root have no privileges to drop.
/// Fails if memprof's threads keep a privilege, or if a message gets no reply.
pub(super) fn run_suite(length: SuiteLength) -> Result<String> {
    if !geteuid().is_root() {
        return Ok("not root: nothing to give up".to_owned());
    }
    let rounds = length.pick(1, 20);
    for steps in PROGRAMS.iter().cycle().take(rounds * PROGRAMS.len()) {
        let mut program = PreloadedProgram::start("guest", &[])?;
        let mut client = program.client()?;
        // The activation starts the threads that maintain the stack walk and end the activation.
        send_successfully(&mut client, "activate", "for=1h")?;
        for step in *steps {
            // The connection starts a new thread.
            send_successfully(&mut program.client()?, "status", "")?;
            program.send_line(step)?;
            program
                .expect_line("done")
                .with_context(|| format!("{steps:?}: {step}"))?;
        }
        // memprof's threads poll the program's privileges.
        let start = Instant::now();
        loop {
            let dumped = send_message(&mut client, "dump", "")?;
            let is_answered = dumped["status"] == "ok" || dumped["error"]["kind"] == "io";
            ensure!(is_answered, "{dumped}");
            send_successfully(&mut program.client()?, "status", "")?;
            match check_credentials(program.pid()) {
                Err(error) if start.elapsed() > REPLY_TIMEOUT => {
                    return Err(error.context(format!("{steps:?}")));
                }
                Err(_) => {}
                Ok(()) => break,
            }
        }
    }
    Ok(format!(
        "{} programs dropped privileges in {} ways: memprof's threads have none beyond theirs",
        rounds * PROGRAMS.len(),
        PROGRAMS.len()
    ))
}

/// Checks that every thread of a process has the user ids of its main thread, and that the threads of memprof that
/// serve messages have no permitted capability that the main thread lacks.
fn check_credentials(pid: u32) -> Result<()> {
    let main_thread = Credentials::read(pid, pid)?;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let id = task?.file_name().to_string_lossy().parse()?;
        let thread = Credentials::read(pid, id)?;
        ensure!(
            thread.users == main_thread.users,
            "{thread:?} beside {main_thread:?}"
        );
        let works = ["memprof-conn", "memprof-dumper", "memprof-control"];
        if works.contains(&thread.name.as_str()) {
            ensure!(
                thread.permitted & !main_thread.permitted == 0,
                "{thread:?} beside {main_thread:?}"
            );
        }
    }
    Ok(())
}

/// Name and privileges of a thread.
#[derive(Debug)]
struct Credentials {
    name: String,
    users: String,
    permitted: u64,
}

impl Credentials {
    /// Reads the name, the user ids and the permitted capabilities of the thread `task` from its status in /proc. Fails
    /// if the thread has exited.
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
