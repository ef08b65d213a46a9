//! Symbolizes addresses for tools that fetch a profile without names: `symbol` of brpc and Go.

use std::collections::HashMap;
use std::fmt::Write;

use axum::body::Bytes;
use axum::extract::DefaultBodyLimit;
use axum::routing::{MethodRouter, get};
use memprof_report::{Input, Options, Sources};

use crate::gateway::{Gateway, blocking};
use crate::problem::{Problem, Result};
use crate::report::with_render_permit;
use crate::request_host::{RequestHost, SharedHosts};

/// Most bytes of a request: 200,000 addresses, padded as by jeprof.
const MAX_BODY_BYTES: usize = 4 << 20;
const MAPS: &str = "MAPPED_LIBRARIES:\n";

/// Route whose GET reports that there are symbols, and whose POST symbolizes addresses.
pub(super) fn route() -> MethodRouter<SharedHosts> {
    get(async |_: RequestHost| "num_symbols: 1\n")
        .post(async |RequestHost(host): RequestHost, body: Bytes| {
            symbolize_list(&host, &body).await
        })
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
}

/// Serves the program and its arguments, separated by NUL: from /proc or, if the process is not visible there, as the
/// host reports its command.
pub(super) async fn command_line(RequestHost(host): RequestHost) -> Result<String> {
    let info = host.host().await?;
    let own = blocking(move || std::fs::read(format!("/proc/{}/cmdline", info.pid))).await?;
    match own {
        Ok(bytes) if !bytes.is_empty() => Ok(without_trailing_nul(&bytes)),
        // The process is in another PID namespace, or has just ended.
        _ => Ok(info.command.replace(' ', "\0")),
    }
}

/// Removes trailing NULs. The kernel ends each argument with a NUL, Go's server only separates arguments with one.
/// jeprof keeps a trailing NUL, in the name of a file that it creates.
fn without_trailing_nul(arguments: &[u8]) -> String {
    let arguments = String::from_utf8_lossy(arguments);
    arguments.trim_end_matches('\0').to_owned()
}

/// Replies with a line for each address of `0x1+0x2`: `0x%08x`, a tab, the name.
async fn symbolize_list(host: &Gateway, body: &[u8]) -> Result<String> {
    let addresses = parse_addresses(body)?;
    let pid = host.host().await?.pid;
    let maps = newest_maps(host, pid).await?;
    let named = with_render_permit(move || symbolize(&addresses, &maps, pid)).await?;
    let mut lines = String::new();
    for (address, name) in named {
        writeln!(lines, "{address:#010x}\t{name}").map_err(|e| Problem::internal(e.to_string()))?;
    }
    Ok(lines)
}

/// Parses addresses such as `0x4005d0+0x4005f7`. Fails if the body is malformed or empty.
fn parse_addresses(body: &[u8]) -> Result<Vec<u64>> {
    let malformed = || {
        Problem::invalid("the body is not a list of addresses")
            .remedy("for example 0x4005d0+0x4005f7")
    };
    let text = std::str::from_utf8(body).map_err(|_| malformed())?;
    let address = |text: &str| {
        let digits = text.trim().strip_prefix("0x").ok_or_else(malformed)?;
        u64::from_str_radix(digits, 16).map_err(|_| malformed())
    };
    text.trim().split('+').map(address).collect()
}

/// Returns the mappings of the process as text from its newest kept dump, which is the one with the addresses. Empty if
/// it has no dump.
async fn newest_maps(host: &Gateway, pid: u32) -> Result<Bytes> {
    let kept = host.kept().await?;
    let newest = kept.into_iter().find(|dump| dump.pid == pid);
    let Some(newest) = newest else {
        return Ok(Bytes::new());
    };
    let read_maps = || async {
        let dump = host.open(&newest.id).await?;
        blocking(move || {
            let dump = dump.read()?;
            let text = String::from_utf8_lossy(&dump);
            let maps = text
                .find(MAPS)
                .map_or("", |index| &text[index + MAPS.len()..]);
            Ok(Bytes::copy_from_slice(maps.as_bytes()))
        })
        .await?
    };
    host.renders
        .get_or_render(&format!("maps of {}", newest.id), read_maps)
        .await
}

/// Returns each address with its name, in their order, by symbolizing a profile with these addresses. Inlined functions
/// are joined by `--`; an address without a symbol is its own name.
fn symbolize(addresses: &[u64], maps: &[u8], pid: u32) -> Result<Vec<(u64, String)>> {
    let mut text = String::from("heap profile: 0: 0 [0: 0] @ heapprofile\n").into_bytes();
    for address in addresses {
        // A stack has return addresses; these are addresses of calls.
        let line = format!("1: 1 [0: 0] @ {:#x}\n", address.wrapping_add(1));
        text.extend_from_slice(line.as_bytes());
    }
    text.extend_from_slice(format!("\n{MAPS}").as_bytes());
    text.extend_from_slice(maps);
    let input = Input {
        name: "addresses",
        bytes: &mut text.as_slice(),
    };
    let sources = Sources::for_process(Some(pid));
    let named = memprof_report::read(input, Some(&sources), &Options::default(), &|_, _| {})?;
    let mut names = HashMap::new();
    for sample in &named.profile.samples {
        for id in named.profile.stacks.frames(sample.stack) {
            let address = named.profile.stacks.address(*id).0.wrapping_sub(1);
            names.entry(address).or_insert_with(|| {
                let frames = named.names.frames(*id).iter().rev();
                let functions = frames.map(|frame| named.names.strings.get(frame.function));
                functions.collect::<Vec<_>>().join("--")
            });
        }
    }
    let unknown = |address: u64| format!("{address:#x}");
    let line = |address: &u64| {
        let name = names.get(address).cloned();
        (*address, name.unwrap_or_else(|| unknown(*address)))
    };
    Ok(addresses.iter().map(line).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trailing_nul_is_removed() {
        let check =
            |arguments: &[u8], expected| assert_eq!(without_trailing_nul(arguments), expected);
        check(b"server\0", "server");
        check(b"server\0-p\x00", "server\0-p");
        check(b"renamed by itself", "renamed by itself");
    }

    #[test]
    fn address_list_is_parsed() {
        let check = |body: &str, expected: Option<&[u64]>| {
            assert_eq!(
                parse_addresses(body.as_bytes()).ok().as_deref(),
                expected,
                "{body}"
            );
        };
        check("0x1", Some(&[1]));
        check("0x000000000000000a+0xff\n", Some(&[10, 255]));
        check("", None);
        check("0x", None);
        check("1", None);
        check("0x1+", None);
        check("0x1ffffffffffffffff", None);
        check("0x1;id", None);
    }
}
