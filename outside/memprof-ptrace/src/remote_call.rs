//! Calls that another process's thread makes, after which it finds its way home alone.
//!
//! What a signal handler leaves behind is written for it: one signal frame for each call, the last one
//! with the thread's own registers. `ret` of what is called leads to libc's `rt_sigreturn(2)`, which
//! loads the next frame. So nobody needs to hold the thread, or to be there when it is done: whoever
//! wrote the frames may be killed at any moment.

use std::ops::Range;

use libc::{SYS_clone, SYS_exit_group, user_regs_struct};
use memchr::memmem;

use crate::memory::Memory;
use crate::xstate::XState;

/// From one frame to the next: a return address and `struct ucontext`, which are 312 bytes, and what
/// keeps the stack at the same place modulo 16.
const STEP: u64 = 320;
/// In `uc_link`, which the kernel does not read: tells a frame of ours.
const LINK: u64 = u64::from_be_bytes(*b"memprof\0");
/// Which word of a frame holds the segments, and what is in it for code of 64 bits.
const SEGMENTS: usize = 24;
const USER_CODE: u64 = 0x33;
/// `UC_FP_XSTATE | UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS` (asm/ucontext.h).
const FLAGS: u64 = 7;
/// No mode of sigaltstack(2): the kernel then leaves the thread's alternative stack as it is.
const NO_STACK_MODE: u32 = 0x7fff_fff0;
/// What an ABI promises to leave alone below the stack pointer.
const RED_ZONE: u64 = 128;
/// Direction and trap flags, which no function is to be called with.
const UNWANTED_FLAGS: u64 = 1 << 10 | 1 << 8;

/// Instructions of libc that lead from call to call.
#[derive(Clone, Copy, Debug)]
pub struct Gadgets {
    /// `mov $15,%rax; syscall`: libc's own return from signal handlers.
    pub restorer: u64,
    /// `syscall; ret`.
    pub system_call: u64,
}

/// How much of a mapping is searched: the code of glibc 2.36 has 1.4 MiB. Any file may be called libc.so.6.
const CODE_LIMIT: u64 = 16 << 20;

