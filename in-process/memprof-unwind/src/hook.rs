//! What an allocator calls for each sample.
#![expect(unsafe_code, reason = "the allocator calls it, with raw pointers")]

use core::arch::naked_asm;
use core::ffi::c_void;
use core::mem::{self, MaybeUninit, offset_of};
use core::slice;
use core::sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::HookStats;
use crate::compare::{WalkedStack, common_leaf};
use crate::last_walk::{self, LastWalkCursor, MOST_STEPS, WalkStep};
use crate::object::{FindObject, loaded_rule_at};
use crate::pseudo_frames::PseudoFrames;
use crate::rule::{PackedRule, Rule};
use crate::rule_table::RuleTable;
use crate::stack_memory::ReadableStack;
use crate::thread::Thread;
use crate::thread_stack::{self, ThreadStack, set_main_stack_top};
use crate::walk::{Frame, Registers, RuleSource, WalkEnd, as_frames, walk};
use crate::workspace::{self, Workspace};

/// `prof_backtrace_hook_t` of jemalloc 5.3: fills the first array with at most so many program
/// counters from the leaf on, and sets how many. The count is 0 before the call.
pub type Walker = unsafe extern "C" fn(*mut *mut c_void, *mut u32, u32);

/// One for each allocator of the process. A hook has no argument of its own, so each is a function
/// of its own; they are never freed, because a thread may still be in one.
pub static HOOKS: [BacktraceHook; 4] = [const { BacktraceHook::new() }; 4];

static ENTRIES: [Walker; HOOKS.len()] = [entry::<0>, entry::<1>, entry::<2>, entry::<3>];

// Among the other tables: what lies between two of them would have a page of its own as soon as it is written.
#[unsafe(link_section = ".bss.tables")]
static RULES: RuleTable = RuleTable::new();
static FIND_OBJECT: AtomicUsize = AtomicUsize::new(0);
static MISSES: AtomicU64 = AtomicU64::new(0);

/// After the first samples, one of so many is still compared.
const COMPARE_EVERY: u64 = 1024;
/// Below this share of equal stacks, in percent, our walk is given up.
const ENOUGH_AGREEMENT: u64 = 99;
/// More frames than any jemalloc of 2026 asks for are not compared.
const COMPARED_FRAMES: usize = 256;

/// Our walker for one allocator.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct BacktraceHook {
    /// The allocator's own walker; where [`entry`] expects it. Never changes while armed.
    saved: AtomicUsize,
    /// What the allocator's own walker puts below the frame that called it.
    leaf: AtomicUsize,
    /// How many samples are compared from the start.
    to_compare: AtomicU64,
    given_up: AtomicBool,
    samples: AtomicU64,
    fallbacks: AtomicU64,
    cut: AtomicU64,
    compared: AtomicU64,
    agreed: AtomicU64,
}

/// Makes ready what all hooks share. `find` is the loader's own `_dl_find_object`; the other is
/// an address at the top of the main thread's stack, as getauxval(3) tells `AT_RANDOM`.
pub fn prepare(find: FindObject, main_stack_top: usize) {
    set_main_stack_top(main_stack_top);
    FIND_OBJECT.store(find as usize, Release);
}

/// Forgets all rules: code may have been unloaded, and other code loaded in its place.
pub fn clear_rules() {
    RULES.clear();
}

/// Forgets which stacks were read: threads may have ended.
pub fn clear_stack_cache() {
    thread_stack::clear();
    last_walk::clear_owners();
}

/// How often a rule was read from call frame information, in all.
pub fn rules_read() -> u64 {
    MISSES.load(Relaxed)
}

impl BacktraceHook {
    const fn new() -> Self {
        Self {
            saved: AtomicUsize::new(0),
            leaf: AtomicUsize::new(0),
            to_compare: AtomicU64::new(0),
            given_up: AtomicBool::new(false),
            samples: AtomicU64::new(0),
            fallbacks: AtomicU64::new(0),
            cut: AtomicU64::new(0),
            compared: AtomicU64::new(0),
            agreed: AtomicU64::new(0),
        }
    }

