//! The way in: two errands, and a new thread that does the rest.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use libc::{
    MAP_ANONYMOUS, MAP_FIXED_NOREPLACE, MAP_PRIVATE, PROT_EXEC, PROT_READ, PROT_WRITE, SYS_mmap,
    SYS_munmap,
};
use memprof_ptrace::Refusal;
use memprof_ptrace::errand::{Call, Places, errand};
use memprof_ptrace::threads::system_call;

use crate::attached::Attached;
use crate::attachment::Attachment;
use crate::code::code;
use crate::error::Error;
use crate::hole::hole;
use crate::jvm;
use crate::page::{self, Answer, Page, Stage, There};
use crate::plugin::{ENTRY_NAME, Plugin, Source};
use crate::root::Placed;
use crate::safe_point::{Borrowed, NotBorrowed, borrow};
use crate::target::Target;
use crate::thread_limit::Raised;

const PAGE: u64 = 4096;
/// For `pthread_create(3)`, and what the program's allocator does in it.
const STACK: u64 = 128 << 10;
/// Until a borrowed thread has made its calls: they do not wait.
const ERRAND: Duration = Duration::from_secs(5);
/// Until the plugin is loaded. Its constructors run meanwhile, and the loader's lock is waited for.
const LOADING: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_micros(200);

/// So many threads are tried that do not stop: each costs a second.
const SLEEPERS: usize = 4;

/// The pause between two looks of the new thread: `struct timespec`.
const PAUSE_NS: u64 = 10_000_000;

/// Signals that tell of a fault: blocked, one that comes ends the process without its handler.
const FAULTS: [i32; 5] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGTRAP,
    libc::SIGILL,
    libc::SIGFPE,
];
/// libc's own: for `pthread_cancel(3)`, and for setuid(3), which waits for every thread.
const CANCEL: i32 = 32;
const SETUID: i32 = 33;

const WRITING: &str = "failed to write to its memory";

/// Loads the plugin into a process and starts it there, or only starts it where it sleeps there since an
/// attachment before.
///
/// # Errors
/// Why not; the process goes on as before.
pub fn attach(pid: u32, plugin: &Plugin, attachment: &Attachment) -> Result<Attached, Error> {
    if jvm::attach(pid, plugin, attachment)? {
        return Ok(Attached::ByJvm);
    }
    borrow_threads(pid, plugin, attachment)
}

fn borrow_threads(pid: u32, plugin: &Plugin, attachment: &Attachment) -> Result<Attached, Error> {
    let mut target = Target::look_up(pid)?;
    let source = plugin.source(&target)?;
    let raised = Raised::by_need(pid)?;
    let limits = raised.as_ref().map(|raised| raised.limits);
    let mut toml = attachment.to_toml();
    if let Some(limits) = limits {
        // Before the table of the file, which ends the keys of the attachment.
        toml = format!("thread_limit = {limits}\n{toml}");
    }
    let mut page = Page::new(&toml);
    let layout = Layout::of(&target, &page)?;
    fill(&mut page, &target, &layout, &source);

    let maps = [
        map(layout.code, PAGE, PROT_READ | PROT_EXEC),
        map(
            layout.page,
            layout.end - layout.page,
            PROT_READ | PROT_WRITE,
        ),
    ];
    let first = send(&mut target, &maps, None, u64::MAX)?;
    wait_until_mapped(&target, &layout, &first)?;
    let write = |address, bytes: &[u8]| target.memory.write(address, bytes);
    let written = write(layout.page, page.bytes()).and_then(|()| write(layout.code, code()));
    written.map_err(|cause| not_written(&target, cause))?;

    let create = [
        Call::Function(
            target.functions.pthread_create,
            [
                layout.page + page::THREAD as u64,
                0,
                layout.code,
                layout.page,
            ],
        ),
        Call::System(SYS_munmap, [layout.stack, STACK, 0, 0, 0, 0]),
    ];
    let open = FAULTS.iter().chain([&SETUID]);
    let second = send(&mut target, &create, Some(layout.end), all_but(open))?;
    let there = There {
        memory: &target.memory,
        address: layout.page,
    };
    match follow(&target, there, plugin)? {
        said if said.is_empty() => {
            raised.into_iter().for_each(Raised::keep);
            Ok(Attached::ByThread {
                stops: vec![first.stop, second.stop],
                thread: second.tid,
                thread_limit: limits
                    .and_then(|limits| Some((limits.was.current?, limits.is.current?))),
            })
        }
        said => Err(Error::NotLoaded(said)),
    }
}

/// Where everything lies in the target, one behind the other.
#[derive(Debug)]
struct Layout {
    code: u64,
    page: u64,
    stack: u64,
    end: u64,
}