impl Gadgets {
    /// Looks for both in a mapping of code.
    pub fn find(memory: &Memory, code: &Range<u64>) -> Option<Self> {
        let length = (code.end - code.start).min(CODE_LIMIT);
        let mut bytes = vec![0; length as usize];
        memory.read(code.start, &mut bytes).ok()?;
        let find = |what: &[u8]| Some(code.start + memmem::find(&bytes, what)? as u64);
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

/// One call.
#[derive(Clone, Copy, Debug)]
pub enum RemoteCall {
    /// A system call: its number, and its arguments.
    Syscall(i64, [u64; 6]),
    /// A function of the C ABI: its address, and its arguments.
    Function(u64, [u64; 4]),
}

/// A thread as it was.
#[derive(Debug)]
pub struct SavedContext<'a> {
    /// Its registers, with which it goes on.
    pub registers: user_regs_struct,
    /// Its vector and floating-point registers.
    pub state: &'a XState,
    /// The signals that it blocks.
    pub blocked: u64,
}

/// What is to be written where, and how the thread begins.
#[derive(Debug)]
pub struct CallFrames {
    /// Addresses and what goes there.
    pub writes: Vec<(u64, Vec<u8>)>,
    /// The registers to begin with.
    pub registers: user_regs_struct,
}

/// Where the frames go.
#[derive(Clone, Copy, Debug)]
pub struct FrameLocations {
    /// Right below this address: the frame that leads home, and the vectors.
    pub home: u64,
    /// Right below this address: a frame for each call, and the stack of functions. `None`: below the
    /// frame that leads home; then the calls must be system calls.
    pub calls: Option<u64>,
}

/// How many bytes are needed at [`FrameLocations::home`] where that many calls lie there too.
pub fn frames_size(calls: usize, home: &SavedContext<'_>) -> u64 {
    // Both alignments.
    STEP * (calls as u64 + 1) + home.state.for_frame().len() as u64 + 64 + 16
}

/// Highest address at which call frames may end on a stack: below the red zone.
pub fn stack_limit(home: &SavedContext<'_>) -> u64 {
    home.registers.rsp - RED_ZONE
}

/// The frames that make `calls` and then lead home. Meanwhile the thread blocks `blocked`.
pub fn build_frames(
    calls: &[RemoteCall],
    places: FrameLocations,
    blocked: u64,
    gadgets: Gadgets,
    home: &SavedContext<'_>,
) -> CallFrames {
    let state = home.state.for_frame();
    let vectors = (places.home - state.len() as u64) & !63;
    // A function expects its return address at 8 modulo 16.
    let last = frame_address(vectors, 1);
    let first = frame_address(places.calls.unwrap_or(last + 8), calls.len() as u64);
    let at = |index: usize| match index {
        index if index == calls.len() => last,
        index => first + STEP * index as u64,
    };
    let mut writes = vec![(vectors, state)];
    for (index, call) in calls.iter().enumerate() {
        let mut registers = home.registers;
        call.load(&mut registers, gadgets);
        registers.rsp = at(index + 1);
        registers.eflags &= !UNWANTED_FLAGS;
        // Without vectors: in the state that functions are called with.
        let frame = frame(&registers, blocked, 0, gadgets);
        writes.push((at(index), frame));
    }
    writes.push((last, frame(&home.registers, home.blocked, vectors, gadgets)));
    let mut registers = home.registers;
    registers.rip = gadgets.restorer;
    registers.rsp = at(0) + 8;
    registers.orig_rax = u64::MAX;
    registers.eflags &= !UNWANTED_FLAGS;
    CallFrames { writes, registers }
}

/// The exit status of a child of [`build_clone_frames`] that was let run: memprof was killed just then.
pub const COPY_EXIT_STATUS: u64 = 109;

/// The frames with which a thread clones its process by the flags of clone(2) and goes home. Should the child
/// ever run, it ends at once: it has a stack of its own, whose only frame leads to `exit_group(2)`.
///
/// `end` is where [`clone_frames_size`] bytes end.
pub fn build_clone_frames(
    flags: u64,
    end: u64,
    blocked: u64,
    gadgets: Gadgets,
    home: &SavedContext<'_>,
) -> CallFrames {
    let stack = frame_address(end - frames_size(1, home), 1);
    let places = FrameLocations {
        home: end,
        calls: None,
    };
    let clone = RemoteCall::Syscall(SYS_clone, [flags, stack, 0, 0, 0, 0]);
    let mut frames = build_frames(&[clone], places, blocked, gadgets, home);
    let mut ends = home.registers;
    RemoteCall::Syscall(SYS_exit_group, [COPY_EXIT_STATUS, 0, 0, 0, 0, 0]).load(&mut ends, gadgets);
    ends.rsp = stack;
    frames
        .writes
        .push((stack, frame(&ends, blocked, 0, gadgets)));
    frames
}

/// How many bytes [`build_clone_frames`] needs.
pub fn clone_frames_size(home: &SavedContext<'_>) -> u64 {
    // Both alignments of the child's frame.
    frames_size(1, home) + STEP + 24
}

/// The lowest of so many frames below an address.
fn frame_address(end: u64, frames: u64) -> u64 {
    ((end - STEP * frames) & !15) - 8
}

/// Whether the words of a stack, from one on, are the frame of a signal handler, and not of a remote call.
/// The thread may have interrupted anything then.
pub fn is_signal_frame(words: &[u64], restorer: u64) -> bool {
    words[0] == restorer
        && words
            .get(SEGMENTS)
            .is_some_and(|word| word & 0xffff == USER_CODE)
        && words[1] <= FLAGS
        && words[2] != LINK
}

/// `struct rt_sigframe`, as far as `rt_sigreturn(2)` reads it (asm/sigframe.h, asm/sigcontext.h).
fn frame(registers: &user_regs_struct, blocked: u64, vectors: u64, gadgets: Gadgets) -> Vec<u8> {
    let r = registers;
    let segments = r.cs & 0xffff | (r.ss & 0xffff) << 48;
    let [alternative_stack, its_mode, its_size] = [0, u64::from(NO_STACK_MODE), 0];
    let mut words = vec![gadgets.restorer, FLAGS, LINK];
    words.extend([alternative_stack, its_mode, its_size]);
    words.extend([
        r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15, r.rdi, r.rsi, r.rbp, r.rbx, r.rdx,
        r.rax, r.rcx, r.rsp, r.rip, r.eflags, segments,
    ]);
    let [error, trap, old_mask, fault] = [0; 4];
    words.extend([error, trap, old_mask, fault, vectors]);
    words.extend([0; 8]);
    words.push(blocked);
    words.into_iter().flat_map(u64::to_le_bytes).collect()
}

impl RemoteCall {
    fn load(self, registers: &mut user_regs_struct, gadgets: Gadgets) {
        match self {
            Self::Syscall(number, [rdi, rsi, rdx, r10, r8, r9]) => {
                registers.rip = gadgets.system_call;
                registers.rax = number as u64;
                (registers.rdi, registers.rsi, registers.rdx) = (rdi, rsi, rdx);
                (registers.r10, registers.r8, registers.r9) = (r10, r8, r9);
            }
            Self::Function(address, [rdi, rsi, rdx, rcx]) => {
                registers.rip = address;
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

    fn with_home<T>(work: impl FnOnce(&SavedContext<'_>) -> T) -> T {
        // SAFETY: a struct of numbers.
        #[expect(unsafe_code, reason = "libc has no default for it")]
        let mut registers: user_regs_struct = unsafe { std::mem::zeroed() };
        (registers.cs, registers.ss) = (0x33, 0x2b);
        (registers.rip, registers.rsp) = (0x4444, 0x9000_0000);
        let state = XState::new(vec![0; 832]).unwrap();
        work(&SavedContext {
            registers,
            state: &state,
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
    fn each_call_returns_into_the_next_frame_and_the_last_one_home() {
        with_home(|home| {
            let calls = [
                RemoteCall::Syscall(9, [1, 2, 3, 4, 5, 6]),
                RemoteCall::Syscall(11, [0; 6]),
            ];
            let end = stack_limit(home);
            let places = FrameLocations {
                home: end,
                calls: None,
            };
            let frames = build_frames(&calls, places, 0x55, GADGETS, home);
            assert_eq!(frames.registers.rip, GADGETS.restorer);
            let mut frame = frames.registers.rsp - 8;
            let lowest = frames.writes.iter().map(|(at, _)| *at).min().unwrap();
            assert_eq!(frame, lowest);
            assert!(end - lowest <= frames_size(2, home), "{}", end - lowest);
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
            assert_eq!(frame, home.registers.rsp);
        });
    }

    #[test]
    fn a_cloned_child_s_only_way_leads_to_its_end() {
        with_home(|home| {
            let end = stack_limit(home);
            let frames = build_clone_frames(0x400, end, 0x55, GADGETS, home);
            let lowest = frames.writes.iter().map(|(at, _)| *at).min().unwrap();
            assert!(end - lowest <= clone_frames_size(home), "{}", end - lowest);
            let clone = words(&frames, frames.registers.rsp - 8);
            // rdi, rsi and rax in the frame.
            assert_eq!((clone[14], clone[19]), (0x400, SYS_clone as u64));
            let stack = clone[15];
            assert_eq!(stack, lowest);
            let ends = words(&frames, stack);
            assert_eq!((ends[0], ends[19]), (0x1111, SYS_exit_group as u64));
            assert_eq!(words(&frames, clone[21])[21], home.registers.rsp);
        });
    }

    #[test]
    fn functions_have_a_stack_of_their_own() {
        with_home(|home| {
            let calls = [
                RemoteCall::Function(0x3333, [7, 0, 0, 0]),
                RemoteCall::Syscall(11, [0; 6]),
            ];
            let stack = 0x5000_0000;
            let places = FrameLocations {
                home: stack_limit(home),
                calls: Some(stack),
            };
            let frames = build_frames(&calls, places, 0, GADGETS, home);
            let function = words(&frames, frames.registers.rsp - 8);
            assert_eq!((function[22], function[14]), (0x3333, 7));
            // Its own frame lies below its stack, where it is not needed any more.
            let back = function[21];
            assert!(back > frames.registers.rsp && back + STEP <= stack);
            let home_frame = words(&frames, back)[21];
            assert!(home_frame > 0x8000_0000);
            assert_eq!(words(&frames, home_frame)[21], home.registers.rsp);
        });
    }

    #[test]
    fn a_handler_s_frame_is_told_from_others() {
        let mut words = vec![0; 40];
        (words[0], words[1], words[24]) = (0x1111, 7, 0x002b_0000_0000_0033);
        assert!(is_signal_frame(&words, 0x1111));
        assert!(!is_signal_frame(&words, 0x1112));
        assert!(!is_signal_frame(&words[..20], 0x1111));
        words[2] = LINK;
        assert!(!is_signal_frame(&words, 0x1111));
    }
}
