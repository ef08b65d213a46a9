//! A profile from the midst of a recording, for a process that does not live to its end.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use memprof_host::client::Client;

use crate::message::{self, Dumped};
use crate::output;

/// Until the first one.
const FIRST: Duration = Duration::from_millis(250);

/// The last profile that was fetched. Each is fetched when the recording is twice as old as at the one before, so that
/// it is of half of the time at least, and that few are made.
#[derive(Debug)]
pub(super) struct EarlyProfile {
    pub(super) file: PathBuf,
    words: Vec<String>,
    begun: Instant,
    next: Duration,
    /// The recording's age at the last one.
    pub(super) age: Option<Duration>,
}

impl EarlyProfile {
    /// A recording begins. `words` are arguments of `dump`.
    pub(super) fn new(file: PathBuf, words: &[String]) -> Self {
        Self {
            file,
            words: [words, &["keep=off".to_owned()]].concat(),
            begun: Instant::now(),
            next: FIRST,
            age: None,
        }
    }

    /// Fetches the next one if it is time for that. What the host refuses is left out.
    ///
    /// # Errors
    /// The host did not answer: the connection is out of step.
    pub(super) fn fetch_if_due(&mut self, client: &mut Client) -> anyhow::Result<()> {
        let age = self.begun.elapsed();
        if age < self.next {
            return Ok(());
        }
        if let Dumped::HandedOver(mut bytes) = message::take(client, &self.words)? {
            output::save(&mut bytes, &self.file)?;
            self.age = Some(age);
        }
        self.next = 2 * self.begun.elapsed();
        Ok(())
    }
}