impl Layout {
    fn of(target: &Target, page: &Page) -> Result<Self, Error> {
        let words = (page.bytes().len() as u64).next_multiple_of(PAGE);
        let code = hole(&target.maps, PAGE + words + STACK);
        let code = code.ok_or_else(|| {
            Error::Failed("its address space has no room for memprof's pages".to_owned())
        })?;
        let page = code + PAGE;
        let stack = page + words;
        Ok(Self {
            code,
            page,
            stack,
            end: stack + STACK,
        })
    }
}

fn fill(page: &mut Page, target: &Target, layout: &Layout, source: &Source) {
    let functions = &target.functions;
    page.set(page::DLOPEN, functions.dlopen);
    page.set(page::DLSYM, functions.dlsym);
    page.set(page::DLERROR, functions.dlerror);
    page.set(page::MUNMAP, functions.munmap);
    page.set(page::SELF, functions.pthread_self);
    page.set(page::DETACH, functions.pthread_detach);
    page.set(page::BASE, layout.code);
    page.set(page::LENGTH, layout.stack - layout.code);
    let open = FAULTS.iter().chain([&SETUID, &CANCEL]);
    page.set(page::MASK, all_but(open));
    page.set(page::PAUSE + 8, PAUSE_NS);
    page.set_text(page::ENTRY_NAME, ENTRY_NAME.as_bytes());
    page.set_text(page::MEMFD_NAME, b"memory_profile.so");
    match source {
        Source::Loaded(entry) => page.set(page::ENTRY, *entry),
        Source::Path(path) | Source::Placed(Placed { path, .. }) => {
            page.set_text(page::PATH, path.as_os_str().as_bytes());
        }
        Source::Memory => page.set(page::WANTS_MEMFD, 1),
    }
}

fn map(address: u64, length: u64, protection: i32) -> Call {
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    let no_file = u64::MAX;
    Call::System(
        SYS_mmap,
        [address, length, protection as u64, flags as u64, no_file, 0],
    )
}

fn all_but<'a>(signals: impl Iterator<Item = &'a i32>) -> u64 {
    signals.fold(u64::MAX, |mask, signal| mask & !(1 << (signal - 1)))
}

/// A thread on its way.
#[derive(Debug)]
struct Sent {
    tid: u32,
    /// Where its stack is when it is back.
    stack: u64,
    /// How long it stood still.
    stop: Duration,
}

/// Sends a thread on an errand.
fn send(
    target: &mut Target,
    calls: &[Call],
    stack: Option<u64>,
    blocked: u64,
) -> Result<Sent, Error> {
    let mut avoided = Vec::new();
    loop {
        // A thread of its own each time: whatever it has stopped, or is about to, is let go when it ends.
        let sent = thread::scope(|scope| {
            let tries = || send_one(target, calls, stack, blocked, &avoided);
            scope.spawn(tries).join()
        });
        match sent.unwrap_or_else(|panic| std::panic::resume_unwind(panic)) {
            Ok(sent) => return Ok(sent),
            Err(NotBorrowed::Sleeps(_)) if avoided.len() == SLEEPERS => {
                let reason = "its threads do not stop (state D)".to_owned();
                return Err(Refusal::NoSafePoint { reason }.into());
            }
            Err(NotBorrowed::Sleeps(tid)) => avoided.push(tid),
            Err(NotBorrowed::None(error)) => return Err(error),
        }
    }
}

/// Borrows a thread that is none of the `avoided` ones.
fn send_one(
    target: &mut Target,
    calls: &[Call],
    stack: Option<u64>,
    blocked: u64,
    avoided: &[u32],
) -> Result<Sent, NotBorrowed> {
    let at_home = if stack.is_some() { 0 } else { calls.len() };
    let borrowed = borrow(target, at_home, avoided)?;
    let places = Places {
        home: borrowed.end,
        calls: stack,
    };
    let errand = errand(calls, places, blocked, target.gadgets, &borrowed.home());
    for (address, bytes) in &errand.writes {
        let written = target.memory.write(*address, bytes);
        written.map_err(|cause| not_written(target, cause))?;
    }
    let Borrowed {
        tid,
        stopped,
        registers,
        ..
    } = borrowed;
    let since = stopped.since();
    let left = stopped.leave_to(&errand.registers);
    left.map_err(|_| target.gone())?;
    Ok(Sent {
        tid,
        stack: registers.rsp,
        stop: since.elapsed(),
    })
}

/// Why what we mapped is not there any more.
fn left(target: &Target) -> Error {
    let alone = |()| {
        let message = "its new thread did not wait for memprof (does a seccomp filter forbid nanosleep?); \
                       `memprof ps` tells whether it is a host now";
        Error::Failed(message.to_owned())
    };
    target.require_same().map_or_else(|gone| gone, alone)
}

fn not_written(target: &Target, cause: io::Error) -> Error {
    let failed = |()| Error::io(WRITING)(cause);
    target.require_same().map_or_else(|gone| gone, failed)
}

