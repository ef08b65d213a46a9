//! Attaching: two sets of remote calls, and a new thread that does the rest.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use libc::{PROT_EXEC, PROT_READ, PROT_WRITE};
use memprof_ptrace::maps::mappings;
use memprof_ptrace::process::ProcStatus;
use memprof_ptrace::remote_call::RemoteCall;
use memprof_ptrace::{HaltWatch, Refusal};
use nix::errno::Errno;

use crate::address_gap::find_gap;
use crate::attachment::Attachment;
use crate::error::Error;
use crate::fork;
use crate::injected_code::{code, create_offset};
use crate::jvm;
use crate::outcome::AttachOutcome;
use crate::plugin::{ENTRY_NAME, Plugin, PluginSource};
use crate::room::require_room;
use crate::run_calls::{
    CALLS_TIMEOUT, CallInProgress, LOOK_AGAIN, give_back, is_back, map, run_calls, unmap,
    wait_until_mapped, write_error,
};
use crate::shared_page::{self, LoaderAck, LoaderStage, RemotePage, SharedPage};
use crate::target::{Target, read_maps};
use crate::target_root::TemporaryCopy;
use crate::thread_limit::RaisedThreadLimit;

const PAGE: u64 = 4096;
/// For `pthread_create(3)`, and what the program's allocator does in it.
const STACK: u64 = 128 << 10;
/// Until the plugin is loaded. Its constructors run meanwhile, and the loader's lock is waited for.
const LOADING: Duration = Duration::from_secs(60);

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

/// Loads the plugin into a process and starts it there, or only starts it where it sleeps there since an
/// attachment before.
///
/// # Errors
/// Why not; the process goes on as before.
pub fn attach(pid: u32, plugin: &Plugin, attachment: &Attachment) -> Result<AttachOutcome, Error> {
    if jvm::attach(pid, plugin, attachment)? {
        return Ok(AttachOutcome::ByJvm);
    }
    attach_by_threads(pid, plugin, attachment)
}

fn attach_by_threads(
    pid: u32,
    plugin: &Plugin,
    attachment: &Attachment,
) -> Result<AttachOutcome, Error> {
    let mut target = Target::inspect(pid)?;
    require_room(pid, &target.maps)?;
    let source = plugin.source(&target)?;
    let handled = fork::handled(&target, &ProcStatus::read_thread(pid)?);
    let raised = RaisedThreadLimit::raise_if_needed(pid)?;
    let limits = raised.as_ref().map(|raised| raised.limits);
    let mut toml = attachment.to_toml();
    if let Some(limits) = limits {
        // Before the table of the file, which ends the keys of the attachment.
        toml = format!("thread_limit = {limits}\n{toml}");
    }
    let injection = match enter(&mut target, plugin, &source, &toml) {
        // The file is there, and not for this process: its user, noexec, a security module.
        Err(Error::NotLoaded(said)) if source.is_refused(&said) => {
            target.refresh()?;
            enter(&mut target, plugin, &PluginSource::Memfd, &toml).map_err(|error| match error {
                Error::NotLoaded(in_memory) => Refusal::NotOpened { said, in_memory }.into(),
                error => error,
            })
        }
        injection => injection,
    }?;
    raised.into_iter().for_each(RaisedThreadLimit::leave_raised);
    Ok(AttachOutcome::ByThread {
        stops: injection.stops.to_vec(),
        thread: injection.thread,
        handled,
        thread_limit: limits.and_then(|limits| Some((limits.was.current?, limits.is.current?))),
    })
}

/// A plugin that was loaded and started, and the threads that this took.
struct Injection {
    /// Pauses of the two borrowed threads, in the order of the calls.
    stops: [Duration; 2],
    /// The thread that was borrowed last.
    thread: u32,
}

