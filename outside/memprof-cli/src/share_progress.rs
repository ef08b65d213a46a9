//! Progress of a long step whose share of the work is known: share, bar and time left.

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::output;

/// Time after which a step shows more than its name.
const SHOWN_AFTER: Duration = Duration::from_secs(2);
/// Interval of the lines in a script's stderr.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// Characters of the bar.
const BAR_WIDTH: usize = 20;

/// Progress of one step.
#[derive(Debug)]
pub(crate) struct ShareProgress {
    start: Instant,
    /// When the last line was logged, since the start.
    logged: Cell<Duration>,
}

impl ShareProgress {
    /// Creates the progress of a step that begins now.
    pub(crate) fn begin() -> Self {
        Self {
            start: Instant::now(),
            logged: Cell::new(Duration::ZERO),
        }
    }

    /// Shows the share that is done (`percent`) on a terminal. Writes it to a script's stderr every 10 seconds.
    pub(crate) fn show(&self, name: &str, percent: u8) {
        let elapsed = self.start.elapsed();
        let text = progress_text(name, percent, elapsed);
        output::show_progress(&text);
        if elapsed >= self.logged.get() + LOG_INTERVAL {
            self.logged.set(elapsed);
            output::log_progress(&text);
        }
    }
}

/// Returns the line for a step that has taken `elapsed`, with the time that the rest takes at the same speed. At 0 %,
/// and during the first [`SHOWN_AFTER`], the line is the name alone.
fn progress_text(name: &str, percent: u8, elapsed: Duration) -> String {
    let percent = percent.min(100);
    if elapsed < SHOWN_AFTER || percent == 0 {
        return name.to_owned();
    }
    let done = usize::from(percent) * BAR_WIDTH / 100;
    let bar = format!("{}{}", "#".repeat(done), ".".repeat(BAR_WIDTH - done));
    let left = elapsed.mul_f64(f64::from(100 - percent) / f64::from(percent));
    format!(
        "{name}: [{bar}] {percent} %, about {} s left",
        left.as_secs()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_left_is_that_of_the_rest() {
        let check = |percent, seconds, expected: &str| {
            let text = progress_text("searching", percent, Duration::from_secs(seconds));
            assert_eq!(text, expected);
        };
        check(50, 1, "searching");
        check(0, 9, "searching");
        check(
            25,
            6,
            "searching: [#####...............] 25 %, about 18 s left",
        );
        check(
            100,
            6,
            "searching: [####################] 100 %, about 0 s left",
        );
    }
}
