//! Facts about a process that are read before any of its threads is stopped.

use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use memprof_ptrace::frame_memory::loaded_libraries;
use memprof_ptrace::library_image::LibraryImage;
use memprof_ptrace::maps::{Mapping, mappings};
use memprof_ptrace::memory::Memory;
use memprof_ptrace::remote_call::Gadgets;
use memprof_ptrace::{Refusal, examine_process_for_load, sanitizer};

use crate::error::AttachError;
use crate::maps_text::read_maps_text;
use crate::running_thread::ProgramCodeMap;

/// A process that can load a library.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) pid: u32,
    pub(crate) memory: Arc<Memory>,
    /// /proc/PID/maps, as of the last refresh.
    pub(crate) maps: Vec<u8>,
    pub(crate) functions: Functions,
    pub(crate) gadgets: Gadgets,
    /// Code of allocators that are libraries: a thread that waits in it may be in the midst of a change to the
    /// allocator's data.
    pub(crate) allocators: Vec<Range<u64>>,
    /// Code of libc. A `malloc` in it keeps no descriptor open, unlike one that logs its calls, or tcmalloc's, whose
    /// libunwind has a pipe.
    pub(crate) malloc_code: Vec<Range<u64>>,
    /// Code in which running threads may be stopped.
    pub(crate) running: ProgramCodeMap,
    /// Load address of libc. It is mapped as long as the program is executed.
    libc: u64,
}

/// Addresses of functions in libc.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Functions {
    pub(crate) pthread_create: u64,
    pub(crate) pthread_attr_init: u64,
    pub(crate) pthread_attr_getstacksize: u64,
    pub(crate) pthread_attr_setstacksize: u64,
    pub(crate) pthread_self: u64,
    pub(crate) pthread_detach: u64,
    pub(crate) dlopen: u64,
    pub(crate) dlsym: u64,
    pub(crate) dlerror: u64,
    pub(crate) munmap: u64,
}

/// Time in which the loader of a program that was just executed maps the C library.
const START_TIMEOUT: Duration = Duration::from_millis(250);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Number of libc's mappings that are searched for gadgets.
const MAX_CODE_MAPPINGS: usize = 8;

/// Prefixes of the files of allocator libraries. The loader is not among them: locks held by its callers are the
/// thread's own, and a new thread waits for them.
const ALLOCATOR_FILES: [&[u8]; 4] = [
    b"libjemalloc",
    b"libtcmalloc",
    b"libmimalloc",
    b"libsnmalloc",
];