/// Has the plugin loaded and called.
fn enter(
    target: &mut Target,
    plugin: &Plugin,
    source: &PluginSource,
    toml: &str,
) -> Result<Injection, Error> {
    let mut page = SharedPage::new(toml);
    let layout = TargetLayout::of(target, &page)?;
    fill(&mut page, target, &layout, source);

    let maps = [
        map(layout.code, PAGE, PROT_READ | PROT_EXEC),
        map(
            layout.page,
            layout.end - layout.page,
            PROT_READ | PROT_WRITE,
        ),
    ];
    let mapped = [layout.code..layout.page, layout.page..layout.end];
    let first = run_calls(target, &maps, None, u64::MAX)?;
    wait_until_mapped(target, &mapped, &first)?;
    let write = |address, bytes: &[u8]| target.memory.write(address, bytes);
    let written = write(layout.page, page.bytes()).and_then(|()| write(layout.code, code()));
    written.map_err(|cause| write_error(target, cause))?;

    let create = [
        RemoteCall::Function(layout.code + create_offset(), [layout.page, 0, 0, 0]),
        unmap(&(layout.stack..layout.end)),
    ];
    let open = FAULTS.iter().chain([&SETUID]);
    let second = run_calls(target, &create, Some(layout.end), signals_except(open));
    let second = second.inspect_err(|_| give_back(target, &mapped))?;
    let there = RemotePage {
        memory: &target.memory,
        address: layout.page,
    };
    let said = match wait_until_loaded(target, there, plugin, &second)? {
        Followed::Said(said) => said,
        Followed::NoThread(errno) => {
            // The borrowed thread has unmapped the stack.
            give_back(
                target,
                &[layout.code..layout.page, layout.page..layout.stack],
            );
            require_room(target.pid, &target.maps)?;
            return Err(Refusal::NoThread { errno }.into());
        }
    };
    match said {
        said if said.is_empty() => Ok(Injection {
            stops: [first.stop, second.stop],
            thread: second.tid,
        }),
        said => Err(Error::NotLoaded(said)),
    }
}

/// Where everything lies in the target, one behind the other.
#[derive(Debug)]
struct TargetLayout {
    code: u64,
    page: u64,
    stack: u64,
    end: u64,
}

