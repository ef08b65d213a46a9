//! Where jemalloc writes a dump.
//!
//! jemalloc writes while it holds locks that every allocating thread needs, so the target must
//! not block: memory, or an unnamed file in the dump directory when the dump is large.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, MemfdFlags, Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};

use crate::hidden;

/// Owner may read and write; nobody else.
pub(crate) const PRIVATE: Mode = Mode::RUSR.union(Mode::WUSR);

/// A file that jemalloc writes to, under a name that only this process can use.
#[derive(Debug)]
pub(crate) struct Scratch {
    file: File,
    name: Name,
}

#[derive(Debug)]
enum Name {
    /// By its descriptor. `thread-self`, because `self` has no descriptors once the main thread
    /// has exited.
    Descriptor,
    /// A hidden file, where there is no /proc.
    Hidden(PathBuf),
}

impl Scratch {
    /// In memory.
    pub(crate) fn memory() -> io::Result<Self> {
        let memory =
            retry_on_intr(|| rustix::fs::memfd_create("memprof-dump", MemfdFlags::CLOEXEC))?;
        rustix::fs::fchmod(&memory, PRIVATE)?;
        Ok(Self {
            file: memory.into(),
            name: Name::Descriptor,
        })
    }

    /// On the disk of `directory`, without a name there.
    pub(crate) fn unnamed(directory: &Path) -> io::Result<Self> {
        let file = retry_on_intr(|| {
            rustix::fs::open(
                directory,
                OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC,
                PRIVATE,
            )
        })?;
        Ok(Self {
            file: file.into(),
            name: Name::Descriptor,
        })
    }

    /// On the disk of `directory`, under the hidden name `name`, which must be new.
    pub(crate) fn hidden(directory: &Path, name: &str) -> io::Result<Self> {
        let path = directory.join(name);
        let place = rustix::fs::open(
            directory,
            OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        let file = hidden::create(&place, name)?;
        Ok(Self {
            file: file.into(),
            name: Name::Hidden(path),
        })
    }

    /// The path to hand to jemalloc.
    pub(crate) fn path(&self) -> CString {
        let path = match &self.name {
            Name::Descriptor => {
                format!("/proc/thread-self/fd/{}", self.file.as_raw_fd()).into_bytes()
            }
            Name::Hidden(path) => path.as_os_str().as_bytes().to_vec(),
        };
        CString::new(path).expect("an open path has no NUL")
    }

    /// The file, read from its start.
    pub(crate) fn rewound(&mut self) -> io::Result<&mut File> {
        self.file.seek(SeekFrom::Start(0))?;
        Ok(&mut self.file)
    }

    /// Why jemalloc could not write: it reports every file trouble as EFAULT, so do again what
    /// it did, open and write, and see what the kernel says.
    pub(crate) fn why_not_writable(&mut self) -> Option<Errno> {
        const PAGE: [u8; 4096] = [0; 4096];
        let opened = retry_on_intr(|| {
            rustix::fs::openat(CWD, self.path(), OFlags::WRONLY | OFlags::CLOEXEC, PRIVATE)
        });
        opened.err().or_else(|| {
            let at_end = rustix::fs::seek(&self.file, rustix::fs::SeekFrom::End(0));
            at_end
                .and_then(|_| rustix::io::write(&self.file, &PAGE))
                .err()
        })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Name::Hidden(path) = &self.name
            && let Err(errno) = rustix::fs::unlinkat(CWD, path, AtFlags::empty())
        {
            log::warn!("failed to remove {}: {errno}", path.display());
        }
    }
}
