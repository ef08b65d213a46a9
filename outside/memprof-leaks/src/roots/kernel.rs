//! Pointers that a program has stored in the kernel, perhaps only there.

mod detached_segments;
mod message_queues;
mod queues;
mod unmapped_files;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use memprof_ptrace::control_block::robust_list_address;
use memprof_ptrace::kernel_queue::QueueReader;
use memprof_ptrace::mapped_file::Mounts;
use memprof_ptrace::process::{count_memory_sharers, find_descriptor_tables, have_same_descriptor};
use memprof_ptrace::read_proc_text;
use memprof_ptrace::stop::MAX_QUEUED_SIGNALS;

use self::detached_segments::note_detached_segments;
use self::message_queues::note_message_queues;
use self::queues::{Queues, add_queued_words};
use self::unmapped_files::UnmappedFiles;
use super::Roots;
use crate::snapshot::Registers;
use crate::snapshot_memory::SnapshotMemory;
use crate::unsearched::Unsearched;

/// Kinds of descriptors whose kernel objects hold values of the program that cannot be read: prefix of the link in
/// /proc/PID/fd, plural name, reason.
const OPAQUE_DESCRIPTORS: [(&str, &str, &str); 8] = [
    (
        "anon_inode:[io_uring]",
        "io_uring instances",
        UNREADABLE_REQUESTS,
    ),
    (
        "anon_inode:bpf-map",
        "BPF maps",
        "their values are not read",
    ),
    (
        "anon_inode:[perf_event]",
        "events of perf_event_open(2)",
        "the kernel does not show the values of their signals",
    ),
    (
        "/dev/fuse",
        "FUSE connections",
        "the handles of open files that a file system gives to the kernel cannot be read",
    ),
    (
        "/dev/dri/card",
        "graphics cards",
        "the values of events that are still to come cannot be read",
    ),
    ("/dev/bus/usb/", "USB devices", UNREADABLE_REQUESTS),
    ("/dev/sg", "SCSI devices", UNREADABLE_REQUESTS),
    (
        "/dev/infiniband/",
        "InfiniBand devices",
        UNREADABLE_REQUESTS,
    ),
];
/// Reason why values that a program adds to its requests are not searched.
const UNREADABLE_REQUESTS: &str = "the pointers that only their requests hold cannot be read";
/// Kinds of mappings whose kernel objects hold values that cannot be read: prefix of the name in /proc/PID/maps, plural
/// name, reason.
const OPAQUE_MAPPINGS: [(&str, &str, &str); 1] =
    [("/[aio]", "contexts of io_setup(2)", UNREADABLE_REQUESTS)];

/// Numbers of kernel objects whose values cannot be read, by plural name and reason.
type OpaqueCounts = BTreeMap<(&'static str, &'static str), u64>;

/// Adds the values that the kernel holds for the process: of descriptors of epoll(7) and eventfd(2), of timers and
/// queued signals, lists of robust locks, areas of rseq(2), files in memory, and data queued in pipes and sockets.
/// Notes the kernel objects whose values cannot be read, and the processes that share the memory.
pub(super) fn add_kernel_words(
    pid: u32,
    view: &SnapshotMemory,
    threads: &[Registers],
    roots: &mut Roots,
) {
    let mut opaque = OpaqueCounts::new();
    for region in &view.regions {
        count_opaque_object(&OPAQUE_MAPPINGS, &region.name, &mut opaque);
    }
    add_descriptor_words(pid, view, threads, &mut opaque, roots);
    let notes = opaque.into_iter();
    let notes = notes.map(|((what, why), count)| Unsearched::for_count(count, what, why));
    roots.unsearched.extend(notes);
    // Kernels without checkpoint/restore have no such file.
    let timers = fs::read_to_string(format!("/proc/{pid}/timers")).unwrap_or_default();
    roots
        .kernel
        .extend(timers.lines().filter_map(parse_timer_value));
    for thread in threads {
        roots.kernel.extend(&thread.kernel_words);
        roots.kernel.extend(robust_list_address(thread.tid));
    }
    note_message_queues(pid, roots);
    note_detached_segments(pid, view, roots);
    note_signals_beyond_limit(pid, threads, roots);
    let sharers = count_memory_sharers(pid);
    if sharers > 0 {
        roots.unsearched.push(Unsearched::for_count(
            sharers,
            "processes that share its memory (vfork(2), CLONE_VM)",
            "their registers are not read",
        ));
    }
}

