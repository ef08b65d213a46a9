//! A library to preload beside jemalloc: at the program's start it installs memprof's stack walker in jemalloc, at the
//! exit it reports what the walks found and cost.
//!
//! The environment variable `UNWIND_PROBE` is the number of a mode; the report is a line of JSON, appended to the file
//! in `UNWIND_PROBE_REPORT`. `cargo xtask bench unwind` and `cargo xtask torture unwind` use it.
#![expect(unsafe_code, reason = "the allocator calls, and the unwinder")]

mod timing;

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::io::Write;
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use memprof_unwind::{FindObject, HOOKS, Walker, prepare_walks, rules_read_count};

/// Walker of the samples. `UNWIND_PROBE` and `unwind_probe_install` take the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WalkMode {
    /// 0: jemalloc's.
    Allocator,
    /// 1: no walk; writes one frame, which is the least that a sample can cost.
    None,
    /// 2: memprof's.
    Memprof,
    /// 3: both, on each sample, to compare the stacks.
    Compared,
    /// 4: either one at random; the clock is read before and after.
    Timed,
}

impl WalkMode {
    /// Returns the mode with that number. `None` if there is none.
    fn from_number(number: c_uint) -> Option<Self> {
        let modes = [
            Self::Allocator,
            Self::None,
            Self::Memprof,
            Self::Compared,
            Self::Timed,
        ];
        modes.get(number as usize).copied()
    }
}

type Mallctl =
    unsafe extern "C" fn(*const c_char, *mut c_void, *mut usize, *mut c_void, usize) -> c_int;

const WALKER_CONTROL: &CStr = c"experimental.hooks.prof_backtrace";

/// Address of jemalloc's own walker; 0 until the first `install_walker`.
static ALLOCATOR_WALKER: AtomicUsize = AtomicUsize::new(0);
/// Samples that memprof's hook does not count.
static SAMPLES: AtomicU64 = AtomicU64::new(0);

/// Returns jemalloc's own walker, which the first [`install_walker`] has stored. Must not be called before that.
fn allocator_walker() -> Walker {
    // SAFETY: `install_walker` stored jemalloc's walker before anything here calls it.
    unsafe { mem::transmute::<usize, Walker>(ALLOCATOR_WALKER.load(Relaxed)) }
}

/// Counts a sample, and walks its stack by jemalloc's walker.
unsafe extern "C" fn count_and_walk(frames: *mut *mut c_void, count: *mut u32, capacity: u32) {
    SAMPLES.fetch_add(1, Relaxed);
    // SAFETY: jemalloc passed these arguments for its own walker.
    unsafe { allocator_walker()(frames, count, capacity) };
}

/// Counts a sample, and writes one frame, of this function, in place of its stack.
unsafe extern "C" fn count_and_write_one_frame(frames: *mut *mut c_void, count: *mut u32, _: u32) {
    SAMPLES.fetch_add(1, Relaxed);
    // SAFETY: jemalloc passes a buffer for at least one frame.
    unsafe { frames.write(count_and_write_one_frame as *mut c_void) };
    // SAFETY: jemalloc passes a pointer to the count.
    unsafe { count.write(1) };
}

/// Replaces the installed mode by the one of this number in [`WalkMode`]. Returns 0, or -1 if the mode is unknown or
/// jemalloc has no control [`WALKER_CONTROL`].
#[unsafe(no_mangle)]
extern "C" fn unwind_probe_install(number: c_uint) -> c_int {
    let installed = WalkMode::from_number(number).and_then(install_walker);
    installed.map_or(-1, |()| 0)
}

/// Clears the caches of the walker, as is done after the program unloads a library.
#[unsafe(no_mangle)]
extern "C" fn unwind_probe_forget() {
    memprof_unwind::clear_rules();
    memprof_unwind::clear_stack_cache();
}

/// Returns the number of samples so far, in all modes together.
#[unsafe(no_mangle)]
extern "C" fn unwind_probe_samples() -> u64 {
    SAMPLES.load(Relaxed) + HOOKS[0].counts().samples
}

