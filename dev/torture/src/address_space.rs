//! Programs whose address space is full: a message is refused, and they live.

use anyhow::{Context, Result, bail, ensure};

use super::SuiteLength;
use super::host::{is_out_of_memory, send};
use super::preloaded_program::PreloadedProgram;

/// Sent on a connection of its own each, and on one that was open before.
const MESSAGES: [&str; 5] = ["status", "stats", "doctor", "ledger", "dump"];

pub(super) fn run(form: SuiteLength) -> Result<String> {
    let rounds = form.pick(1, 10);
    let mut refused = 0;
    let mut answered = 0;
    for round in 0..rounds {
        let mut guest = PreloadedProgram::start("guest", &[])?;
        let mut open = guest.client()?;
        send(&mut open, "status", "")?;
        guest.send_line("fill")?;
        guest.expect_line("full")?;
        for message in MESSAGES {
            for reply in [
                send(&mut open, message, ""),
                guest
                    .client()
                    .and_then(|mut client| send(&mut client, message, "")),
            ] {
                match reply {
                    Ok(_) => answered += 1,
                    Err(error) if is_out_of_memory(&error) => refused += 1,
                    Err(error) => {
                        guest.check_alive()?;
                        bail!("round {round}, {message}: {error:#}");
                    }
                }
                guest
                    .check_alive()
                    .with_context(|| format!("round {round}, {message}"))?;
            }
        }
        guest.send_line("")?;
        guest.expect_line("done")?;
        let status = send(&mut guest.client()?, "status", "")?;
        ensure!(status["status"] == "ok", "{status}");
    }
    ensure!(
        refused > 0,
        "nothing was refused: the address space was not full"
    );
    Ok(format!(
        "{rounds} full address spaces × {} messages: {refused} refused, {answered} answered, 0 deaths",
        2 * MESSAGES.len()
    ))
}