impl Target {
    /// Reads the facts that an attachment needs, before any thread is stopped. Waits up to 250 ms while the loader maps
    /// the C library, which seems missing or too old until then. Locks the process against other memprof commands.
    ///
    /// # Errors
    /// The process cannot be attached to, or another memprof is attaching to it.
    pub(crate) fn inspect(pid: u32) -> Result<Self, AttachError> {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            match Self::inspect_once(pid) {
                Err(AttachError::Refused(Refusal::NoGlibc | Refusal::OldGlibc))
                    if Instant::now() < deadline =>
                {
                    thread::sleep(POLL_INTERVAL);
                }
                inspected => return inspected,
            }
        }
    }

    /// Reads the facts that an attachment needs, and locks the process against other memprof commands. Does not wait
    /// for the loader. Fails as [`inspect`](Self::inspect) does.
    fn inspect_once(pid: u32) -> Result<Self, AttachError> {
        let path = format!("/proc/{pid}/mem");
        let memory = Memory::open_by_child(pid);
        if let Ok(memory) = &memory {
            // Two commands would write their frames to the same addresses.
            memory.try_lock_process().map_err(|_| AttachError::Busy)?;
        }
        // Before the error of `memory` is returned, because the error of this check names the reason.
        examine_process_for_load(pid)?;
        let memory = Arc::new(memory.map_err(AttachError::io_error(path))?);
        let target = Self::read_facts(pid, Arc::clone(&memory))
            .map_err(|error| memory.explain_error(error))?;
        // The child process that has read so far is too slow while threads are stopped.
        memory.switch_to_direct_reads()?;
        Ok(target)
    }

    /// Finds libc, its functions, the gadgets (instructions that chain remote calls) and the allocators in the
    /// process's memory. Fails if libc is missing, too old or unknown, if a sanitizer is linked into the program, or if
    /// the process has ended.
    fn read_facts(pid: u32, memory: Arc<Memory>) -> Result<Self, AttachError> {
        let maps = read_maps(pid)?;
        let program =
            fs::read_link(format!("/proc/{pid}/exe")).map_err(|_| process_gone_error(pid))?;
        sanitizer::require_no_sanitizer_linked(&memory, &maps, program.as_os_str().as_bytes())?;
        // Another file with that name may be mapped as data, and another namespace of dlmopen(3) has its own libc.
        let libraries = loaded_libraries(&memory, &maps)
            .map_err(AttachError::io_error("its loader's list of libraries"))?;
        let libc = mappings(&maps).find(|mapping| {
            mapping.file_name() == b"libc.so.6" && libraries.contains(&mapping.range.start)
        });
        let libc = libc.ok_or(Refusal::NoGlibc)?;
        let is_code = {
            let (start, device, inode) = (libc.range.start, libc.device.to_vec(), libc.inode);
            move |mapping: &Mapping<'_>| {
                mapping.is_executable()
                    && mapping.range.start >= start
                    && (mapping.device, mapping.inode) == (device.as_slice(), inode)
            }
        };
        let libc = libc.range.start;
        let image = LibraryImage::read(&memory, libc);
        let image = image.map_err(AttachError::io_error("libc's symbols"))?;
        let functions = Functions::find(&image).ok_or(Refusal::OldGlibc)?;
        let mut code = mappings(&maps)
            .filter(is_code)
            .take(MAX_CODE_MAPPINGS)
            .peekable();
        if code.peek().is_none() {
            // The loader maps the library's parts one after another.
            return Err(Refusal::NoGlibc.into());
        }
        let libc_code = code.peek().map(|mapping| mapping.range.clone());
        let gadgets = code.find_map(|mapping| Gadgets::find(&memory, &mapping.range));
        drop(code);
        let gadgets = gadgets.ok_or_else(|| {
            let message = "memprof does not know the signal return code of its C library";
            AttachError::Failed(message.to_owned())
        })?;
        let allocators = mappings(&maps).filter(|mapping| {
            let name = mapping.file_name();
            mapping.is_executable()
                && ALLOCATOR_FILES
                    .iter()
                    .any(|prefix| name.starts_with(prefix))
        });
        let allocators: Vec<_> = allocators.map(|mapping| mapping.range).collect();
        Ok(Self {
            pid,
            malloc_code: libc_code.into_iter().collect(),
            allocators,
            memory,
            functions,
            gadgets,
            running: ProgramCodeMap::default(),
            libc,
            maps,
        })
    }

    /// Reads the mappings of the process again. Fails if the process has ended or executed another program.
    pub(crate) fn refresh(&mut self) -> Result<(), AttachError> {
        // Not two texts at the same time: each may take 64 MiB.
        self.maps = Vec::new();
        self.maps = read_maps(self.pid)?;
        self.require_same_program()
    }

    /// Fails if the process has ended or executed another program: the addresses in `self` are then invalid.
    pub(crate) fn require_same_program(&self) -> Result<(), AttachError> {
        // The open memory file belongs to the program that was executed at its opening.
        match self.memory.read_u64(self.libc) {
            Ok(_) if !self.memory.was_program_replaced() => Ok(()),
            _ => Err(self.process_gone_error()),
        }
    }

    /// Returns the error for a process that cannot be reached any more: it has ended or executed another program.
    pub(crate) fn process_gone_error(&self) -> AttachError {
        process_gone_error(self.pid)
    }

    /// Returns the mapping that contains an address, as of the last [`refresh`](Self::refresh); `None` if there is
    /// none.
    pub(crate) fn mapping_at(&self, address: u64) -> Option<Mapping<'_>> {
        mappings(&self.maps).find(|mapping| mapping.range.contains(&address))
    }
}

impl Functions {
    /// Looks up the functions in libc; `None` if one is missing.
    fn find(libc: &LibraryImage) -> Option<Self> {
        Some(Self {
            pthread_create: libc.symbol_address("pthread_create")?,
            pthread_attr_init: libc.symbol_address("pthread_attr_init")?,
            pthread_attr_getstacksize: libc.symbol_address("pthread_attr_getstacksize")?,
            pthread_attr_setstacksize: libc.symbol_address("pthread_attr_setstacksize")?,
            pthread_self: libc.symbol_address("pthread_self")?,
            pthread_detach: libc.symbol_address("pthread_detach")?,
            dlopen: libc.symbol_address("dlopen")?,
            dlsym: libc.symbol_address("dlsym")?,
            dlerror: libc.symbol_address("dlerror")?,
            munmap: libc.symbol_address("munmap")?,
        })
    }
}

