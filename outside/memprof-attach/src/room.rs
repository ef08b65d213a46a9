//! Checks before an attachment that the limits of a process leave room for it. If a limit were reached halfway, the
//! program's own allocations would fail as well as the plugin's.

use std::fs;

use memprof_ptrace::maps::mappings;
use memprof_ptrace::{Limit, Refusal};

/// Mappings of an attachment: the plugin's file, stacks and heaps of its first threads, and the sampler's tables.
const MAX_MAPPINGS: u64 = 96;
/// Bytes of addresses: glibc reserves 64 MiB for each new thread that allocates, and temporarily twice as much.
const MAX_ADDRESS_BYTES: u64 = 512 << 20;
/// Bytes of private memory, without the first thread's stack, which has the size of the program's stacks.
const MAX_DATA_BYTES: u64 = 24 << 20;
/// Descriptors: the listening socket, connections, and files that are open for a short time.
const MAX_DESCRIPTORS: u64 = 8;
/// Stack size if the stack limit is unlimited (`ARCH_STACK_DEFAULT_SIZE`), in bytes.
const DEFAULT_STACK_SIZE: u64 = 8 << 20;
/// The capability's bit (capabilities(7)); its holder may lock memory without limit.
const CAP_IPC_LOCK: u64 = 1 << 14;

/// Current usage of each limited resource: counts, or bytes.
#[derive(Clone, Copy, Debug, Default)]
struct ResourceUsage {
    mappings: u64,
    addresses: u64,
    data: u64,
    locked: u64,
    descriptors: u64,
    capabilities: u64,
}

/// Value of a limit: of setrlimit(2), or of the machine, which has no hard limit.
#[derive(Clone, Copy, Debug)]
struct LimitValue {
    soft: u64,
    /// `None` if unlimited.
    hard: Option<u64>,
}

/// A limit that leaves less than an attachment needs.
#[derive(Debug)]
struct Shortage {
    limit: Limit,
    value: LimitValue,
    used: u64,
    needed: u64,
}

/// Fails if an attachment could reach a limit of the process. Limits that cannot be read do not count.
pub(crate) fn require_room_for_attachment(pid: u32, maps: &[u8]) -> Result<(), Refusal> {
    let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd"));
    let status = read("status");
    let used = ResourceUsage {
        // The kernel does not count `[vsyscall]`.
        mappings: mappings(maps)
            .filter(|mapping| mapping.path != b"[vsyscall]")
            .count() as u64,
        addresses: field_bytes(&status, "VmSize"),
        data: field_bytes(&status, "VmData"),
        locked: field_bytes(&status, "VmLck"),
        descriptors: descriptors.map_or(0, |entries| entries.count() as u64),
        capabilities: hex_field(&status, "CapEff"),
    };
    let max_mappings = fs::read_to_string("/proc/sys/vm/max_map_count").unwrap_or_default();
    match find_shortage(used, &read("limits"), max_mappings.trim().parse().ok()) {
        Some(Shortage {
            limit,
            value,
            used,
            needed,
        }) => Err(Refusal::NoRoom {
            pid,
            limit,
            value: value.soft,
            hard: value.hard,
            used,
            needed,
        }),
        None => Ok(()),
    }
}

/// Returns the first limit that leaves less than an attachment needs; `None` if all leave enough. `limits` is the text
/// of /proc/PID/limits, `max_mappings` the value of `vm.max_map_count`. Limits that are missing there do not count;
/// `max_mappings` is `None` if it is unknown.
fn find_shortage(used: ResourceUsage, limits: &str, max_mappings: Option<u64>) -> Option<Shortage> {
    let limit_value = |name| parse_limit(limits, name);
    let stack = limit_value("Max stack size").map_or(DEFAULT_STACK_SIZE, |size| size.soft);
    let bytes = MAX_DATA_BYTES + stack;
    // mlockall(2) with MCL_FUTURE is recorded in no file of /proc, and nothing else locks as much.
    let locks_all = used.locked > used.addresses / 2 && used.capabilities & CAP_IPC_LOCK == 0;
    let addresses = MAX_ADDRESS_BYTES.max(2 * bytes);
    // Reserved addresses count as locked even without memory.
    let locked = if locks_all { addresses } else { 0 };
    let mappings = max_mappings.map(|soft| LimitValue { soft, hard: None });
    let all = [
        (Limit::Mappings, mappings, used.mappings, MAX_MAPPINGS),
        (
            Limit::Addresses,
            limit_value("Max address space"),
            used.addresses,
            addresses,
        ),
        (Limit::Data, limit_value("Max data size"), used.data, bytes),
        (
            Limit::Locked,
            limit_value("Max locked memory"),
            used.locked,
            locked,
        ),
        (
            Limit::Descriptors,
            limit_value("Max open files"),
            used.descriptors,
            MAX_DESCRIPTORS,
        ),
    ];
    all.into_iter().find_map(|(limit, value, used, needed)| {
        let value = value?;
        let is_short = needed > 0 && value.soft < used.saturating_add(needed);
        is_short.then_some(Shortage {
            limit,
            value,
            used,
            needed,
        })
    })
}

