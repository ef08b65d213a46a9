//! Data that the kernel queues in pipes, sockets and terminals, which may hold pointers.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::ops::Range;

use memprof_ptrace::kernel_queue::QueueContent;

use super::super::Roots;
use crate::unsearched::Unsearched;

/// Addresses that a process may map: 47 bits, above the least of `vm.mmap_min_addr`.
const USER_ADDRESSES: Range<u64> = 4096..1 << 47;

/// Counts of queued data that could not be read.
#[derive(Default)]
pub(super) struct Queues {
    /// Bytes of each queue that could not be read, by inode.
    unread: BTreeMap<u64, u64>,
    sockets_with_more: u64,
    /// Bytes in terminals that hold at least one pointer's worth.
    pub(super) terminal_bytes: u64,
    pub(super) inaccessible: u64,
    pub(super) descriptors_in_flight: u64,
    /// Unix sockets with data that they received, by inode, if the process made both ends.
    receivers: HashSet<u64>,
    /// Unix sockets with data that they sent and their peers did not read, by inode: if the process made both ends, and
    /// if another one made the other end.
    senders: HashSet<u64>,
    senders_to_others: HashSet<u64>,
}

/// Adds the words of a queue that may be addresses, at all offsets: the messages before a word may have any length.
/// Counts in `queues` the data that was not read, and the ends of Unix sockets. `content` is the result of reading the
/// queue; `None` if the process could not be opened.
pub(super) fn add_queued_words(
    pid: u32,
    content: Option<io::Result<Option<QueueContent>>>,
    queues: &mut Queues,
    roots: &mut Roots,
) {
    match content {
        Some(Ok(Some(content))) => {
            let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
            let words = content.data.windows(8).map(word);
            roots
                .kernel
                .extend(words.filter(|word| USER_ADDRESSES.contains(word)));
            queues.unread.insert(content.inode, content.unread_bytes);
            let has_own_peer = content.peer_pid == Some(pid);
            if has_own_peer && (!content.data.is_empty() || content.unread_bytes > 0) {
                queues.receivers.insert(content.inode);
            }
            if content.has_unread_output {
                let senders = match has_own_peer {
                    true => &mut queues.senders,
                    false => &mut queues.senders_to_others,
                };
                senders.insert(content.inode);
            }
            queues.sockets_with_more += u64::from(content.has_more_data);
        }
        Some(Ok(None)) => {}
        // The descriptor was closed meanwhile.
        Some(Err(error)) if error.raw_os_error() == Some(libc::EBADF) => {}
        Some(Err(_)) | None => queues.inaccessible += 1,
    }
}

impl Queues {
    /// Notes about the queued data that could not be read.
    pub(super) fn unread_data_notes(&self) -> Vec<Unsearched> {
        let why = "they can only be read by receiving them";
        let unread: u64 = self.unread.values().sum();
        let mut notes = Vec::new();
        if unread > 0 {
            notes.push(Unsearched::for_bytes(
                unread,
                "data queued in pipes and sockets",
                why,
            ));
        }
        if self.terminal_bytes > 0 {
            notes.push(Unsearched::for_bytes(
                self.terminal_bytes,
                "data queued in terminals",
                why,
            ));
        }
        // A pair of sockets in this process is in `senders` once and in `receivers` once. The other end of each sender
        // beyond that is in another process, for example a child that inherited it.
        let inherited = self.senders.len().saturating_sub(self.receivers.len());
        let foreign_queues = self.senders_to_others.len() + inherited;
        for (count, what, why) in [
            (
                foreign_queues as u64,
                "Unix sockets with data that another process has not read yet",
                "only that process can read it",
            ),
            (
                self.sockets_with_more,
                "sockets with data behind the first datagram, or behind urgent data",
                why,
            ),
            (
                self.inaccessible,
                "pipes and sockets",
                "their queues cannot be read: Linux older than 5.6, or 6.9 for a thread's own descriptors, or \
                 no access",
            ),
            (
                self.descriptors_in_flight,
                "descriptors that are being passed in Unix sockets",
                "the kernel does not say what they refer to",
            ),
        ] {
            if count > 0 {
                notes.push(Unsearched::for_count(count, what, why));
            }
        }
        notes
    }
}
