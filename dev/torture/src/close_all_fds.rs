//! Suite `closefrom`: a program closes every descriptor, memprof's included, while clients are connected, and opens
//! sockets with the same numbers. memprof does not read, write or close those.

use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::SuiteLength;
use super::host::{REPLY_TIMEOUT, send_message, send_successfully};
use super::preloaded_program::PreloadedProgram;

const CLIENTS: usize = 3;

/// Runs the suite `closefrom`, and returns its figures in one line. Fails if memprof touches a socket of the program,
/// or does not serve again.
pub(super) fn run_suite(length: SuiteLength) -> Result<String> {
    let rounds = length.pick(5, 50);
    for round in 0..rounds {
        check_foreign_descriptors().with_context(|| format!("round {round}"))?;
    }
    Ok(format!(
        "{rounds} programs closed all descriptors with {CLIENTS} clients connected: their own sockets were not touched, \
         and each accepts connections again"
    ))
}

/// Lets a program close all descriptors, memprof's included, and open sockets that get the same numbers. Checks that
/// memprof neither reads nor writes these sockets, and accepts connections again within [`REPLY_TIMEOUT`].
fn check_foreign_descriptors() -> Result<()> {
    let mut program = PreloadedProgram::start("guest", &[])?;
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let mut client = program.client()?;
        send_successfully(&mut client, "status", "")?;
        clients.push(client);
    }
    program.send_line("closefrom")?;
    program.expect_line("done")?;
    // Each message wakes a thread of memprof whose socket the program has closed, so there need not be a reply.
    for client in &mut clients {
        drop(send_message(client, "status", ""));
    }
    let start = Instant::now();
    while program
        .client()
        .and_then(|mut client| send_successfully(&mut client, "status", ""))
        .is_err()
    {
        program.check_alive()?;
        ensure!(
            start.elapsed() < REPLY_TIMEOUT,
            "the program accepts no connection again"
        );
    }
    // The program counts its sockets whose unread bytes are not those that it wrote.
    program.send_line("look")?;
    program.expect_line("0 harmed")?;
    program.expect_line("done")
}
