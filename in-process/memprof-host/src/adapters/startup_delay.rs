//! The delay before a process gets the plugin and the socket: the program's own first steps come before.

use std::mem::MaybeUninit;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};

use super::one_time_event::OneTimeEvent;

/// Delay on a machine that has a processor for the program.
const STARTUP_DELAY: Duration = Duration::from_millis(100);
/// Most time that is added because the program waited for a processor.
const MAX_EXTENSION: Duration = Duration::from_secs(2);
/// Time of waiting that changes nothing.
const NEGLIGIBLE_TIME: Duration = Duration::from_millis(5);

/// The first part of the delay.
pub(super) struct FirstDelay {
    /// Time for which the first thread had waited for a processor before: execve(2) does not reset it.
    run_delay: Duration,
}

impl FirstDelay {
    /// Waits for [`STARTUP_DELAY`], or until `exit` happens. Before the wait, reads how long the program has waited for
    /// a processor so far, which [`Self::wait_for_busy_program`] compares.
    pub(super) fn wait(exit: &OneTimeEvent) -> Self {
        let run_delay = read_run_delay();
        exit.wait(STARTUP_DELAY);
        Self { run_delay }
    }

    /// Waits for the second part of the delay: as long as the program's first thread has waited for a processor since
    /// the first part began, at most 2 s, or until `exit` happens. Without it, on a busy machine a program that is a
    /// host itself would open its own socket only after the delay. Allocates nothing.
    pub(super) fn wait_for_busy_program(&self, exit: &OneTimeEvent) {
        wait_for_run_delay(exit, || read_run_delay().saturating_sub(self.run_delay));
    }
}

/// Waits for the time that `run_delay` returns. Then calls it again, and waits for the difference if the time has
/// grown. Ends when the difference is negligible, after 2 s, or when `exit` happens.
fn wait_for_run_delay(exit: &OneTimeEvent, mut run_delay: impl FnMut() -> Duration) {
    let mut extension = Duration::ZERO;
    while !exit.has_happened() {
        let missing = run_delay().min(MAX_EXTENSION).saturating_sub(extension);
        if missing < NEGLIGIBLE_TIME {
            return;
        }
        exit.wait(missing);
        extension += missing;
    }
}

/// Returns the time for which the process's first thread was ready to run but did not get a processor, since its start
/// (/proc/self/schedstat). 0 if the kernel does not count it.
fn read_run_delay() -> Duration {
    let mut buffer = [const { MaybeUninit::uninit() }; 128];
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::open("/proc/self/schedstat", flags, Mode::empty()) else {
        return Duration::ZERO;
    };
    match rustix::io::read(&file, &mut buffer) {
        Ok((text, _)) => parse_run_delay(text),
        Err(_) => Duration::ZERO,
    }
}

/// Parses the content of a schedstat file (Documentation/scheduler/sched-stats.rst of Linux): the second number, in
/// nanoseconds. 0 if there is none.
fn parse_run_delay(schedstat: &[u8]) -> Duration {
    let number = schedstat.split(|byte| *byte == b' ').nth(1);
    let number = number.and_then(|number| str::from_utf8(number).ok()?.parse().ok());
    Duration::from_nanos(number.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn second_number_is_the_delay() {
        let check = |text: &str, nanoseconds| {
            assert_eq!(
                parse_run_delay(text.as_bytes()).as_nanos(),
                nanoseconds,
                "{text}"
            );
        };
        check("123 4567 8\n", 4567);
        check("0 0 0\n", 0);
        check("", 0);
        check("7", 0);
        check("7 x 9", 0);
    }

    #[test]
    fn wait_is_as_long_as_the_program_waited() {
        let check = |delays: &[u64], total: u64| {
            let exit = OneTimeEvent::new();
            let start = Instant::now();
            let mut delays = delays.iter().map(|&delay| Duration::from_millis(delay));
            let mut last = Duration::ZERO;
            wait_for_run_delay(&exit, || {
                last = delays.next().unwrap_or(last);
                last
            });
            // The clock of the wait advances by up to 10 ms at once.
            let waited = start.elapsed() + Duration::from_millis(10);
            let total = Duration::from_millis(total);
            assert!(
                (total..total + Duration::from_secs(20)).contains(&waited),
                "{waited:?}"
            );
        };
        check(&[0], 0);
        check(&[30, 30], 30);
        check(&[20, 50, 50], 50);
        check(&[60_000], 2000);
    }
}
