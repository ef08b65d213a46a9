//! Walks the calling thread's stack with the rules of the code that is loaded in this process.
#![expect(unsafe_code, reason = "the loader's function, and registers")]

use core::mem;
use core::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::complex_frames::ComplexFrames;
use crate::last_walk::{self, LastWalkCursor};
use crate::object::{FindObject, loaded_object_start, loaded_rule_at};
use crate::register_file::SavedRegisters;
use crate::return_address::{called_function, is_after_call, is_jump_through_slot};
use crate::rule::{PackedRule, Rule};
use crate::rule_table::RuleTable;
use crate::spare_stack::SpareStack;
use crate::stack_memory::ReadableStack;
use crate::thread::Thread;
use crate::thread_stack::{self, ThreadStack, set_main_stack_top};
use crate::walk::{Frame, Registers, RuleSource, StackReader, WalkEnd, walk};
use crate::workspace::{WalkBuffers, Workspace};

// All large tables share a section: a small variable between two of them would make a page of its own resident.
#[unsafe(link_section = ".bss.tables")]
static RULES: RuleTable = RuleTable::new();
static FIND_OBJECT: AtomicUsize = AtomicUsize::new(0);
static RULES_READ: AtomicU64 = AtomicU64::new(0);

/// Initializes the state that all walks share. `find` is the loader's `_dl_find_object`. `main_stack_top` is an address
/// in the topmost page of the main thread's stack, for example `AT_RANDOM` of getauxval(3).
pub fn prepare_walks(find: FindObject, main_stack_top: usize) {
    set_main_stack_top(main_stack_top);
    FIND_OBJECT.store(find as usize, Release);
}

/// Clears all cached rules, because code may have been unloaded, and other code loaded at its addresses.
pub fn clear_rules() {
    RULES.clear();
}

/// Clears all caches about stacks, because threads may have ended.
pub fn clear_stack_cache() {
    thread_stack::clear_known_stacks();
    last_walk::release_last_walks();
}

/// Returns the number of rules read from call frame information since the start of the process.
pub fn rules_read_count() -> u64 {
    RULES_READ.load(Relaxed)
}

/// Writes the calling thread's program counters into `workspace`, from `start` outwards. Returns their number and the
/// reason why the walk ended. Unlike the walk of a `BacktraceHook`, this walk follows the frame pointer through code
/// without call frame information. `saved` has the values of `rbx` and `r12` to `r15`.
///
/// # Safety
/// `start` and `saved` are registers of the calling thread, in a function that has not returned. [`prepare_walks`] was
/// called.
#[inline(always)]
pub unsafe fn walk_this_thread(
    start: Registers,
    saved: SavedRegisters,
    workspace: &mut Workspace,
) -> (usize, WalkEnd) {
    let (frames, buffers) = workspace.frames_and_buffers();
    let start = (start, Some(saved));
    // SAFETY: this function's caller guarantees the registers and that `prepare_walks` was called.
    unsafe { walk_with_fallback_rule(PackedRule::FRAME_POINTER, start, frames, buffers) }
}

/// Writes the calling thread's program counters into `frames`, from `start` outwards. Returns their number and the
/// reason why the walk ended. Code that the loader does not know has the rule `unknown_code_rule`. If the saved
/// registers are `None`, frames that need them cannot be unwound.
///
/// # Safety
/// `start` has registers of the calling thread, in a function that has not returned. [`prepare_walks`] was called.
#[inline(always)]
pub(crate) unsafe fn walk_with_fallback_rule(
    unknown_code_rule: PackedRule,
    (start, saved): (Registers, Option<SavedRegisters>),
    frames: &mut [Frame],
    buffers: WalkBuffers<'_>,
) -> (usize, WalkEnd) {
    let thread = Thread::current();
    let own = ThreadStack::for_thread(start.sp, thread);
    // SAFETY: the caller guarantees that `start.sp` is on this thread's stack. `own` checked the rest.
    let mut stack = unsafe { ReadableStack::new(start.sp, &own.known) };
    buffers.complex.set_start(start, saved);
    let mut rules = ProcessRules {
        cursor: LastWalkCursor::new(thread, buffers.steps),
        complex: buffers.complex,
        rule_stack: buffers.stack,
        unknown_code_rule,
    };
    let walked = walk(start, frames, &mut rules, &mut stack);
    rules.cursor.save_if_changed();
    if !own.known.contains(&start.sp) {
        own.save_readable_pages(start.sp, stack.readable_end());
    }
    walked
}

