//! Where a program holds pointers besides its heap.

use std::fs;
use std::ops::Range;

use crate::regions::Region;
use crate::snapshot::{Registers, Snapshot};
use crate::snapshot_memory::SnapshotMemory;

/// What an ABI lets a function use below the stack pointer.
const RED_ZONE: u64 = 128;

/// What is to be searched for pointers.
#[derive(Debug, Default)]
pub(crate) struct Roots {
    /// Memory, by address.
    pub(crate) ranges: Vec<Range<u64>>,
    /// What the kernel holds for the process.
    pub(crate) kernel: Vec<u64>,
    /// What might hold pointers and could not be searched.
    pub(crate) unread: Vec<String>,
}

/// The roots of a process. `own` is what the allocators have, by address.
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

/// The part of a stack that its thread does not use, at the start of its mapping. A stack is known by its name,
/// or by the control block that libc puts on top of it: another may lie in the middle of what a program has.
fn unused_stack(region: &Region, threads: &[Registers]) -> Range<u64> {
    let mut on_it = threads
        .iter()
        .filter(|thread| region.range.contains(&thread.stack));
    let (Some(thread), None) = (on_it.next(), on_it.next()) else {
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

/// Adds what is left of a range without others, which are sorted.
fn subtract(range: Range<u64>, others: &[Range<u64>], left: &mut Vec<Range<u64>>) {
    let mut at = range.start;
    let first = others.partition_point(|other| other.end <= at);
    for other in others[first..]
        .iter()
        .take_while(|other| other.start < range.end)
    {
        if other.start > at {
            left.push(at..other.start);
        }
        at = at.max(other.end);
    }
    if at < range.end {
        left.push(at..range.end);
    }
}

/// Pointers that a program gave the kernel, and may have nowhere else: with a descriptor of epoll(7), or a timer.
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
    // A kernel without checkpoint and restore has no such file.
    let timers = fs::read_to_string(format!("/proc/{pid}/timers")).unwrap_or_default();
    roots.kernel.extend(timers.lines().filter_map(timer_value));
}

/// `tfd:        5 events:       19 data:     55d0c0a012a0  pos:0 ino:3e sdev:8`
fn epoll_data(line: &str) -> Option<u64> {
    let rest = line.strip_prefix("tfd:")?.split_once("data:")?.1;
    u64::from_str_radix(rest.split_whitespace().next()?, 16).ok()
}

/// `signal: 60/00007fff86e452a8`
fn timer_value(line: &str) -> Option<u64> {
    let value = line.strip_prefix("signal:")?.split_once('/')?.1;
    u64::from_str_radix(value.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_without_others() {
        let check = |others: &[(u64, u64)], expected: &[(u64, u64)]| {
            let others: Vec<_> = others.iter().map(|(start, end)| *start..*end).collect();
            let mut left = Vec::new();
            subtract(10..20, &others, &mut left);
            let left: Vec<_> = left
                .into_iter()
                .map(|range| (range.start, range.end))
                .collect();
            assert_eq!(left, expected);
        };
        check(&[], &[(10, 20)]);
        let others = [(0, 10), (12, 14), (14, 15), (18, 30)];
        check(&others, &[(10, 12), (15, 18)]);
        check(&[(0, 30)], &[]);
        check(&[(10, 12), (20, 22)], &[(12, 20)]);
    }

    #[test]
    fn what_the_kernel_holds() {
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
    fn the_unused_part_of_a_stack() {
        let region = |name: &str, range: Range<u64>| Region {
            name: name.to_owned(),
            ..Region::of(range)
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
        // A coroutine's, in memory of the program's.
        check("", &[thread(0x8000, 0x7000_0000)], 0..0);
        check("", &[thread(0x8000, 0x8f00), thread(0x3000, 0x8f00)], 0..0);
        check("[stack]", &[thread(0x1010, 0)], 0x1000..0x1000);
    }
}
