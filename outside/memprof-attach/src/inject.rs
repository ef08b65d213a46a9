//! Attaches to a process: two sequences of remote calls create a thread in it, which loads and starts the plugin.

use std::arch::x86_64::__cpuid_count;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use libc::{PROT_EXEC, PROT_READ, PROT_WRITE};
use memprof_ptrace::Refusal;
use memprof_ptrace::process::{FAULT_SIGNALS, ProcStatus};
use memprof_ptrace::remote_call::RemoteCall;

use crate::address_gap::find_unmapped_gap;
use crate::attachment::Attachment;
use crate::error::{AttachError, explain_exit_or_exec};
use crate::fork;
use crate::injected_code::{creator_offset, loader_code};
use crate::jvm;
use crate::load_outcome::{LoadOutcome, wait_until_loaded};
use crate::memory_file::MEMFD_NAME;
use crate::outcome::AttachOutcome;
use crate::plugin::{ENTRY_NAME, Plugin, PluginSource};
use crate::room::require_room_for_attachment;
use crate::run_calls::{
    FunctionStack, build_map_call, build_unmap_call, run_calls, unmap_ranges, wait_until_mapped,
    write_error,
};
use crate::shared_page::{self, RemotePage, SharedPage};
use crate::target::Target;
use crate::target_root::TemporaryCopy;
use crate::thread_limit::RaisedThreadLimit;

const PAGE_SIZE: u64 = 4096;
/// Size of the stack on which a remote call runs `pthread_create(3)` and the program's allocator, in bytes.
const STACK_SIZE: u64 = 128 << 10;
/// Interval at which the new thread polls for a reply: `tv_nsec` of its `struct timespec`.
const THREAD_POLL_INTERVAL_NS: u64 = 10_000_000;

/// Signals that libc uses: for `pthread_cancel(3)`, and for setuid(3), which waits for every thread.
const SIGCANCEL: i32 = 32;
const SIGSETXID: i32 = 33;

/// Loads the plugin into a process and starts it there; only starts it if an earlier attachment left it loaded. A Java
/// virtual machine is requested to load the plugin; in other processes, a new thread loads it.
///
/// # Errors
/// The reason why the process was not attached to. The process continues as before.
pub fn attach(
    pid: u32,
    plugin: &Plugin,
    attachment: &Attachment,
) -> Result<AttachOutcome, AttachError> {
    explain_exit_or_exec(pid, || match jvm::load_plugin(pid, plugin, attachment)? {
        true => Ok(AttachOutcome::ByJvm),
        false => attach_by_new_thread(pid, plugin, attachment),
    })
}

/// Loads the plugin by a new thread in the process. If the process may not load the plugin's file, tries a file in
/// memory. Raises the process's thread limit if necessary. Fails if the process cannot be attached to, has no room for
/// the plugin, or can load neither file.
fn attach_by_new_thread(
    pid: u32,
    plugin: &Plugin,
    attachment: &Attachment,
) -> Result<AttachOutcome, AttachError> {
    let mut target = Target::inspect(pid)?;
    require_room_for_attachment(pid, &target.maps)?;
    let source = plugin.choose_source(&target)?;
    let handled = fork::signals_that_may_fork(&target, &ProcStatus::read_thread(pid)?);
    let raised = RaisedThreadLimit::raise_if_needed(pid)?;
    let limits = raised.as_ref().map(|raised| raised.limits);
    let mut toml = attachment.to_toml();
    if let Some(limits) = limits {
        // Before the config file's table, which would take all following keys.
        toml = format!("thread_limit = {limits}\n{toml}");
    }
    let injection = match inject_plugin(&mut target, plugin, &source, &toml) {
        // The file exists, but this process may not load it: because of its user, noexec or a security module.
        Err(AttachError::NotLoaded(file_error)) if source.is_refused(&file_error) => {
            target.refresh()?;
            inject_plugin(&mut target, plugin, &PluginSource::Memfd, &toml).map_err(|error| {
                match error {
                    AttachError::NotLoaded(memfd_error) => Refusal::NotOpened {
                        file_error,
                        memfd_error,
                    }
                    .into(),
                    error => error,
                }
            })
        }
        injection => injection,
    }?;
    // From now on, the plugin is responsible for restoring the thread limit.
    raised.into_iter().for_each(RaisedThreadLimit::leave_raised);
    Ok(AttachOutcome::ByThread {
        stops: injection.stops.to_vec(),
        thread: injection.thread,
        handled,
        thread_limit: limits
            .and_then(|limits| Some((limits.original.current?, limits.raised.current?))),
    })
}

