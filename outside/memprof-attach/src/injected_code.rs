//! Code that the new thread runs: it loads the plugin, calls it, and unmaps itself.
#![expect(unsafe_code, reason = "machine code")]

use std::arch::global_asm;
use std::slice;

use crate::shared_page::{
    ATTRIBUTES, ATTRIBUTES_INIT, BASE, CREATE, CREATE_RESULT, CREATED, DETACH, DLERROR, DLOPEN,
    DLSYM, ENTRY, ENTRY_NAME, FREE, FREE_NAME, GET_STACK_SIZE, IS_MISALIGNED, LENGTH, LoaderAck,
    LoaderStage, MALLOC, MALLOC_NAME, MASK, MEMFD, MEMFD_NAME, MUNMAP, PATH, PAUSE, REPLY, SELF,
    SET_STACK_SIZE, STACK_SIZE, STAGE, SYSTEM_CALL, TEXT, TEXT_LENGTH, THREAD, TOML, WANTS_MEMFD,
};

/// Number of 10 ms pauses for which the thread waits for a reply of memprof before it continues without one.
const MAX_PAUSES: u32 = 1000;

/// Blocks that the thread allocates before it loads anything: [`TEST_BLOCKS_PER_SIZE`] of each size from 24 bytes
/// on, in steps of 8. If an allocator aligns to 8 only, one of them lies between two multiples of 16, whether it
/// uses size classes, headers of 8 bytes or adjacent blocks.
const TEST_BLOCKS: u32 = 32;
const TEST_BLOCKS_PER_SIZE: u32 = 4;

/// Least stack size of the new thread in bytes: dlopen(3) of the plugin and its constructors need it.
const MIN_STACK_SIZE: u32 = 1 << 20;

