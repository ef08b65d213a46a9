//! A descriptor table for memprof's threads, separate from the program's.
//!
//! A program may close every descriptor that it did not open, duplicate a file onto any number, and rely on open(2) to
//! return the lowest free number. Shells do all three. In their own table, memprof's files never occupy a number of the
//! program's table, not even while they are being opened.
#![expect(unsafe_code, reason = "pipe2(2) and dup2(2)")]

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use rustix::fs::{FileType, fstat};

/// Inodes of the pipes that occupy the standard streams in memprof's tables; 0 for an unused element. Each attachment
/// creates one table. Elements are reused after eight attachments, when the earlier table is gone.
static TABLES: [AtomicU64; 8] = [const { AtomicU64::new(0) }; 8];

/// Number of tables created so far.
static TABLE_COUNT: AtomicUsize = AtomicUsize::new(0);

/// A descriptor table of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DescriptorTable {
    /// The program's table.
    Program,
    /// One of memprof's tables. The number is the inode of the pipe that occupies its standard streams.
    Own(u64),
}

impl DescriptorTable {
    /// Returns the table of the calling thread: one of memprof's if standard input is a pipe that
    /// `occupy_standard_streams` has put there, otherwise the program's. A thread inherits the table of the thread that
    /// creates it.
    pub fn current() -> Self {
        if TABLE_COUNT.load(Ordering::Acquire) == 0 {
            return Self::Program;
        }
        let is_own = |inode| {
            TABLES
                .iter()
                .any(|own| own.load(Ordering::Acquire) == inode)
        };
        // Standard input is one of the known pipes only in memprof's tables.
        match fstat(io::stdin()) {
            Ok(stat)
                if FileType::from_raw_mode(stat.st_mode) == FileType::Fifo
                    && is_own(stat.st_ino) =>
            {
                Self::Own(stat.st_ino)
            }
            _ => Self::Program,
        }
    }

    /// Occupies the standard streams of the calling thread's table, which must have no file, and which no thread of the
    /// program may use. Each stream becomes the read end of a pipe: writing to it fails with EBADF, as on a closed
    /// descriptor, and reaches no file of memprof's. Records the pipe, by which [`Self::current`] recognizes the table.
    /// If the user has no room for a pipe (pipe(7), `pipe-user-pages-hard`), the streams stay closed, and the table is
    /// not recognized.
    pub fn occupy_standard_streams() {
        let mut ends: [RawFd; 2] = [-1; 2];
        // SAFETY: pipe2(2) writes the numbers of two descriptors: 0 and 1, the lowest free ones.
        if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
            return;
        }
        for number in 1..=libc::STDERR_FILENO {
            // SAFETY: dup2(2) replaces the pipe's write end. The caller guarantees that it replaces no file of the
            // program.
            unsafe { libc::dup2(0, number) };
        }
        if let Ok(stat) = fstat(io::stdin()) {
            let index = TABLE_COUNT.fetch_add(1, Ordering::AcqRel) % TABLES.len();
            TABLES[index].store(stat.st_ino, Ordering::Release);
        }
    }
}