/// Rules of the code in this process: from the last walk, from the table, or from call frame information.
struct ProcessRules<'a> {
    cursor: LastWalkCursor<'a>,
    /// Frames that no rule can express.
    complex: &'a mut ComplexFrames,
    /// Separate stack for reading rules.
    rule_stack: &'a mut SpareStack,
    /// Rule for code that the loader does not know.
    unknown_code_rule: PackedRule,
}

impl RuleSource for ProcessRules<'_> {
    /// Returns the rule that the last walk predicts, or else the rule in the table. If the table lacks the rule, reads
    /// it from call frame information and stores it. For code that the loader does not know, returns
    /// `unknown_code_rule` instead.
    #[inline(always)]
    fn rule_at(&mut self, address: usize, sp: usize) -> PackedRule {
        let rule_stack = &mut *self.rule_stack;
        let read = |address| Rule::from(rule_stack.call(read_rule, address));
        let rule = self.cursor.next_rule(&RULES, address, sp, read);
        if rule == PackedRule::UNKNOWN {
            self.unknown_code_rule
        } else {
            rule
        }
    }

    /// Returns whether a function without call frame information may return to `address`. The bytes before the address
    /// must be a call. This call must be indirect, or its target must lack call frame information or jump through a
    /// slot.
    ///
    /// Always false in jemalloc's hook: its walks are compared with libgcc's, which end at such a function.
    fn may_return_to(&mut self, address: usize) -> bool {
        if self.unknown_code_rule != PackedRule::FRAME_POINTER || !is_after_call(address) {
            return false;
        }
        // The frame pointer cannot be the right one if it leads to a call of a function with call frame information:
        // that function called the undescribed one, which keeps no frame pointer of its own.
        called_function(address).is_none_or(|function| {
            let rule = Rule::from(self.rule_stack.call(read_rule, function));
            // V8 calls its builtins, which are not described, through jumps that it generates.
            matches!(rule, Rule::Undescribed | Rule::Unknown) || is_jump_through_slot(function)
        })
    }

    /// Finds the caller's registers by call frame information that no rule can express, if necessary by a second walk
    /// that tracks all registers. `None` if they cannot be found, or before [`prepare_walks`].
    fn caller_by_complex_rule(
        &mut self,
        callee: Registers,
        into_call: usize,
        depth: usize,
        memory: &mut impl StackReader,
    ) -> Option<Registers> {
        let position = (into_call, depth);
        self.complex.caller_registers(
            find_object_function()?,
            callee,
            position,
            self.rule_stack,
            memory,
        )
    }
}

/// Returns the start of the loaded object that contains an address. `None` if the loader knows no such object, or
/// before [`prepare_walks`].
pub fn object_start(address: usize) -> Option<usize> {
    loaded_object_start(find_object_function()?, address)
}

/// Returns the loader's function `_dl_find_object`. `None` before [`prepare_walks`].
fn find_object_function() -> Option<FindObject> {
    let find = FIND_OBJECT.load(Acquire) as *const ();
    if find.is_null() {
        return None;
    }
    // SAFETY: `prepare_walks` stored a function of this type.
    Some(unsafe { mem::transmute::<*const (), FindObject>(find) })
}

/// Reads the rule of an address from call frame information, and counts the read. Returns the bits of the packed rule,
/// which is [`Rule::Unsupported`] before [`prepare_walks`]. A C function, because [`SpareStack::call`] calls it from
/// assembly.
#[cold]
#[inline(never)]
extern "C" fn read_rule(address: usize) -> u32 {
    RULES_READ.fetch_add(1, Relaxed);
    let rule =
        find_object_function().map_or(Rule::Unsupported, |find| loaded_rule_at(find, address));
    PackedRule::from(rule).bits()
}

#[cfg(test)]
mod tests {
    extern crate std;

    use core::arch::{asm, global_asm};
    use core::ffi::c_void;
    use core::sync::atomic::AtomicBool;

    use super::*;

    fn prepare_this_process() {
        // SAFETY: dlsym(3) with a NUL-terminated name.
        let find = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_dl_find_object".as_ptr()) };
        assert!(!find.is_null());
        // SAFETY: dlfcn.h gives the function of this name this type.
        let find = unsafe { mem::transmute::<*mut c_void, FindObject>(find) };
        // SAFETY: getauxval(3) reads a constant of this process.
        prepare_walks(find, unsafe { libc::getauxval(libc::AT_RANDOM) } as usize);
    }

