//! Estimates from /proc/PID/smaps how long a copy of the process takes, and which memory it will not have.

use std::io;
use std::ops::Range;
use std::time::Duration;

use memprof_ptrace::maps::{self, Mapping};
use memprof_ptrace::measure_page_copy_time;

/// Mapping with its values of smaps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MappingUsage {
    pub(crate) range: Range<u64>,
    /// Resident bytes.
    pub(crate) resident: u64,
    /// Bytes of these in huge pages of hugetlbfs, which RSS does not contain.
    pub(crate) huge_tlb: u64,
    /// Size of the pages that the kernel gives it, in bytes.
    pub(crate) page_size: u64,
    /// Bytes that are swapped out.
    pub(crate) swapped: u64,
    /// Bytes of private memory that is no unchanged page of a file.
    pub(crate) anonymous: u64,
    /// Bytes of these in huge pages.
    pub(crate) huge: u64,
    /// Whether a forked child does not have it, or has zeros there (`MADV_DONTFORK`, `MADV_WIPEONFORK`).
    pub(crate) is_not_copied: bool,
    /// Whether a forked child has zeros there (`MADV_WIPEONFORK`).
    pub(crate) is_emptied: bool,
    /// Whether it is shared, so that a copy has it without page tables.
    pub(crate) is_shared: bool,
    /// Whether the process cannot have written to it: a shared file that was opened for reading only.
    pub(crate) is_unwritable: bool,
    /// Whether it is a device's, which cannot be read from outside the process.
    pub(crate) is_device: bool,
    /// Whether a program serves its page faults (userfaultfd(2)).
    pub(crate) is_served: bool,
}

/// Time to copy an entry of a page table with the page's reference count, on a slow machine.
const PAGE_COPY_TIME: Duration = Duration::from_nanos(250);
/// Estimate from which the machine's own time for a page is measured, which takes some tens of milliseconds.
pub(super) const MEASURED_FROM: Duration = Duration::from_millis(10);
/// Time to copy a huge page's entry, whose table is made beforehand. Measured on 100: 1.3 to 2.7 µs.
const HUGE_PAGE_COPY_TIME: Duration = Duration::from_nanos(2500);
/// Time to allocate and copy a pinned page, which a copy gets at once. Measured on 600 MiB: 4.6 µs.
const PINNED_PAGE_COPY_TIME: Duration = Duration::from_nanos(4600);
/// Time to copy a mapping.
const MAPPING_COPY_TIME: Duration = Duration::from_micros(2);
/// Time to stop a thread and to let it go on. Measured on 10,000 threads of an idle machine: 25 µs.
const THREAD_STOP_TIME: Duration = Duration::from_micros(25);

/// Parses /proc/PID/smaps; returns its mappings by address. Fields that are missing are 0.
///
/// # Errors
/// `InvalidData`: a size is no number of kB.
pub(crate) fn parse_smaps(smaps: &[u8]) -> io::Result<Vec<MappingUsage>> {
    let mut all: Vec<MappingUsage> = Vec::new();
    for line in smaps.split(|byte| *byte == b'\n') {
        let Some((name, value)) = parse_field(line) else {
            let mapping = maps::mappings(line).next();
            all.extend(mapping.map(|Mapping { range, access, .. }| MappingUsage {
                range,
                is_shared: access[3] == b's',
                ..MappingUsage::default()
            }));
            continue;
        };
        let Some(last) = all.last_mut() else { continue };
        match name {
            "Rss" => last.resident += parse_kib(name, value)?,
            // Not a part of Rss.
            "Shared_Hugetlb" | "Private_Hugetlb" => {
                let bytes = parse_kib(name, value)?;
                last.resident += bytes;
                last.huge_tlb += bytes;
            }
            "Swap" => last.swapped = parse_kib(name, value)?,
            "Anonymous" => last.anonymous = parse_kib(name, value)?,
            "AnonHugePages" => last.huge = parse_kib(name, value)?,
            "KernelPageSize" => last.page_size = parse_kib(name, value)?,
            "VmFlags" => {
                // proc(5): wipe on fork, do not copy on fork, may write, I/O memory and pure PFN range, and the modes
                // of userfaultfd(2).
                let has = |flag: &str| value.split_ascii_whitespace().any(|each| each == flag);
                last.is_emptied = has("wf");
                last.is_not_copied = last.is_emptied || has("dc");
                last.is_unwritable = last.is_shared && !has("mw");
                last.is_device = has("io") || has("pf");
                last.is_served = has("um") || has("uw") || has("ui");
            }
            _ => {}
        }
    }
    Ok(all)
}

