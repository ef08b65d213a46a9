//! Roots: pointers of a program outside its heap.

use std::fs;
use std::ops::Range;

use crate::regions::Region;
use crate::snapshot::{Registers, Snapshot};
use crate::snapshot_memory::SnapshotMemory;

/// Bytes below the stack pointer that the ABI lets a function use.
const RED_ZONE: u64 = 128;

/// Memory and words that are scanned for pointers.
#[derive(Debug, Default)]
pub(crate) struct Roots {
    /// Memory outside the heap, by address.
    pub(crate) ranges: Vec<Range<u64>>,
    /// Words that the kernel has stored for the process.
    pub(crate) kernel: Vec<u64>,
    /// Memory that may hold pointers and could not be scanned, as sentences.
    pub(crate) unread: Vec<String>,
}

/// Finds the roots of a process. `own` are the ranges of the allocators, by address, which are no roots.
pub(crate) fn find_roots(snapshot: &Snapshot, view: &SnapshotMemory, own: &[Range<u64>]) -> Roots {
    let mut roots = Roots::default();
    for region in &view.regions {
        if region.is_writable && snapshot.devices.contains(&region.range) {
            let Region { range, name, .. } = region;
            let size = (range.end - range.start) >> 10;
            roots.unread.push(format!(
                "{size} KiB of a device at {:#x} ({name})",
                range.start
            ));
            continue;
        }
        let unused = unused_stack(region, &snapshot.threads);
        for pages in &region.pages {
            let start = if unused.contains(&pages.start) {
                unused.end.min(pages.end)
            } else {
                pages.start
            };
            subtract(start..pages.end, own, &mut roots.ranges);
        }
    }
    roots.unread.extend(snapshot.uncopied.unread_note());
    kernel_roots(snapshot.pid, &mut roots);
    roots
}

/// Unused part of a thread's stack, at the start of its mapping; empty if the mapping is no stack. A stack is
/// recognized by its name, or by the control block that libc puts at its top: other stacks may lie in the
/// middle of a program's memory.
fn unused_stack(region: &Region, threads: &[Registers]) -> Range<u64> {
    let mut threads_on_it = threads
        .iter()
        .filter(|thread| region.range.contains(&thread.stack));
    let (Some(thread), None) = (threads_on_it.next(), threads_on_it.next()) else {
        return 0..0;
    };
    let is_stack = region.name == "[stack]"
        || (region.range.contains(&thread.control_block) && thread.stack < thread.control_block);
    match is_stack {
        true => {
            region.range.start..(thread.stack.saturating_sub(RED_ZONE) & !7).max(region.range.start)
        }
        false => 0..0,
    }
}

/// Appends the parts of a range that are in none of `others` to `rest`. `others` are sorted and do not overlap.
fn subtract(range: Range<u64>, others: &[Range<u64>], rest: &mut Vec<Range<u64>>) {
    let mut start = range.start;
    let first = others.partition_point(|other| other.end <= start);
    for other in others[first..]
        .iter()
        .take_while(|other| other.start < range.end)
    {
        if other.start > start {
            rest.push(start..other.start);
        }
        start = start.max(other.end);
    }
    if start < range.end {
        rest.push(start..range.end);
    }
}

/// Adds pointers that a program has stored in the kernel, perhaps only there: with a descriptor of epoll(7), or a
/// timer. Also notes descriptors and `io_uring` instances that cannot be read.
fn kernel_roots(pid: u32, roots: &mut Roots) {
    let (mut rings, mut unknown) = (0, 0);
    for entry in fs::read_dir(format!("/proc/{pid}/fdinfo"))
        .into_iter()
        .flatten()
        .flatten()
    {
        let Ok(text) = fs::read_to_string(entry.path()) else {
            unknown += 1;
            continue;
        };
        roots.kernel.extend(text.lines().filter_map(epoll_data));
        rings += u32::from(text.contains("SqMask:"));
    }
    if rings > 0 {
        roots.unread.push(format!(
            "pointers that only requests of {rings} io_uring instances hold"
        ));
    }
    if unknown > 0 {
        roots
            .unread
            .push(format!("{unknown} descriptors in /proc/{pid}/fdinfo"));
    }
    // Kernels without checkpoint/restore have no such file.
    let timers = fs::read_to_string(format!("/proc/{pid}/timers")).unwrap_or_default();
    roots.kernel.extend(timers.lines().filter_map(timer_value));
}

/// Data of a descriptor of epoll(7); `None` for other lines. An example of a line is `tfd:        5 events:
/// 19 data:     55d0c0a012a0 pos:0 ino:3e sdev:8`.
fn epoll_data(line: &str) -> Option<u64> {
    let rest = line.strip_prefix("tfd:")?.split_once("data:")?.1;
    u64::from_str_radix(rest.split_whitespace().next()?, 16).ok()
}

/// Value of a timer (`sigev_value`); `None` for other lines. An example of a line is `signal: 60/00007fff86e452a8`.
fn timer_value(line: &str) -> Option<u64> {
    let value = line.strip_prefix("signal:")?.split_once('/')?.1;
    u64::from_str_radix(value.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subtract_keeps_parts_between_others() {
        let check = |others: &[(u64, u64)], expected: &[(u64, u64)]| {
            let others: Vec<_> = others.iter().map(|(start, end)| *start..*end).collect();
            let mut rest = Vec::new();
            subtract(10..20, &others, &mut rest);
            let rest: Vec<_> = rest
                .into_iter()
                .map(|range| (range.start, range.end))
                .collect();
            assert_eq!(rest, expected);
        };
        check(&[], &[(10, 20)]);
        let others = [(0, 10), (12, 14), (14, 15), (18, 30)];
        check(&others, &[(10, 12), (15, 18)]);
        check(&[(0, 30)], &[]);
        check(&[(10, 12), (20, 22)], &[(12, 20)]);
    }

    #[test]
    fn epoll_data_and_timer_values_are_parsed() {
        let line = "tfd:        5 events:       19 data:     55d0c0a012a0  pos:0 ino:3e sdev:8";
        assert_eq!(epoll_data(line), Some(0x55d0_c0a0_12a0));
        assert_eq!(epoll_data("pos:\t0"), None);
        assert_eq!(
            timer_value("signal: 60/00007fff86e452a8"),
            Some(0x7fff_86e4_52a8)
        );
        assert_eq!(timer_value("ID: 0"), None);
    }

    #[test]
    fn unused_stack_ends_at_red_zone() {
        let region = |name: &str, range: Range<u64>| Region {
            name: name.to_owned(),
            ..Region::anonymous(range)
        };
        let thread = |stack, control_block| Registers {
            tid: 1,
            stack,
            control_block,
            words: Vec::new(),
        };
        let check = |name, threads: &[Registers], expected| {
            assert_eq!(
                unused_stack(&region(name, 0x1000..0x9000), threads),
                expected
            );
        };
        check("[stack]", &[thread(0x8000, 0)], 0x1000..0x7f80);
        check("", &[thread(0x8000, 0x8f00)], 0x1000..0x7f80);
        // A coroutine's stack lies in other memory of the program.
        check("", &[thread(0x8000, 0x7000_0000)], 0..0);
        check("", &[thread(0x8000, 0x8f00), thread(0x3000, 0x8f00)], 0..0);
        check("[stack]", &[thread(0x1010, 0)], 0x1000..0x1000);
    }
}
