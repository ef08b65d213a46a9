//! Symbolizes addresses for tools that fetch a profile without names: `symbol` of brpc and Go.

use std::collections::HashMap;
use std::fmt::Write;
use std::io::{self, BufRead, BufReader, Read};

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, RawQuery};
use axum::routing::{MethodRouter, get};
use memprof_report::{Input, Limits, Options, Sources};

use crate::gateway::Gateway;
use crate::problem::{Problem, Result};
use crate::report::with_render_permit;
use crate::request_host::{RequestHost, SharedHosts};

/// Most bytes of a request: 200,000 addresses, padded as by jeprof.
pub(super) const MAX_BODY_BYTES: usize = 4 << 20;
/// Bytes of memory per byte of a list of addresses, each of which becomes a stack of its own.
const MEMORY_PER_BYTE: u64 = 80;
/// Most bytes of a dump's mappings. Linux allows a process 65,530 of them by default, each with a path.
const MAX_MAPS_BYTES: u64 = 64 << 20;
/// Line of a dump before the mappings of its process.
const MAPS: &str = "MAPPED_LIBRARIES:\n";

/// First line of a reply: there are symbols.
pub(super) const SYMBOLS: &str = "num_symbols: 1\n";

/// Format of addresses with names, by the system whose tools read it.
#[derive(Clone, Copy, Debug)]
pub(super) enum SymbolFormat {
    /// A line `0x%08x`, tab, name for each address.
    Brpc,
    /// [`SYMBOLS`], and a line `%#x NAME` for each address that has a name.
    Go,
    /// A line `%#x NAME` for each address that has a name.
    Userver,
}

/// Returns the route that replies with the names of the addresses in the body of a POST or in the query of a GET. To a
/// GET without addresses, it replies that there are symbols.
pub(super) fn symbolizing_route(format: SymbolFormat) -> MethodRouter<SharedHosts> {
    get(
        async move |RequestHost(host): RequestHost, RawQuery(query): RawQuery| match query {
            Some(query) if query.starts_with("0x") => {
                symbolize_list(&host, query.as_bytes(), format).await
            }
            _ => Ok(SYMBOLS.to_owned()),
        },
    )
    .post(async move |RequestHost(host): RequestHost, body: Bytes| {
        symbolize_list(&host, &body, format).await
    })
    .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
}

/// Symbolizes the addresses in `body`, such as `0x4005d0+0x4005f7`, by the mappings of a new in-memory dump of the
/// host. Returns lines in the form of `format`. An address without a name has a line only for brpc, with the address as
/// its name. Fails if the body is malformed or the dump fails.
pub(super) async fn symbolize_list(
    host: &Gateway,
    body: &[u8],
    format: SymbolFormat,
) -> Result<String> {
    let addresses = parse_addresses(body)?;
    let pid = host.process_ids().await?.visible_pid;
    // A new dump shows the process as it is now: a kept one may lack a library.
    let dump = host.take_in_memory_dump().await?.file;
    let named = with_render_permit(move || {
        let maps = read_maps(dump);
        let maps = maps.map_err(|error| Problem::internal(format!("the dump: {error}")))?;
        symbolize_addresses(&addresses, &maps, pid)
    })
    .await?;
    let mut lines = match format {
        SymbolFormat::Brpc | SymbolFormat::Userver => String::new(),
        SymbolFormat::Go => SYMBOLS.to_owned(),
    };
    for (address, name) in named {
        let written = match (format, name) {
            (SymbolFormat::Brpc, Some(name)) => writeln!(lines, "{address:#010x}\t{name}"),
            (SymbolFormat::Brpc, None) => writeln!(lines, "{address:#010x}\t{address:#010x}"),
            (SymbolFormat::Go | SymbolFormat::Userver, Some(name)) => {
                writeln!(lines, "{address:#x} {name}")
            }
            (SymbolFormat::Go | SymbolFormat::Userver, None) => Ok(()),
        };
        written.map_err(|e| Problem::internal(e.to_string()))?;
    }
    Ok(lines)
}

/// Parses hexadecimal addresses such as `0x4005d0+0x4005f7`. Fails if one is malformed, or there is none.
fn parse_addresses(body: &[u8]) -> Result<Vec<u64>> {
    let malformed = || {
        Problem::invalid("the body is not a list of addresses")
            .remedy("for example 0x4005d0+0x4005f7")
    };
    let text = std::str::from_utf8(body).map_err(|_| malformed())?;
    // brpc takes a list in quotes, too.
    let text = text.trim().trim_matches(['"', '\'']);
    let address = |text: &str| {
        let digits = text.trim().strip_prefix("0x").ok_or_else(malformed)?;
        u64::from_str_radix(digits, 16).map_err(|_| malformed())
    };
    text.split('+').map(address).collect()
}