/// Parses the limit called `name` in the text of /proc/PID/limits, where its line is for example `Max data size
/// 8388608              unlimited            bytes     `. `None` if the line is missing or malformed, or its soft limit
/// is `unlimited`.
fn parse_limit(limits: &str, name: &str) -> Option<LimitValue> {
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    let mut values = line.split_whitespace().map(|value| value.parse().ok());
    Some(LimitValue {
        soft: values.next()??,
        hard: values.next()?,
    })
}

/// Returns the value in bytes of the line `name` of /proc/PID/status, such as `VmData: 224 kB`. 0 if the line is
/// missing or malformed.
fn field_bytes(status: &str, name: &str) -> u64 {
    let number =
        field_value(status, name).and_then(|value| value.split_whitespace().next()?.parse().ok());
    number.map_or(0, |kibibytes: u64| kibibytes << 10)
}

/// Returns the hexadecimal number in the line `name` of /proc/PID/status, such as `CapEff: 000001ffffffffff`. 0 if the
/// line is missing or malformed.
fn hex_field(status: &str, name: &str) -> u64 {
    let number =
        field_value(status, name).and_then(|value| u64::from_str_radix(value.trim(), 16).ok());
    number.unwrap_or(0)
}

/// Returns the text after the name and the colon in the line `name` of /proc/PID/status. `None` if the line is missing.
fn field_value<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = status.lines();
    lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortage_names_the_limit_and_the_command_that_raises_it() {
        let check = |used: ResourceUsage, limit: &str, expected: Option<(Limit, &str)>| {
            let limits = format!("Max stack size 8388608 unlimited bytes\n{limit}\n");
            let found = find_shortage(used, &limits, Some(65_530));
            let found = found.map(|short| {
                let to = short.used + short.needed;
                (
                    short.limit,
                    short.limit.raise_command(7, to, short.value.hard),
                )
            });
            let expected = expected.map(|(limit, command)| (limit, command.to_owned()));
            assert_eq!(found, expected, "{limit}");
        };
        let used = ResourceUsage {
            mappings: 30,
            addresses: 4 << 20,
            data: 1 << 20,
            descriptors: 3,
            ..ResourceUsage::default()
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
        let many = ResourceUsage {
            mappings: 65_500,
            ..used
        };
        let command = "sysctl vm.max_map_count=65596";
        check(many, "", Some((Limit::Mappings, command)));
        let locked = "Max locked memory 8388608 8388608 bytes";
        check(used, locked, None);
        let all = ResourceUsage {
            locked: 4 << 20,
            ..used
        };
        let command = "prlimit --pid 7 --memlock=541065216";
        check(all, locked, Some((Limit::Locked, command)));
        let may_lock = ResourceUsage {
            capabilities: CAP_IPC_LOCK,
            ..all
        };
        check(may_lock, locked, None);
    }

    #[test]
    fn usage_of_a_process_is_read() {
        let maps = fs::read("/proc/self/maps").unwrap();
        require_room_for_attachment(std::process::id(), &maps).unwrap();
        let status = "VmSize:\t    2440 kB\nVmData:\t     224 kB\nCapEff:\t0000000000004000\n";
        assert_eq!(field_bytes(status, "VmData"), 224 << 10);
        assert_eq!(field_bytes(status, "VmLck"), 0);
        assert_eq!(hex_field(status, "CapEff"), CAP_IPC_LOCK);
    }
}
