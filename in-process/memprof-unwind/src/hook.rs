//! Function that an allocator calls for the stack of each sample.
#![expect(unsafe_code, reason = "the allocator calls it, with raw pointers")]

use core::arch::naked_asm;
use core::ffi::c_void;
use core::mem::{self, offset_of};
use core::slice;
use core::sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::HookStats;
use crate::compare::{WalkedStack, leaf_if_walks_agree};
use crate::pseudo_frames::PseudoFrames;
use crate::rule::PackedRule;
use crate::thread_walk::walk_with_fallback_rule;
use crate::walk::{Frame, Registers, WalkEnd, as_frames};
use crate::workspace::Workspace;

/// `prof_backtrace_hook_t` of jemalloc 5.3. Writes up to `n` (the third argument) program counters to the array, leaf
/// first, and sets the count, which is 0 before the call.
pub type Walker = unsafe extern "C" fn(*mut *mut c_void, *mut u32, u32);

/// One hook per allocator of the process. The allocator passes no argument that could distinguish hooks, so each hook
/// has its own entry function. Hooks are static, because a thread may be in one at any time.
pub static HOOKS: [BacktraceHook; 4] = [const { BacktraceHook::new() }; 4];

static ENTRIES: [Walker; HOOKS.len()] = [entry::<0>, entry::<1>, entry::<2>, entry::<3>];

/// After the initial comparisons, one sample in this many is compared.
const COMPARE_INTERVAL: u64 = 1024;
/// Minimum share of equal stacks, in percent, for memprof's walker to stay in use.
const MIN_AGREEMENT_PERCENT: u64 = 99;
/// Maximum number of frames that a comparison covers: more than any jemalloc of 2026 requests.
const MAX_COMPARED_FRAMES: usize = 256;

/// memprof's walker for one allocator.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct BacktraceHook {
    /// The allocator's own walker, to which [`entry`] jumps. Constant while the hook is armed.
    saved: AtomicUsize,
    /// Frame that the allocator's own walker reports below its caller; 0 if there is none.
    leaf: AtomicUsize,
    /// Number of samples to compare at the start.
    initial_comparisons: AtomicU64,
    given_up: AtomicBool,
    samples: AtomicU64,
    fallbacks: AtomicU64,
    cut: AtomicU64,
    compared: AtomicU64,
    agreed: AtomicU64,
}

impl BacktraceHook {
    const fn new() -> Self {
        Self {
            saved: AtomicUsize::new(0),
            leaf: AtomicUsize::new(0),
            initial_comparisons: AtomicU64::new(0),
            given_up: AtomicBool::new(false),
            samples: AtomicU64::new(0),
            fallbacks: AtomicU64::new(0),
            cut: AtomicU64::new(0),
            compared: AtomicU64::new(0),
            agreed: AtomicU64::new(0),
        }
    }

    /// Returns the function to pass to the allocator after [`Self::arm`]. `self` must be an element of [`HOOKS`].
    pub fn entry_function(&'static self) -> Walker {
        // The position of this hook in `HOOKS`.
        let index = (&raw const *self as usize - &raw const HOOKS as usize) / size_of::<Self>();
        ENTRIES[index]
    }

    /// Resets the counters and activates the hook. For comparison, `saved` also walks the first `initial_comparisons`
    /// samples, and later one in `COMPARE_INTERVAL`.
    ///
    /// # Safety
    /// `saved` is the walker of an allocator that stays loaded, only that allocator gets this hook, and
    /// [`prepare_walks`](crate::prepare_walks) was called.
    pub unsafe fn arm(&self, saved: Walker, initial_comparisons: u64) {
        self.saved.store(saved as usize, Relaxed);
        self.initial_comparisons.store(initial_comparisons, Relaxed);
        for count in [
            &self.samples,
            &self.fallbacks,
            &self.cut,
            &self.compared,
            &self.agreed,
        ] {
            count.store(0, Relaxed);
        }
        self.given_up.store(false, Release);
    }