// rbx: the shared page; r12: the reply that the thread waits for; r13: pauses.
global_asm!(
    ".pushsection .rodata.memprof_attach, \"a\"",
    ".globl memprof_attach_code, memprof_attach_create, memprof_attach_code_end",
    ".hidden memprof_attach_code, memprof_attach_create, memprof_attach_code_end",
    "memprof_attach_code:",
    "push rbx",
    "push r12",
    "push r13",
    "mov rbx, rdi",
    // A thread that blocks libc's two signals makes setuid(3) wait for ever.
    "mov eax, 14",
    "mov edi, 2",
    "lea rsi, [rbx + {MASK}]",
    "xor edx, edx",
    "mov r10d, 8",
    "syscall",
    "call qword ptr [rbx + {SELF}]",
    "mov rdi, rax",
    "call qword ptr [rbx + {DETACH}]",
    "mov qword ptr [rbx + {STAGE}], 1",
    // Compiled code, the plugin's too, relies on `malloc` aligning to 16 (x86-64 psABI, `max_align_t`) for movaps.
    "xor edi, edi",
    "lea rsi, [rbx + {MALLOC_NAME}]",
    "call qword ptr [rbx + {DLSYM}]",
    "mov qword ptr [rbx + {MALLOC}], rax",
    "xor edi, edi",
    "lea rsi, [rbx + {FREE_NAME}]",
    "call qword ptr [rbx + {DLSYM}]",
    "mov qword ptr [rbx + {FREE}], rax",
    "test rax, rax",
    "je 5f",
    "cmp qword ptr [rbx + {MALLOC}], 0",
    "je 5f",
    "sub rsp, 8 * {TEST_BLOCKS}",
    "xor r12d, r12d",
    "xor r13d, r13d",
    "32:",
    "mov eax, r12d",
    "xor edx, edx",
    "mov ecx, {TEST_BLOCKS_PER_SIZE}",
    "div ecx",
    "lea rdi, [rax * 8 + 24]",
    "call qword ptr [rbx + {MALLOC}]",
    "mov qword ptr [rsp + r12 * 8], rax",
    "or r13, rax",
    "inc r12d",
    "cmp r12d, {TEST_BLOCKS}",
    "jne 32b",
    "33:",
    "dec r12d",
    "mov rdi, qword ptr [rsp + r12 * 8]",
    "call qword ptr [rbx + {FREE}]",
    "test r12d, r12d",
    "jne 33b",
    "add rsp, 8 * {TEST_BLOCKS}",
    "xor eax, eax",
    "and r13d, 15",
    "mov qword ptr [rbx + {IS_MISALIGNED}], r13",
    "jne 6f",
    "mov rax, qword ptr [rbx + {ENTRY}]",
    "test rax, rax",
    "jne 4f",
    "cmp qword ptr [rbx + {WANTS_MEMFD}], 0",
    "je 2f",
    "lea rdi, [rbx + {MEMFD_NAME}]",
    "mov esi, 1",
    "mov eax, 319",
    "syscall",
    "mov qword ptr [rbx + {MEMFD}], rax",
    "mov qword ptr [rbx + {STAGE}], 2",
    "mov r12d, 1",
    "call 8f",
    "2:",
    "lea rdi, [rbx + {PATH}]",
    "mov esi, 2",
    "call qword ptr [rbx + {DLOPEN}]",
    "push rax",
    "sub rsp, 8",
    "cmp qword ptr [rbx + {WANTS_MEMFD}], 0",
    "je 3f",
    "mov rdi, qword ptr [rbx + {MEMFD}]",
    "mov eax, 3",
    "syscall",
    "3:",
    "add rsp, 8",
    "pop rdi",
    "test rdi, rdi",
    "je 5f",
    "lea rsi, [rbx + {ENTRY_NAME}]",
    "call qword ptr [rbx + {DLSYM}]",
    "test rax, rax",
    "je 5f",
    "4:",
    "mov qword ptr [rbx + {STAGE}], {CALLING}",
    // The stage is visible before the reply is read, so at least one of both sides sees the other's value.
    "mfence",
    "cmp qword ptr [rbx + {REPLY}], {CANCELLED}",
    "je 41f",
    "lea rdi, [rbx + {TOML}]",
    "call rax",
    "jmp 6f",
    "41:",
    "xor eax, eax",
    "jmp 6f",
    "5:",
    "call qword ptr [rbx + {DLERROR}]",
    "6:",
    // The text, or null. It may be freed when this thread ends, so it is copied.
    "mov rsi, rax",
    "lea rdi, [rbx + {TEXT}]",
    "mov ecx, {TEXT_LENGTH} - 1",
    "test rsi, rsi",
    "je 7f",
    "61:",
    "lodsb",
    "stosb",
    "test al, al",
    "je 7f",
    "dec ecx",
    "jne 61b",
    "7:",
    "mov qword ptr [rbx + {STAGE}], {DONE}",
    "mov r12d, 2",
    "call 8f",
    // The thread that created this one may still run the code.
    "71:",
    "cmp qword ptr [rbx + {CREATED}], 0",
    "jne 72f",
    "lea rdi, [rbx + {PAUSE}]",
    "xor esi, esi",
    "mov eax, 35",
    "syscall",
    "jmp 71b",
    "72:",
    // A jump: munmap must not return into the unmapped code.
    "mov rdi, qword ptr [rbx + {BASE}]",
    "mov rsi, qword ptr [rbx + {LENGTH}]",
    "mov rax, qword ptr [rbx + {MUNMAP}]",
    "pop r13",
    "pop r12",
    "pop rbx",
    "jmp rax",
    "8:",
    "mov r13d, {MAX_PAUSES}",
    "81:",
    "cmp qword ptr [rbx + {REPLY}], r12",
    "jae 82f",
    "lea rdi, [rbx + {PAUSE}]",
    "xor esi, esi",
    "mov eax, 35",
    "syscall",
    "dec r13d",
    "jne 81b",
    "82:",
    "ret",
    // Function that the stopped thread calls, with the page as argument.
    "memprof_attach_create:",
    "push rbx",
    "mov rbx, rdi",
    // With a low RLIMIT_STACK the program's default stacks are too small for the loader.
    "lea rdi, [rbx + {ATTRIBUTES}]",
    "call qword ptr [rbx + {ATTRIBUTES_INIT}]",
    "lea rdi, [rbx + {ATTRIBUTES}]",
    "lea rsi, [rbx + {STACK_SIZE}]",
    "call qword ptr [rbx + {GET_STACK_SIZE}]",
    "cmp qword ptr [rbx + {STACK_SIZE}], {MIN_STACK_SIZE}",
    "jae 9f",
    "lea rdi, [rbx + {ATTRIBUTES}]",
    "mov esi, {MIN_STACK_SIZE}",
    "call qword ptr [rbx + {SET_STACK_SIZE}]",
    "9:",
    "lea rdi, [rbx + {THREAD}]",
    "lea rsi, [rbx + {ATTRIBUTES}]",
    "mov rdx, qword ptr [rbx + {BASE}]",
    "mov rcx, rbx",
    "call qword ptr [rbx + {CREATE}]",
    "mov eax, eax",
    "mov qword ptr [rbx + {CREATE_RESULT}], rax",
    // A jump into libc: rt_sigprocmask(2) writes the current signal mask, which is not 0, to CREATED, and so reports
    // that the thread has left the code.
    "mov eax, 14",
    "mov edi, 2",
    "xor esi, esi",
    "lea rdx, [rbx + {CREATED}]",
    "mov r10d, 8",
    "mov r9, qword ptr [rbx + {SYSTEM_CALL}]",
    "pop rbx",
    "jmp r9",
    "memprof_attach_code_end:",
    ".popsection",
    ATTRIBUTES = const ATTRIBUTES,
    ATTRIBUTES_INIT = const ATTRIBUTES_INIT,
    GET_STACK_SIZE = const GET_STACK_SIZE,
    MIN_STACK_SIZE = const MIN_STACK_SIZE,
    SET_STACK_SIZE = const SET_STACK_SIZE,
    STACK_SIZE = const STACK_SIZE,
    CALLING = const LoaderStage::Calling as u64,
    CANCELLED = const LoaderAck::Cancelled as u64,
    CREATE = const CREATE,
    CREATE_RESULT = const CREATE_RESULT,
    CREATED = const CREATED,
    DONE = const LoaderStage::Done as u64,
    SYSTEM_CALL = const SYSTEM_CALL,
    THREAD = const THREAD,
    MASK = const MASK,
    SELF = const SELF,
    DETACH = const DETACH,
    STAGE = const STAGE,
    ENTRY = const ENTRY,
    WANTS_MEMFD = const WANTS_MEMFD,
    MEMFD_NAME = const MEMFD_NAME,
    MEMFD = const MEMFD,
    PATH = const PATH,
    DLOPEN = const DLOPEN,
    DLSYM = const DLSYM,
    DLERROR = const DLERROR,
    ENTRY_NAME = const ENTRY_NAME,
    TOML = const TOML,
    TEXT = const TEXT,
    TEXT_LENGTH = const TEXT_LENGTH,
    BASE = const BASE,
    TEST_BLOCKS = const TEST_BLOCKS,
    TEST_BLOCKS_PER_SIZE = const TEST_BLOCKS_PER_SIZE,
    MALLOC = const MALLOC,
    MALLOC_NAME = const MALLOC_NAME,
    FREE = const FREE,
    FREE_NAME = const FREE_NAME,
    IS_MISALIGNED = const IS_MISALIGNED,
    LENGTH = const LENGTH,
    MUNMAP = const MUNMAP,
    REPLY = const REPLY,
    PAUSE = const PAUSE,
    MAX_PAUSES = const MAX_PAUSES,
);

unsafe extern "C" {
    /// Labels of the assembly above.
    static memprof_attach_code: u8;
    static memprof_attach_create: u8;
    static memprof_attach_code_end: u8;
}

/// The position-independent code. Its first instruction is the `start_routine` of `pthread_create(3)`, whose
/// argument is the shared page.
pub(crate) fn loader_code() -> &'static [u8] {
    let start = &raw const memprof_attach_code;
    let end = &raw const memprof_attach_code_end;
    // SAFETY: the linker keeps both labels in one read-only section, in this order.
    unsafe { slice::from_raw_parts(start, end as usize - start as usize) }
}

/// Offset in the code of the function that creates the new thread. Its argument is the shared page.
pub(crate) fn creator_offset() -> u64 {
    let start = &raw const memprof_attach_code;
    let create = &raw const memprof_attach_create;
    (create as usize - start as usize) as u64
}
