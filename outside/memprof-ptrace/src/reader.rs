//! A child process that reads the memory of another process.
//!
//! A page may never arrive: that of a file on FUSE or the network whose server does not answer, or of
//! userfaultfd(2). A thread that touches it sleeps and cannot be killed (`TASK_UNINTERRUPTIBLE`), and neither can
//! its process. So this child touches it, and memprof waits for the child with a deadline. It is a process and no
//! thread, because a process ends no earlier than the last of its threads.
#![expect(
    unsafe_code,
    reason = "a child without memory of its own to allocate, and a page that both share"
)]

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::ptr;
use std::time::{Duration, Instant};

use libc::pid_t;

use crate::reader_server::{ReaderServer, fork_reader_server};
use crate::stuck_reader;

/// Longest total wait for the memory of one process, beyond the time that disks and swap take.
pub const MEMORY_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait for one page on a machine whose processors are busy.
const BUSY_TIMEOUT: Duration = Duration::from_secs(30);
/// Time of a reply from which on it is looked whether a processor was waited for.
const SLOW_REPLY_TIME: Duration = Duration::from_millis(5);
/// Time in which a page arrives that is swapped out to a slow disk.
const SLOW_PAGE_TIME: Duration = Duration::from_millis(2);
const PAGE_SIZE: usize = 4096;
/// Largest part of a read, in bytes.
const WINDOW_SIZE: usize = 256 << 10;

/// Most pages that are kept.
const MAX_KEPT_PAGES: usize = 1024;

/// The child process. It ends when its socket closes.
///
/// Each request costs two switches of the processor, which take milliseconds on a busy machine, and structures are read
/// word by word. So a page of which a part was read is kept: what is read here is looked at once, before or after
/// threads are stopped, and no change is waited for.
#[derive(Debug)]
pub(crate) struct Reader {
    child: pid_t,
    socket: UnixStream,
    window: Window,
    /// Pages that were read, by their addresses.
    kept: HashMap<u64, Box<[u8; PAGE_SIZE]>>,
    /// Time waited so far beyond what disks take, and what a busy machine takes.
    waited: Duration,
    /// Time for which the child and the reading thread waited for a processor, as last read.
    run_delay: Duration,
    is_unresponsive: bool,
    /// Whether the memory no longer exists: its process has ended, or has executed another program.
    is_gone: bool,
}

/// A page-aligned memory area that this process shares with the child.
#[derive(Debug)]
struct Window(*mut u8);

// SAFETY: the mapping belongs to this value; the child writes to it only between a request and its reply.
unsafe impl Send for Window {}

impl Reader {
    /// Starts the child, which reads through `memory`, an open /proc/PID/mem. `pid` is the process whose pages the
    /// child may wait for: of a copy of a process, the original. The reader is unresponsive from the start if a child
    /// of an earlier command still waits for pages of `pid`. Fails if the child, its socket or the shared memory cannot
    /// be created.
    pub(crate) fn start(memory: &File, pid: u32) -> io::Result<Self> {
        let (socket, child_socket) = UnixStream::pair()?;
        let window = Window::new()?;
        let server = ReaderServer {
            socket: child_socket.as_raw_fd(),
            memory: memory.as_raw_fd(),
            window: window.0,
            name: stuck_reader::reader_name(pid),
        };
        // SAFETY: the child runs only `ReaderServer::serve`, which makes system calls only.
        let child = unsafe { fork_reader_server(&server) }?;
        let child_path = format!("/proc/{child}/schedstat");
        Ok(Self {
            run_delay: read_run_delay(&child_path) + read_run_delay("/proc/thread-self/schedstat"),
            child,
            socket,
            window,
            kept: HashMap::new(),
            waited: Duration::ZERO,
            is_unresponsive: stuck_reader::has_stuck_reader(pid),
            is_gone: false,
        })
    }

    /// Returns whether the memory did not arrive in time; then nothing more is requested.
    pub(crate) fn is_unresponsive(&self) -> bool {
        self.is_unresponsive
    }

