//! Binds tikv-jemalloc-ctl to the host's jemalloc instead of its bundled copy.
//!
//! tikv-jemalloc-ctl calls `_rjem_mallctl` and three related functions. If the linker resolved them, it would link the
//! bundled jemalloc, and the plugin would read the statistics of an unused allocator. So this image defines these
//! symbols as jumps to the host's functions. If another symbol of jemalloc were needed, the definitions would clash,
//! which is a link error. The symbols are hidden, because a preloaded plugin must not provide the process with a
//! `_rjem_mallctl`. The two functions that take a MIB only return an error: most programs lack them, and all code here
//! uses names.
#![expect(unsafe_code, reason = "the allocator calls")]

use std::arch::global_asm;
use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::{mem, ptr};

use memprof_core::{Error, Mallctl, Printout, StatsPrintFn};
use memprof_messages::HeapTotals;
use memprof_own::ProcessLock;
use memprof_plugin_abi::Host;
use memprof_plugin_abi::raw::memprof_stats_callback_t;
use tikv_jemalloc_ctl::{epoch, stats, stats_print};

#[cfg(not(target_arch = "x86_64"))]
compile_error!("the trampolines to the host's jemalloc are written for x86-64");

/// Targets of the trampolines: `mallctl` and `malloc_stats_print`. Null outside of [`with_jemalloc_bound`], when
/// nothing calls the trampolines, and if the host lacks the function.
static TARGETS: [AtomicPtr<c_void>; 2] = [const { AtomicPtr::new(ptr::null_mut()) }; 2];

/// Admits one binding at a time.
static BINDING: ProcessLock = ProcessLock::new();

global_asm!(
    ".macro memprof_jump name, slot",
    ".globl \\name",
    ".hidden \\name",
    ".type \\name, @function",
    "\\name:",
    "mov rax, qword ptr [rip + {targets} + \\slot]",
    "test rax, rax",
    "jz 2f",
    "jmp rax",
    "2: jmp {unbound}",
    ".size \\name, . - \\name",
    ".endm",
    ".pushsection .text.memprof_shim, \"ax\", @progbits",
    "memprof_jump _rjem_mallctl, 0",
    "memprof_jump _rjem_malloc_stats_print, 8",
    ".globl _rjem_mallctlnametomib, _rjem_mallctlbymib",
    ".hidden _rjem_mallctlnametomib, _rjem_mallctlbymib",
    "_rjem_mallctlnametomib:",
    "_rjem_mallctlbymib:",
    "jmp {unbound}",
    ".popsection",
    targets = sym TARGETS,
    unbound = sym fail_unbound_call,
);

/// Returns ENOSYS. The C functions that tikv-jemalloc-ctl calls jump here while no jemalloc is bound to them. The two
/// functions that take a MIB (an option's number instead of its name) always do.
extern "C" fn fail_unbound_call() -> c_int {
    const ENOSYS: c_int = 38;
    ENOSYS
}

/// Runs `work` while calls of tikv-jemalloc-ctl go to `mallctl`. At other times they fail with ENOSYS. Blocks while
/// another thread is in this function.
fn with_jemalloc_bound<T>(mallctl: &Mallctl, work: impl FnOnce() -> T) -> T {
    let _guard = BINDING.lock();
    let bind = |pointers: [*mut c_void; 2]| {
        for (target, pointer) in TARGETS.iter().zip(pointers) {
            target.store(pointer, Ordering::Release);
        }
    };
    let stats_print = mallctl.stats_print_function();
    bind([
        mallctl.mallctl_function() as *mut c_void,
        stats_print.map_or(ptr::null_mut(), |print| print as *mut c_void),
    ]);
    let result = work();
    bind([ptr::null_mut(); 2]);
    result
}

/// Returns the host's own jemalloc functions. `None` if the host does not pass them, or passes no `mallctl`.
pub(crate) fn host_mallctl(host: &Host) -> Option<Mallctl> {
    type RawStatsPrintFn =
        unsafe extern "C" fn(memprof_stats_callback_t, *mut c_void, *const c_char);
    let found = host.jemalloc()?;
    let mallctl = found.mallctl?;
    // SAFETY: `memprof_stats_callback_t` is transparent, so both function types have the same calling convention.
    let typed = |print| unsafe { mem::transmute::<RawStatsPrintFn, StatsPrintFn>(print) };
    let stats_print = found.malloc_stats_print.map(typed);
    // SAFETY: memprof.h, `memprof_jemalloc_t`: the functions belong to the host's own jemalloc, and stay valid until
    // the process ends.
    Some(unsafe { Mallctl::new(mallctl, stats_print) })
}

/// Reads the current heap totals of a jemalloc, in bytes.
///
/// # Errors
/// `Allocator`: jemalloc refused.
pub(crate) fn read_heap_totals(mallctl: &Mallctl) -> Result<HeapTotals, Error> {
    with_jemalloc_bound(mallctl, read_bound_totals)
        .map_err(|error| refused_read_error("stats", &error.to_string()))
}

/// Reads the output of `malloc_stats_print`, with the sums over all arenas but not the single arenas.
///
/// # Errors
/// `Allocator`: jemalloc refused.
pub(crate) fn read_printout(mallctl: &Mallctl) -> Result<Printout, Error> {
    with_jemalloc_bound(mallctl, || {
        let mut options = stats_print::Options::default();
        options.skip_per_arena = true;
        let mut printout = Printout::default();
        stats_print::stats_print(&mut printout, options)
            .map_err(|error| refused_read_error("malloc_stats_print", &error.to_string()))?;
        Ok(printout)
    })
}

/// Refreshes jemalloc's statistics (`epoch`), and reads the heap totals of the jemalloc that is bound.
fn read_bound_totals() -> tikv_jemalloc_ctl::Result<HeapTotals> {
    epoch::advance()?;
    Ok(HeapTotals {
        allocated: stats::allocated::read()? as u64,
        active: stats::active::read()? as u64,
        metadata: stats::metadata::read()? as u64,
        resident: stats::resident::read()? as u64,
        mapped: stats::mapped::read()? as u64,
        retained: stats::retained::read()? as u64,
        ..HeapTotals::default()
    })
}

/// Creates the error, of kind `Allocator`, that jemalloc refused to report its statistics. `source` is the name of the
/// statistics or of the function that reports them, such as `stats`.
fn refused_read_error(source: &str, reason: &str) -> Error {
    Error::allocator(format!("jemalloc refused {source}: {reason}"))
}
