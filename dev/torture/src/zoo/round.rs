//! Runs all commands on a program: record, attach, sample, dump, holders, leaks, detach.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Result, bail};
use serde_json::Value;

use crate::servers::Tools;

/// Timeout of a command, in seconds.
const COMMAND_TIMEOUT: &str = "60";

/// Exit codes for a process that cannot be profiled, and for one without the plugin, for example after exec.
const REFUSED: i32 = 4;
const GONE: i32 = 3;
/// Exit code of a profile without samples, because the program allocates little in this time.
const EMPTY: i32 = 5;
/// Exit code of all other failures.
const FAILED: i32 = 1;

/// Result of a command that did no harm.
enum Outcome {
    Done,
    Refused(String),
}

/// Runs all commands once on a process, and returns the refusals, each with its command. If `attach` is refused, leaves
/// out the commands that need the plugin. If `may_fail`, failures count as refusals: the program executes another one,
/// or cannot write files.
pub(super) fn run_round(
    tools: &Tools,
    pid: u32,
    dumps: &Path,
    may_fail: bool,
) -> Result<Vec<String>> {
    let pid = pid.to_string();
    let dump_dir = format!("dump_dir={}", dumps.display());
    let mut refusals = Vec::new();
    let mut step = |args: &[&str]| -> Result<bool> {
        match run_memprof(tools, args, may_fail)? {
            Outcome::Done => Ok(true),
            Outcome::Refused(reason) => {
                refusals.push(format!("{}: {reason}", args[0]));
                Ok(false)
            }
        }
    };
    step(&["record", "--pid", &pid, "--for", "100ms"])?;
    if step(&["attach", &pid, &dump_dir])? {
        step(&["activate", "-t", &pid, "sample_interval=4KiB"])?;
        step(&["dump", "-t", &pid, "--json"])?;
        step(&["status", "-t", &pid, "--json"])?;
        step(&["holders", &pid, "--max-pause", "10s"])?;
        step(&["leaks", "--prove", &pid, "--max-pause", "10s"])?;
        step(&["detach", &pid])?;
    } else {
        step(&["holders", &pid, "--max-pause", "10s"])?;
        step(&["leaks", "--prove", &pid, "--max-pause", "10s"])?;
    }
    Ok(refusals)
}

/// Runs `memprof` with these arguments. A command that has no data counts as done. Fails if the command takes longer
/// than [`COMMAND_TIMEOUT`], fails while `may_fail` is false, or refuses or fails without a reason.
fn run_memprof(tools: &Tools, args: &[&str], may_fail: bool) -> Result<Outcome> {
    let output = Command::new("timeout")
        .args(["-k", "5", COMMAND_TIMEOUT])
        .arg(tools.program())
        .args(args)
        .stdin(Stdio::null())
        .output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    let reason = error_reason(&errors, &output.stdout);
    match output.status.code() {
        Some(0 | EMPTY) => Ok(Outcome::Done),
        Some(REFUSED | GONE) if !reason.is_empty() => Ok(Outcome::Refused(reason)),
        Some(FAILED) if may_fail && !reason.is_empty() => Ok(Outcome::Refused(reason)),
        // timeout(1) returns 124 after SIGTERM, and 137 after SIGKILL.
        Some(124 | 137) => bail!(
            "HANGS: memprof {} takes {COMMAND_TIMEOUT} s: {errors}",
            args.join(" ")
        ),
        _ => bail!(
            "FAILED: memprof {}: {}: {errors}",
            args.join(" "),
            output.status
        ),
    }
}

/// Returns the reason of a failed command: the last line of its error output, which may begin with notes, or else the
/// error in its JSON reply. Empty if the command gives none.
fn error_reason(errors: &str, reply: &[u8]) -> String {
    let last = errors.lines().last().map(str::to_owned);
    let from_reply = || {
        let reply: Value = serde_json::from_slice(reply).ok()?;
        Some(reply["error"]["message"].as_str()?.to_owned())
    };
    last.or_else(from_reply).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::error_reason;

    #[test]
    fn reason_is_found_in_either_output() {
        let check = |errors: &str, reply: &str, expected: &str| {
            assert_eq!(error_reason(errors, reply.as_bytes()), expected);
        };
        let reply = r#"{"status":"error","error":{"message":"failed to write the dump"}}"#;
        check("", reply, "failed to write the dump");
        check("note\nno such process\n", reply, "no such process");
        check("", "done", "");
        check("", "", "");
    }
}