/// Name and value of a line such as `Rss:    12 kB`. `None` for the first line of a mapping, which has a blank before
/// its first colon.
fn parse_field(line: &[u8]) -> Option<(&str, &str)> {
    let (name, value) = str::from_utf8(line).ok()?.split_once(':')?;
    name.bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        .then_some((name, value))
}

/// Bytes of a field's value such as `12 kB`. Fails with `InvalidData` if it is malformed: with 0 in its place, a copy
/// could be made that ends the process.
fn parse_kib(name: &str, value: &str) -> io::Result<u64> {
    let number = value.trim().strip_suffix(" kB");
    let number = number.and_then(|number| number.parse::<u64>().ok());
    let bytes = number.and_then(|number| number.checked_mul(1024));
    bytes.ok_or_else(|| {
        let message = format!("{name} is no number of kB: {:?}", value.trim());
        io::Error::new(io::ErrorKind::InvalidData, message)
    })
}

/// Private bytes that are no unchanged pages of files: a copy shares them until one of both processes writes.
pub(super) fn private_bytes(mappings: &[MappingUsage]) -> u64 {
    mappings
        .iter()
        .map(|each| each.anonymous + each.swapped)
        .sum()
}

/// Addresses of the mappings of devices, which cannot be read from outside the process.
pub(super) fn device_ranges(mappings: &[MappingUsage]) -> Vec<Range<u64>> {
    selected_ranges(mappings, |each| each.is_device)
}

/// Addresses of the shared mappings to which the process cannot have written.
pub(super) fn unwritable_ranges(mappings: &[MappingUsage]) -> Vec<Range<u64>> {
    selected_ranges(mappings, |each| each.is_unwritable)
}

/// Addresses of the mappings that `is_selected` accepts.
fn selected_ranges(
    mappings: &[MappingUsage],
    is_selected: fn(&MappingUsage) -> bool,
) -> Vec<Range<u64>> {
    let selected = mappings.iter().filter(|each| is_selected(each));
    selected.map(|each| each.range.clone()).collect()
}

/// Estimates how long the threads of a process must be stopped for a copy. `threads` is their number, and `pinned` are
/// the bytes of private memory that is pinned. A long time is estimated by a trial on this machine.
pub(crate) fn estimate_pause(mappings: &[MappingUsage], threads: u32, pinned: u64) -> Duration {
    let pinned_time = scaled_time(PINNED_PAGE_COPY_TIME, pinned >> 12);
    pinned_time + estimate_unpinned_pause(mappings, threads)
}

/// Estimates the pause for a process without pinned memory. If it takes [`MEASURED_FROM`] or longer on a slow machine,
/// measures how fast this one copies page tables, which blocks for some tens of milliseconds, and estimates anew.
fn estimate_unpinned_pause(mappings: &[MappingUsage], threads: u32) -> Duration {
    let estimate = estimate_pause_with(PAGE_COPY_TIME, mappings, threads);
    if estimate < MEASURED_FROM {
        return estimate;
    }
    // Without a trial, the machine counts as a slow one. Other processes may have interrupted the trial.
    let measured = measure_page_copy_time().unwrap_or(PAGE_COPY_TIME);
    // Machines differ by a factor of five; a disturbed trial must not break `--max-pause`.
    let page_time = measured.clamp(PAGE_COPY_TIME / 5, PAGE_COPY_TIME);
    estimate_pause_with(page_time, mappings, threads)
}

