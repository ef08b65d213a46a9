//! A child process that reads the memory of another one.
//!
//! A page may never come: a file of FUSE or of the network whose server does not answer, userfaultfd(2). A thread that
//! touches it sleeps past SIGKILL (`TASK_UNINTERRUPTIBLE`), and its process with it. So this child touches it, and
//! memprof waits for the child with a deadline. It is a process and not a thread, because a process ends no earlier
//! than the last of its threads.
#![expect(
    unsafe_code,
    reason = "a child without memory of its own to allocate, and a page that both share"
)]

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::ptr;
use std::time::{Duration, Instant};

use libc::pid_t;
use nix::errno::Errno;
use nix::sys::signal::{SigSet, SigmaskHow};

use crate::given_up;

/// Longest wait for the memory of one process, in all: what disks and swap take is not counted.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// What one page takes that is swapped out to a slow disk.
const SLOW_PAGE: Duration = Duration::from_millis(2);
const PAGE: usize = 4096;
/// Bytes that are passed on at once.
const WINDOW: usize = 256 << 10;

/// The child, which ends with its socket.
#[derive(Debug)]
pub(crate) struct Reader {
    child: pid_t,
    socket: UnixStream,
    window: Window,
    /// What was waited longer than disks take.
    waited: Duration,
    is_silent: bool,
}

/// Memory that this process shares with the child.
#[derive(Debug)]
struct Window(*mut u8);

// SAFETY: an address that its owner alone uses, and the child between a request and its answer.
unsafe impl Send for Window {}

impl Reader {
    /// Starts the child, which reads by the opened /proc/PID/mem. It is silent from the beginning where an earlier one
    /// still waits for that process.
    pub(crate) fn start(memory: &File, pid: u32) -> io::Result<Self> {
        let (socket, theirs) = UnixStream::pair()?;
        let window = Window::new()?;
        let served = Served {
            socket: theirs.as_raw_fd(),
            memory: memory.as_raw_fd(),
            window: window.0,
            name: given_up::name(pid),
        };
        // SAFETY: makes the child; see `fork_without_signals`.
        let child = unsafe { fork_without_signals(&served) }?;
        Ok(Self {
            child,
            socket,
            window,
            waited: Duration::ZERO,
            is_silent: given_up::waits_for(pid),
        })
    }

    /// Whether the memory did not answer in time, and is not asked any more.
    pub(crate) fn is_silent(&self) -> bool {
        self.is_silent
    }

    /// Fills the buffer.
    pub(crate) fn read(&mut self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        let mut at = address;
        for part in buffer.chunks_mut(WINDOW) {
            self.ask(at, part.len())?;
            // SAFETY: the child has answered, so it does not write; no part is longer than the window.
            unsafe { ptr::copy_nonoverlapping(self.window.0, part.as_mut_ptr(), part.len()) };
            at = at.wrapping_add(part.len() as u64);
        }
        Ok(())
    }

    /// Reads what begins there, as much as can be read; its length in bytes.
    pub(crate) fn read_some(&mut self, address: u64, buffer: &mut [u8]) -> usize {
        let mut done = 0;
        for part in buffer.chunks_mut(WINDOW) {
            let read = self.ask_some(address.wrapping_add(done as u64), part.len());
            let read = read.unwrap_or(0);
            // SAFETY: as above, and no more than was asked for.
            unsafe { ptr::copy_nonoverlapping(self.window.0, part.as_mut_ptr(), read) };
            done += read;
            if read < part.len() {
                break;
            }
        }
        done
    }

    fn ask(&mut self, address: u64, length: usize) -> io::Result<()> {
        match self.ask_some(address, length)? {
            done if done == length => Ok(()),
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Err(io::Error::from_raw_os_error(libc::EIO)),
        }
    }

