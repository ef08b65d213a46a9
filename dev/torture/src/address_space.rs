//! Suite `space`: in programs whose address space is full, a message is refused and the program survives.

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::SuiteLength;
use super::host::{is_out_of_memory, send_message, send_successfully};
use super::preloaded_program::PreloadedProgram;

/// Messages that are sent on a new connection each, and on one that was open before.
const MESSAGES: [&str; 5] = ["status", "stats", "doctor", "ledger", "dump"];

/// Runs the suite `space`, and returns its figures in one line. Fails if a program dies, if a reply is another error
/// than a lack of memory, if nothing is refused, or if the program does not answer once it has memory again.
pub(super) fn run_suite(length: SuiteLength) -> Result<String> {
    let rounds = length.pick(1, 10);
    let mut refused = 0;
    let mut replies = 0;
    for round in 0..rounds {
        let mut program = PreloadedProgram::start("guest", &[])?;
        let mut open_client = program.client()?;
        send_successfully(&mut open_client, "status", "")?;
        // The program limits its address space to its size, and allocates until malloc(3) fails.
        program.send_line("fill")?;
        program.expect_line("full")?;
        for message in MESSAGES {
            for reply in [
                send_message(&mut open_client, message, ""),
                program
                    .client()
                    .and_then(|mut client| send_message(&mut client, message, "")),
            ] {
                match reply {
                    Ok(reply) if lacks_memory(&reply) => refused += 1,
                    Ok(reply) => {
                        ensure!(reply["status"] == "ok", "round {round}, {message}: {reply}");
                        replies += 1;
                    }
                    Err(error) if is_out_of_memory(&error) => refused += 1,
                    Err(error) => {
                        program.check_alive()?;
                        bail!("round {round}, {message}: {error:#}");
                    }
                }
                program
                    .check_alive()
                    .with_context(|| format!("round {round}, {message}"))?;
            }
        }
        // Any line lets the program lift the limit and free the blocks.
        program.send_line("")?;
        program.expect_line("done")?;
        send_successfully(&mut program.client()?, "status", "")?;
    }
    ensure!(
        refused > 0,
        "nothing was refused: the address space was not full"
    );
    Ok(format!(
        "{rounds} full address spaces × {} messages: {refused} refused, {replies} replies, 0 deaths",
        2 * MESSAGES.len()
    ))
}

/// Whether a reply is an error that names the errno of a call that got no memory: ENOMEM, or EAGAIN for a new thread.
fn lacks_memory(reply: &Value) -> bool {
    let message = reply["error"]["message"].as_str().unwrap_or_default();
    ["(ENOMEM)", "(EAGAIN)"]
        .iter()
        .any(|errno| message.contains(errno))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::lacks_memory;

    #[test]
    fn only_the_lack_of_memory_is_a_refusal() {
        let check = |message: &str, expected| {
            let reply = json!({ "status": "error", "error": { "kind": "io", "message": message } });
            assert_eq!(lacks_memory(&reply), expected, "{message}");
        };
        check("failed to map the dump (ENOMEM)", true);
        check("failed to start a thread (EAGAIN)", true);
        check("failed to open the dump (EACCES)", false);
        check("another dump runs", false);
        assert!(!lacks_memory(&json!({ "status": "ok" })));
    }
}
