//! Programs that close every descriptor, ours too, while clients are connected, and open sockets of
//! their own under the same numbers: nobody else reads, writes or closes those.

use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::SuiteLength;
use super::host::{PATIENCE, send};
use super::preloaded_program::PreloadedProgram;

const CLIENTS: usize = 3;

pub(super) fn run(form: SuiteLength) -> Result<String> {
    let rounds = form.pick(5, 50);
    for round in 0..rounds {
        close_all().with_context(|| format!("round {round}"))?;
    }
    Ok(format!(
        "{rounds} programs closed all descriptors with {CLIENTS} clients connected: theirs were left alone, \
         and each was reached again"
    ))
}

fn close_all() -> Result<()> {
    let mut guest = PreloadedProgram::start("guest", &[])?;
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let mut client = guest.client()?;
        send(&mut client, "status", "")?;
        clients.push(client);
    }
    guest.send_line("closefrom")?;
    guest.expect_line("done")?;
    // Each wakes a thread that waits for a socket which is not there any more.
    for client in &mut clients {
        drop(send(client, "status", ""));
    }
    let begun = Instant::now();
    while guest
        .client()
        .and_then(|mut client| send(&mut client, "status", ""))
        .is_err()
    {
        guest.check_alive()?;
        ensure!(begun.elapsed() < PATIENCE, "it is not reached again");
    }
    guest.send_line("look")?;
    guest.expect_line("0 harmed")?;
    guest.expect_line("done")
}
