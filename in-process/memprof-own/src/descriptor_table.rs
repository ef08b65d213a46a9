//! A descriptor table for memprof's threads, apart from the program's.
//!
//! A program may close every descriptor that it has not opened, duplicate a file onto any number, and rely on the lowest
//! free number being the next one (open(2)): shells do all three. In a table of their own, memprof's files have none of
//! the program's numbers, not even while they are opened.
#![expect(unsafe_code, reason = "pipe2(2) and dup2(2)")]

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use rustix::fs::{FileType, fstat};

/// Inodes of the pipes that occupy the standard streams of memprof's tables; 0 in a free place. A process makes one for
/// each attachment, so that of the eighth before is gone.
static TABLES: [AtomicU64; 8] = [const { AtomicU64::new(0) }; 8];

/// Number of tables that were made.
static TABLE_COUNT: AtomicUsize = AtomicUsize::new(0);

/// A descriptor table of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DescriptorTable {
    /// That of the program.
    Program,
    /// One of memprof's, with the inode of the pipe in place of its standard streams.
    Own(u64),
}

impl DescriptorTable {
    /// Returns the table of the calling thread, which threads inherit from the one that creates them.
    pub fn current() -> Self {
        if TABLE_COUNT.load(Ordering::Acquire) == 0 {
            return Self::Program;
        }
        let is_own = |inode| {
            TABLES
                .iter()
                .any(|own| own.load(Ordering::Acquire) == inode)
        };
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

    /// Occupies the standard streams of a table that has no file and that no thread of the program uses, by an end of a
    /// pipe: what is written there fails with EBADF, as on a closed descriptor, and gets into no file of memprof's.
    /// Without room for a pipe (pipe(7), `pipe-user-pages-hard`) they stay closed.
    pub fn occupy_standard_streams() {
        let mut ends: [RawFd; 2] = [-1; 2];
        // SAFETY: pipe2(2) writes two numbers; the lowest free ones, 0 and 1.
        if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
            return;
        }
        for number in 1..=libc::STDERR_FILENO {
            // SAFETY: dup2(2) replaces the end that is for writing, and no file of the program's, as the caller says.
            unsafe { libc::dup2(0, number) };
        }
        if let Ok(stat) = fstat(io::stdin()) {
            let place = TABLE_COUNT.fetch_add(1, Ordering::AcqRel) % TABLES.len();
            TABLES[place].store(stat.st_ino, Ordering::Release);
        }
    }
}