    /// What to give to the allocator, after [`Self::arm`].
    pub fn entry(&'static self) -> Walker {
        let index = (&raw const *self as usize - &raw const HOOKS as usize) / size_of::<Self>();
        ENTRIES[index]
    }

    /// Starts anew: the first `to_compare` samples are walked by `saved` too, and compared.
    ///
    /// # Safety
    /// `saved` is the walker of one allocator, which stays loaded, and this hook is given to that
    /// allocator only; [`prepare`] was called.
    pub unsafe fn arm(&self, saved: Walker, to_compare: u64) {
        self.saved.store(saved as usize, Relaxed);
        self.to_compare.store(to_compare, Relaxed);
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

    /// What it did since.
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

/// Walks; where that fails, goes on in the saved walker as if it had been called itself.
///
/// # Safety
/// As [`Walker`]; called by the allocator of the hook with this index, which is armed.
#[unsafe(naked)]
unsafe extern "C" fn entry<const INDEX: usize>(_: *mut *mut c_void, _: *mut u32, _: u32) {
    naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_offset rbp, -16",
        // The caller's frame pointer, and where its return address lies.
        "mov r8, rbp",
        "lea rcx, [rsp + 8]",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "push rdi",
        "push rsi",
        "push rdx",
        // Not every program calls malloc with an aligned stack.
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
        sample = sym sample,
        hooks = sym HOOKS,
        saved = const INDEX * size_of::<BacktraceHook>() + offset_of!(BacktraceHook, saved),
    )
}

/// One sample; false where the saved walker has to take it. `called` is where the return address
/// of the hook's caller lies, `bp` is that caller's.
///
/// # Safety
/// As [`entry`], which calls it.
unsafe extern "C" fn sample(
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
        // SAFETY: `entry` passes where its return address lies.
        pc: unsafe { called.read() },
        sp: called as usize + size_of::<usize>(),
        bp,
    };
    let number = hook.samples.fetch_add(1, Relaxed);
    if number < hook.to_compare.load(Relaxed) || number % COMPARE_EVERY == 0 {
        // SAFETY: as this function's.
        let agree = unsafe { hook.compare(frames, count, capacity, start) };
        // SAFETY: `Walker`: a number; 0 again for the walk to come.
        unsafe { count.write(0) };
        if !agree {
            return false;
        }
    }
    // SAFETY: `Walker`: room for so many pointers.
    let room = unsafe { slice::from_raw_parts_mut(frames.cast(), capacity as usize) };
    // After the comparison, of which it is no part.
    let tail = PseudoFrames::for_this_thread();
    let before = tail.frames_left(room.len());
    let stack = room.get_mut(..before).unwrap_or_default();
    let Some(walked) = hook.walk(start, hook.leaf.load(Relaxed), stack) else {
        return false;
    };
    let walked = tail.append_to(room, walked);
    // SAFETY: `Walker`: a number.
    unsafe { count.write(walked as u32) };
    true
}