    /// Returns the counts since the last [`Self::arm`].
    pub fn counts(&self) -> HookStats {
        HookStats {
            samples: self.samples.load(Relaxed),
            fallbacks: self.fallbacks.load(Relaxed),
            cut: self.cut.load(Relaxed),
            compared: self.compared.load(Relaxed),
            agreed: self.agreed.load(Relaxed),
            given_up: self.given_up.load(Relaxed),
        }
    }
}

/// Returns whether memprof walked every stack since its hooks were armed, so that no stack lacks its pseudo frames.
/// False if no hook was called.
pub fn walked_every_stack() -> bool {
    let counts = HOOKS.iter().map(BacktraceHook::counts);
    let mut called = counts.filter(|counts| counts.samples > 0).peekable();
    called.peek().is_some()
        && called.all(|counts| {
            counts.fallbacks == 0 && counts.compared == counts.agreed && !counts.given_up
        })
}

/// Function that the allocator calls for the stack of a sample. Walks the caller's stack. If that fails, jumps to the
/// saved walker, the allocator's own, with the original arguments.
///
/// # Safety
/// The contract of [`Walker`]. The caller is the allocator for which hook number `INDEX` is armed.
#[unsafe(naked)]
unsafe extern "C" fn entry<const INDEX: usize>(_: *mut *mut c_void, _: *mut u32, _: u32) {
    naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_offset rbp, -16",
        // The caller's frame pointer, and the address of its return address.
        "mov r8, rbp",
        "lea rcx, [rsp + 8]",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        // The three arguments, for the jump to the saved walker.
        "push rdi",
        "push rsi",
        "push rdx",
        // Some programs call malloc with a misaligned stack.
        "and rsp, -16",
        "mov r9d, {index}",
        "call {sample}",
        "mov rdi, [rbp - 8]",
        "mov rsi, [rbp - 16]",
        "mov rdx, [rbp - 24]",
        "leave",
        ".cfi_def_cfa rsp, 8",
        "test al, al",
        "jz 2f",
        "ret",
        "2:",
        "jmp qword ptr [rip + {hooks} + {saved}]",
        ".cfi_endproc",
        index = const INDEX,
        sample = sym walk_sample_stack,
        hooks = sym HOOKS,
        saved = const INDEX * size_of::<BacktraceHook>() + offset_of!(BacktraceHook, saved),
    )
}

/// Walks the stack of one sample, for hook number `index`. Writes up to `capacity` frames to `frames`, and their number
/// to `count`. `called` points to the return address of the hook's caller, and `bp` is that caller's frame pointer.
/// Returns false if the saved walker (the allocator's own) must walk the stack: memprof's walker failed, disagreed with
/// the saved one, or was given up.
///
/// # Safety
/// Called only by [`entry`], with the arguments of the allocator.
unsafe extern "C" fn walk_sample_stack(
    frames: *mut *mut c_void,
    count: *mut u32,
    capacity: u32,
    called: *const usize,
    bp: usize,
    index: usize,
) -> bool {
    let Some(hook) = HOOKS.get(index) else {
        return false;
    };
    if hook.given_up.load(Acquire) {
        return false;
    }
    let start = Registers {
        // SAFETY: `entry` passes the address of its return address, which is on its stack.
        pc: unsafe { called.read() },
        sp: called as usize + size_of::<usize>(),
        bp,
    };
    let number = hook.samples.fetch_add(1, Relaxed);
    if number < hook.initial_comparisons.load(Relaxed) || number % COMPARE_INTERVAL == 0 {
        // SAFETY: the allocator's arguments, as this function's caller guarantees.
        let agree = unsafe { hook.compare_walkers(frames, count, capacity, start) };
        // SAFETY: `Walker`: `count` points to a number. It must be 0 before a walk.
        unsafe { count.write(0) };
        if !agree {
            return false;
        }
    }
    // SAFETY: `Walker`: the allocator's array has `capacity` pointers.
    let buffer = unsafe { slice::from_raw_parts_mut(frames.cast(), capacity as usize) };
    // Only now, because the comparison needs stacks without pseudo frames.
    let pseudo_frames = PseudoFrames::for_this_thread();
    let before = pseudo_frames.frames_left_for_stack(buffer.len());
    let stack = buffer.get_mut(..before).unwrap_or_default();
    let Some(walked) = hook.walk_into_buffer(start, hook.leaf.load(Relaxed), stack) else {
        return false;
    };
    let walked = pseudo_frames.append_to(buffer, walked);
    // SAFETY: `Walker`: `count` points to a number.
    unsafe { count.write(walked as u32) };
    true
}

