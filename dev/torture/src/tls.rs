//! Suite `tls`: programs with much thread-local data, which glibc takes from every thread's stack, reply to all
//! messages.

use anyhow::{Context, Result, ensure};
use memprof_host::client::Client;
use serde_json::Value;

use super::SuiteLength;
use super::host::{HostSetup, send_message};
use super::preloaded_program::PreloadedProgram;
use super::programs::{TLS_SIZES, tls_host_name, tls_program_name};

/// All messages, which start all of memprof's threads.
const MESSAGES: [(&str, &str); 18] = [
    ("status", ""),
    ("activate", "for=1h"),
    ("activate", "unwinder=memprof"),
    ("stats", ""),
    ("dump", ""),
    ("ledger", ""),
    ("ledger", "smaps=on"),
    ("purge", ""),
    ("background_thread", "state=on"),
    ("background_thread", "state=off"),
    ("gdump", "state=on files=1 for=1h"),
    ("gdump", "state=off"),
    ("recent", "max=0"),
    ("reset", ""),
    ("doctor", ""),
    ("list", ""),
    ("help", ""),
    ("deactivate", ""),
];

/// Runs the suite `tls`, and returns its figures in one line. Fails if a program dies, or if a message fails.
pub(super) fn run_suite(length: SuiteLength) -> Result<String> {
    let sizes = length.pick(&TLS_SIZES[2..], &TLS_SIZES[..]);
    for size in sizes {
        let mut program = PreloadedProgram::start(&tls_program_name(*size), &[])?;
        send_all_messages(&mut program.client()?)
            .and_then(|()| program.check_alive())
            .with_context(|| format!("{size} KiB, preloaded"))?;
        let mut host = HostSetup {
            program: tls_host_name(*size).leak(),
            ..HostSetup::default()
        }
        .start()?;
        send_all_messages(&mut host.client()?)
            .and_then(|()| host.check_alive())
            .with_context(|| format!("{size} KiB, a host of its own: {}", host.log()))?;
    }
    Ok(format!(
        "{} messages to 2 programs with {sizes:?} KiB of thread-local variables: all answered",
        2 * sizes.len() * (MESSAGES.len() + 1),
    ))
}

/// Sends all messages, and fetches the dump. Fails if `dump` or the fetch fails, or if another reply is an error other
/// than that the message is unsupported.
fn send_all_messages(client: &mut Client) -> Result<()> {
    for (message, args) in MESSAGES {
        let reply = send_message(client, message, args).with_context(|| message.to_owned())?;
        ensure!(is_answered(message, &reply), "{message} {args}: {reply}");
        if message == "dump" {
            let id = reply["id"].as_str().context("id")?;
            let fetched = client.message("memory_profile", "fetch", &format!("id={id}"), None)?;
            let result = &fetched.result;
            ensure!(
                result.status_code == 0,
                "the fetch of {id} failed: {result:?}"
            );
        }
    }
    Ok(())
}

/// Whether a reply to a message is a success or, unless it is to `dump`, the error that the allocator does not support
/// the message. All allocators of this suite can dump.
fn is_answered(message: &str, reply: &Value) -> bool {
    let is_unsupported = reply["error"]["kind"] == "unsupported";
    reply["status"] == "ok" || (is_unsupported && message != "dump")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::is_answered;

    #[test]
    fn dump_must_be_supported() {
        let check = |message, kind, expected| {
            let reply = json!({ "status": "error", "error": { "kind": kind } });
            assert_eq!(is_answered(message, &reply), expected, "{message}: {kind}");
        };
        check("gdump", "unsupported", true);
        check("dump", "unsupported", false);
        check("gdump", "io", false);
        assert!(is_answered("dump", &json!({ "status": "ok" })));
    }
}