/// A plugin that was loaded and started, with the stops that this took.
struct Injection {
    /// Durations of the stops of the two threads, in the order of the calls.
    stops: [Duration; 2],
    /// Thread that was stopped last.
    thread: u32,
}

/// Makes the process load the plugin from `source` and call it with `toml`, its configuration. Two sequences of remote
/// calls map memory for code and data, and create a thread that runs the code. Blocks until the plugin was started. If
/// the plugin cannot be loaded, or refuses to start, fails with `NotLoaded` and the reason.
fn inject_plugin(
    target: &mut Target,
    plugin: &Plugin,
    source: &PluginSource,
    toml: &str,
) -> Result<Injection, AttachError> {
    let mut page = SharedPage::new(toml);
    let layout = TargetLayout::choose(target, &page)?;
    fill_shared_page(&mut page, target, &layout, source);

    let maps = [
        build_map_call(layout.code, PAGE_SIZE, PROT_READ | PROT_EXEC),
        build_map_call(
            layout.page,
            layout.end - layout.page,
            PROT_READ | PROT_WRITE,
        ),
    ];
    let mapped = [layout.code..layout.page, layout.page..layout.end];
    let first = run_calls(target, &maps, None, u64::MAX)?;
    wait_until_mapped(target, &mapped, &first)?;
    // /proc/PID/mem writes to executable pages too, although they have no write access.
    let write = |address, bytes: &[u8]| target.memory.write(address, bytes);
    let written = write(layout.page, page.bytes()).and_then(|()| write(layout.code, loader_code()));
    if let Err(cause) = written {
        let error = write_error(target, cause);
        return Err(error.with_pages_left(unmap_ranges(target, &mapped)));
    }

    let create = [
        RemoteCall::Function(layout.code + creator_offset(), [layout.page, 0, 0, 0]),
        build_unmap_call(&(layout.stack..layout.end)),
    ];
    // A fault with a blocked signal would end the process without its handler.
    let unblocked = FAULT_SIGNALS.iter().chain([&SIGSETXID]);
    let stack = FunctionStack {
        end: layout.end,
        page: layout.page,
    };
    let second = run_calls(target, &create, Some(stack), signal_mask_except(unblocked));
    let second = second.map_err(|error| error.with_pages_left(unmap_ranges(target, &mapped)))?;
    let page = RemotePage {
        memory: &target.memory,
        address: layout.page,
    };
    let message = match wait_until_loaded(target, page, plugin, &second)? {
        LoadOutcome::Finished(message) => message,
        LoadOutcome::NoThread(errno) => {
            // The stopped thread has unmapped the stack in its second call.
            let left = [layout.code..layout.page, layout.page..layout.stack];
            let are_left = unmap_ranges(target, &left);
            let refused = require_room_for_attachment(target.pid, &target.maps).err();
            let error = AttachError::from(refused.unwrap_or(Refusal::NoThread { errno }));
            return Err(error.with_pages_left(are_left));
        }
    };
    match message {
        message if message.is_empty() => Ok(Injection {
            stops: [first.stop, second.stop],
            thread: second.tid,
        }),
        message => Err(AttachError::NotLoaded(message)),
    }
}

/// Addresses of memprof's code, shared page and temporary stack in the target, which are adjacent.
#[derive(Debug)]
struct TargetLayout {
    code: u64,
    page: u64,
    stack: u64,
    end: u64,
}