impl BacktraceHook {
    /// Walks the stack into `buffer`, which begins with `leaf` unless that is 0. Returns the number of frames. `None`
    /// if no workspace is free or the stack has an unsupported frame; then counts a fallback, and the saved walker must
    /// walk the stack.
    #[inline(always)]
    fn walk_into_buffer(
        &self,
        start: Registers,
        leaf: usize,
        buffer: &mut [Frame],
    ) -> Option<usize> {
        let (below, buffer) = match buffer.split_first_mut() {
            Some((first, rest)) if leaf != 0 => {
                first.write(leaf);
                (1, rest)
            }
            Some(_) | None => (0, buffer),
        };
        let Some(mut workspace) = Workspace::acquire() else {
            self.fallbacks.fetch_add(1, Relaxed);
            return None;
        };
        let (_, buffers) = workspace.frames_and_buffers();
        // Unknown code ends the walk, because this walk is compared with libgcc's, which ends there too.
        // SAFETY: `start` has the registers of a frame of this thread. `arm` requires `prepare_walks`.
        let (frames, end) =
            unsafe { walk_with_fallback_rule(PackedRule::UNKNOWN, (start, None), buffer, buffers) };
        match end {
            WalkEnd::Outermost | WalkEnd::Full | WalkEnd::UnknownCode | WalkEnd::Undescribed => {}
            WalkEnd::Unreadable => {
                self.cut.fetch_add(1, Relaxed);
            }
            WalkEnd::Unsupported => {
                self.fallbacks.fetch_add(1, Relaxed);
                return None;
            }
        }
        Some(below + frames)
    }

    /// Runs both walkers, and returns whether they agree. Counts the result. Returns false without comparing if
    /// memprof's walker fails. Leaves the saved walker's stack in `frames`. After the initial comparisons, gives up
    /// memprof's walker if fewer than 99 % of the compared stacks agree.
    ///
    /// # Safety
    /// The arguments are those that the allocator passed to [`entry`].
    #[cold]
    #[inline(never)]
    unsafe fn compare_walkers(
        &self,
        frames: *mut *mut c_void,
        count: *mut u32,
        capacity: u32,
        start: Registers,
    ) -> bool {
        let mut own = [0; MAX_COMPARED_FRAMES];
        let Some(walked) = self.walk_into_buffer(start, 0, as_frames(&mut own)) else {
            return false;
        };
        // SAFETY: `arm` stored a walker.
        let saved: Walker = unsafe { mem::transmute(self.saved.load(Relaxed)) };
        // SAFETY: `Walker`: these are the arguments that the allocator passed.
        unsafe { saved(frames, count, capacity) };
        // SAFETY: `Walker`: the walker has set the count.
        let written = unsafe { count.read() };
        // SAFETY: `Walker`: the walker has written that many pointers.
        let saved_stack = unsafe { slice::from_raw_parts(frames.cast(), written as usize) };
        let own = WalkedStack {
            frames: own.get(..walked).unwrap_or_default(),
            is_truncated: walked == MAX_COMPARED_FRAMES,
        };
        let saved_stack = WalkedStack {
            frames: saved_stack,
            is_truncated: written >= capacity,
        };
        let leaf = leaf_if_walks_agree(&own, &saved_stack);
        if let Some(leaf) = leaf {
            self.leaf.store(leaf, Relaxed);
            self.agreed.fetch_add(1, Relaxed);
        }
        let compared = self.compared.fetch_add(1, Relaxed) + 1;
        if compared >= self.initial_comparisons.load(Relaxed)
            && self.agreed.load(Relaxed) * 100 < compared * MIN_AGREEMENT_PERCENT
        {
            self.given_up.store(true, Release);
        }
        leaf.is_some()
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use core::ptr;
    use std::vec::Vec;

    use super::*;
    use crate::pseudo_frames::set_alloc_time;
    use crate::{FindObject, prepare_walks};

    /// Frame that the saved walkers of these tests return.
    const ELSEWHERE: usize = 0xBAD;

    /// Saved walker that reports one frame, at `ELSEWHERE`, so that it never agrees with memprof's.
    unsafe extern "C" fn walk_elsewhere(frames: *mut *mut c_void, count: *mut u32, _: u32) {
        // SAFETY: the tests pass an array of many frames.
        unsafe { frames.write(ELSEWHERE as *mut c_void) };
        // SAFETY: the tests pass a pointer to a number.
        unsafe { count.write(1) };
    }

    /// Arms a hook that no other test uses, with `walk_elsewhere` as the saved walker.
    fn armed_hook(index: usize, initial_comparisons: u64) -> &'static BacktraceHook {
        // SAFETY: dlsym(3) with a NUL-terminated name.
        let find = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_dl_find_object".as_ptr()) };
        assert!(!find.is_null());
        // SAFETY: dlfcn.h gives the function of this name this type.
        let find = unsafe { mem::transmute::<*mut c_void, FindObject>(find) };
        // SAFETY: getauxval(3) reads a constant of this process.
        prepare_walks(find, unsafe { libc::getauxval(libc::AT_RANDOM) } as usize);
        // SAFETY: `walk_elsewhere` is a walker, and only this test calls the hook.
        unsafe { HOOKS[index].arm(walk_elsewhere, initial_comparisons) };
        &HOOKS[index]
    }

