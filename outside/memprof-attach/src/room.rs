//! The room that an attachment takes, against the limits of a process: looked at before anything is done there. A
//! limit that is met on the way makes the program's own allocations fail as well as the plugin's.

use std::fs;

use memprof_ptrace::maps::mappings;
use memprof_ptrace::{Limit, Refusal};

/// The plugin's file, the stacks and heaps of its first threads, and what it samples into.
const MAPPINGS: u64 = 96;
/// glibc reserves 64 MiB for each new thread that allocates, and twice as much for a moment.
const ADDRESSES: u64 = 512 << 20;
/// Beside the stack of the first thread, which has the size that the program's threads have.
const BYTES: u64 = 24 << 20;
/// The listening socket, connections, and files that are open for a moment.
const DESCRIPTORS: u64 = 8;
/// Stacks are this large where their size has no limit (`ARCH_STACK_DEFAULT_SIZE`).
const STACK: u64 = 8 << 20;
/// `CAP_IPC_LOCK`, bit of capabilities(7): its holder may lock all memory.
const IPC_LOCK: u64 = 1 << 14;

/// Usage of each limited resource: counts, or bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Used {
    mappings: u64,
    addresses: u64,
    data: u64,
    locked: u64,
    descriptors: u64,
    capabilities: u64,
}

/// A limit's value, of setrlimit(2) or of the machine, which has no hard one.
#[derive(Clone, Copy, Debug)]
struct Value {
    soft: u64,
    /// `None` without a limit.
    hard: Option<u64>,
}

/// A limit that leaves less than is needed.
#[derive(Debug)]
struct Shortage {
    limit: Limit,
    is: Value,
    used: u64,
    needed: u64,
}

/// Fails where an attachment could meet a limit of the process.
pub(crate) fn require_room(pid: u32, maps: &[u8]) -> Result<(), Refusal> {
    let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd"));
    let status = read("status");
    let used = Used {
        mappings: mappings(maps)
            .filter(|mapping| mapping.path != b"[vsyscall]")
            .count() as u64,
        addresses: kibibytes(&status, "VmSize"),
        data: kibibytes(&status, "VmData"),
        locked: kibibytes(&status, "VmLck"),
        descriptors: descriptors.map_or(0, |entries| entries.count() as u64),
        capabilities: hexadecimal(&status, "CapEff"),
    };
    let most = fs::read_to_string("/proc/sys/vm/max_map_count").unwrap_or_default();
    match shortage(used, &read("limits"), most.trim().parse().ok()) {
        Some(Shortage {
            limit,
            is,
            used,
            needed,
        }) => Err(Refusal::NoRoom {
            pid,
            limit,
            is: is.soft,
            hard: is.hard,
            used,
            needed,
        }),
        None => Ok(()),
    }
}

/// The first limit that leaves less than is needed.
fn shortage(used: Used, limits: &str, most_mappings: Option<u64>) -> Option<Shortage> {
    let of = |name| value(limits, name);
    let stack = of("Max stack size").map_or(STACK, |size| size.soft);
    let bytes = BYTES + stack;
    // mlockall(2), MCL_FUTURE: no file of /proc tells it, and nothing else locks as much.
    let locks_all = used.locked > used.addresses / 2 && used.capabilities & IPC_LOCK == 0;
    let addresses = ADDRESSES.max(2 * bytes);
    // Reserved addresses count as locked, whether there is memory behind them or not.
    let locked = if locks_all { addresses } else { 0 };
    let mappings = most_mappings.map(|soft| Value { soft, hard: None });
    let all = [
        (Limit::Mappings, mappings, used.mappings, MAPPINGS),
        (
            Limit::Addresses,
            of("Max address space"),
            used.addresses,
            addresses,
        ),
        (Limit::Data, of("Max data size"), used.data, bytes),
        (Limit::Locked, of("Max locked memory"), used.locked, locked),
        (
            Limit::Descriptors,
            of("Max open files"),
            used.descriptors,
            DESCRIPTORS,
        ),
    ];
    all.into_iter().find_map(|(limit, is, used, needed)| {
        let is = is?;
        let is_short = needed > 0 && is.soft < used.saturating_add(needed);
        is_short.then_some(Shortage {
            limit,
            is,
            used,
            needed,
        })
    })
}

