//! Check whether a fork of the process would wait for a program that serves its memory: with `UFFD_FEATURE_EVENT_FORK`
//! of userfaultfd(2), clone(2) does not return before the holder of the descriptor has read of it. That may be a thread
//! of the process itself, which is stopped, and the copy would stay.

use std::fs;
use std::iter;
use std::path::Path;
use std::time::{Duration, Instant};

use memprof_ptrace::page_fault_server::{DESCRIPTOR_LINK, descriptor_serves_address};

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
    let features = userfault_features_of_all_processes(pid, served.range.start);
    match features.iter().all(|each| each & EVENT_FORK == 0) && !features.is_empty() {
        true => Ok(()),
        false => Err(Error::ForkEvents),
    }
}

/// Features of all userfaultfd descriptors that serve memory at `address`, in process `pid` and in each other process
/// that this user may inspect: a process that holds a descriptor of its own may have passed a second one on. Ends after
/// [`SEARCH_TIME`], even if other processes are left.
fn userfault_features_of_all_processes(pid: u32, address: u64) -> Vec<u64> {
    let start = Instant::now();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let others = processes
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|other| *other != pid)
        .take_while(|_| start.elapsed() < SEARCH_TIME);
    iter::once(pid)
        .chain(others)
        .flat_map(|pid| userfault_features_of_process(pid, address))
        .collect()
}

/// Features of the userfaultfd descriptors that process `pid` holds and that serve a process with registered memory at
/// `address`. If it cannot be found out whether a descriptor serves that memory, the descriptor counts if it has the
/// fork feature. Empty if there are no such descriptors, or if this user may not inspect the process.
fn userfault_features_of_process(pid: u32, address: u64) -> Vec<u64> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd"));
    let numbers = descriptors
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|descriptor| {
            let number = descriptor.file_name().to_str()?.parse().ok()?;
            is_userfault_descriptor(pid, number).then_some(number)
        });
    let features = numbers.filter_map(|number| {
        let text = fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")).ok()?;
        // If the form is not known, the feature may be set.
        let features = parse_features(&text).unwrap_or(u64::MAX);
        let is_server = match descriptor_serves_address(pid, number, address) {
            Ok(serves) => serves,
            // The process has ended, or closed it.
            Err(_) if !is_userfault_descriptor(pid, number) => false,
            // This descriptor may serve the address. With the feature, it rules the fork out; without, it proves
            // nothing.
            Err(_) => features & EVENT_FORK != 0,
        };
        is_server.then_some(features)
    });
    features.collect()
}

/// Whether process `pid` holds a descriptor of userfaultfd(2) under that number.
fn is_userfault_descriptor(pid: u32, number: i32) -> bool {
    let link = fs::read_link(format!("/proc/{pid}/fd/{number}"));
    link.is_ok_and(|link| link == Path::new(DESCRIPTOR_LINK))
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
        assert!(userfault_features_of_process(std::process::id(), 0).is_empty());
        let error = require_no_fork_events(std::process::id(), &[served]);
        assert!(
            matches!(error, Ok(()) | Err(Error::ForkEvents)),
            "{error:?}"
        );
    }
}
