//! Preloaded into a program beside jemalloc, it puts our stack walk into jemalloc at the start and
//! says at the exit what it saw.
//!
//! `UNWIND_PROBE` is the number of a mode; the report is a line that is appended to the file
//! `UNWIND_PROBE_REPORT`. `cargo xtask bench unwind` and `cargo xtask torture unwind` use it.
#![expect(unsafe_code, reason = "the allocator calls, and the unwinder")]

mod timing;

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::io::Write;
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use memprof_unwind::{FindObject, HOOKS, Walker, prepare, rules_read};

/// Who walks. The numbers are what `UNWIND_PROBE` and `unwind_probe_install` take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WalkMode {
    /// 0: jemalloc.
    Allocator,
    /// 1: nobody; one frame is written, which is the least that a sample can cost.
    None,
    /// 2: we.
    Memprof,
    /// 3: both, on each sample.
    Compared,
    /// 4: the one or the other by chance, with a look at the clock before and after.
    Timed,
}

impl WalkMode {
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

const CONTROL: &CStr = c"experimental.hooks.prof_backtrace";

/// jemalloc's own walker.
static THEIRS: AtomicUsize = AtomicUsize::new(0);
/// Samples that no hook of ours counts.
static SAMPLES: AtomicU64 = AtomicU64::new(0);

fn theirs() -> Walker {
    // SAFETY: `install` stored jemalloc's walker before anything here calls it.
    unsafe { mem::transmute::<usize, Walker>(THEIRS.load(Relaxed)) }
}

unsafe extern "C" fn count_and_walk(frames: *mut *mut c_void, count: *mut u32, room: u32) {
    SAMPLES.fetch_add(1, Relaxed);
    // SAFETY: with what jemalloc passed.
    unsafe { theirs()(frames, count, room) };
}

unsafe extern "C" fn walk_nothing(frames: *mut *mut c_void, count: *mut u32, _: u32) {
    SAMPLES.fetch_add(1, Relaxed);
    // SAFETY: jemalloc passes room for at least one frame.
    unsafe { frames.write(walk_nothing as *mut c_void) };
    // SAFETY: jemalloc passes room for the count.
    unsafe { count.write(1) };
}

/// Installs a mode in place of another one. Returns 0, or -1 where that cannot be.
#[unsafe(no_mangle)]
extern "C" fn unwind_probe_install(number: c_uint) -> c_int {
    let installed = WalkMode::from_number(number).and_then(install);
    installed.map_or(-1, |()| 0)
}

/// Does what is done in a program after it unloaded a library.
#[unsafe(no_mangle)]
extern "C" fn unwind_probe_forget() {
    memprof_unwind::clear_rules();
    memprof_unwind::clear_stack_cache();
}

/// Samples so far, in all modes.
#[unsafe(no_mangle)]
extern "C" fn unwind_probe_samples() -> u64 {
    SAMPLES.load(Relaxed) + HOOKS[0].counts().samples
}

fn install(mode: WalkMode) -> Option<()> {
    let mallctl = lookup(c"mallctl")?;
    // SAFETY: jemalloc.3 gives the function of this name this type.
    let mallctl = unsafe { mem::transmute::<*mut c_void, Mallctl>(mallctl) };
    if THEIRS.load(Relaxed) == 0 {
        THEIRS.store(exchange(mallctl, None)?, Relaxed);
    }
    // Counts go on in one place while the other one starts anew.
    SAMPLES.fetch_add(HOOKS[0].counts().samples, Relaxed);
    exchange(mallctl, Some(count_and_walk as *const () as usize))?;
    let to_compare = match mode {
        WalkMode::Compared => u64::MAX,
        _ => 1,
    };
    // SAFETY: jemalloc's own walker; `begin` prepared; no other allocator gets this hook.
    unsafe { HOOKS[0].arm(theirs(), to_compare) };
    let walker = match mode {
        WalkMode::Allocator => count_and_walk,
        WalkMode::None => walk_nothing,
        WalkMode::Memprof | WalkMode::Compared => HOOKS[0].entry(),
        WalkMode::Timed => timing::walk,
    };
    exchange(mallctl, Some(walker as *const () as usize))?;
    Some(())
}

/// Reads the walker, and replaces it by `new`.
fn exchange(mallctl: Mallctl, new: Option<usize>) -> Option<usize> {
    let mut old = 0_usize;
    let mut size = size_of::<usize>();
    let mut value = new.unwrap_or(0);
    let (new, new_size) = match new {
        Some(_) => ((&raw mut value).cast(), size_of::<usize>()),
        None => (ptr::null_mut(), 0),
    };
    // SAFETY: jemalloc.3: reads and writes one pointer.
    let rc = unsafe {
        mallctl(
            CONTROL.as_ptr(),
            (&raw mut old).cast(),
            &raw mut size,
            new,
            new_size,
        )
    };
    (rc == 0).then_some(old)
}

fn lookup(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: dlsym(3) with a NUL-terminated name.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

extern "C" fn begin() {
    let Some(find) = lookup(c"_dl_find_object") else {
        return;
    };
    // SAFETY: dlfcn.h of glibc gives the function of this name this type.
    let find = unsafe { mem::transmute::<*mut c_void, FindObject>(find) };
    // SAFETY: getauxval(3) reads a constant of this process.
    let top = unsafe { libc::getauxval(libc::AT_RANDOM) };
    prepare(find, top as usize);
    let mode = std::env::var("UNWIND_PROBE").ok();
    let Some(mode) = mode.and_then(|number| WalkMode::from_number(number.parse().ok()?)) else {
        return;
    };
    if install(mode).is_some() {
        // SAFETY: atexit(3).
        unsafe { libc::atexit(report) };
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

extern "C" fn report() {
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
        rules_read(),
        timing::report(),
    );
    let written = std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(path)
        .and_then(|mut file| file.write_all(line.as_bytes()));
    // Whoever reads the report misses the line.
    drop(written);
}