/// `Max data size             8388608              unlimited            bytes     `: `None` without a soft limit.
fn value(limits: &str, name: &str) -> Option<Value> {
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    let mut values = line.split_whitespace().map(|value| value.parse().ok());
    Some(Value {
        soft: values.next()??,
        hard: values.next()?,
    })
}

/// `VmData: 224 kB`, in bytes; 0 where there is no such line.
fn kibibytes(status: &str, name: &str) -> u64 {
    let figure =
        field(status, name).and_then(|value| value.split_whitespace().next()?.parse().ok());
    figure.map_or(0, |kibibytes: u64| kibibytes << 10)
}

fn hexadecimal(status: &str, name: &str) -> u64 {
    let figure = field(status, name).and_then(|value| u64::from_str_radix(value.trim(), 16).ok());
    figure.unwrap_or(0)
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = status.lines();
    lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_that_leaves_too_little_is_named_with_a_command_that_raises_it() {
        let check = |used: Used, limit: &str, expected: Option<(Limit, &str)>| {
            let limits = format!("Max stack size 8388608 unlimited bytes\n{limit}\n");
            let found = shortage(used, &limits, Some(65_530));
            let found = found.map(|short| {
                let to = short.used + short.needed;
                (short.limit, short.limit.raise_command(7, to, short.is.hard))
            });
            let expected = expected.map(|(limit, command)| (limit, command.to_owned()));
            assert_eq!(found, expected, "{limit}");
        };
        let used = Used {
            mappings: 30,
            addresses: 4 << 20,
            data: 1 << 20,
            descriptors: 3,
            ..Used::default()
        };
        check(used, "Max data size unlimited unlimited bytes", None);
        check(used, "Max data size 100000000 100000000 bytes", None);
        check(
            used,
            "Max data size 8388608 8388608 bytes",
            Some((Limit::Data, "prlimit --pid 7 --data=34603008")),
        );
        check(
            used,
            "Max address space 104857600 unlimited bytes",
            Some((Limit::Addresses, "prlimit --pid 7 --as=541065216:")),
        );
        check(
            used,
            "Max open files 10 10 files",
            Some((Limit::Descriptors, "prlimit --pid 7 --nofile=11")),
        );
        check(
            used,
            "Max open files 10 11 files",
            Some((Limit::Descriptors, "prlimit --pid 7 --nofile=11:")),
        );
        let many = Used {
            mappings: 65_500,
            ..used
        };
        let command = "sysctl vm.max_map_count=65596";
        check(many, "", Some((Limit::Mappings, command)));
        let locked = "Max locked memory 8388608 8388608 bytes";
        check(used, locked, None);
        let all = Used {
            locked: 4 << 20,
            ..used
        };
        let command = "prlimit --pid 7 --memlock=541065216";
        check(all, locked, Some((Limit::Locked, command)));
        let may_lock = Used {
            capabilities: IPC_LOCK,
            ..all
        };
        check(may_lock, locked, None);
    }

    #[test]
    fn what_a_process_has_is_read() {
        let maps = fs::read("/proc/self/maps").unwrap();
        require_room(std::process::id(), &maps).unwrap();
        let status = "VmSize:\t    2440 kB\nVmData:\t     224 kB\nCapEff:\t0000000000004000\n";
        assert_eq!(kibibytes(status, "VmData"), 224 << 10);
        assert_eq!(kibibytes(status, "VmLck"), 0);
        assert_eq!(hexadecimal(status, "CapEff"), IPC_LOCK);
    }
}