    /// Fills the buffer with the memory at an address. A range within one page comes from the cache of pages, which are
    /// read once, so the bytes may be older than this call; a longer range is always read anew. Fails if a part cannot
    /// be read (`UnexpectedEof`, `EIO`) or does not arrive in time (`TimedOut`).
    pub(crate) fn read(&mut self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        let offset = (address % PAGE_SIZE as u64) as usize;
        if offset + buffer.len() <= PAGE_SIZE {
            let page = self.read_page(address - offset as u64)?;
            buffer.copy_from_slice(&page[offset..offset + buffer.len()]);
            return Ok(());
        }
        let mut next = address;
        for part in buffer.chunks_mut(WINDOW_SIZE) {
            self.read_exactly(next, part.len())?;
            // SAFETY: the child has replied, so it does not write to the window; no part is longer than the window.
            unsafe { ptr::copy_nonoverlapping(self.window.0, part.as_mut_ptr(), part.len()) };
            next = next.wrapping_add(part.len() as u64);
        }
        Ok(())
    }

    /// Returns the page that begins at `start`, and keeps it for later reads; all kept pages are dropped at
    /// [`MAX_KEPT_PAGES`]. A page can be read as a whole or not at all. Fails like [`Self::read`].
    fn read_page(&mut self, start: u64) -> io::Result<&[u8; PAGE_SIZE]> {
        if !self.kept.contains_key(&start) {
            self.read_exactly(start, PAGE_SIZE)?;
            let mut page = Box::new([0; PAGE_SIZE]);
            // SAFETY: the child has replied, so it does not write to the window, which is longer than a page.
            unsafe { ptr::copy_nonoverlapping(self.window.0, page.as_mut_ptr(), PAGE_SIZE) };
            if self.kept.len() >= MAX_KEPT_PAGES {
                self.kept.clear();
            }
            self.kept.insert(start, page);
        }
        Ok(&self.kept[&start])
    }

    /// Forgets the pages that were kept, because the memory was changed.
    pub(crate) fn forget_pages(&mut self) {
        self.kept.clear();
    }

    /// Reads as much as possible from an address; returns the number of bytes read, 0 if none can be read or none
    /// arrives in time.
    pub(crate) fn read_some(&mut self, address: u64, buffer: &mut [u8]) -> usize {
        let mut done = 0;
        for part in buffer.chunks_mut(WINDOW_SIZE) {
            let read = self.read_available(address.wrapping_add(done as u64), part.len());
            let read = read.unwrap_or(0);
            // SAFETY: if `read` is not 0, the child has replied, so it does not write to the window; `read` is at most
            // the length of the part.
            unsafe { ptr::copy_nonoverlapping(self.window.0, part.as_mut_ptr(), read) };
            done += read;
            if read < part.len() {
                break;
            }
        }
        done
    }

    /// Makes the child read exactly `length` bytes into the window. Fails with `UnexpectedEof` if none can be read,
    /// with `EIO` if fewer, with `TimedOut` if they do not arrive in time.
    fn read_exactly(&mut self, address: u64, length: usize) -> io::Result<()> {
        match self.read_available(address, length)? {
            done if done == length => Ok(()),
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Err(io::Error::from_raw_os_error(libc::EIO)),
        }
    }

