//! Comment lines of memprof's dumps, after the mappings: `# key: value`. Unknown keys are ignored; a newer writer
//! may have added them.

use super::{DumpReader, stripped_frames};
use crate::alloc_time::AgeBuckets;
use crate::error::Result;
use crate::limits::ProfileItem;
use crate::managed_frames;
use crate::names::replace_unprintable;
use crate::profile::{AllocationTally, EarlyEnds};

impl DumpReader<'_> {
    /// Reads a comment, given without its `#`, into the profile. Ignores unknown keys. Fails if the texts that the
    /// profile keeps exceed the memory budget.
    pub(super) fn read_comment(&mut self, comment: &[u8]) -> Result<()> {
        let text = String::from_utf8_lossy(comment);
        let text = replace_unprintable(&text);
        let Some((key, value)) = text.trim().split_once(": ") else {
            return Ok(());
        };
        let value = value.trim();
        let origin = &mut self.profile.origin;
        match key {
            "host" => self.read_host(value),
            "started" => origin.started = Some(value.into()),
            "taken" => origin.taken = Some(value.into()),
            "trigger" => origin.trigger = Some(value.into()),
            "kind" => self.profile.is_pinned = value == "pinned",
            "allocator" => origin.allocator = Some(value.into()),
            "stacks" => self.profile.declared.stacks = value.parse().ok(),
            "estimated-inuse-bytes" => self.profile.declared.inuse_space = value.parse().ok(),
            "program" => self.profile.program = Some(value.into()),
            "memprof-image" => origin.image = Some(value.into()),
            "sampling since" => origin.sampling_since = Some(value.into()),
            "samples" => origin.samples = value.parse().ok(),
            "lost samples" => origin.lost_samples = value.parse().ok(),
            "unseen frees" => {
                origin.unseen_frees.get_or_insert_default().samples = value.parse().unwrap_or(0);
            }
            "bytes freed unseen" => {
                origin.unseen_frees.get_or_insert_default().bytes = value.parse().unwrap_or(0);
            }
            "bytes allocated unseen" => origin.unseen_allocation_bytes = value.parse().ok(),
            "early end" => {
                origin.early_ends.extend(parse_early_ends(value));
                self.charge_memory(ProfileItem::Text(value.len()))?;
            }
            "tally" => origin.tally = parse_tally(value),
            "active-since" => origin.active_since = Some(value.into()),
            "labels" => self.profile.labels.read_keys(value),
            "label" => {
                self.profile.labels.read_set(value);
                self.charge_memory(ProfileItem::Text(value.len()))?;
            }
            "language" => {
                self.profile.stacks.managed.read_language(value);
                self.charge_memory(ProfileItem::Text(value.len()))?;
            }
            "objects" => {
                self.profile.stacks.managed.read_objects(value);
                self.charge_memory(ProfileItem::Text(value.len()))?;
            }
            "frame" => {
                self.profile.stacks.managed.read_frame(value);
                self.charge_memory(ProfileItem::Text(value.len()))?;
            }
            "managed" => {
                let words = managed_frames::restore_managed_words(value, &mut self.profile);
                self.charge_memory(ProfileItem::Text(value.len()))?;
                self.charge_memory(ProfileItem::Stack(words))?;
            }
            "marks" => stripped_frames::restore_pseudo_frames(
                value,
                &mut self.profile.samples,
                &mut self.code_history,
            ),
            "code generations" => self.code_history.read_generations(value),
            "unloaded" => {
                self.code_history.read_unloaded_code(value);
                self.charge_memory(ProfileItem::Text(value.len()))?;
            }
            "loaded" => self.code_history.read_loaded_code(value),
            "ages" => self.profile.ages = AgeBuckets::parse(value),
            "build-id" => {
                if let Some((id, path)) = value.split_once(' ') {
                    self.build_ids.push((path.into(), id.to_ascii_lowercase()));
                    self.charge_memory(ProfileItem::Text(value.len()))?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Reads `rust_host pid 1234 on myhostname` into the profile's origin; the pid and the machine may be missing.
    fn read_host(&mut self, value: &str) {
        let origin = &mut self.profile.origin;
        let (rest, machine) = match value.rsplit_once(" on ") {
            Some((rest, machine)) => (rest, Some(machine.to_owned())),
            None => (value, None),
        };
        let (name, pid) = match rest.rsplit_once(" pid ") {
            Some((name, pid)) => (name, pid.parse().ok()),
            None => (rest, None),
        };
        origin.host = Some(name.into());
        origin.pid = pid;
        origin.machine = machine;
    }
}

/// Parses the value of the comment `tally`, the exact count of all allocations: `12 objects, 3400 bytes, 1200 at the
/// peak`. `None` if a number is missing or malformed.
fn parse_tally(value: &str) -> Option<AllocationTally> {
    let mut numbers = value
        .split(", ")
        .map(|part| part.split(' ').next()?.parse().ok());
    let mut next = || numbers.next().flatten();
    Some(AllocationTally {
        objects: next()?,
        bytes: next()?,
        peak: next()?,
    })
}

/// Parses the value of the comment `early end`: the number of samples whose stacks end too early, the reason, and the
/// file, which may be missing, as in `12 no-frame-information /usr/lib/libx.so.1`. `None` if the number is malformed or
/// the reason is missing.
fn parse_early_ends(value: &str) -> Option<EarlyEnds> {
    let (samples, rest) = value.split_once(' ')?;
    let (reason, object) = match rest.split_once(' ') {
        Some((reason, object)) => (reason, Some(object.to_owned())),
        None => (rest, None),
    };
    Some(EarlyEnds {
        samples: samples.parse().ok()?,
        reason: reason.to_owned(),
        object,
    })
}
