//! Remote calls: calls that a thread of another process makes, after which it continues by itself where it was
//! stopped.
//!
//! The calls are written as signal frames, which the kernel leaves for a signal handler: one for each call, the last
//! one with the thread's own registers. Each call returns into libc's `rt_sigreturn(2)`, which loads the next frame.
//! So the thread need not stay under ptrace, and the writer of the frames may be killed at any moment.

use std::ops::Range;

use libc::{SYS_clone, SYS_exit_group, user_regs_struct};
use memchr::memmem;

use crate::memory::Memory;
use crate::xstate::XState;

/// Distance of two frames in bytes: a return address and `struct ucontext` take 312, and padding keeps the stack
/// pointer's value modulo 16.
const FRAME_STRIDE: u64 = 320;
/// Value of `uc_link`, which the kernel does not read: it marks memprof's frames.
const FRAME_MARK: u64 = u64::from_be_bytes(*b"memprof\0");
/// Index of a frame's word with the segment registers, and the value of cs in 64-bit code.
const SEGMENTS_INDEX: usize = 24;
const USER_CODE_SEGMENT: u64 = 0x33;
/// `UC_FP_XSTATE | UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS` (asm/ucontext.h).
const UC_FLAGS: u64 = 7;
/// Invalid mode of sigaltstack(2), with which `rt_sigreturn(2)` leaves the alternative stack unchanged.
const INVALID_STACK_MODE: u32 = 0x7fff_fff0;
/// Bytes below the stack pointer that the x86-64 ABI reserves for the function.
const RED_ZONE: u64 = 128;
/// Direction flag and trap flag, which the ABI requires to be clear at a call.
const CLEARED_FLAGS: u64 = 1 << 10 | 1 << 8;

/// Addresses of instructions in libc that chain remote calls.
#[derive(Clone, Copy, Debug)]
pub struct Gadgets {
    /// `mov $15,%rax; syscall`: libc's return from signal handlers (`rt_sigreturn(2)`).
    pub restorer: u64,
    /// `syscall; ret`.
    pub system_call: u64,
}

/// Largest part of a mapping that is searched, in bytes: the code of glibc 2.36 has 1.4 MiB. A file of any size may
/// be called libc.so.6.
const CODE_LIMIT: u64 = 16 << 20;

impl Gadgets {
    /// Searches the first 16 MiB of a mapping of code for both instruction sequences. `None` if one is missing or the
    /// memory cannot be read.
    pub fn find(memory: &Memory, code: &Range<u64>) -> Option<Self> {
        let length = (code.end - code.start).min(CODE_LIMIT);
        let mut bytes = vec![0; length as usize];
        memory.read(code.start, &mut bytes).ok()?;
        let find = |pattern: &[u8]| Some(code.start + memmem::find(&bytes, pattern)? as u64);
        Some(Self {
            restorer: find(&RESTORER)?,
            system_call: find(&SYSTEM_CALL)?,
        })
    }
}

/// Bytes of [`Gadgets::restorer`].
pub const RESTORER: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];
/// Bytes of [`Gadgets::system_call`].
pub const SYSTEM_CALL: [u8; 3] = [0x0f, 0x05, 0xc3];

/// One call of a remote call sequence.
#[derive(Clone, Copy, Debug)]
pub enum RemoteCall {
    /// System call: number and arguments.
    Syscall(i64, [u64; 6]),
    /// Function of the C ABI: address and arguments.
    Function(u64, [u64; 4]),
}

/// State of a thread before the remote calls, which the last frame restores.
#[derive(Debug)]
pub struct SavedContext<'a> {
    /// General registers.
    pub registers: user_regs_struct,
    /// Its vector and floating-point registers.
    pub xstate: &'a XState,
    /// Signal mask.
    pub blocked: u64,
}

/// Signal frames to write to the target's memory, and the registers with which to resume the thread so that
/// `rt_sigreturn(2)` loads the first one.
#[derive(Debug)]
pub struct CallFrames {
    /// Target addresses with the bytes to write there.
    pub writes: Vec<(u64, Vec<u8>)>,
    /// Registers to resume the thread with.
    pub registers: user_regs_struct,
}

/// Target addresses for the frames.
#[derive(Clone, Copy, Debug)]
pub struct FrameLocations {
    /// End of the bytes for the frame that restores the saved context and for its vector registers.
    pub saved: u64,
    /// End of the bytes for a frame for each call and for the stack of called functions. `None`: right below the
    /// frame at `saved`; then all calls must be system calls.
    pub calls: Option<u64>,
}

