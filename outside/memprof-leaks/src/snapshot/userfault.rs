//! Check whether a fork of the process would wait for a program that serves its memory: with `UFFD_FEATURE_EVENT_FORK`
//! of userfaultfd(2), clone(2) does not return before the holder of the descriptor has read of it. That may be a thread
//! of the process itself, which is stopped, and the copy would stay.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use memprof_ptrace::page_fault_server::{DESCRIPTOR_LINK, serves_address};

use super::smaps::MappingUsage;
use crate::error::Error;

/// Bit of `UFFD_FEATURE_EVENT_FORK` (linux/userfaultfd.h).
const EVENT_FORK: u64 = 1 << 1;
/// Longest search in other processes.
const SEARCH_TIME: Duration = Duration::from_secs(1);

/// Fails if memory of the process is served by userfaultfd(2), and a fork must or may wait for the server. Descriptors
/// that serve other processes do not count, also if the process holds them.
///
/// # Errors
/// `ForkEvents`: the server is notified of forks, or is not found.
pub(super) fn require_no_fork_events(pid: u32, mappings: &[MappingUsage]) -> Result<(), Error> {
    let Some(served) = mappings.iter().find(|mapping| mapping.is_served) else {
        return Ok(());
    };
    let address = served.range.start;
    let mut features = features_held_by(pid, address);
    if features.is_empty() {
        features = features_of_others(address);
    }
    match features.iter().all(|each| each & EVENT_FORK == 0) && !features.is_empty() {
        true => Ok(()),
        false => Err(Error::ForkEvents),
    }
}

/// Features of the descriptors of all processes that this user may inspect, as far as the time suffices, which serve a
/// process with registered memory at `address`.
fn features_of_others(address: u64) -> Vec<u64> {
    let start = Instant::now();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .take_while(|_| start.elapsed() < SEARCH_TIME)
        .flat_map(|pid| features_held_by(pid, address))
        .collect()
}

/// Features of the userfaultfd descriptors of a process which serve a process with registered memory at `address`.
/// Empty if it has none, or if this user may not inspect it.
fn features_held_by(pid: u32, address: u64) -> Vec<u64> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd"));
    let numbers = descriptors
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|descriptor| {
            let link = fs::read_link(descriptor.path()).ok()?;
            let number: i32 = descriptor.file_name().to_str()?.parse().ok()?;
            (link == Path::new(DESCRIPTOR_LINK)).then_some(number)
        });
    let features = numbers.filter_map(|number| {
        let text = fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")).ok()?;
        // An unknown form may be one with the feature.
        let features = parse_features(&text).unwrap_or(u64::MAX);
        let is_server = match serves_address(pid, number, address) {
            Ok(serves) => serves,
            // One that does not say may serve it; it proves nothing about the memory if it has not the feature.
            Err(_) => features & EVENT_FORK != 0,
        };
        is_server.then_some(features)
    });
    features.collect()
}

/// Parses the features of a descriptor's fdinfo: the second of the hexadecimal numbers of the line `API:`. `None` if
/// there is no such line.
fn parse_features(info: &str) -> Option<u64> {
    let numbers = info.lines().find_map(|line| line.strip_prefix("API:"))?;
    let features = numbers.trim().split(':').nth(1)?;
    u64::from_str_radix(features, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_parsed() {
        let check = |text: &str, expected| assert_eq!(parse_features(text), expected, "{text}");
        let start = "pos:\t0\nflags:\t04002\nmnt_id:\t15\npending:\t0\ntotal:\t0\n";
        check(
            &format!("{start}API:\taa:80000002:80000000000011e\n"),
            Some(0x8000_0002),
        );
        check(&format!("{start}API:\taa:0:1ff\n"), Some(0));
        check(start, None);
        check("API:\taa\n", None);
    }

    #[test]
    fn process_whose_memory_nothing_serves_is_not_searched() {
        let mapping = MappingUsage::default();
        assert!(require_no_fork_events(std::process::id(), std::slice::from_ref(&mapping)).is_ok());
        let served = MappingUsage {
            is_served: true,
            ..mapping
        };
        // No server is found, unless another test's process has one.
        assert!(features_held_by(std::process::id(), 0).is_empty());
        let error = require_no_fork_events(std::process::id(), &[served]);
        assert!(
            matches!(error, Ok(()) | Err(Error::ForkEvents)),
            "{error:?}"
        );
    }
}