/// Reads /proc/PID/maps, in which [long lines are shortened](read_maps_text). Fails if the process has no memory any
/// more, or if the text is too long.
pub(crate) fn read_maps(pid: u32) -> Result<Vec<u8>, AttachError> {
    match read_maps_text(pid) {
        Ok(maps) if !maps.is_empty() => Ok(maps),
        Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
            Err(AttachError::Failed(error.to_string()))
        }
        _ => Err(process_gone_error(pid)),
    }
}

/// Returns the reason why a process cannot be reached any more: it executes another program, its main thread has ended,
/// or all its threads have.
fn process_gone_error(pid: u32) -> AttachError {
    // The link exe cannot be read for a thread that has ended.
    let is_alive = |directory: &Path| fs::read_link(directory.join("exe")).is_ok();
    let process = Path::new("/proc").join(pid.to_string());
    AttachError::Refused(if is_alive(&process) {
        Refusal::Executed
    } else if thread_dirs(&process).any(|thread| is_alive(&thread)) {
        Refusal::MainThreadEnded
    } else {
        Refusal::Ended
    })
}

/// Returns the error for the case that the page which memprof shares with a new thread of the process is not mapped any
/// more: the process has ended or executed another program, or the new thread went on without memprof.
pub(crate) fn thread_lost_error(target: &Target) -> AttachError {
    if let Err(error) = target.require_same_program() {
        return error;
    }
    let message = "its new thread did not wait for memprof (does a seccomp filter forbid nanosleep?); \
                   `memprof ps` tells whether it is a host now";
    AttachError::Failed(message.to_owned())
}

/// Iterates over the directories of the threads of a process, /proc/PID/task/TID; empty if it has ended.
pub(crate) fn thread_dirs(process: &Path) -> impl Iterator<Item = PathBuf> {
    let threads = fs::read_dir(process.join("task")).into_iter().flatten();
    threads.flatten().map(|thread| thread.path())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// Starts sh(1) with a script, and waits until it reads a line of standard input.
    fn start_script(script: &str) -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::piped());
        let child = command.spawn().unwrap();
        wait_for(child.id(), "sh");
        child
    }

    /// Waits until the process executes the program with that name and waits for a line.
    fn wait_for(pid: u32, name: &str) {
        let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap();
        while read("comm").trim_end() != name || !read("syscall").starts_with("0 ") {
            std::thread::yield_now();
        }
    }

    fn end(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn lock_on_proc_directory_does_not_block_attaching() {
        let child = start_script("read x");
        let directory = File::open(format!("/proc/{}", child.id())).unwrap();
        directory.lock().unwrap();
        let target = Target::inspect(child.id()).unwrap();
        let second = Target::inspect(child.id()).unwrap_err();
        assert!(matches!(second, AttachError::Busy), "{second:?}");
        drop(target);
        // The child of a test that runs in parallel holds the lock too, until it executes its program.
        let again = loop {
            match Target::inspect(child.id()) {
                Err(AttachError::Busy) => std::thread::yield_now(),
                again => break again,
            }
        };
        again.unwrap();
        end(child);
    }

    #[test]
    fn process_without_main_thread_is_reported() {
        // exit(2) ends the main thread alone.
        let script = "threads->create(sub { sleep 3600 }); <STDIN>; syscall(60, 0)";
        let mut command = Command::new("perl");
        command.args(["-Mthreads", "-e", script]);
        let child = command.stdin(Stdio::piped()).spawn().unwrap();
        let pid = child.id();
        wait_for(pid, "perl");
        let mut target = Target::inspect(pid).unwrap();
        child.stdin.as_ref().unwrap().write_all(b"\n").unwrap();
        let exe = format!("/proc/{pid}/exe");
        while fs::read_link(&exe).is_ok() {
            std::thread::yield_now();
        }
        let error = target.refresh().unwrap_err().to_string();
        assert!(error.starts_with("its main thread has ended"), "{error}");
        end(child);
    }

    #[test]
    fn execve_and_exit_are_reported() {
        let mut child = start_script("read x; exec cat");
        let pid = child.id();
        let mut target = Target::inspect(pid).unwrap();
        target.refresh().unwrap();
        child.stdin.as_ref().unwrap().write_all(b"\n").unwrap();
        wait_for(pid, "cat");
        let error = target.refresh().unwrap_err();
        assert_eq!(error.to_string(), "has executed another program meanwhile");
        child.kill().unwrap();
        let exe = format!("/proc/{pid}/exe");
        while fs::read_link(&exe).is_ok() {
            std::thread::yield_now();
        }
        let error = target.require_same_program().unwrap_err();
        assert_eq!(error.to_string(), "has ended meanwhile");
        child.wait().unwrap();
    }
}
