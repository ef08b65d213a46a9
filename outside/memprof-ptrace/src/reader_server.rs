//! The loop of the child process that reads the memory of another process, and its start.
#![expect(
    unsafe_code,
    reason = "a child without memory of its own to allocate, and a page that both share"
)]

use std::io;

use libc::pid_t;
use nix::errno::Errno;
use nix::sys::signal::{SigSet, SigmaskHow};

/// Data of the child's loop.
pub(crate) struct ReaderServer {
    /// Descriptor of the child's end of the socket.
    pub(crate) socket: i32,
    /// Descriptor of /proc/PID/mem.
    pub(crate) memory: i32,
    pub(crate) window: *mut u8,
    /// Thread name, by which later commands recognize the child.
    pub(crate) name: [u8; 16],
}

/// Forks a child that serves requests, and returns its pid. All signals are blocked in the child: Ctrl-C is meant for
/// memprof itself.
///
/// # Safety
/// The child is created by clone(2) directly, without the handlers of fork(3), so it must make system calls only.
pub(crate) unsafe fn fork_reader_server(server: &ReaderServer) -> io::Result<pid_t> {
    let old_mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    // The flags are 0, so the child sends no signal at its end: handlers of SIGCHLD expect other children.
    // SAFETY: clone(2) with these arguments is fork(2): the child continues on a copy of this stack.
    let child =
        unsafe { libc::syscall(libc::SYS_clone, 0_usize, 0_usize, 0_usize, 0_usize, 0_usize) };
    if child == 0 {
        // SAFETY: this is the child, which `serve` requires.
        unsafe { server.serve() };
    }
    let error = io::Error::last_os_error();
    old_mask.thread_set_mask()?;
    match child {
        -1 => Err(error),
        child => Ok(child as pid_t),
    }
}

impl ReaderServer {
    /// Serves read requests (address and length) until the socket closes, then exits. Closes all other descriptors
    /// first.
    ///
    /// # Safety
    /// Must be called in the child only: it closes descriptors and ends the process.
    unsafe fn serve(&self) -> ! {
        let (low, high) = (
            self.socket.min(self.memory) as u32,
            self.socket.max(self.memory) as u32,
        );
        // The readers of memprof's output pipes must see their end when memprof ends, not when this process does.
        close_range(0, low.checked_sub(1));
        close_range(low + 1, high.checked_sub(1));
        close_range(high + 1, Some(u32::MAX));
        // SAFETY: prctl(2) reads up to 16 bytes with their final zero, as `stuck_reader::reader_name` builds them.
        unsafe { libc::prctl(libc::PR_SET_NAME, self.name.as_ptr()) };
        let mut request = [0_u64; 2];
        loop {
            // SAFETY: recv(2) writes at most 16 bytes to the request.
            let received = unsafe {
                libc::recv(
                    self.socket,
                    request.as_mut_ptr().cast(),
                    16,
                    libc::MSG_WAITALL,
                )
            };
            if received != 16 {
                // SAFETY: _exit(2) ends this process, which has nothing to clean up.
                unsafe { libc::_exit(0) };
            }
            let [address, length] = request;
            // SAFETY: the parent requests no more than the window's size.
            let reply = unsafe { self.read_to_window(address, length as usize) };
            // SAFETY: send(2) reads the 8 bytes of the reply.
            unsafe {
                libc::send(
                    self.socket,
                    (&raw const reply).cast(),
                    8,
                    libc::MSG_NOSIGNAL,
                );
            }
        }
    }

    /// Reads memory into the window, up to the first byte that cannot be read. Returns the number of bytes read, or a
    /// negative errno if that is none.
    ///
    /// # Safety
    /// `length` must be at most the window's size.
    unsafe fn read_to_window(&self, address: u64, length: usize) -> i64 {
        let mut done = 0;
        while done < length {
            let next = address.wrapping_add(done as u64);
            let remaining = length - done;
            // SAFETY: `done` is less than `length`, which the caller guarantees to fit the window.
            let part = unsafe { self.window.add(done) };
            // SAFETY: pread(2) writes at most the remaining bytes of the window.
            let count =
                unsafe { libc::pread(self.memory, part.cast(), remaining, next.cast_signed()) };
            match count {
                ..=0 if done > 0 => break,
                0 => break,
                ..0 => return -i64::from(Errno::last_raw()),
                count => done += count as usize,
            }
        }
        done as i64
    }
}

/// Closes the descriptors from `first` to `last`. Does nothing if the range is empty, or if `last` is `None`: the
/// number before descriptor 0.
fn close_range(first: u32, last: Option<u32>) {
    if let Some(last) = last.filter(|last| first <= *last) {
        // SAFETY: close_range(2) takes numbers; the child does not use these descriptors.
        unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    }
}