/// Estimated pause for a copy if the entry of a page of 4 KiB is copied in `page_time`.
fn estimate_pause_with(page_time: Duration, mappings: &[MappingUsage], threads: u32) -> Duration {
    let small: u64 = mappings
        .iter()
        .map(|each| each.anonymous.saturating_sub(each.huge) + each.swapped)
        .sum();
    let huge: u64 = mappings.iter().map(|each| each.huge).sum();
    scaled_time(page_time, small >> 12)
        + scaled_time(HUGE_PAGE_COPY_TIME, huge >> 21)
        + scaled_time(MAPPING_COPY_TIME, mappings.len() as u64)
        + estimate_stop_time(threads)
}

/// Time for `count` steps that take a time of `one` each.
fn scaled_time(one: Duration, count: u64) -> Duration {
    Duration::from_nanos((one.as_nanos() as u64).saturating_mul(count))
}

/// Estimates how long it takes to stop a number of threads.
pub(super) fn estimate_stop_time(threads: u32) -> Duration {
    THREAD_STOP_TIME * threads
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
55d0c0a00000-55d100a00000 rw-p 00000000 00:00 0                          [heap]
Size:            1048576 kB
KernelPageSize:        4 kB
Rss:             1048576 kB
Anonymous:       1048576 kB
AnonHugePages:    524288 kB
Swap:                  4 kB
VmFlags: rd wr mr mw me ac sd dc
7f0000000000-7f0000001000 rw-p 00000000 00:05 99                         /dev/dri: card
Rss:                   4 kB
VmFlags: rd wr io pf
7f0000001000-7f0000002000 rw-p 00000000 00:00 0
Rss:                   4 kB
VmFlags: rd wr mr mw me um sd
";

    #[test]
    fn parse_reads_sizes_and_flags_for_estimate() {
        let found = parse_smaps(SMAPS.as_bytes()).unwrap();
        let heap = MappingUsage {
            range: 0x55d0_c0a0_0000..0x55d1_00a0_0000,
            resident: 1 << 30,
            huge_tlb: 0,
            page_size: 4096,
            swapped: 4096,
            anonymous: 1 << 30,
            huge: 1 << 29,
            is_not_copied: true,
            is_emptied: false,
            is_shared: false,
            is_unwritable: false,
            is_device: false,
            is_served: false,
        };
        assert_eq!(found[0], heap);
        assert!(found[1].is_device && !found[1].is_not_copied && !found[1].is_served);
        assert!(found[2].is_served && !found[2].is_device);
        let expected = PAGE_COPY_TIME * 131_073
            + HUGE_PAGE_COPY_TIME * 256
            + MAPPING_COPY_TIME * 3
            + THREAD_STOP_TIME * 3;
        assert_eq!(estimate_pause_with(PAGE_COPY_TIME, &found, 3), expected);
    }

    #[test]
    fn pinned_memory_is_part_of_estimate() {
        let pause = estimate_pause(&[], 1, 600 << 20);
        assert!(pause > Duration::from_millis(600), "{pause:?}");
        let rest = estimate_pause(&[], 1, 0);
        assert!(rest < Duration::from_millis(1), "{rest:?}");
    }

    #[test]
    fn smaps_of_this_process_are_parsed() {
        let own = parse_smaps(&std::fs::read("/proc/self/smaps").unwrap()).unwrap();
        let resident: u64 = own.iter().map(|each| each.resident).sum();
        assert!(resident > 1 << 20, "{resident}");
        assert!(own.iter().all(|each| !each.range.is_empty()));
    }

    #[test]
    fn parse_of_invalid_lines_is_empty() {
        let found = parse_smaps(b"Rss: 4 kB\nx\n\xff: 4 kB\n");
        assert_eq!(found.unwrap(), []);
    }

    #[test]
    fn malformed_size_is_an_error() {
        for field in [
            "Private_Hugetlb: x kB",
            "Shared_Hugetlb: 4",
            "Rss: -4 kB",
            "Swap: 18014398509481984 kB",
            "KernelPageSize:",
        ] {
            let smaps = format!("1000-2000 rw-p 00000000 00:00 0\n{field}\n");
            let error = parse_smaps(smaps.as_bytes()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{field}: {error}");
        }
    }
}