    /// Makes the child read up to `length` bytes into the window; returns the number of bytes read. If no reply comes
    /// in time, kills the child, and this and every later read fails (`TimedOut`). If the memory no longer exists, this
    /// and every later read returns 0. Fails with the errno of the child's read if it can read nothing.
    fn read_available(&mut self, address: u64, length: usize) -> io::Result<usize> {
        if self.is_unresponsive {
            return Err(unresponsive_error());
        }
        if self.is_gone {
            return Ok(0);
        }
        let mut request = [0; 16];
        for (field, word) in request.chunks_exact_mut(8).zip([address, length as u64]) {
            field.copy_from_slice(&word.to_ne_bytes());
        }
        let disk_time = SLOW_PAGE_TIME * (length.div_ceil(PAGE_SIZE) as u32 + 1);
        let start = Instant::now();
        self.socket.write_all(&request)?;
        let mut reply = [0; 8];
        let received = loop {
            let remaining = MEMORY_TIMEOUT.saturating_sub(self.waited) + disk_time;
            self.socket.set_read_timeout(Some(remaining))?;
            let asked = Instant::now();
            // The child sends its reply at once. `read_exact` would wait for the whole time again after each signal.
            let received = match self.socket.read(&mut reply) {
                Ok(8) => Ok(()),
                Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) => Err(error),
            };
            let elapsed = asked.elapsed().saturating_sub(disk_time);
            let delay = self.run_delay_since_last_call(elapsed);
            self.waited += elapsed.saturating_sub(delay);
            // A child that only waited for a processor gets more time.
            let may_come = self.waited < MEMORY_TIMEOUT && start.elapsed() < BUSY_TIMEOUT;
            match &received {
                Err(error) if means_no_reply(error) && may_come => {}
                _ => break received,
            }
        };
        if let Err(error) = received {
            self.is_unresponsive = true;
            // SAFETY: kill(2) takes numbers; the pid stays the child's, which is reaped only when this value is
            // dropped.
            unsafe { libc::kill(self.child, libc::SIGKILL) };
            return Err(match means_no_reply(&error) {
                true => unresponsive_error(),
                false => error,
            });
        }
        match i64::from_ne_bytes(reply) {
            done if done < 0 => Err(io::Error::from_raw_os_error(-done as i32)),
            // The end of the file: an address of memory that exists would fail with EIO (`mem_rw` of fs/proc/base.c).
            0 => {
                self.is_gone = true;
                Ok(0)
            }
            done => Ok((done as usize).min(length)),
        }
    }

    /// Returns the time for which the child and this thread have waited for a processor since this function last read
    /// that time from /proc. Returns 0 without a read if so little time has `elapsed` that the read would cost more.
    fn run_delay_since_last_call(&mut self, elapsed: Duration) -> Duration {
        if elapsed < SLOW_REPLY_TIME {
            return Duration::ZERO;
        }
        let now = read_run_delay(&format!("/proc/{}/schedstat", self.child))
            + read_run_delay("/proc/thread-self/schedstat");
        let delay = now.saturating_sub(self.run_delay);
        self.run_delay = now;
        delay
    }
}

/// Reads the time for which a thread was ready to run but did not get a processor. `path` is the thread's file
/// schedstat, whose second number is the time in nanoseconds (Documentation/scheduler/sched-stats.rst of Linux). 0 if
/// the file cannot be read.
fn read_run_delay(path: &str) -> Duration {
    let text = fs::read_to_string(path).unwrap_or_default();
    let number = text
        .split(' ')
        .nth(1)
        .and_then(|number| number.parse().ok());
    Duration::from_nanos(number.unwrap_or(0))
}

/// Returns whether the error of a read from the child's socket says only that no reply came: in time, or before a
/// signal.
fn means_no_reply(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), Interrupted | TimedOut | WouldBlock)
}

/// Builds the error (`TimedOut`) for memory that does not arrive in time.
fn unresponsive_error() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "its memory does not answer")
}

impl Drop for Reader {
    fn drop(&mut self) {
        // A child that still sleeps for a page is left to init.
        let options = if self.is_unresponsive {
            libc::WNOHANG
        } else {
            0
        };
        // SAFETY: kill(2) takes numbers; the pid is the child's until waitpid(2) reaps it.
        unsafe { libc::kill(self.child, libc::SIGKILL) };
        // SAFETY: waitpid(2) takes numbers and a null pointer, for which it returns no status.
        unsafe { libc::waitpid(self.child, ptr::null_mut(), libc::__WALL | options) };
    }
}

