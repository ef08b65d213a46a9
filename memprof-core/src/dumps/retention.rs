//! Which dumps make room for a new one.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::dumps::name::DumpName;

/// How many dumps to keep. The oldest go first, before a new one is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionPolicy {
    /// At most so many dumps, at least 1.
    pub count: usize,
    /// At most so many bytes in all.
    pub bytes: u64,
    /// For how long; None: as long as there is room.
    pub age: Option<Duration>,
    /// So many of this process's first dumps go last, whatever their age.
    pub first: usize,
}

impl Default for RetentionPolicy {
    fn default() -> Self {
        Self {
            count: 32,
            bytes: 1 << 30,
            age: None,
            first: 0,
        }
    }
}

/// A dump that lies in the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DumpFile {
    pub(crate) name: DumpName,
    pub(crate) bytes: u64,
}

/// The dump to make room for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewDump<'a> {
    pub(crate) name: &'a DumpName,
    pub(crate) bytes: u64,
    /// When its process started: a pid may have been another process's before.
    pub(crate) started: SystemTime,
}

impl NewDump<'_> {
    fn is_of_the_same_process(&self, entry: &DumpFile) -> bool {
        // Names tell the time to the second.
        let started = self.started.duration_since(UNIX_EPOCH).unwrap_or_default();
        let started = UNIX_EPOCH + Duration::from_secs(started.as_secs());
        entry.name.pid == self.name.pid && entry.name.taken >= started
    }

    fn is_older_than(&self, age: Duration, entry: &DumpFile) -> bool {
        // A dump from the future, after the clock was set back, is young.
        let elapsed = self.name.taken.duration_since(entry.name.taken);
        elapsed.is_ok_and(|elapsed| elapsed > age)
    }
}

/// The entries that have to go, oldest first; `entries` are newest first. Count and bytes hold
/// for all; age spares the first dumps of this process and the last one of the process before.
pub(crate) fn select_expired<'a>(
    entries: &'a [DumpFile],
    newcomer: &NewDump<'_>,
    keep: &RetentionPolicy,
) -> Vec<&'a DumpFile> {
    let own = |at: &usize| newcomer.is_of_the_same_process(&entries[*at]);
    let firsts = (0..entries.len()).rev().filter(own).take(keep.first);
    let previous = (0..entries.len()).find(|at| !own(at));
    let spared: Vec<usize> = firsts.chain(previous).collect();
    let others = (0..entries.len()).filter(|at| !spared.contains(at));

    let mut places = keep.count.saturating_sub(1);
    let mut room = keep.bytes.saturating_sub(newcomer.bytes);
    let mut fits = |at: usize| {
        let fits = places > 0 && entries[at].bytes <= room;
        if fits {
            places -= 1;
            room -= entries[at].bytes;
        }
        fits
    };
    let mut goes: Vec<usize> = spared.iter().copied().filter(|at| !fits(*at)).collect();
    let is_young = |at: usize| {
        keep.age
            .is_none_or(|age| !newcomer.is_older_than(age, &entries[at]))
    };
    // Behind the first that goes all are older, and go too.
    goes.extend(others.skip_while(|at| is_young(*at) && fits(*at)));
    goes.sort_unstable_by(|a, b| b.cmp(a));
    goes.into_iter().map(|at| &entries[at]).collect()
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

    /// Dumps of 1 MiB on the given days; a process of pid 7 that started on day 5 takes another
    /// one on day 10. Tells the days whose dumps go.
    fn check(dumps: &[(u64, u32)], keep: RetentionPolicy, expected: &[u64]) {
        let entries: Vec<_> = dumps
            .iter()
            .map(|(day, pid)| DumpFile {
                name: name(*day, *pid),
                bytes: MIB,
            })
            .collect();
        let newcomer = NewDump {
            name: &name(10, OWN),
            bytes: MIB,
            started: name(5, OWN).taken + Duration::from_millis(1),
        };
        let days: Vec<_> = select_expired(&entries, &newcomer, &keep)
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
    fn the_oldest_go_first() {
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
    fn the_first_of_this_process_go_last() {
        let first = |first, keep| RetentionPolicy { first, ..keep };
        check(&OWN_FIVE, first(1, count(3)), &[6, 7, 8]);
        check(&OWN_FIVE, first(2, count(3)), &[7, 8, 9]);
        check(&OWN_FIVE, first(1, bytes(2)), &[6, 7, 8, 9]);
        check(&OWN_FIVE, first(1, days(2)), &[6, 7]);
        check(&OWN_FIVE, first(9, days(1)), &[]);
        // Quotas hold for them too.
        check(&OWN_FIVE, first(9, count(2)), &[6, 7, 8, 9]);
        check(&OWN_FIVE, first(1, bytes(1)), &[5, 6, 7, 8, 9]);
    }

    #[test]
    fn the_last_of_the_process_before_stays() {
        let two = [(9, OWN), (8, OWN), (3, OTHER), (2, OTHER)];
        check(&two, count(3), &[2, 8]);
        check(&two, days(1), &[2, 8]);
        check(&two, bytes(2), &[2, 8, 9]);
        check(&two, count(1), &[2, 3, 8, 9]);
        // The pid was another process's before this one started.
        let restarted = [(9, OWN), (8, OWN), (4, OWN), (3, OWN)];
        let keep = RetentionPolicy {
            first: 1,
            ..count(3)
        };
        check(&restarted, keep, &[3, 9]);
    }
}
