//! Files in memory that a process has not mapped as shared, which may hold its pointers.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use memprof_ptrace::mapped_file::open_regular_file;

use crate::address_filter::AddressFilter;
use crate::shared_object::SharedObject;
use crate::snapshot_memory::{BLOCK_SIZE, SnapshotMemory};

/// Files in memory that the process has open or mapped privately, but not shared: of `memfd_create(2)` and
/// `shm_open(3)`. Also message queues, which are files of their own.
pub(super) struct UnmappedFiles {
    /// Writable private memory, in which the heaps are.
    targets: AddressFilter,
    /// Inodes of files that are mapped shared, or were searched.
    known: HashSet<u64>,
    /// Bytes of files that cannot be opened.
    pub(super) unopened_bytes: u64,
    /// Bytes in POSIX message queues.
    pub(super) queued_bytes: u64,
    /// Queues whose notification has a value of the process (`mq_notify(3)`).
    pub(super) notifications: u64,
}

impl UnmappedFiles {
    /// Prepares a search of files in memory; those that the process has mapped as shared are not searched again.
    pub(super) fn new(view: &SnapshotMemory) -> Self {
        let regions = view.regions.iter();
        let private = regions
            .clone()
            .filter(|region| region.is_writable && !region.is_shared);
        Self {
            targets: AddressFilter::new(private.map(|region| &region.range)),
            known: regions
                .filter(|region| region.is_shared)
                .map(|region| region.inode)
                .collect(),
            unopened_bytes: 0,
            queued_bytes: 0,
            notifications: 0,
        }
    }

    /// Reads the files in memory that the process has mapped privately, and adds those of their words that may be
    /// pointers.
    pub(super) fn add_mapped_files(&mut self, view: &SnapshotMemory, words: &mut Vec<u64>) {
        for region in view
            .regions
            .iter()
            .filter(|region| region.is_file && !region.is_shared)
        {
            if self.known.insert(region.inode)
                && let Some(object) = SharedObject::open_mapped_file(view.live_pid(), region)
            {
                self.add_object_words(&object, words);
            }
        }
    }

    /// Adds the words of a descriptor's file that may be pointers, if it is a file in memory that was not searched yet.
    /// Counts the bytes of such a file that cannot be opened. If it is a POSIX queue, counts the bytes of its messages,
    /// and whether the process has requested a notification. Opens no other file.
    pub(super) fn add_descriptor_file(&mut self, pid: u32, link: &Path, words: &mut Vec<u64>) {
        let Ok(metadata) = fs::metadata(link) else {
            return;
        };
        if !metadata.is_file()
            || !SharedObject::is_in_memory(link)
            || !self.known.insert(metadata.ino())
        {
            return;
        }
        let Some(file) = open_regular_file(link, metadata.ino()) else {
            self.unopened_bytes += metadata.len();
            return;
        };
        let object = SharedObject::from_file(file);
        if let Some(text) = object.message_queue_text() {
            self.queued_bytes += parse_queue_field(&text, "QSIZE:");
            self.notifications +=
                u64::from(parse_queue_field(&text, "NOTIFY_PID:") == u64::from(pid));
        }
        self.add_object_words(&object, words);
    }

    /// Adds the words of an object that may point to private memory. Does nothing if it is no file in memory.
    fn add_object_words(&self, object: &SharedObject, words: &mut Vec<u64>) {
        if !object.is_memory {
            return;
        }
        let mut block = vec![0; BLOCK_SIZE];
        for run in object.data_ranges(0..object.size()) {
            for offset in run.clone().step_by(BLOCK_SIZE) {
                let length = (run.end - offset).min(BLOCK_SIZE as u64) as usize;
                let read = object.read(offset, &mut block[..length]);
                let found = block[..read].chunks_exact(8);
                let found =
                    found.map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")));
                words.extend(found.filter(|word| self.targets.may_contain(*word)));
            }
        }
    }
}

/// Number in the text of a POSIX message queue (`mq_overview(7)`); 0 if it is missing. An example of a text is
/// `QSIZE:129        NOTIFY:2    SIGNO:0     NOTIFY_PID:8260`.
fn parse_queue_field(text: &str, name: &str) -> u64 {
    let mut fields = text.split_whitespace();
    let field = fields.find_map(|field| field.strip_prefix(name)?.parse().ok());
    field.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_posix_queue_are_read() {
        let text = "QSIZE:129        NOTIFY:2    SIGNO:0     NOTIFY_PID:8260\n";
        assert_eq!(parse_queue_field(text, "QSIZE:"), 129);
        assert_eq!(parse_queue_field(text, "NOTIFY_PID:"), 8260);
        assert_eq!(parse_queue_field("", "QSIZE:"), 0);
    }
}
