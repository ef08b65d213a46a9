//! Profiles taken during a recording, for a process that ends before the recording does.

use std::io::Read;
use std::mem;
use std::time::{Duration, Instant};

use memprof_host::client::Client;

use crate::message::{self, TakenDump};
use crate::output;
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
    /// Whether a note has said that a profile could not be written.
    is_failure_noted: bool,
}

impl EarlyProfile {
    /// Prepares for a recording that starts now. `arguments` are those of the message `dump`; `keep=off` is added, so
    /// that the host keeps no copies.
    pub(super) fn new(arguments: &[String]) -> Self {
        Self {
            arguments: [arguments, &["keep=off".to_owned()]].concat(),
            start: Instant::now(),
            next: FIRST_PROFILE_AGE,
            last: None,
            is_failure_noted: false,
        }
    }

    /// Returns whether there is a last profile: one was fetched, and [`take_last`](Self::take_last) has not removed it.
    pub(super) fn has_profile(&self) -> bool {
        self.last.is_some()
    }

    /// Removes and returns the last profile, with the age of the recording at that time. `None` if there is none.
    pub(super) fn take_last(&mut self) -> Option<(ScratchFile, Duration)> {
        self.last.take()
    }

    /// Replaces the last profile by a later one, which was taken when the recording had the age `age`.
    pub(super) fn replace_last(&mut self, profile: ScratchFile, age: Duration) {
        self.last = Some((profile, age));
    }

    /// Returns the time since the recording started.
    pub(super) fn recording_age(&self) -> Duration {
        self.start.elapsed()
    }

    /// Fetches the next profile if it is due. The one after it is due when the recording is twice as old as at the end
    /// of this fetch. Ignores a reply without a dump. If a profile cannot be written, prints a note, and keeps the last
    /// one.
    ///
    /// # Errors
    /// The host did not reply, so the connection cannot be used any more.
    pub(super) fn fetch_if_due(&mut self, client: &mut Client) -> anyhow::Result<()> {
        let age = self.recording_age();
        if age < self.next {
            return Ok(());
        }
        let fetched = self.fetch_profile(client, age);
        // Also after a failure, so that the host does not dump at each poll.
        self.next = 2 * self.recording_age();
        fetched
    }

    /// Takes a dump that the host does not keep, and replaces the last profile by it. If the host replies without a
    /// dump, keeps the last profile.
    fn fetch_profile(&mut self, client: &mut Client, age: Duration) -> anyhow::Result<()> {
        if let TakenDump::Received(mut bytes) = message::take_dump(client, &self.arguments)? {
            self.store_profile(&mut bytes, age);
        }
        Ok(())
    }

    /// Replaces the last profile by `bytes`, which are read to their end. If they cannot be written, as to a full disk,
    /// keeps the last profile, and prints a note the first time.
    fn store_profile(&mut self, bytes: &mut dyn Read, age: Duration) {
        let written = ScratchFile::new().and_then(|mut file| {
            file.append(bytes)?;
            Ok(file)
        });
        match written {
            Ok(file) => self.replace_last(file, age),
            Err(error) if !mem::replace(&mut self.is_failure_noted, true) => {
                output::clear_progress();
                output::note(&format!(
                    "should the process end early, an older profile is shown: {error:#}"
                ));
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    /// A profile that cannot be copied.
    struct Unreadable;

    impl Read for Unreadable {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }
    }

    #[test]
    fn profile_that_cannot_be_written_leaves_the_last_one() {
        let mut early = EarlyProfile::new(&[]);
        let age = Duration::from_secs;
        early.store_profile(&mut Unreadable, age(1));
        assert!(!early.has_profile());
        early.store_profile(&mut &b"heap profile"[..], age(2));
        early.store_profile(&mut Unreadable, age(4));
        assert_eq!(early.take_last().map(|(_, age)| age), Some(age(2)));
    }
}