impl BacktraceHook {
    /// Walks from `start`; None where the saved walker has to. `leaf` goes before the first frame
    /// unless it is 0.
    #[inline(always)]
    fn walk(&self, start: Registers, leaf: usize, room: &mut [Frame]) -> Option<usize> {
        let (below, room) = match room.split_first_mut() {
            Some((first, rest)) if leaf != 0 => {
                first.write(leaf);
                (1, rest)
            }
            Some(_) | None => (0, room),
        };
        let Some(mut workspace) = Workspace::acquire() else {
            self.fallbacks.fetch_add(1, Relaxed);
            return None;
        };
        let (_, steps, deep) = workspace.parts();
        // What it is compared with ends at code that was made while the program ran: libgcc's walk does.
        // SAFETY: the registers of the hook's caller; whoever armed it has prepared.
        let (frames, end) =
            unsafe { walk_with_fallback_rule(PackedRule::UNKNOWN, start, room, steps, deep) };
        match end {
            WalkEnd::Outermost | WalkEnd::Full => {}
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

    /// Whether both walkers tell the same. The saved one's walk is left in `frames`.
    ///
    /// # Safety
    /// As [`sample`].
    #[cold]
    #[inline(never)]
    unsafe fn compare(
        &self,
        frames: *mut *mut c_void,
        count: *mut u32,
        capacity: u32,
        start: Registers,
    ) -> bool {
        let mut ours = [0; COMPARED_FRAMES];
        let Some(walked) = self.walk(start, 0, as_frames(&mut ours)) else {
            return false;
        };
        // SAFETY: `arm` stored a walker.
        let saved: Walker = unsafe { mem::transmute(self.saved.load(Relaxed)) };
        // SAFETY: with what the allocator passed.
        unsafe { saved(frames, count, capacity) };
        // SAFETY: `Walker`: the number is set.
        let written = unsafe { count.read() };
        // SAFETY: `Walker`: so many of the pointers are written.
        let theirs = unsafe { slice::from_raw_parts(frames.cast(), written as usize) };
        let ours = WalkedStack {
            frames: ours.get(..walked).unwrap_or_default(),
            is_cut: walked == COMPARED_FRAMES,
        };
        let theirs = WalkedStack {
            frames: theirs,
            is_cut: written >= capacity,
        };
        let leaf = common_leaf(&ours, &theirs);
        if let Some(leaf) = leaf {
            self.leaf.store(leaf, Relaxed);
            self.agreed.fetch_add(1, Relaxed);
        }
        let compared = self.compared.fetch_add(1, Relaxed) + 1;
        if compared >= self.to_compare.load(Relaxed)
            && self.agreed.load(Relaxed) * 100 < compared * ENOUGH_AGREEMENT
        {
            self.given_up.store(true, Release);
        }
        leaf.is_some()
    }
}

/// Writes the program counters of the calling thread into the frames of `workspace`, from `start` outwards, and returns
/// how many, and why no more. Ends where no rule leads on.
///
/// # Safety
/// `start` are registers of the calling thread, in a function that has not returned; [`prepare`] was
/// called.
#[inline(always)]
pub unsafe fn walk_this_thread(start: Registers, workspace: &mut Workspace) -> (usize, WalkEnd) {
    let (room, steps, deep) = workspace.parts();
    // SAFETY: promised by the caller.
    unsafe { walk_with_fallback_rule(PackedRule::FRAME_POINTER, start, room, steps, deep) }
}

/// The same by that rule where no loader knows the code.
///
/// # Safety
/// As [`walk_this_thread`].
#[inline(always)]
unsafe fn walk_with_fallback_rule(
    unknown: PackedRule,
    start: Registers,
    room: &mut [Frame],
    steps: &mut [MaybeUninit<WalkStep>; MOST_STEPS],
    deep: &mut workspace::Stack,
) -> (usize, WalkEnd) {
    let thread = Thread::this();
    let own = ThreadStack::of_thread(start.sp, thread);
    // SAFETY: a stack pointer of this thread; and what `ThreadStack` tells.
    let mut stack = unsafe { ReadableStack::from(start.sp, &own.known) };
    let mut rules = ProcessRules {
        following: LastWalkCursor::of(thread, steps),
        deep,
        unknown,
    };
    let walked = walk(start, room, &mut rules, &mut stack);
    rules.following.save();
    if !own.known.contains(&start.sp) {
        own.save_known(start.sp, stack.read_end());
    }
    walked
}

/// The rules of this process.
struct ProcessRules<'a> {
    following: LastWalkCursor<'a>,
    /// The stack on which rules are read.
    deep: &'a mut workspace::Stack,
    /// The one where no loader knows the code.
    unknown: PackedRule,
}

impl RuleSource for ProcessRules<'_> {
    #[inline(always)]
    fn rule_at(&mut self, address: usize, sp: usize) -> PackedRule {
        let deep = &mut *self.deep;
        let read = |address| Rule::from(deep.call(read_rule, address));
        let rule = self.following.rule(&RULES, address, sp, read);
        if rule == PackedRule::UNKNOWN {
            self.unknown
        } else {
            rule
        }
    }
}

/// The bits of the rule at an address, which is in no table.
#[cold]
#[inline(never)]
extern "C" fn read_rule(address: usize) -> u32 {
    MISSES.fetch_add(1, Relaxed);
    let find = FIND_OBJECT.load(Acquire) as *const ();
    if find.is_null() {
        return PackedRule::from(Rule::Unsupported).bits();
    }
    // SAFETY: `prepare` stored it.
    let find = unsafe { mem::transmute::<*const (), FindObject>(find) };
    PackedRule::from(loaded_rule_at(find, address)).bits()
}