/// Counts a kernel object if its name begins with a prefix of `table`: [`OPAQUE_DESCRIPTORS`] or [`OPAQUE_MAPPINGS`].
/// Does nothing for other names.
fn count_opaque_object(
    table: &'static [(&str, &str, &str)],
    name: &str,
    counts: &mut OpaqueCounts,
) {
    let kind = table.iter().find(|(prefix, ..)| name.starts_with(prefix));
    if let Some((_, what, why)) = kind {
        *counts.entry((what, why)).or_default() += 1;
    }
}

/// Adds the values in the descriptors of a process, the data in their queues, and the words of files in memory. Notes
/// what cannot be read, and counts descriptors of [`OPAQUE_DESCRIPTORS`] in `opaque`.
fn add_descriptor_words(
    pid: u32,
    view: &SnapshotMemory,
    threads: &[Registers],
    opaque: &mut OpaqueCounts,
    roots: &mut Roots,
) {
    let mut files = UnmappedFiles::new(view);
    let mut queues = Queues::default();
    // In tables of memprof's own threads are no files of the program.
    let tids = threads.iter().map(|thread| thread.tid);
    let tids = tids.filter(|tid| !is_memprof_thread(*tid));
    for table in std::iter::once(pid).chain(find_descriptor_tables(pid, tids)) {
        let unknown = add_table_words(pid, table, &mut files, &mut queues, opaque, roots);
        if unknown > 0 {
            roots.unsearched.push(Unsearched::for_count(
                unknown,
                format!("descriptors in /proc/{table}/fdinfo"),
                "they cannot be read",
            ));
        }
    }
    files.add_mapped_files(view, &mut roots.kernel);
    roots.unsearched.extend(queues.unread_data_notes());
    if files.unopened_bytes > 0 {
        roots.unsearched.push(Unsearched::for_bytes(
            files.unopened_bytes,
            "files in memory",
            "they cannot be opened: the process has a lease on them (fcntl(2)), or no access",
        ));
    }
    if files.queued_bytes > 0 {
        roots.unsearched.push(Unsearched::for_bytes(
            files.queued_bytes,
            "messages in POSIX queues",
            "they can only be read by receiving them",
        ));
    }
    if files.notifications > 0 {
        roots.unsearched.push(Unsearched::for_count(
            files.notifications,
            "notifications of POSIX queues",
            "the kernel does not show their values",
        ));
    }
}

/// Adds the values of the descriptors in a table of process `pid`: its own, or that of the thread with the id `table`.
/// Skips files on FUSE, and descriptors in a thread's table that the process's own table has, too. Returns the number
/// of descriptors whose fdinfo cannot be read.
fn add_table_words(
    pid: u32,
    table: u32,
    files: &mut UnmappedFiles,
    queues: &mut Queues,
    opaque: &mut OpaqueCounts,
    roots: &mut Roots,
) -> u64 {
    let reader = QueueReader::open(table);
    let mounts = Mounts::for_pid(table);
    let mut unknown = 0;
    for entry in fs::read_dir(format!("/proc/{table}/fd"))
        .into_iter()
        .flatten()
        .flatten()
    {
        let Some(number) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        if table != pid && have_same_descriptor(pid, table, number) {
            continue;
        }
        let Ok(target) = fs::read_link(entry.path()) else {
            // It was closed meanwhile.
            continue;
        };
        let target = target.to_string_lossy();
        count_opaque_object(&OPAQUE_DESCRIPTORS, &target, opaque);
        // A buffer of a device may have a name of any bytes (dma-buf).
        match read_proc_text(format!("/proc/{table}/fdinfo/{number}")) {
            // A file on FUSE may block forever.
            Ok(text) if mounts.is_fuse_descriptor(&text) => continue,
            Ok(text) => {
                roots
                    .kernel
                    .extend(text.lines().filter_map(parse_epoll_data));
                roots
                    .kernel
                    .extend(text.lines().filter_map(parse_eventfd_count));
                let in_flight = text.lines().filter_map(parse_in_flight_count);
                queues.descriptors_in_flight += in_flight.sum::<u64>();
            }
            // A descriptor that was closed meanwhile does not count.
            Err(_) => unknown += u64::from(entry.path().exists()),
        }
        if target.starts_with("pipe:") || target.starts_with("socket:") || is_fifo(&entry.path()) {
            let content = reader.as_ref().map(|reader| reader.read_queue(number));
            add_queued_words(pid, content.ok(), queues, roots);
        } else if is_terminal(&target) {
            let reader = reader.as_ref().ok();
            match reader.and_then(|reader| reader.count_terminal_bytes(number).ok()) {
                // Fewer bytes hold no pointer.
                Some(bytes) => queues.terminal_bytes += if bytes >= 8 { bytes } else { 0 },
                None => queues.inaccessible += 1,
            }
        } else {
            files.add_descriptor_file(pid, &entry.path(), &mut roots.kernel);
        }
    }
    unknown
}