impl Window {
    /// Maps the area of [`WINDOW_SIZE`] bytes that this process shares with the child.
    fn new() -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        // SAFETY: mmap(2) chooses an unused address.
        let start = unsafe { libc::mmap(ptr::null_mut(), WINDOW_SIZE, access, kind, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self(start.cast()))
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: `new` mapped it and this value is the only user; the child has its own mapping.
        unsafe { libc::munmap(self.0.cast(), WINDOW_SIZE) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{FromRawFd, OwnedFd};

    use super::*;
    use crate::memory::Memory;
    use crate::refusal::Refusal;

    /// Stops the reader, which stands for one that sleeps for a page: it does not reply either.
    #[test]
    fn unresponsive_memory_is_refused_and_not_read_again() {
        let file = File::open("/proc/self/mem").unwrap();
        let mut reader = Reader::start(&file, std::process::id()).unwrap();
        reader.waited = MEMORY_TIMEOUT;
        // SAFETY: kill(2) takes numbers; the child belongs to this test.
        unsafe { libc::kill(reader.child, libc::SIGSTOP) };
        let source = [7_u8; 8];
        let mut read = [0; 8];
        let address = source.as_ptr() as u64;
        for _ in 0..2 {
            let error = reader.read(address, &mut read).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        }
        assert!(reader.is_unresponsive());
        assert_eq!(read, [0; 8]);
    }

    /// A stopped child cannot answer, so nothing was requested of it.
    #[test]
    fn memory_of_ended_process_is_requested_once() {
        let mut process = std::process::Command::new("cat");
        let mut process = process.stdin(std::process::Stdio::piped()).spawn().unwrap();
        let file = File::open(format!("/proc/{}/mem", process.id())).unwrap();
        let mut reader = Reader::start(&file, process.id()).unwrap();
        process.kill().unwrap();
        process.wait().unwrap();
        let mut bytes = [0; 8];
        let error = reader.read(4096, &mut bytes).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        reader.waited = MEMORY_TIMEOUT;
        // SAFETY: kill(2) takes numbers; the child belongs to this test.
        unsafe { libc::kill(reader.child, libc::SIGSTOP) };
        let error = reader.read(8192, &mut bytes).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(reader.read_some(4096, &mut bytes), 0);
        assert!(!reader.is_unresponsive());
    }

    /// A stopped child cannot answer, so the words were kept.
    #[test]
    fn words_of_one_page_take_one_request() {
        let file = File::open("/proc/self/mem").unwrap();
        let mut reader = Reader::start(&file, std::process::id()).unwrap();
        let page = Window::new().unwrap();
        let address = page.0 as u64;
        let read = |reader: &mut Reader, offset: u64| {
            let mut bytes = [0; 8];
            reader.read(address + offset, &mut bytes)?;
            io::Result::Ok(u64::from_le_bytes(bytes))
        };
        assert_eq!(read(&mut reader, 0).unwrap(), 0);
        reader.waited = MEMORY_TIMEOUT;
        // SAFETY: kill(2) takes numbers; the child belongs to this test.
        unsafe { libc::kill(reader.child, libc::SIGSTOP) };
        assert_eq!(read(&mut reader, PAGE_SIZE as u64 - 8).unwrap(), 0);
        reader.forget_pages();
        read(&mut reader, 0).unwrap_err();
    }

    /// A page of userfaultfd(2) that is never served: Linux 6.18 fails at once.
    #[test]
    fn page_that_userfaultfd_never_serves_is_an_error() {
        const API: u64 = 0xaa;
        const MISSING: u64 = 1;
        const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
        const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
        // SAFETY: userfaultfd(2) takes a number.
        let opened = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) };
        if opened == -1 {
            let error = io::Error::last_os_error();
            eprintln!("SKIPPED (needs userfaultfd(2), root): {error}");
            return;
        }
        // SAFETY: userfaultfd(2) has just returned the descriptor, so nothing else owns it.
        let faults = unsafe { OwnedFd::from_raw_fd(opened as i32) };
        let page = Window::new().unwrap();
        let mut api = [API, 0, 0];
        // SAFETY: the argument is a `struct uffdio_api` of three words.
        let result = unsafe { libc::ioctl(faults.as_raw_fd(), UFFDIO_API, api.as_mut_ptr()) };
        assert_eq!(result, 0);
        let mut region = [page.0 as u64, WINDOW_SIZE as u64, MISSING, 0];
        // SAFETY: the argument is a `struct uffdio_register` of four words, for a mapping that nothing touches.
        let registered =
            unsafe { libc::ioctl(faults.as_raw_fd(), UFFDIO_REGISTER, region.as_mut_ptr()) };
        assert_eq!(registered, 0);
        let pid = std::process::id();
        let memory = Memory::open_by_child(pid).unwrap();
        memory.lock_reader().as_mut().unwrap().waited = MEMORY_TIMEOUT;
        memory.read(page.0 as u64 + 8, &mut [0; 8]).unwrap_err();
    }

    #[test]
    fn memory_is_read_across_windows_and_up_to_gaps() {
        let memory = Memory::open_by_child(std::process::id()).unwrap();
        let bytes: Vec<u8> = (0..3 * WINDOW_SIZE).map(|at| (at % 251) as u8).collect();
        let mut read = vec![0; bytes.len()];
        let address = bytes.as_ptr() as u64;
        memory.read(address, &mut read).unwrap();
        assert_eq!(read, bytes);
        memory.read(8, &mut [0]).unwrap_err();
        memory.require_responsive_memory().unwrap();
        let other = Refusal::NoGlibc;
        assert_eq!(memory.explain_error(other.clone()), other);
    }
}