    fn ask_some(&mut self, address: u64, length: usize) -> io::Result<usize> {
        if self.is_silent {
            return Err(silent());
        }
        let mut request = [0; 16];
        for (place, word) in request.chunks_exact_mut(8).zip([address, length as u64]) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        let usual = SLOW_PAGE * (length.div_ceil(PAGE) as u32 + 1);
        let begun = Instant::now();
        self.socket.write_all(&request)?;
        let left = PATIENCE.saturating_sub(self.waited) + usual;
        self.socket.set_read_timeout(Some(left))?;
        let mut answer = [0; 8];
        let answered = self.socket.read_exact(&mut answer);
        self.waited += begun.elapsed().saturating_sub(usual);
        if let Err(error) = answered {
            self.is_silent = true;
            // SAFETY: kill(2) takes numbers; the child is not waited for before this value is dropped.
            unsafe { libc::kill(self.child, libc::SIGKILL) };
            return Err(match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => silent(),
                _ => error,
            });
        }
        match i64::from_ne_bytes(answer) {
            done if done < 0 => Err(io::Error::from_raw_os_error(-done as i32)),
            done => Ok((done as usize).min(length)),
        }
    }
}

fn silent() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "its memory does not answer")
}

impl Drop for Reader {
    fn drop(&mut self) {
        // One that still sleeps for a page is left to init.
        let how = if self.is_silent { libc::WNOHANG } else { 0 };
        // SAFETY: kill(2) and waitpid(2) take numbers; the pid is ours until we have waited for it.
        unsafe { libc::kill(self.child, libc::SIGKILL) };
        // SAFETY: as above; its status is not asked for.
        unsafe { libc::waitpid(self.child, ptr::null_mut(), libc::__WALL | how) };
    }
}

impl Window {
    fn new() -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, anywhere.
        let start = unsafe { libc::mmap(ptr::null_mut(), WINDOW, access, kind, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self(start.cast()))
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and not used any more; the child's own mapping stays.
        unsafe { libc::munmap(self.0.cast(), WINDOW) };
    }
}

/// What the child knows.
struct Served {
    socket: i32,
    memory: i32,
    window: *mut u8,
    /// Tells later commands of it.
    name: [u8; 16],
}

/// Makes a child that serves, with all signals blocked: a Ctrl-C is for memprof itself.
///
/// # Safety
/// The child is made by clone(2) itself, without handlers of fork(3); it makes system calls only.
unsafe fn fork_without_signals(served: &Served) -> io::Result<pid_t> {
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    // Without a signal at its end: handlers of SIGCHLD are for other children.
    // SAFETY: clone(2) as fork(2) uses it: the child goes on with a copy of this stack.
    let child =
        unsafe { libc::syscall(libc::SYS_clone, 0_usize, 0_usize, 0_usize, 0_usize, 0_usize) };
    if child == 0 {
        // SAFETY: this is the child.
        unsafe { served.serve() };
    }
    let failed = io::Error::last_os_error();
    before.thread_set_mask()?;
    match child {
        -1 => Err(failed),
        child => Ok(child as pid_t),
    }
}

impl Served {
    /// Answers requests until there are none any more.
    ///
    /// # Safety
    /// Only in the child: it ends the process.
    unsafe fn serve(&self) -> ! {
        let (low, high) = (
            self.socket.min(self.memory) as u32,
            self.socket.max(self.memory) as u32,
        );
        // A pipe that memprof's output goes to ends with memprof, not with this process.
        close(0, low.checked_sub(1));
        close(low + 1, high.checked_sub(1));
        close(high + 1, Some(u32::MAX));
        // SAFETY: prctl(2) reads a text with its zero.
        unsafe { libc::prctl(libc::PR_SET_NAME, self.name.as_ptr()) };
        let mut request = [0_u64; 2];
        loop {
            // SAFETY: fills two words.
            let got = unsafe {
                libc::recv(
                    self.socket,
                    request.as_mut_ptr().cast(),
                    16,
                    libc::MSG_WAITALL,
                )
            };
            if got != 16 {
                // SAFETY: ends this process.
                unsafe { libc::_exit(0) };
            }
            let [address, length] = request;
            // SAFETY: memprof asks for no more than the window has.
            let answer = unsafe { self.act(address, length as usize) };
            // SAFETY: sends one word.
            unsafe {
                libc::send(
                    self.socket,
                    (&raw const answer).cast(),
                    8,
                    libc::MSG_NOSIGNAL,
                );
            }
        }
    }