/// Whether a thread is one of memprof's in a process that it samples, by its name.
fn is_memprof_thread(tid: u32) -> bool {
    let name = fs::read(format!("/proc/{tid}/comm"));
    name.is_ok_and(|name| name.starts_with(b"memprof-"))
}

/// Whether a descriptor's link is that of a terminal, or of either end of a pseudoterminal.
fn is_terminal(target: &str) -> bool {
    const STARTS: [&str; 4] = ["/dev/pts/", "/dev/ptmx", "/dev/tty", "/dev/console"];
    STARTS.iter().any(|start| target.starts_with(start))
}

/// Whether a descriptor's link refers to a FIFO with a name.
fn is_fifo(link: &Path) -> bool {
    fs::metadata(link).is_ok_and(|metadata| metadata.file_type().is_fifo())
}

/// Notes the threads with more queued signals than are read while they are stopped.
fn note_signals_beyond_limit(pid: u32, threads: &[Registers], roots: &mut Roots) {
    // Words of a `siginfo_t`.
    const WORDS_PER_SIGNAL: usize = 16;
    let is_full =
        |thread: &Registers| thread.kernel_words.len() >= MAX_QUEUED_SIGNALS * WORDS_PER_SIGNAL;
    let count = threads.iter().filter(|thread| is_full(thread)).count() as u64;
    if count > 0 {
        roots.unsearched.push(Unsearched::for_count(
            count,
            format!("threads of {pid} with more than {MAX_QUEUED_SIGNALS} queued signals"),
            "the values of the others are not read",
        ));
    }
}

/// Data of a descriptor of epoll(7); `None` for other lines. An example of a line is `tfd:        5 events:
/// 19 data:     55d0c0a012a0 pos:0 ino:3e sdev:8`.
fn parse_epoll_data(line: &str) -> Option<u64> {
    let rest = line.strip_prefix("tfd:")?.split_once("data:")?.1;
    u64::from_str_radix(rest.split_whitespace().next()?, 16).ok()
}

/// Value of an eventfd(2); `None` for other lines. An example of a line is `eventfd-count:     55d0c0a012a0`.
fn parse_eventfd_count(line: &str) -> Option<u64> {
    u64::from_str_radix(line.strip_prefix("eventfd-count:")?.trim(), 16).ok()
}

/// Number of descriptors in the queue of a Unix socket; `None` for other lines. An example of a line is `scm_fds: 1`.
fn parse_in_flight_count(line: &str) -> Option<u64> {
    line.strip_prefix("scm_fds:")?.trim().parse().ok()
}

/// Value of a timer (`sigev_value`); `None` for other lines. An example of a line is `signal: 60/00007fff86e452a8`.
fn parse_timer_value(line: &str) -> Option<u64> {
    let value = line.strip_prefix("signal:")?.split_once('/')?.1;
    u64::from_str_radix(value.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_descriptors_and_timers_are_parsed() {
        let line = "tfd:        5 events:       19 data:     55d0c0a012a0  pos:0 ino:3e sdev:8";
        assert_eq!(parse_epoll_data(line), Some(0x55d0_c0a0_12a0));
        assert_eq!(parse_epoll_data("pos:\t0"), None);
        assert_eq!(
            parse_eventfd_count("eventfd-count:     55d0c0a012a0"),
            Some(0x55d0_c0a0_12a0)
        );
        assert_eq!(parse_eventfd_count("eventfd-id: 7"), None);
        assert_eq!(parse_in_flight_count("scm_fds: 2"), Some(2));
        assert_eq!(
            parse_timer_value("signal: 60/00007fff86e452a8"),
            Some(0x7fff_86e4_52a8)
        );
        assert_eq!(parse_timer_value("ID: 0"), None);
    }

    #[test]
    fn opaque_objects_are_counted_by_kind() {
        let mut counts = OpaqueCounts::new();
        for name in [
            "anon_inode:[io_uring]",
            "anon_inode:[io_uring]",
            "/dev/fuse",
            "socket:[7]",
        ] {
            count_opaque_object(&OPAQUE_DESCRIPTORS, name, &mut counts);
        }
        count_opaque_object(&OPAQUE_MAPPINGS, "/[aio] (deleted)", &mut counts);
        assert_eq!(counts.into_values().collect::<Vec<_>>(), [1, 1, 2]);
    }
}