/// Returns the number of bytes that [`build_frames`] needs below [`FrameLocations::saved`] if [`FrameLocations::calls`]
/// is `None`: for the frame that restores the saved context, its vector registers, and the frames of `calls` calls.
pub fn call_frames_size(calls: usize, saved: &SavedContext<'_>) -> u64 {
    // 64 and 16 bytes for the alignment of vectors and frames.
    FRAME_STRIDE * (calls as u64 + 1) + saved.xstate.to_frame_bytes().len() as u64 + 64 + 16
}

/// Returns the end of the part of the thread's stack that new call frames may use: the stack pointer less the red zone,
/// 128 bytes that the interrupted function may use.
pub fn top_below_red_zone(saved: &SavedContext<'_>) -> u64 {
    saved.registers.rsp - RED_ZONE
}

/// Builds the signal frames that make `calls` in order and then restore the saved context. During the calls the thread
/// has the signal mask `blocked`. Writes nothing: the caller writes the frames to the memory of the thread's process.
pub fn build_frames(
    calls: &[RemoteCall],
    locations: FrameLocations,
    blocked: u64,
    gadgets: Gadgets,
    saved: &SavedContext<'_>,
) -> CallFrames {
    let state = saved.xstate.to_frame_bytes();
    let vectors = (locations.saved - state.len() as u64) & !63;
    let last = lowest_frame_address(vectors, 1);
    // `last + 8` is a multiple of 16, so that the frames of the calls end right at `last`.
    let first = lowest_frame_address(locations.calls.unwrap_or(last + 8), calls.len() as u64);
    let address = |index: usize| match index {
        index if index == calls.len() => last,
        index => first + FRAME_STRIDE * index as u64,
    };
    let mut writes = vec![(vectors, state)];
    let call_vectors = call_vectors_address(saved, vectors);
    for (index, call) in calls.iter().enumerate() {
        let mut registers = saved.registers;
        call.set_registers(&mut registers, gadgets);
        // The call returns to the first word of the next frame: the restorer, which loads that frame.
        registers.rsp = address(index + 1);
        registers.eflags &= !CLEARED_FLAGS;
        let frame = signal_frame(&registers, blocked, call_vectors, gadgets);
        writes.push((address(index), frame));
    }
    writes.push((
        last,
        signal_frame(&saved.registers, saved.blocked, vectors, gadgets),
    ));
    let mut registers = saved.registers;
    registers.rip = gadgets.restorer;
    registers.rsp = address(0) + 8;
    // -1: the thread is in no system call, so the kernel restarts none.
    registers.orig_rax = u64::MAX;
    registers.eflags &= !CLEARED_FLAGS;
    CallFrames { writes, registers }
}

/// Returns the address from which the frames of calls load the vector registers. With 0, the usual address, the kernel
/// loads the registers' initial state, which functions expect. But the initial state also resets the thread's rights to
/// memory with protection keys (pkeys(7)), and the thread's stack may have a key. So a thread that has changed its
/// rights keeps its own registers, which are at `vectors`.
fn call_vectors_address(saved: &SavedContext<'_>, vectors: u64) -> u64 {
    match saved.xstate.has_changed_key_rights() {
        true => vectors,
        false => 0,
    }
}

/// Exit status of the child of [`build_clone_frames`] if it ever runs, because memprof was killed right after
/// clone(2).
pub const COPY_EXIT_STATUS: u64 = 109;

/// Builds the frames with which a thread calls clone(2) with `flags` and then restores its context. If the child ever
/// runs, it ends at once: it has a stack of its own, whose only frame calls `exit_group(2)`. During the call, the
/// thread has the signal mask `blocked`.
///
/// `end` is the end of [`clone_frames_size`] free bytes.
pub fn build_clone_frames(
    flags: u64,
    end: u64,
    blocked: u64,
    gadgets: Gadgets,
    saved: &SavedContext<'_>,
) -> CallFrames {
    let stack = lowest_frame_address(end - call_frames_size(1, saved), 1);
    let locations = FrameLocations {
        saved: end,
        calls: None,
    };
    let clone = RemoteCall::Syscall(SYS_clone, [flags, stack, 0, 0, 0, 0]);
    let mut frames = build_frames(&[clone], locations, blocked, gadgets, saved);
    // The first write of `build_frames` holds the vector registers.
    let (vectors, _) = frames.writes[0];
    let call_vectors = call_vectors_address(saved, vectors);
    let mut exit = saved.registers;
    RemoteCall::Syscall(SYS_exit_group, [COPY_EXIT_STATUS, 0, 0, 0, 0, 0])
        .set_registers(&mut exit, gadgets);
    exit.rsp = stack;
    frames
        .writes
        .push((stack, signal_frame(&exit, blocked, call_vectors, gadgets)));
    frames
}

