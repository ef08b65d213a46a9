//! Retention policy: selects the dumps to delete before a new one is stored.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::dumps::name::DumpName;

/// Limits of the dump directory. Before a new dump is published, the oldest dumps are deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionPolicy {
    /// Maximum number of dumps in the directory; at least 1.
    pub count: usize,
    /// Maximum total size of all dumps, in bytes.
    pub bytes: u64,
    /// Age at which dumps are deleted. `None`: only `count` and `bytes` limit them.
    pub age: Option<Duration>,
    /// Number of this process's first dumps that are exempt from `age`, and that are deleted last.
    pub first: usize,
}

impl Default for RetentionPolicy {
    /// At most 32 dumps of 1 GiB in total. None expires by its age, and no first dumps are exempt.
    fn default() -> Self {
        Self {
            count: 32,
            bytes: 1 << 30,
            age: None,
            first: 0,
        }
    }
}

/// A dump in the dump directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DumpFile {
    pub(crate) name: DumpName,
    pub(crate) bytes: u64,
}

/// The dump that is about to be stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewDump<'a> {
    pub(crate) name: &'a DumpName,
    pub(crate) bytes: u64,
    /// Start time of the process that takes it. An earlier process may have had the same pid.
    pub(crate) started: SystemTime,
}

impl NewDump<'_> {
    /// Whether the new dump's process took `entry`: both have the same pid, and `entry` is not older than the process.
    fn is_from_same_process(&self, entry: &DumpFile) -> bool {
        // Names record the time to the second.
        let started = self.started.duration_since(UNIX_EPOCH).unwrap_or_default();
        let started = UNIX_EPOCH + Duration::from_secs(started.as_secs());
        entry.name.pid == self.name.pid && entry.name.taken >= started
    }

    /// Whether `entry` was taken more than `age` before the new dump.
    fn is_entry_older_than(&self, age: Duration, entry: &DumpFile) -> bool {
        // If the clock was set back, an existing dump may have a later time. It counts as new.
        let elapsed = self.name.taken.duration_since(entry.name.taken);
        elapsed.is_ok_and(|elapsed| elapsed > age)
    }
}

/// Selects the dumps to delete, oldest first, so that `new_dump` fits. `entries` must be sorted newest first. The
/// limits `count` and `bytes` of `keep` apply to all dumps, including the new one.
///
/// Some dumps are exempt from `age`, and are deleted last: the first `keep.first` ones of the new dump's process, and
/// the newest one of another process.
pub(crate) fn select_expired_dumps<'a>(
    entries: &'a [DumpFile],
    new_dump: &NewDump<'_>,
    keep: &RetentionPolicy,
) -> Vec<&'a DumpFile> {
    let is_own = |index: &usize| new_dump.is_from_same_process(&entries[*index]);
    // Entries are sorted newest first, so the process's first dumps are its last entries.
    let firsts = (0..entries.len()).rev().filter(is_own).take(keep.first);
    let previous = (0..entries.len()).find(|index| !is_own(index));
    let spared: Vec<usize> = firsts.chain(previous).collect();
    let others = (0..entries.len()).filter(|index| !spared.contains(index));

    let mut free_count = keep.count.saturating_sub(1);
    let mut free_bytes = keep.bytes.saturating_sub(new_dump.bytes);
    let mut fits = |index: usize| {
        let fits = free_count > 0 && entries[index].bytes <= free_bytes;
        if fits {
            free_count -= 1;
            free_bytes -= entries[index].bytes;
        }
        fits
    };
    let mut expired: Vec<usize> = spared
        .iter()
        .copied()
        .filter(|index| !fits(*index))
        .collect();
    let is_young = |index: usize| {
        keep.age
            .is_none_or(|age| !new_dump.is_entry_older_than(age, &entries[index]))
    };
    // After the first expired entry, all further ones are older, so they are expired too.
    expired.extend(others.skip_while(|index| is_young(*index) && fits(*index)));
    expired.sort_unstable_by(|a, b| b.cmp(a));
    expired.into_iter().map(|index| &entries[index]).collect()
}

#[cfg(test)]
mod tests {
    use memprof_messages::ProfileKind;

    use super::*;

