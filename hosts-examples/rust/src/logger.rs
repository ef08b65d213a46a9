//! Log lines on standard error, in the format of all example hosts: `LEVEL target: message`.

use std::io::Write;

use log::{LevelFilter, Log, Metadata, Record, SetLoggerError};

struct StderrLogger;

/// Sets the logger of the process, which logs lines up to `level`. Fails if the process has a logger already.
pub(crate) fn init_logger(level: LevelFilter) -> Result<(), SetLoggerError> {
    log::set_max_level(level);
    log::set_logger(&StderrLogger)
}

impl Log for StderrLogger {
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
        // A failure of standard error cannot be reported anywhere.
        drop(std::io::stderr().lock().write_all(line.as_bytes()));
    }

    fn flush(&self) {}
}