    global_asm!(
        ".globl memprof_test_undescribed",
        "memprof_test_undescribed:", // without call frame information
        "push rbp",
        "mov rbp, rsp",
        "call rdi",
        "pop rbp",
        "ret",
        ".globl memprof_test_without_frame",
        "memprof_test_without_frame:", // without both
        "push rbx",
        "call rdi",
        "pop rbx",
        "ret",
        ".globl memprof_test_with_frame",
        "memprof_test_with_frame:",
        ".cfi_startproc",
        "push rbp",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "call memprof_test_without_frame",
        "pop rbp",
        ".cfi_def_cfa rsp, 8",
        "ret",
        ".cfi_endproc",
        ".globl memprof_test_direct_call",
        "memprof_test_direct_call:",
        ".cfi_startproc",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "call memprof_test_with_frame",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "ret",
        ".cfi_endproc",
        ".globl memprof_test_large",
        "memprof_test_large:",
        ".cfi_startproc",
        "sub rsp, 200008",
        ".cfi_adjust_cfa_offset 200008",
        "call rdi",
        "add rsp, 200008",
        ".cfi_adjust_cfa_offset -200008",
        "ret",
        ".cfi_endproc",
        ".globl memprof_test_cfa_in_memory",
        "memprof_test_cfa_in_memory:", // as OpenSSL's assembly: the CFA is *(rsp + 40) + 8
        ".cfi_startproc",
        "mov rax, rsp",
        ".cfi_def_cfa_register rax",
        "sub rsp, 64",
        "and rsp, -64",
        "mov [rsp + 40], rax",
        ".cfi_escape 0x0f, 0x05, 0x77, 0x28, 0x06, 0x23, 0x08",
        "call rdi",
        "mov rsp, [rsp + 40]",
        ".cfi_def_cfa rsp, 8",
        "ret",
        ".cfi_endproc",
        ".globl memprof_test_cfa_in_rbx",
        "memprof_test_cfa_in_rbx:",
        ".cfi_startproc",
        "push rbx",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_offset rbx, -16",
        "mov rbx, rsp",
        ".cfi_def_cfa_register rbx",
        "sub rsp, 128",
        "and rsp, -64",
        "call rdi",
        "mov rsp, rbx",
        ".cfi_def_cfa_register rsp",
        "pop rbx",
        ".cfi_adjust_cfa_offset -8",
        ".cfi_restore rbx",
        "ret",
        ".cfi_endproc",
        ".globl memprof_test_return_address_elsewhere",
        "memprof_test_return_address_elsewhere:", // moved to r12, as code that switches stacks does
        ".cfi_startproc",
        "pop rax",
        ".cfi_adjust_cfa_offset -8",
        ".cfi_register rip, rax",
        "push r12",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_offset r12, 0 - 8",
        "mov r12, rax",
        ".cfi_register rip, r12",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "call rdi",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "mov rdx, r12",
        ".cfi_register rip, rdx",
        "pop r12",
        ".cfi_adjust_cfa_offset -8",
        ".cfi_restore r12",
        "push rdx",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_offset rip, -8",
        "ret",
        ".cfi_endproc",
    );

    type Callback = extern "C" fn() -> usize;

    unsafe extern "C" {
        fn memprof_test_undescribed(callback: Callback) -> usize;
        fn memprof_test_direct_call(callback: Callback) -> usize;
        fn memprof_test_large(callback: Callback) -> usize;
        fn memprof_test_cfa_in_memory(callback: Callback) -> usize;
        fn memprof_test_cfa_in_rbx(callback: Callback) -> usize;
        fn memprof_test_return_address_elsewhere(callback: Callback) -> usize;
    }

    static FRAMES: [AtomicUsize; 8] = [const { AtomicUsize::new(0) }; 8];
    static ENDS_EARLY: AtomicBool = AtomicBool::new(false);

    /// Locks [`FRAMES`] for one test.
    fn lock_frames() -> std::sync::MutexGuard<'static, ()> {
        static LOCK: std::sync::Mutex<()> = std::sync::Mutex::new(());
        LOCK.lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Walks the stack from here. Stores its frames in [`FRAMES`] and whether it ended early, and returns the number of
    /// frames.
    extern "C" fn walk_here() -> usize {
        let mut workspace = Workspace::acquire().unwrap();
        let (pc, sp, bp): (usize, usize, usize);
        let mut saved: SavedRegisters = [0; 5];
        // SAFETY: registers are copied to this function's variables.
        unsafe {
            asm!(
                "mov [{saved}], rbx",
                "mov [{saved} + 8], r12",
                "mov [{saved} + 16], r13",
                "mov [{saved} + 24], r14",
                "mov [{saved} + 32], r15",
                "lea {pc}, [rip]",
                "mov {sp}, rsp",
                "mov {bp}, rbp",
                saved = in(reg) saved.as_mut_ptr(),
                pc = out(reg) pc,
                sp = out(reg) sp,
                bp = out(reg) bp,
            );
        }
        // SAFETY: registers of this function; the tests called `prepare_walks`.
        let (count, end) =
            unsafe { walk_this_thread(Registers { pc, sp, bp }, saved, &mut workspace) };
        ENDS_EARLY.store(end != WalkEnd::Outermost, Relaxed);
        let frames = workspace.frames().iter().take(count);
        for (cell, frame) in FRAMES.iter().zip(frames) {
            // SAFETY: the walk initialized the first `count` frames.
            cell.store(unsafe { frame.assume_init() }, Relaxed);
        }
        count
    }