/// Reads the end of a dump, which describes its process: the mappings, and comments with build ids. Empty if the dump
/// has no mappings. Fails if the end has more than [`MAX_MAPS_BYTES`] (64 MiB).
fn read_maps(dump: impl Read) -> io::Result<Vec<u8>> {
    let mut lines = BufReader::new(dump);
    let mut line = Vec::new();
    while line != MAPS.as_bytes() {
        // A longer line is another one, and may be of any length.
        if line.last().is_some_and(|last| *last != b'\n') {
            lines.skip_until(b'\n')?;
        }
        line.clear();
        let mut start = lines.by_ref().take(MAPS.len() as u64);
        if start.read_until(b'\n', &mut line)? == 0 {
            break;
        }
    }
    let mut maps = Vec::new();
    // One byte above the limit shows that there are too many.
    lines.take(MAX_MAPS_BYTES + 1).read_to_end(&mut maps)?;
    if maps.len() as u64 > MAX_MAPS_BYTES {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("its mappings have more than {MAX_MAPS_BYTES} bytes"),
        ));
    }
    Ok(maps)
}

/// Returns each address with its name, in the order of `addresses`; the name is `None` for an address in no mapping.
/// Symbolizes a profile that has a stack for each address. `maps` are the mappings as they stand in a dump; `pid` is
/// the process if it is visible in /proc. The names of functions that are inlined at an address are joined by `--`, the
/// outermost first.
fn symbolize_addresses(
    addresses: &[u64],
    maps: &[u8],
    pid: Option<u32>,
) -> Result<Vec<(u64, Option<String>)>> {
    // A heap profile in tcmalloc's format, with a sample for each address.
    let mut text = String::from("heap profile: 0: 0 [0: 0] @ heapprofile\n").into_bytes();
    for address in addresses {
        // A stack has return addresses, but the requested ones are addresses of calls.
        let line = format!("1: 1 [0: 0] @ {:#x}\n", address.wrapping_add(1));
        text.extend_from_slice(line.as_bytes());
    }
    text.extend_from_slice(format!("\n{MAPS}").as_bytes());
    text.extend_from_slice(maps);
    let input = Input {
        name: "addresses",
        bytes: &mut text.as_slice(),
    };
    let sources = Sources::for_process(pid);
    let options = Options {
        limits: Limits {
            memory: MEMORY_PER_BYTE,
            ..Limits::default()
        },
        ..Options::default()
    };
    let named = memprof_report::read_profile(input, Some(&sources), &options, &|_, _| {})?;
    let mut names = HashMap::new();
    for sample in &named.profile.samples {
        for id in named.profile.stacks.frames(sample.stack) {
            // The address of the call, as in `addresses`.
            let address = named.profile.stacks.address(*id).0.wrapping_sub(1);
            names.entry(address).or_insert_with(|| {
                let frames = named.names.frames(*id).iter().rev();
                let functions = frames.map(|frame| named.names.strings.get(frame.function));
                functions.collect::<Vec<_>>().join("--")
            });
        }
    }
    // Outside of all mappings, the name of an address is its number.
    let is_name = |name: &&String| !name.starts_with("0x");
    let line = |address: &u64| (*address, names.get(address).filter(is_name).cloned());
    Ok(addresses.iter().map(line).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_are_read_from_a_dump() {
        let check = |dump: &str, expected: &str| {
            let maps = read_maps(dump.as_bytes()).unwrap();
            assert_eq!(String::from_utf8_lossy(&maps), expected, "{dump}");
        };
        check("", "");
        check("heap_v2/1\n@ 0x1\n  t*: 1: 8 [0: 0]\n", "");
        check(
            "heap_v2/1\n\nMAPPED_LIBRARIES:\n1-2 r-xp\n# a: b\n",
            "1-2 r-xp\n# a: b\n",
        );
        check("heap_v2/1\n\nMAPPED_LIBRARIES:\n", "");
        check("heap_v2/1\n\nMAPPED_LIBRARIES:", "");
        check("x MAPPED_LIBRARIES:\nMAPPED_LIBRARIES:\n1\n", "1\n");
        check("eighteen  letters MAPPED_LIBRARIES:\n1\n", "");
        check("MAPPED_LIBRARIES: x\n1\n", "");
    }

    /// Reader of endless bytes `x`, which fails after that many.
    struct Endless(u64);

    impl Read for Endless {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            buffer.fill(b'x');
            let read = buffer.len() as u64;
            self.0 = self.0.checked_sub(read).ok_or(io::ErrorKind::OutOfMemory)?;
            Ok(buffer.len())
        }
    }

    #[test]
    fn maps_of_any_length_are_not_read() {
        let endless = || Endless(MAX_MAPS_BYTES + (1 << 20));
        let error = read_maps(MAPS.as_bytes().chain(endless())).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
        let maps = read_maps(endless().take(MAX_MAPS_BYTES).chain(&b"\n"[..])).unwrap();
        assert!(maps.is_empty());
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
        check("'0x1+0x2'\n", Some(&[1, 2]));
        check("", None);
        check("0x", None);
        check("1", None);
        check("0x1+", None);
        check("0x1ffffffffffffffff", None);
        check("0x1;id", None);
    }
}