    /// Calls the hook with room for `buffer` frames, at most 128. Returns the frames that it has written.
    #[inline(never)]
    fn take_sample(hook: &'static BacktraceHook, buffer: usize) -> Vec<usize> {
        let mut frames = [ptr::null_mut(); 128];
        let mut count = 0;
        // SAFETY: the array has more cells than `buffer`, and the hook is armed.
        unsafe { hook.entry_function()(frames.as_mut_ptr(), &raw mut count, buffer as u32) };
        let written = frames.iter().take(count as usize);
        written.map(|frame| *frame as usize).collect()
    }

    #[test]
    fn hook_whose_walks_differ_falls_back_to_saved_walker() {
        let hook = armed_hook(0, 8);
        for _ in 0..8 {
            assert_eq!(take_sample(hook, 128), [ELSEWHERE]);
        }
        let expected = HookStats {
            samples: 8,
            compared: 8,
            given_up: true,
            ..HookStats::default()
        };
        assert_eq!(hook.counts(), expected);
        assert_eq!(take_sample(hook, 128), [ELSEWHERE]);
        assert_eq!(hook.counts(), expected);
    }

    #[test]
    fn walk_reaches_thread_start_and_ends_in_pseudo_frames() {
        let hook = armed_hook(1, 1);
        // The first call compares, the second walks without comparing.
        assert_eq!(take_sample(hook, 128), [ELSEWHERE]);
        hook.given_up.store(false, Relaxed);
        let frames = take_sample(hook, 128);
        assert!(frames.len() > 5, "{frames:x?}");
        let own = take_sample as fn(_, _) -> _ as usize;
        assert!((own..own + 4096).contains(&frames[0]), "{frames:x?}");
        // Called from another line of this function, so the second frame differs.
        let cut = take_sample(hook, 3);
        assert_eq!([cut.len(), cut[0], cut[2]], [3, frames[0], frames[2]]);
        assert_eq!(take_sample(hook, 0), []);
        // In a full buffer, the allocation time replaces the outermost frame.
        set_alloc_time(Some(1_795_300_000));
        let time_frame = 0x4d_5002 << 40 | 1_795_300_000 << 1 | 1;
        let whole = take_sample(hook, 128);
        assert_eq!(whole.len(), frames.len() + 1);
        assert_eq!(whole.last(), Some(&time_frame));
        let cut = take_sample(hook, 3);
        assert_eq!([cut.len(), cut[0], cut[2]], [3, frames[0], time_frame]);
        assert_eq!(take_sample(hook, 1), [time_frame]);
        assert_eq!(take_sample(hook, 0), []);
        set_alloc_time(None);
        assert_eq!(hook.counts().fallbacks, 0);
        assert_eq!(hook.counts().cut, 0);
    }
}