    /// Walks inside of a frame that needs a register which the frames outside of it must restore.
    extern "C" fn walk_behind_rbx() -> usize {
        // SAFETY: the function calls its argument and returns what that returned.
        unsafe { memprof_test_cfa_in_rbx(walk_here) }
    }

    #[test]
    fn frames_of_every_shape_are_unwound_to_the_thread_start() {
        /// No function is longer, in bytes.
        const LENGTH: usize = 48;
        let _guard = lock_frames();
        prepare_this_process();
        for function in [
            memprof_test_undescribed as unsafe extern "C" fn(Callback) -> usize,
            memprof_test_large,
            memprof_test_cfa_in_memory,
            memprof_test_cfa_in_rbx,
            memprof_test_return_address_elsewhere,
        ] {
            let start = function as *const () as usize;
            // The second walk follows the first one.
            for inner in [
                walk_here as Callback,
                walk_here,
                walk_behind_rbx,
                walk_behind_rbx,
            ] {
                // SAFETY: the function calls its argument and returns what that returned.
                let count = unsafe { function(inner) };
                let frames = FRAMES.each_ref().map(|frame| frame.load(Relaxed));
                let has_frame = frames
                    .iter()
                    .any(|frame| (start..start + LENGTH).contains(frame));
                assert!(has_frame, "{start:x} {frames:x?}");
                assert!(count > 5, "{start:x} {count}");
                assert!(!ENDS_EARLY.load(Relaxed), "{start:x} {count}");
            }
        }
    }

    /// Code in no file that keeps a frame pointer, and calls `function` by way of a jump, as V8's does.
    fn generate_caller(function: unsafe extern "C" fn(Callback) -> usize) -> *const c_void {
        const CALL: [u8; 16] = [
            0x55, 0x48, 0x89, 0xE5, // push rbp; mov rbp, rsp
            0xE8, 0x07, 0x00, 0x00, 0x00, // call 16
            0x5D, 0xC3, // pop rbp; ret
            0x90, 0x90, 0x90, 0x90, 0x90,
        ];
        let address = (function as *const () as usize).to_le_bytes();
        // mov r10, function; jmp r10
        let jump = [&[0x49, 0xBA][..], &address, &[0x41, 0xFF, 0xE2]].concat();
        let code = [&CALL[..], &jump].concat();
        // SAFETY: mmap(2): a new mapping at an address that the kernel chooses.
        let page = unsafe {
            libc::mmap(
                core::ptr::null_mut(),
                4096,
                libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(page, libc::MAP_FAILED);
        // SAFETY: the code is shorter than the new page.
        unsafe { core::ptr::copy_nonoverlapping(code.as_ptr(), page.cast(), code.len()) };
        page
    }

    #[test]
    fn frame_pointer_is_followed_to_a_call_of_generated_code() {
        let _guard = lock_frames();
        prepare_this_process();
        let caller = generate_caller(memprof_test_undescribed);
        // SAFETY: the code calls the function with its own argument, and returns what that returned.
        let caller = unsafe {
            mem::transmute::<*const c_void, unsafe extern "C" fn(Callback) -> usize>(caller)
        };
        // SAFETY: as above.
        let count = unsafe { caller(walk_here) };
        assert!(count > 5, "{count}");
        assert!(!ENDS_EARLY.load(Relaxed));
    }

    #[test]
    fn walk_ends_where_the_frame_pointer_would_skip_a_caller() {
        let _guard = lock_frames();
        prepare_this_process();
        // SAFETY: the function calls its argument and returns what that returned.
        let count = unsafe { memprof_test_direct_call(walk_here) };
        assert_eq!(count, 2);
        assert!(ENDS_EARLY.load(Relaxed));
    }
}
