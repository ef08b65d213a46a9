//! A profile from the midst of a recording, for a process that does not live to its end.

use std::time::{Duration, Instant};

use memprof_host::client::Client;

use crate::message::{self, TakenDump};
use crate::scratch::ScratchFile;

/// Until the first one.
const FIRST: Duration = Duration::from_millis(250);

/// The last profile that was fetched. Each is fetched when the recording is twice as old as at the one before, so that
/// it is of half of the time at least, and that few are made.
#[derive(Debug)]
pub(super) struct EarlyProfile {
    words: Vec<String>,
    begun: Instant,
    next: Duration,
    /// With the recording's age then.
    last: Option<(ScratchFile, Duration)>,
}

impl EarlyProfile {
    /// A recording begins. `words` are arguments of `dump`.
    pub(super) fn new(words: &[String]) -> Self {
        Self {
            words: [words, &["keep=off".to_owned()]].concat(),
            begun: Instant::now(),
            next: FIRST,
            last: None,
        }
    }

    /// The last one, and the recording's age then.
    pub(super) fn into_last(self) -> Option<(ScratchFile, Duration)> {
        self.last
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
        let fetched = self.fetch(client, age);
        // Also where it failed: a full disk here does not have the host dump at each look.
        self.next = 2 * self.begun.elapsed();
        fetched
    }

    fn fetch(&mut self, client: &mut Client, age: Duration) -> anyhow::Result<()> {
        if let TakenDump::Received(mut bytes) = message::take_dump(client, &self.words)? {
            let mut file = ScratchFile::new()?;
            file.append(&mut bytes)?;
            self.last = Some((file, age));
        }
        Ok(())
    }
}