fn wait_until_mapped(target: &Target, layout: &Layout, sent: &Sent) -> Result<(), Error> {
    let begun = Instant::now();
    loop {
        // Looked at first: once it is back, its calls are made.
        let call = system_call(target.pid, sent.tid);
        let is_back = call.is_some_and(|call| call.stack == sent.stack);
        let is_mapped = target.memory.word(layout.page).is_ok();
        if is_mapped {
            return Ok(());
        }
        target.require_same()?;
        if is_back || begun.elapsed() > ERRAND {
            let message =
                "it could not map two pages: is there a limit on its addresses (RLIMIT_AS)?";
            return Err(Error::Failed(message.to_owned()));
        }
        thread::sleep(LOOK_AGAIN);
    }
}

/// Goes along with the new thread until the loader or the plugin has said what is wrong, or nothing.
fn follow(target: &Target, there: There<'_>, plugin: &Plugin) -> Result<String, Error> {
    let ended = |_| left(target);
    let failed = |why: &str| Err(Error::Failed(why.to_owned()));
    let begun = Instant::now();
    let mut has_memfd = false;
    loop {
        let stage = there.stage().map_err(ended)?;
        match stage {
            Stage::Done => break,
            Stage::HasMemfd if !has_memfd => {
                hand_over(target, there, &plugin.path)?;
                has_memfd = true;
            }
            Stage::None if begun.elapsed() > ERRAND => {
                return failed(
                    "it could not make a thread: is there a limit on their number (RLIMIT_NPROC, \
                     pids.max of its cgroup)?",
                );
            }
            _ if begun.elapsed() > LOADING => {
                return failed("it is still loading the plugin after a minute");
            }
            _ => thread::sleep(LOOK_AGAIN),
        }
    }
    let said = there.text().map_err(ended)?;
    there.answer(Answer::Read).map_err(ended)?;
    Ok(said)
}

/// Fills the file in memory, and tells the thread its path.
fn hand_over(target: &Target, there: There<'_>, plugin: &Path) -> Result<(), Error> {
    let ended = |_| left(target);
    let fd = there.word(page::MEMFD).map_err(ended)? as i64;
    if fd < 0 {
        let cause = io::Error::from_raw_os_error(fd.saturating_neg() as i32);
        let what = "it could not make a file in memory for the plugin".to_owned();
        return Err(Error::Io { what, cause });
    }
    let path = format!("/proc/{}/fd/{fd}", target.pid);
    let bytes = fs::read(plugin).map_err(Error::io(plugin.display().to_string()))?;
    let written = open_in_memory(&path).and_then(|mut file| file.write_all(&bytes));
    written.map_err(Error::io(path))?;
    // The loader knows libraries by their names first, and the number was another library's before.
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let slashes = "/".repeat(1 + now.map_or(0, |now| now.subsec_micros() as usize) % 64);
    let path = format!("/proc/self/fd{slashes}{fd}");
    let at = there.address + page::PATH as u64;
    let written = target.memory.write(at, path.as_bytes());
    written.map_err(ended)?;
    there.answer(Answer::FileIsThere).map_err(ended)
}

/// Opens the file that the thread says it made, for writing. Its word is the process's: the number may be
/// that of a file that the process may only read, where we may write.
fn open_in_memory(path: &str) -> io::Result<File> {
    let file = File::options().write(true).open(path)?;
    let metadata = file.metadata()?;
    let is_new = metadata.is_file() && metadata.nlink() == 0 && metadata.len() == 0;
    // Only a file in memory can have seals: memfd_create(2), F_GET_SEALS.
    if is_new && rustix::fs::fcntl_get_seals(&file).is_ok() {
        return Ok(file);
    }
    let message = "the file that it made is not an empty memory file (memfd)";
    Err(io::Error::new(io::ErrorKind::InvalidData, message))
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsRawFd, OwnedFd};

    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    #[test]
    fn only_a_new_file_in_memory_is_written_to() {
        let check = |file: &OwnedFd| {
            open_in_memory(&format!("/proc/self/fd/{}", file.as_raw_fd())).map(drop)
        };
        let words = |file: &OwnedFd| check(file).unwrap_err().to_string();
        let in_memory = memfd_create("memory_profile.so", MemfdFlags::CLOEXEC).unwrap();
        check(&in_memory).unwrap();
        rustix::io::write(&in_memory, b"full").unwrap();
        assert_eq!(
            words(&in_memory),
            "the file that it made is not an empty memory file (memfd)"
        );
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("file");
        fs::write(&path, "kept").unwrap();
        let read_only = OwnedFd::from(File::open(&path).unwrap());
        assert_eq!(
            words(&read_only),
            "the file that it made is not an empty memory file (memfd)"
        );
        assert_eq!(fs::read(&path).unwrap(), b"kept");
        let removed = OwnedFd::from(tempfile::tempfile().unwrap());
        assert_eq!(
            words(&removed),
            "the file that it made is not an empty memory file (memfd)"
        );
    }
}