/// Returns the number of bytes that [`build_clone_frames`] needs.
pub fn clone_frames_size(saved: &SavedContext<'_>) -> u64 {
    // 24 bytes for the alignment of both ends of the child's frame.
    call_frames_size(1, saved) + FRAME_STRIDE + 24
}

/// Returns the address of the lowest of `frames` adjacent frames that end below `end`. Each frame begins with a return
/// address, which the ABI requires at 8 modulo 16.
fn lowest_frame_address(end: u64, frames: u64) -> u64 {
    ((end - FRAME_STRIDE * frames) & !15) - 8
}

/// Returns whether the words from a stack address on begin with the frame of a signal handler, which is not that of a
/// remote call. Checks the return address (`restorer`), the code segment, `uc_flags` and `uc_link`. A thread in a
/// handler may have interrupted any code. Panics if `words` is empty.
pub fn is_signal_frame(words: &[u64], restorer: u64) -> bool {
    words[0] == restorer
        && words
            .get(SEGMENTS_INDEX)
            .is_some_and(|word| word & 0xffff == USER_CODE_SEGMENT)
        && words[1] <= UC_FLAGS
        && words[2] != FRAME_MARK
}

/// Returns the bytes of `struct rt_sigframe`, as far as `rt_sigreturn(2)` reads it (asm/sigframe.h, asm/sigcontext.h).
/// `blocked` is the signal mask that it restores. `vectors` is the address of the vector registers, or 0 for their
/// initial state.
fn signal_frame(
    registers: &user_regs_struct,
    blocked: u64,
    vectors: u64,
    gadgets: Gadgets,
) -> Vec<u8> {
    let r = registers;
    let segments = r.cs & 0xffff | (r.ss & 0xffff) << 48;
    let [alternative_stack, its_mode, its_size] = [0, u64::from(INVALID_STACK_MODE), 0];
    let mut words = vec![gadgets.restorer, UC_FLAGS, FRAME_MARK];
    words.extend([alternative_stack, its_mode, its_size]);
    words.extend([
        r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15, r.rdi, r.rsi, r.rbp, r.rbx, r.rdx,
        r.rax, r.rcx, r.rsp, r.rip, r.eflags, segments,
    ]);
    let [error, trap, old_mask, fault] = [0; 4];
    words.extend([error, trap, old_mask, fault, vectors]);
    // `reserved1` of `struct sigcontext`, then `uc_sigmask`.
    words.extend([0; 8]);
    words.push(blocked);
    words.into_iter().flat_map(u64::to_le_bytes).collect()
}