impl TargetLayout {
    fn of(target: &Target, page: &SharedPage) -> Result<Self, Error> {
        let words = (page.bytes().len() as u64).next_multiple_of(PAGE);
        let code = find_gap(&target.maps, PAGE + words + STACK);
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

fn fill(page: &mut SharedPage, target: &Target, layout: &TargetLayout, source: &PluginSource) {
    let functions = &target.functions;
    page.set(shared_page::DLOPEN, functions.dlopen);
    page.set(shared_page::DLSYM, functions.dlsym);
    page.set(shared_page::DLERROR, functions.dlerror);
    page.set(shared_page::MUNMAP, functions.munmap);
    page.set(shared_page::CREATE, functions.pthread_create);
    page.set(shared_page::ATTRIBUTES_INIT, functions.pthread_attr_init);
    page.set(
        shared_page::GET_STACK_SIZE,
        functions.pthread_attr_getstacksize,
    );
    page.set(
        shared_page::SET_STACK_SIZE,
        functions.pthread_attr_setstacksize,
    );
    page.set(shared_page::SYSTEM_CALL, target.gadgets.system_call);
    page.set(shared_page::SELF, functions.pthread_self);
    page.set(shared_page::DETACH, functions.pthread_detach);
    page.set(shared_page::BASE, layout.code);
    page.set(shared_page::LENGTH, layout.stack - layout.code);
    let open = FAULTS.iter().chain([&SETUID, &CANCEL]);
    page.set(shared_page::MASK, signals_except(open));
    page.set(shared_page::PAUSE + 8, PAUSE_NS);
    page.set_text(shared_page::MALLOC_NAME, b"malloc");
    page.set_text(shared_page::FREE_NAME, b"free");
    page.set_text(shared_page::ENTRY_NAME, ENTRY_NAME.as_bytes());
    page.set_text(shared_page::MEMFD_NAME, b"memory_profile.so");
    match source {
        PluginSource::Loaded(entry) => page.set(shared_page::ENTRY, *entry),
        PluginSource::Path(path) | PluginSource::TemporaryCopy(TemporaryCopy { path, .. }) => {
            page.set_text(shared_page::PATH, path.as_os_str().as_bytes());
        }
        PluginSource::Memfd => page.set(shared_page::WANTS_MEMFD, 1),
    }
}

fn signals_except<'a>(signals: impl Iterator<Item = &'a i32>) -> u64 {
    signals.fold(u64::MAX, |mask, signal| mask & !(1 << (signal - 1)))
}

/// Why what we mapped is not there any more.
fn thread_lost_error(target: &Target) -> Error {
    let alone = |()| {
        let message = "its new thread did not wait for memprof (does a seccomp filter forbid nanosleep?); \
                       `memprof ps` tells whether it is a host now";
        Error::Failed(message.to_owned())
    };
    target.require_same().map_or_else(|gone| gone, alone)
}

/// Outcome of making the new thread.
enum Followed {
    /// What the loader or the plugin says is wrong; empty where all is well.
    Said(String),
    /// `pthread_create(3)` failed, with this errno.
    NoThread(Errno),
}

/// Goes along with the new thread until the loader or the plugin has said what is wrong, or nothing.
fn wait_until_loaded(
    target: &Target,
    there: RemotePage<'_>,
    plugin: &Plugin,
    maker: &CallInProgress,
) -> Result<Followed, Error> {
    let ended = |_| thread_lost_error(target);
    let failed = |why: &str| Err(Error::Failed(why.to_owned()));
    let begun = Instant::now();
    let mut has_memfd = false;
    let mut is_cancelled = false;
    let mut halts = HaltWatch::new(target.pid);
    loop {
        let stage = there.stage().map_err(ended)?;
        if let Some(halt) = halts.poll() {
            there.answer(LoaderAck::Cancelled).map_err(ended)?;
            return Err(match there.stage().map_err(ended)? {
                LoaderStage::Calling | LoaderStage::Done => {
                    Error::Failed(format!("{halt}; the plugin is there"))
                }
                _ => Error::Failed(format!("{halt}; the plugin will not start there")),
            });
        }
        match stage {
            LoaderStage::Done => break,
            LoaderStage::AwaitsFile if !has_memfd => {
                provide_file(target, there, &plugin.path)?;
                has_memfd = true;
            }
            // Its own answer: it has left the code, and no thread was made that could be in it.
            LoaderStage::NotStarted
                if has_failed(there).map_err(ended)? && is_back(target, maker) =>
            {
                let errno = there.word(shared_page::CREATE_RESULT).map_err(ended)?;
                return Ok(Followed::NoThread(Errno::from_raw(errno as i32)));
            }
            LoaderStage::NotStarted if begun.elapsed() > CALLS_TIMEOUT && !is_cancelled => {
                there.answer(LoaderAck::Cancelled).map_err(ended)?;
                is_cancelled = true;
                // Looked at once more: it may have begun meanwhile.
                if there.stage().map_err(ended)? == LoaderStage::NotStarted {
                    return failed(
                        "its new thread did not begin for 5 s (is another one of a real-time priority at work?); if it does, \
                         the plugin will not start",
                    );
                }
            }
            _ if begun.elapsed() > LOADING && !is_cancelled => {
                there.answer(LoaderAck::Cancelled).map_err(ended)?;
                is_cancelled = true;
                // From then on it is the plugin's own work that takes long.
                if there.stage().map_err(ended)? < LoaderStage::Calling {
                    return failed(
                        "it was still loading the plugin after a minute: the program holds the loader's lock, or a \
                         constructor takes long; the plugin will not start there any more",
                    );
                }
            }
            _ if begun.elapsed() > 2 * LOADING => {
                return failed("the plugin was still starting after two minutes");
            }
            _ => thread::sleep(LOOK_AGAIN),
        }
    }
    if there.word(shared_page::IS_MISALIGNED).map_err(ended)? != 0 {
        let malloc = there.word(shared_page::MALLOC).map_err(ended)?;
        there.answer(LoaderAck::ResultRead).map_err(ended)?;
        return Err(Refusal::Misaligned {
            allocator: file_at(target.pid, malloc),
        }
        .into());
    }
    let said = there.text().map_err(ended)?;
    there.answer(LoaderAck::ResultRead).map_err(ended)?;
    Ok(Followed::Said(said))
}

/// The file that is mapped at an address, in words.
fn file_at(pid: u32, address: u64) -> String {
    let maps = read_maps(pid).unwrap_or_default();
    let mapping = mappings(&maps).find(|mapping| mapping.range.contains(&address));
    let name = mapping.map(|mapping| String::from_utf8_lossy(mapping.file_name()).into_owned());
    name.filter(|name| !name.is_empty())
        .unwrap_or_else(|| "of no file".to_owned())
}

/// Whether `pthread_create(3)` has failed.
fn has_failed(there: RemotePage<'_>) -> io::Result<bool> {
    Ok(there.word(shared_page::CREATED)? != 0 && there.word(shared_page::CREATE_RESULT)? != 0)
}

/// Fills the file in memory, and tells the thread its path.
fn provide_file(target: &Target, there: RemotePage<'_>, plugin: &Path) -> Result<(), Error> {
    let ended = |_| thread_lost_error(target);
    let fd = there.word(shared_page::MEMFD).map_err(ended)? as i64;
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
    let at = there.address + shared_page::PATH as u64;
    let written = target.memory.write(at, path.as_bytes());
    written.map_err(ended)?;
    there.answer(LoaderAck::FileReady).map_err(ended)
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
