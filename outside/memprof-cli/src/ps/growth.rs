//! Growth of the listed processes' resident memory.

use std::thread;
use std::time::{Duration, Instant};

use super::processes::{ProcessRow, Processes};
use super::resident::resident_bytes;

/// Least time over which growth is measured.
const MIN_GROWTH_TIME: Duration = Duration::from_millis(250);

impl Processes {
    /// Sleeps until `growth_time` after the last process was examined; if it is `None`, until [`MIN_GROWTH_TIME`] after
    /// it. Then sets how the resident memory of each process has grown, in bytes per second.
    pub(super) fn measure_growth(&mut self, growth_time: Option<Duration>) {
        let time = growth_time.unwrap_or(MIN_GROWTH_TIME);
        if let Some(last) = self.rows.iter().map(|row| row.examined).max() {
            thread::sleep(time.saturating_sub(last.elapsed()));
        }
        for row in &mut self.rows {
            let now = resident_bytes(row.pid);
            row.growth_bytes_per_s = now.map(|now| row.growth_until(now, Instant::now()));
        }
    }
}

impl ProcessRow {
    /// Returns the growth in bytes per second from the examination of this process until `time`. `rss` is the resident
    /// memory at `time`. Each process has its own time of examination, because examining many takes long.
    fn growth_until(&self, rss: u64, time: Instant) -> i64 {
        let grown = rss.cast_signed() - self.rss.cast_signed();
        (grown as f64 / (time - self.examined).as_secs_f64()) as i64
    }
}

#[cfg(test)]
mod tests {
    use super::super::processes::list_processes;
    use super::*;

    #[test]
    fn growth_is_measured_from_the_time_of_the_process() {
        let processes = list_processes().unwrap();
        let row = processes.rows.first().unwrap();
        let check = |seconds, expected| {
            let time = row.examined + Duration::from_secs(seconds);
            assert_eq!(row.growth_until(row.rss + 6000, time), expected);
        };
        check(1, 6000);
        check(3, 2000);
    }
}