/// Makes jemalloc call the walker of this mode. The first call stores jemalloc's own walker. `None` if the program has
/// no jemalloc with the control [`WALKER_CONTROL`].
fn install_walker(mode: WalkMode) -> Option<()> {
    let mallctl = find_symbol(c"mallctl")?;
    // SAFETY: jemalloc.3 gives the function of this name this type.
    let mallctl = unsafe { mem::transmute::<*mut c_void, Mallctl>(mallctl) };
    if ALLOCATOR_WALKER.load(Relaxed) == 0 {
        ALLOCATOR_WALKER.store(exchange_walker(mallctl, None)?, Relaxed);
    }
    // `arm` resets the hook's count, so its samples are added here.
    SAMPLES.fetch_add(HOOKS[0].counts().samples, Relaxed);
    // Meanwhile jemalloc calls its own walker: no new sample enters the hook while `arm` resets it.
    exchange_walker(mallctl, Some(count_and_walk as *const () as usize))?;
    // How many of the first samples both walkers walk.
    let to_compare = match mode {
        WalkMode::Compared => u64::MAX,
        _ => 1,
    };
    // SAFETY: the walker is jemalloc's own, `prepare_at_start` called `prepare_walks`, and no other allocator gets this
    // hook.
    unsafe { HOOKS[0].arm(allocator_walker(), to_compare) };
    let walker = match mode {
        WalkMode::Allocator => count_and_walk,
        WalkMode::None => count_and_write_one_frame,
        WalkMode::Memprof | WalkMode::Compared => HOOKS[0].entry_function(),
        WalkMode::Timed => timing::time_one_walk,
    };
    exchange_walker(mallctl, Some(walker as *const () as usize))?;
    Some(())
}

/// Reads the address of jemalloc's current walker, and replaces it by `new`; `None` replaces nothing. Returns the
/// address, or `None` if mallctl fails.
fn exchange_walker(mallctl: Mallctl, new: Option<usize>) -> Option<usize> {
    let mut old = 0_usize;
    let mut size = size_of::<usize>();
    let mut value = new.unwrap_or(0);
    let (new, new_size) = match new {
        Some(_) => ((&raw mut value).cast(), size_of::<usize>()),
        None => (ptr::null_mut(), 0),
    };
    // SAFETY: this control reads and writes one pointer (jemalloc.3, `experimental.hooks.prof_backtrace`).
    let rc = unsafe {
        mallctl(
            WALKER_CONTROL.as_ptr(),
            (&raw mut old).cast(),
            &raw mut size,
            new,
            new_size,
        )
    };
    (rc == 0).then_some(old)
}

/// Returns the address of a symbol in the program or its libraries. `None` if there is none.
fn find_symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the name is a `CStr`, which ends with NUL, as dlsym(3) needs.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// Runs at the program's start: prepares memprof's walker, and installs the mode in `UNWIND_PROBE`, if it is set, and
/// the report at the exit. Does nothing without glibc's `_dl_find_object`.
extern "C" fn prepare_at_start() {
    let Some(find) = find_symbol(c"_dl_find_object") else {
        return;
    };
    // SAFETY: dlfcn.h of glibc gives the function of this name this type.
    let find = unsafe { mem::transmute::<*mut c_void, FindObject>(find) };
    // AT_RANDOM points into the topmost page of the main thread's stack.
    // SAFETY: getauxval(3) reads a constant of this process.
    let top = unsafe { libc::getauxval(libc::AT_RANDOM) };
    prepare_walks(find, top as usize);
    let mode = std::env::var("UNWIND_PROBE").ok();
    let Some(mode) = mode.and_then(|number| WalkMode::from_number(number.parse().ok()?)) else {
        return;
    };
    if install_walker(mode).is_some() {
        // SAFETY: the function stays loaded until the exit, because preloaded libraries are not unloaded.
        unsafe { libc::atexit(append_report) };
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static INIT: extern "C" fn() = prepare_at_start;

/// Runs at the exit: appends the report to the file in `UNWIND_PROBE_REPORT`, if it is set.
extern "C" fn append_report() {
    let (Some(path), Ok(name)) = (
        std::env::var_os("UNWIND_PROBE_REPORT"),
        std::fs::read_to_string("/proc/self/comm"),
    ) else {
        return;
    };
    let counts = HOOKS[0].counts();
    let line = format!(
        "{{\"program\":{:?},\"samples\":{},\"compared\":{},\"agreed\":{},\"fallbacks\":{},\
         \"cut\":{},\"given_up\":{},\"rules_read\":{},{}}}\n",
        name.trim_end(),
        unwind_probe_samples(),
        counts.compared,
        counts.agreed,
        counts.fallbacks,
        counts.cut,
        counts.given_up,
        rules_read_count(),
        timing::json_fields(),
    );
    let written = std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(path)
        .and_then(|mut file| file.write_all(line.as_bytes()));
    // A probe has no other way to report; the reader of the file notices the missing line.
    drop(written);
}
