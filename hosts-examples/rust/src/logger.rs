//! Log lines on stderr, as every example host writes them: `LEVEL target: message`.

use std::io::Write;

use log::{LevelFilter, Log, Metadata, Record, SetLoggerError};

struct Stderr;

pub(crate) fn init(level: LevelFilter) -> Result<(), SetLoggerError> {
    log::set_max_level(level);
    log::set_logger(&Stderr)
}

impl Log for Stderr {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let line = format!(
            "{:<5} {}: {}\n",
            record.level(),
            record.target(),
            record.args()
        );
        // A log that cannot be written has nowhere to complain.
        drop(std::io::stderr().lock().write_all(line.as_bytes()));
    }

    fn flush(&self) {}
}