    /// How many bytes were read; else a negative errno.
    ///
    /// # Safety
    /// `length` is at most the window's.
    unsafe fn act(&self, address: u64, length: usize) -> i64 {
        let mut done = 0;
        while done < length {
            let at = address.wrapping_add(done as u64);
            let rest = length - done;
            // SAFETY: `done` is less than `length`.
            let part = unsafe { self.window.add(done) };
            // SAFETY: fills the rest of the window.
            let moved = unsafe { libc::pread(self.memory, part.cast(), rest, at.cast_signed()) };
            match moved {
                ..=0 if done > 0 => break,
                0 => break,
                ..0 => return -i64::from(Errno::last_raw()),
                moved => done += moved as usize,
            }
        }
        done as i64
    }
}

/// Closes the descriptors of a range, where it is one.
fn close(first: u32, last: Option<u32>) {
    if let Some(last) = last.filter(|last| first <= *last) {
        // SAFETY: close_range(2) takes numbers; the child uses none of these.
        unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{FromRawFd, OwnedFd};

    use super::*;
    use crate::memory::Memory;
    use crate::refusal::Refusal;

    /// A reader that was stopped stands for one that sleeps for a page: it answers as little.
    #[test]
    fn memory_that_does_not_answer_is_refused_and_not_asked_again() {
        let file = File::open("/proc/self/mem").unwrap();
        let mut reader = Reader::start(&file, std::process::id()).unwrap();
        reader.waited = PATIENCE;
        // SAFETY: kill(2) takes numbers; the child is this test's.
        unsafe { libc::kill(reader.child, libc::SIGSTOP) };
        let place = [7_u8; 8];
        let mut read = [0; 8];
        let address = place.as_ptr() as u64;
        for _ in 0..2 {
            let error = reader.read(address, &mut read).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        }
        assert!(reader.is_silent());
        assert_eq!(read, [0; 8]);
    }

    /// A page of userfaultfd(2) that nothing serves: Linux 6.18 fails at once.
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
        // SAFETY: opened just now.
        let faults = unsafe { OwnedFd::from_raw_fd(opened as i32) };
        let page = Window::new().unwrap();
        let mut api = [API, 0, 0];
        // SAFETY: `struct uffdio_api`: three words.
        let made = unsafe { libc::ioctl(faults.as_raw_fd(), UFFDIO_API, api.as_mut_ptr()) };
        assert_eq!(made, 0);
        let mut region = [page.0 as u64, WINDOW as u64, MISSING, 0];
        // SAFETY: `struct uffdio_register`: four words, of a mapping that nothing touches.
        let registered =
            unsafe { libc::ioctl(faults.as_raw_fd(), UFFDIO_REGISTER, region.as_mut_ptr()) };
        assert_eq!(registered, 0);
        let pid = std::process::id();
        let memory = Memory::open_by_child(pid).unwrap();
        memory.reader().as_mut().unwrap().waited = PATIENCE;
        memory.read(page.0 as u64 + 8, &mut [0; 8]).unwrap_err();
    }

    #[test]
    fn memory_is_read_across_windows_and_up_to_holes() {
        let memory = Memory::open_by_child(std::process::id()).unwrap();
        let bytes: Vec<u8> = (0..3 * WINDOW).map(|at| (at % 251) as u8).collect();
        let mut read = vec![0; bytes.len()];
        let address = bytes.as_ptr() as u64;
        memory.read(address, &mut read).unwrap();
        assert_eq!(read, bytes);
        memory.read(8, &mut [0]).unwrap_err();
        memory.require_answers().unwrap();
        let other = Refusal::NoGlibc;
        assert_eq!(memory.explain(other.clone()), other);
    }
}