    const DAY: u64 = 24 * 60 * 60;
    const MIB: u64 = 1 << 20;
    const OWN: u32 = 7;
    const OTHER: u32 = 6;

    fn name(day: u64, pid: u32) -> DumpName {
        DumpName {
            taken: UNIX_EPOCH + Duration::from_secs((20_000 + day) * DAY),
            pid,
            sequence: day as u32,
            random: 0,
            cause: None,
            kind: ProfileKind::Heap,
        }
    }

    /// Selects among dumps of 1 MiB, taken on the given days, when a process of pid 7 that started on day 5
    /// takes another dump on day 10. Compares the days of the deleted ones.
    fn check(dumps: &[(u64, u32)], keep: RetentionPolicy, expected: &[u64]) {
        let entries: Vec<_> = dumps
            .iter()
            .map(|(day, pid)| DumpFile {
                name: name(*day, *pid),
                bytes: MIB,
            })
            .collect();
        let new_dump = NewDump {
            name: &name(10, OWN),
            bytes: MIB,
            started: name(5, OWN).taken + Duration::from_millis(1),
        };
        let days: Vec<_> = select_expired_dumps(&entries, &new_dump, &keep)
            .iter()
            .map(|entry| u64::from(entry.name.sequence))
            .collect();
        assert_eq!(days, expected, "{dumps:?} {keep:?}");
    }

    fn count(count: usize) -> RetentionPolicy {
        RetentionPolicy {
            count,
            ..RetentionPolicy::default()
        }
    }

    fn bytes(mib: u64) -> RetentionPolicy {
        RetentionPolicy {
            bytes: mib * MIB,
            ..RetentionPolicy::default()
        }
    }

    fn days(days: u64) -> RetentionPolicy {
        RetentionPolicy {
            age: Some(Duration::from_secs(days * DAY)),
            ..RetentionPolicy::default()
        }
    }

    const OWN_FIVE: [(u64, u32); 5] = [(9, OWN), (8, OWN), (7, OWN), (6, OWN), (5, OWN)];

    #[test]
    fn oldest_dumps_expire_first() {
        check(&[], count(1), &[]);
        check(&OWN_FIVE, RetentionPolicy::default(), &[]);
        check(&OWN_FIVE, count(4), &[5, 6]);
        check(&OWN_FIVE, count(1), &[5, 6, 7, 8, 9]);
        check(&OWN_FIVE, bytes(3), &[5, 6, 7]);
        check(&OWN_FIVE, bytes(0), &[5, 6, 7, 8, 9]);
        check(&OWN_FIVE, days(3), &[5, 6]);
        check(&OWN_FIVE, days(5), &[]);
        check(&[(11, OWN)], days(1), &[]);
    }

    #[test]
    fn first_dumps_of_process_expire_last() {
        let first = |first, keep| RetentionPolicy { first, ..keep };
        check(&OWN_FIVE, first(1, count(3)), &[6, 7, 8]);
        check(&OWN_FIVE, first(2, count(3)), &[7, 8, 9]);
        check(&OWN_FIVE, first(1, bytes(2)), &[6, 7, 8, 9]);
        check(&OWN_FIVE, first(1, days(2)), &[6, 7]);
        check(&OWN_FIVE, first(9, days(1)), &[]);
        // Count and bytes hold for them too.
        check(&OWN_FIVE, first(9, count(2)), &[6, 7, 8, 9]);
        check(&OWN_FIVE, first(1, bytes(1)), &[5, 6, 7, 8, 9]);
    }

    #[test]
    fn last_dump_of_previous_process_is_kept() {
        let two = [(9, OWN), (8, OWN), (3, OTHER), (2, OTHER)];
        check(&two, count(3), &[2, 8]);
        check(&two, days(1), &[2, 8]);
        check(&two, bytes(2), &[2, 8, 9]);
        check(&two, count(1), &[2, 3, 8, 9]);
        // The pid belonged to another process before this one started.
        let restarted = [(9, OWN), (8, OWN), (4, OWN), (3, OWN)];
        let keep = RetentionPolicy {
            first: 1,
            ..count(3)
        };
        check(&restarted, keep, &[3, 9]);
    }
}