impl RemoteCall {
    /// Sets instruction pointer and arguments so that the thread makes the call. The stack pointer stays.
    fn set_registers(self, registers: &mut user_regs_struct, gadgets: Gadgets) {
        match self {
            Self::Syscall(number, [rdi, rsi, rdx, r10, r8, r9]) => {
                registers.rip = gadgets.system_call;
                registers.rax = number as u64;
                (registers.rdi, registers.rsi, registers.rdx) = (rdi, rsi, rdx);
                (registers.r10, registers.r8, registers.r9) = (r10, r8, r9);
            }
            Self::Function(address, [rdi, rsi, rdx, rcx]) => {
                registers.rip = address;
                // `al`: the number of vector registers with arguments, if the function is variadic.
                registers.rax = 0;
                (registers.rdi, registers.rsi, registers.rdx) = (rdi, rsi, rdx);
                registers.rcx = rcx;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GADGETS: Gadgets = Gadgets {
        restorer: 0x1111,
        system_call: 0x2222,
    };

    fn with_context<T>(work: impl FnOnce(&SavedContext<'_>) -> T) -> T {
        // SAFETY: all-zero is a valid value of a struct of numbers.
        #[expect(unsafe_code, reason = "libc has no default for it")]
        let mut registers: user_regs_struct = unsafe { std::mem::zeroed() };
        (registers.cs, registers.ss) = (0x33, 0x2b);
        (registers.rip, registers.rsp) = (0x4444, 0x9000_0000);
        let state = XState::new(vec![0; 832]).unwrap();
        work(&SavedContext {
            registers,
            xstate: &state,
            blocked: 0x77,
        })
    }

    fn words(frames: &CallFrames, address: u64) -> Vec<u64> {
        let at = |(start, _): &&(u64, Vec<u8>)| *start == address;
        let (_, bytes) = frames.writes.iter().find(at).unwrap();
        let words = bytes.chunks_exact(8);
        words
            .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
            .collect()
    }

    #[test]
    fn calls_return_into_next_frame_and_last_into_saved_context() {
        with_context(|saved| {
            let calls = [
                RemoteCall::Syscall(9, [1, 2, 3, 4, 5, 6]),
                RemoteCall::Syscall(11, [0; 6]),
            ];
            let end = top_below_red_zone(saved);
            let locations = FrameLocations {
                saved: end,
                calls: None,
            };
            let frames = build_frames(&calls, locations, 0x55, GADGETS, saved);
            assert_eq!(frames.registers.rip, GADGETS.restorer);
            let mut frame = frames.registers.rsp - 8;
            let lowest = frames.writes.iter().map(|(at, _)| *at).min().unwrap();
            assert_eq!(frame, lowest);
            assert!(
                end - lowest <= call_frames_size(2, saved),
                "{}",
                end - lowest
            );
            for (number, rip, blocked) in [(9, 0x2222, 0x55), (11, 0x2222, 0x55), (0, 0x4444, 0x77)]
            {
                assert_eq!(frame % 16, 8);
                let words = words(&frames, frame);
                assert_eq!(words.len(), 39);
                assert_eq!(
                    (words[0], words[19], words[22]),
                    (GADGETS.restorer, number, rip)
                );
                assert_eq!((words[24], words[38]), (0x2b << 48 | 0x33, blocked));
                assert!(!is_signal_frame(&words, GADGETS.restorer));
                frame = words[21];
            }
            assert_eq!(frame, saved.registers.rsp);
        });
    }

    #[test]
    fn cloned_child_calls_only_exit_group() {
        with_context(|saved| {
            let end = top_below_red_zone(saved);
            let frames = build_clone_frames(0x400, end, 0x55, GADGETS, saved);
            let lowest = frames.writes.iter().map(|(at, _)| *at).min().unwrap();
            assert!(end - lowest <= clone_frames_size(saved), "{}", end - lowest);
            let clone = words(&frames, frames.registers.rsp - 8);
            // rdi, rsi and rax in the frame.
            assert_eq!((clone[14], clone[19]), (0x400, SYS_clone as u64));
            let stack = clone[15];
            assert_eq!(stack, lowest);
            let ends = words(&frames, stack);
            assert_eq!((ends[0], ends[19]), (0x1111, SYS_exit_group as u64));
            assert_eq!(words(&frames, clone[21])[21], saved.registers.rsp);
        });
    }

    #[test]
    fn functions_get_a_separate_stack() {
        with_context(|saved| {
            let calls = [
                RemoteCall::Function(0x3333, [7, 0, 0, 0]),
                RemoteCall::Syscall(11, [0; 6]),
            ];
            let stack = 0x5000_0000;
            let locations = FrameLocations {
                saved: top_below_red_zone(saved),
                calls: Some(stack),
            };
            let frames = build_frames(&calls, locations, 0, GADGETS, saved);
            let function = words(&frames, frames.registers.rsp - 8);
            assert_eq!((function[22], function[14]), (0x3333, 7));
            // The frame lies below the function's stack pointer, where it is free once it was loaded.
            let back = function[21];
            assert!(back > frames.registers.rsp && back + FRAME_STRIDE <= stack);
            let home_frame = words(&frames, back)[21];
            assert!(home_frame > 0x8000_0000);
            assert_eq!(words(&frames, home_frame)[21], saved.registers.rsp);
        });
    }

    #[test]
    fn signal_frame_is_distinguished_from_remote_call() {
        let mut words = vec![0; 40];
        (words[0], words[1], words[24]) = (0x1111, 7, 0x002b_0000_0000_0033);
        assert!(is_signal_frame(&words, 0x1111));
        assert!(!is_signal_frame(&words, 0x1112));
        assert!(!is_signal_frame(&words[..20], 0x1111));
        words[2] = FRAME_MARK;
        assert!(!is_signal_frame(&words, 0x1111));
    }
}
