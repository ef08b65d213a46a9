//! Suite `tls`: programs with much thread-local data, which glibc takes from every thread's stack, reply to all
//! messages.

use anyhow::{Context, Result, ensure};
use memprof_host::client::Client;

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

/// Sends all messages, and fetches the dump. Fails if there is no dump, or if a reply is an error other than that the
/// message is unsupported.
fn send_all_messages(client: &mut Client) -> Result<()> {
    for (message, args) in MESSAGES {
        let reply = send_message(client, message, args).with_context(|| message.to_owned())?;
        let is_answered = reply["status"] == "ok" || reply["error"]["kind"] == "unsupported";
        ensure!(is_answered, "{message}: {reply}");
        if message == "dump" {
            let id = reply["id"].as_str().context("id")?;
            client.message("memory_profile", "fetch", &format!("id={id}"), None)?;
        }
    }
    Ok(())
}