impl TargetLayout {
    /// Chooses unused addresses of the target for code, page and stack. Fails if there is no gap for them.
    fn choose(target: &Target, page: &SharedPage) -> Result<Self, AttachError> {
        let page_size = (page.bytes().len() as u64).next_multiple_of(PAGE_SIZE);
        let code = find_unmapped_gap(&target.maps, PAGE_SIZE + page_size + STACK_SIZE);
        let code = code.ok_or_else(|| {
            AttachError::Failed("its address space has no room for memprof's pages".to_owned())
        })?;
        let page = code + PAGE_SIZE;
        let stack = page + page_size;
        Ok(Self {
            code,
            page,
            stack,
            end: stack + STACK_SIZE,
        })
    }
}

/// Stores in the shared page the addresses of functions, the names and the parameters that the new thread reads.
fn fill_shared_page(
    page: &mut SharedPage,
    target: &Target,
    layout: &TargetLayout,
    source: &PluginSource,
) {
    let functions = &target.functions;
    page.set_word(shared_page::DLOPEN, functions.dlopen);
    page.set_word(shared_page::DLSYM, functions.dlsym);
    page.set_word(shared_page::DLERROR, functions.dlerror);
    page.set_word(shared_page::MUNMAP, functions.munmap);
    page.set_word(shared_page::CREATE, functions.pthread_create);
    page.set_word(shared_page::ATTRIBUTES_INIT, functions.pthread_attr_init);
    page.set_word(
        shared_page::GET_STACK_SIZE,
        functions.pthread_attr_getstacksize,
    );
    page.set_word(
        shared_page::SET_STACK_SIZE,
        functions.pthread_attr_setstacksize,
    );
    page.set_word(shared_page::SYSTEM_CALL, target.gadgets.system_call);
    page.set_word(shared_page::SELF, functions.pthread_self);
    page.set_word(shared_page::DETACH, functions.pthread_detach);
    page.set_word(shared_page::BASE, layout.code);
    page.set_word(shared_page::LENGTH, layout.stack - layout.code);
    let unblocked = FAULT_SIGNALS.iter().chain([&SIGSETXID, &SIGCANCEL]);
    page.set_word(shared_page::MASK, signal_mask_except(unblocked));
    // `tv_nsec` of a `timespec`.
    page.set_word(shared_page::PAUSE + 8, THREAD_POLL_INTERVAL_NS);
    page.set_word(shared_page::HAS_KEYS, u64::from(has_protection_keys()));
    page.set_text(shared_page::MALLOC_NAME, b"malloc");
    page.set_text(shared_page::FREE_NAME, b"free");
    let malloc_code = target.malloc_code.iter().take(shared_page::MAX_MALLOC_CODE);
    for (index, code) in malloc_code.enumerate() {
        let offset = shared_page::MALLOC_CODE + 16 * index;
        page.set_word(offset, code.start);
        page.set_word(offset + 8, code.end);
    }
    page.set_text(shared_page::ENTRY_NAME, ENTRY_NAME.as_bytes());
    page.set_text(shared_page::MEMFD_NAME, MEMFD_NAME.as_bytes());
    match source {
        PluginSource::Loaded(entry) => page.set_word(shared_page::ENTRY, *entry),
        PluginSource::Path(path) | PluginSource::TemporaryCopy(TemporaryCopy { path, .. }) => {
            page.set_text(shared_page::PATH, path.as_os_str().as_bytes());
        }
        PluginSource::Memfd => page.set_word(shared_page::WANTS_MEMFD, 1),
    }
}

/// Returns whether the kernel of this machine, which is the target's, has enabled protection keys (pkeys(7)).
fn has_protection_keys() -> bool {
    /// OSPKE, a bit of ecx of leaf 7 (Intel SDM, volume 2, CPUID).
    const OSPKE: u32 = 1 << 4;
    __cpuid_count(0, 0).eax >= 7 && __cpuid_count(7, 0).ecx & OSPKE != 0
}

/// Returns the signal mask of all signals except those with the numbers in `signals`.
fn signal_mask_except<'a>(signals: impl Iterator<Item = &'a i32>) -> u64 {
    signals.fold(u64::MAX, |mask, signal| mask & !(1 << (signal - 1)))
}