#[cfg(test)]
mod tests {
    extern crate std;

    use core::ptr;
    use std::vec::Vec;

    use super::*;
    use crate::alloc_time::set_alloc_time;

    /// What the walkers of these tests say.
    const ELSEWHERE: usize = 0xBAD;

    unsafe extern "C" fn walk_elsewhere(frames: *mut *mut c_void, count: *mut u32, _: u32) {
        // SAFETY: the tests pass room for many frames.
        unsafe { frames.write(ELSEWHERE as *mut c_void) };
        // SAFETY: the tests pass a number.
        unsafe { count.write(1) };
    }

    /// Arms a hook that no other test uses, with `walk_elsewhere` behind it.
    fn armed(index: usize, to_compare: u64) -> &'static BacktraceHook {
        // SAFETY: dlsym(3) with a NUL-terminated name.
        let find = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_dl_find_object".as_ptr()) };
        assert!(!find.is_null());
        // SAFETY: dlfcn.h gives the function of this name this type.
        let find = unsafe { mem::transmute::<*mut c_void, FindObject>(find) };
        // SAFETY: getauxval(3) reads a constant of this process.
        prepare(find, unsafe { libc::getauxval(libc::AT_RANDOM) } as usize);
        // SAFETY: a walker that fits, in a hook of this test.
        unsafe { HOOKS[index].arm(walk_elsewhere, to_compare) };
        &HOOKS[index]
    }

    #[inline(never)]
    fn sampled(hook: &'static BacktraceHook, room: usize) -> Vec<usize> {
        let mut frames = [ptr::null_mut(); 128];
        let mut count = 0;
        // SAFETY: room for so many frames, and an armed hook.
        unsafe { hook.entry()(frames.as_mut_ptr(), &raw mut count, room as u32) };
        let written = frames.iter().take(count as usize);
        written.map(|frame| *frame as usize).collect()
    }

    #[test]
    fn a_walk_that_differs_is_given_up_and_the_samples_are_the_saved_walkers() {
        let hook = armed(0, 8);
        for _ in 0..8 {
            assert_eq!(sampled(hook, 128), [ELSEWHERE]);
        }
        let expected = HookStats {
            samples: 8,
            compared: 8,
            given_up: true,
            ..HookStats::default()
        };
        assert_eq!(hook.counts(), expected);
        assert_eq!(sampled(hook, 128), [ELSEWHERE]);
        assert_eq!(hook.counts(), expected);
    }

    #[test]
    fn a_walk_leads_from_the_caller_to_the_threads_start() {
        let hook = armed(1, 1);
        // Compared, and alone.
        assert_eq!(sampled(hook, 128), [ELSEWHERE]);
        hook.given_up.store(false, Relaxed);
        let frames = sampled(hook, 128);
        assert!(frames.len() > 5, "{frames:x?}");
        let own = sampled as fn(_, _) -> _ as usize;
        assert!((own..own + 4096).contains(&frames[0]), "{frames:x?}");
        // From another line of this function.
        let cut = sampled(hook, 3);
        assert_eq!([cut.len(), cut[0], cut[2]], [3, frames[0], frames[2]]);
        assert_eq!(sampled(hook, 0), []);
        // The outermost frame makes room for the time, where all is full.
        set_alloc_time(Some(1_795_300_000));
        let born = 0x4d_5002 << 40 | 1_795_300_000 << 1 | 1;
        let whole = sampled(hook, 128);
        assert_eq!(whole.len(), frames.len() + 1);
        assert_eq!(whole.last(), Some(&born));
        let cut = sampled(hook, 3);
        assert_eq!([cut.len(), cut[0], cut[2]], [3, frames[0], born]);
        assert_eq!(sampled(hook, 1), [born]);
        assert_eq!(sampled(hook, 0), []);
        set_alloc_time(None);
        assert_eq!(hook.counts().fallbacks, 0);
        assert_eq!(hook.counts().cut, 0);
    }
}
