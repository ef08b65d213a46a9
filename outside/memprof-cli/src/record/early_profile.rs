//! Profiles taken during a recording, for a process that ends before the recording does.

use std::time::{Duration, Instant};

use memprof_host::client::Client;

use crate::message::{self, TakenDump};
use crate::scratch::ScratchFile;

/// Age of the recording at the first early profile.
const FIRST_PROFILE_AGE: Duration = Duration::from_millis(250);

/// The last early profile. Each is fetched when the recording is twice as old as at the previous one, so it covers
/// at least half of the time, and few are taken.
#[derive(Debug)]
pub(super) struct EarlyProfile {
    arguments: Vec<String>,
    start: Instant,
    next: Duration,
    /// Last profile, with the age of the recording at that time.
    last: Option<(ScratchFile, Duration)>,
}

impl EarlyProfile {
    /// Prepares for a recording that starts now. `arguments` are those of `dump`.
    pub(super) fn new(arguments: &[String]) -> Self {
        Self {
            arguments: [arguments, &["keep=off".to_owned()]].concat(),
            start: Instant::now(),
            next: FIRST_PROFILE_AGE,
            last: None,
        }
    }

    /// Returns whether a profile was fetched.
    pub(super) fn was_fetched(&self) -> bool {
        self.last.is_some()
    }

    /// Takes the last profile out, with the age of the recording at that time; `None` if none was fetched.
    pub(super) fn take_last(&mut self) -> Option<(ScratchFile, Duration)> {
        self.last.take()
    }

    /// Replaces the last profile by a later one, which was taken at that age of the recording.
    pub(super) fn replace_last(&mut self, profile: ScratchFile, age: Duration) {
        self.last = Some((profile, age));
    }

    /// Returns the age of the recording.
    pub(super) fn age(&self) -> Duration {
        self.start.elapsed()
    }

    /// Fetches the next profile if it is due. The one after it is due when twice the time has passed. Errors of the
    /// plugin are ignored.
    ///
    /// # Errors
    /// The host did not reply, so the connection cannot be used any more.
    pub(super) fn fetch_if_due(&mut self, client: &mut Client) -> anyhow::Result<()> {
        let age = self.age();
        if age < self.next {
            return Ok(());
        }
        let fetched = self.fetch(client, age);
        // Also after a failure: otherwise a full disk here would make the host dump at each poll.
        self.next = 2 * self.age();
        fetched
    }

    /// Takes a dump that the host does not keep, and replaces the last profile by it. A reply without a dump is
    /// ignored.
    fn fetch(&mut self, client: &mut Client, age: Duration) -> anyhow::Result<()> {
        if let TakenDump::Received(mut bytes) = message::take_dump(client, &self.arguments)? {
            let mut file = ScratchFile::new()?;
            file.append(&mut bytes)?;
            self.replace_last(file, age);
        }
        Ok(())
    }
}
