//! Hooks on stacks that the ABI rules out: misaligned by 8, and hardly larger than the allocator needs.
#![cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
#![expect(unsafe_code, reason = "machine code, and stacks of its own")]

mod program;

use std::arch::asm;
use std::collections::HashSet;
use std::mem::{self, offset_of, transmute};
use std::ptr;
use std::slice;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use memprof_sampler::{
    EntryRow, EntryTable, PatchedEntries, Role, Shape, clear, enable_tally, for_each_live_sample,
    start,
};
use memprof_unwind::clear_rules;
use program::{Program, RET};

/// Bytes of stack that a hook may use, beside what the allocator uses.
const MAX_HOOK_STACK: usize = 1536;

/// Stack of one page, with a page below that cannot be accessed.
struct Stack {
    page: *mut u8,
}

const PAGE: usize = 4096;
/// Byte that fills the unused stack.
const PAINT: u8 = 0xa5;

impl Stack {
    fn new() -> Self {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: mmap(2): new memory.
        let guard = unsafe { libc::mmap(ptr::null_mut(), 2 * PAGE, libc::PROT_NONE, flags, -1, 0) };
        assert_ne!(guard, libc::MAP_FAILED);
        let page = guard.wrapping_byte_add(PAGE);
        // SAFETY: mprotect(2) on the second page of the new mapping.
        let failed = unsafe { libc::mprotect(page, PAGE, libc::PROT_READ | libc::PROT_WRITE) };
        assert_eq!(failed, 0);
        let page = page.cast::<u8>();
        // SAFETY: `mprotect` has made this page writable, and nothing else uses it.
        unsafe { page.write_bytes(PAINT, PAGE) };
        Self { page }
    }

    fn end(&self) -> usize {
        self.page as usize + PAGE
    }

    /// Returns the number of bytes of the stack that were written to.
    fn used(&self) -> usize {
        // SAFETY: a mapped page that no code runs on now.
        let bytes = unsafe { slice::from_raw_parts(self.page, PAGE) };
        PAGE - bytes.iter().take_while(|byte| **byte == PAINT).count()
    }
}

/// Calls a function with five arguments on the stack that ends at `top`.
fn call_on(top: usize, function: usize, arguments: [usize; 5]) -> usize {
    let result;
    // SAFETY: the caller passes a function of the C ABI, and a stack that nothing else uses.
    unsafe {
        asm!(
            "mov r12, rsp",
            "mov rsp, {top}",
            "call {function}",
            "mov rsp, r12",
            top = in(reg) top,
            function = in(reg) function,
            inlateout("rdi") arguments[0] => _,
            inlateout("rsi") arguments[1] => _,
            inlateout("rdx") arguments[2] => _,
            inlateout("rcx") arguments[3] => _,
            inlateout("r8") arguments[4] => _,
            lateout("rax") result,
            out("r12") _,
            clobber_abi("C"),
        );
    }
    result
}

/// Returns the address of the block that the function number `index` returns.
fn block(index: usize) -> usize {
    0x5500_0000_0000 + index * 4096
}

/// Machine code of an allocator's function of a shape. It returns the block of `index`, always the same; a `Stored` one
/// stores it at its first argument.
fn code(index: usize, shape: Shape) -> Vec<u8> {
    let movabs_rax = [&[0x48, 0xb8][..], &block(index).to_le_bytes()].concat();
    match shape {
        Shape::Stored => {
            // mov %rax,(%rdi); xor %eax,%eax
            [&movabs_rax[..], &[0x48, 0x89, 0x07, 0x31, 0xc0, RET]].concat()
        }
        Shape::Free => vec![RET],
        _ => [&movabs_rax[..], &[RET]].concat(),
    }
}

/// Patches a function of each shape, and enables the hooks. `is_outer` says whether all functions count as callers of
/// other patched ones.
fn program_with_hooks(is_outer: bool) -> (Program, PatchedEntries) {
    let functions: Vec<_> = Shape::ALL
        .into_iter()
        .enumerate()
        .map(|(index, shape)| ("malloc", shape, code(index, shape)))
        .collect();
    let mut program = Program::new(&functions);
    for index in 0..functions.len() {
        program.write_jump(index);
        let entry = offset_of!(EntryTable, entries) + index * size_of::<EntryRow>();
        program.write(
            entry + offset_of!(EntryRow, is_outer),
            &[u8::from(is_outer)],
        );
    }
    let entries = PatchedEntries::find(program.address(program.function(0))).unwrap();
    assert_eq!(entries.enable(), Some(functions.len()));
    (program, entries)
}

/// Returns the addresses of all live samples.
fn live() -> HashSet<usize> {
    let mut live = HashSet::new();
    for_each_live_sample(|sample| assert!(live.insert(sample.address)));
    live
}

/// Calls a function of every shape once on the stack that ends at `top`. Checks after each call that an allocation has
/// added a sample, and a free has removed one. Clears the tables at the end.
fn check_all(program: &Program, top: usize) {
    let mut stored = 0_usize;
    let mut allocated = HashSet::new();
    for (index, shape) in Shape::ALL.into_iter().enumerate() {
        let old = match shape.role() {
            Role::Allocates => 0,
            Role::Frees => allocated.iter().next().copied().unwrap_or(block(0)),
        };
        let arguments = match shape {
            Shape::Stored => [&raw mut stored as usize, 64, 100, 0, 0],
            Shape::Free
            | Shape::Resize
            | Shape::ResizeThird
            | Shape::ResizeFourth
            | Shape::ResizeCount
            | Shape::Expand => [old, 100, 100, 100, 100],
            Shape::SecondResize | Shape::SecondResizeCount => [7, old, 100, 100, 100],
            Shape::Size | Shape::SecondSize | Shape::Count | Shape::SecondCount => [100; 5],
        };
        let result = call_on(top, program.address(program.function(index)), arguments);
        allocated.remove(&old);
        match shape {
            Shape::Free => {}
            // It keeps its address, and is a sample of the new size.
            Shape::Expand => {
                allocated.insert(old);
            }
            Shape::Stored => {
                assert_eq!((result, stored), (0, block(index)));
                allocated.insert(stored);
            }
            _ => {
                assert_eq!(result, block(index));
                allocated.insert(result);
            }
        }
        assert_eq!(live(), allocated, "{shape:?}");
    }
    clear().unwrap();
}

/// Checks that a change in place that fails leaves the sample as it is, and that one that succeeds changes its size.
/// Calls on the stack that ends at `top`.
fn check_failed_expansion(program: &Program, top: usize) {
    let call = |shape: Shape, arguments| {
        let index = Shape::ALL.iter().position(|each| *each == shape).unwrap();
        call_on(top, program.address(program.function(index)), arguments)
    };
    call(Shape::Size, [100; 5]);
    let sizes = || {
        let mut sizes = Vec::new();
        for_each_live_sample(|sample| sizes.push(sample.size));
        sizes
    };
    assert_eq!(sizes(), [100]);
    // The function returns less than this, as the size that the block still has.
    call(Shape::Expand, [block(0), usize::MAX, 0, 0, 0]);
    assert_eq!(sizes(), [100]);
    call(Shape::Expand, [block(0), 200, 50, 0, 0]);
    assert_eq!(sizes(), [250]);
    clear().unwrap();
}

/// Passes the loader's function and the main thread's stack to the walker.
fn prepare_walks() {
    // SAFETY: dlsym(3) with a NUL-terminated name.
    let find = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_dl_find_object".as_ptr()) };
    // SAFETY: dlfcn.h gives the function of this name this type.
    let find = unsafe { transmute::<*mut libc::c_void, memprof_unwind::FindObject>(find) };
    // SAFETY: getauxval(3) reads a constant of this process.
    memprof_unwind::prepare_walks(find, unsafe { libc::getauxval(libc::AT_RANDOM) } as usize);
}

static MALLOC: AtomicUsize = AtomicUsize::new(0);
static RESULT: AtomicUsize = AtomicUsize::new(0);

/// Allocates in a signal handler, with a stack pointer off by 8, on the smallest alternate stack with room
/// for a hook.
fn check_signal_handler() {
    extern "C" fn handle(_: libc::c_int) {
        let local = 0_u128;
        let top = (&raw const local as usize & !15) - 256 - 8;
        RESULT.store(call_on(top, MALLOC.load(Relaxed), [100; 5]), Relaxed);
    }
    let (program, entries) = program_with_hooks(false);
    MALLOC.store(program.address(program.function(0)), Relaxed);
    clear_rules();
    // SAFETY: getauxval(3) reads a constant of this process.
    let frame = unsafe { libc::getauxval(libc::AT_MINSIGSTKSZ) } as usize;
    let mut memory = vec![0_u8; frame.max(libc::MINSIGSTKSZ) + 512 + MAX_HOOK_STACK];
    let stack = libc::stack_t {
        ss_sp: memory.as_mut_ptr().cast(),
        ss_flags: 0,
        ss_size: memory.len(),
    };
    // SAFETY: sigaltstack(2): memory that outlives its use below.
    let failed = unsafe { libc::sigaltstack(&raw const stack, ptr::null_mut()) };
    assert_eq!(failed, 0);
    // SAFETY: zeros are a valid value.
    let mut action = unsafe { mem::zeroed::<libc::sigaction>() };
    action.sa_sigaction = handle as extern "C" fn(_) as usize;
    action.sa_flags = libc::SA_ONSTACK;
    // SAFETY: sigaction(2): a handler that calls machine code of this test.
    let failed = unsafe { libc::sigaction(libc::SIGUSR1, &raw const action, ptr::null_mut()) };
    assert_eq!(failed, 0);
    // SAFETY: raise(3) returns after the handler.
    assert_eq!(unsafe { libc::raise(libc::SIGUSR1) }, 0);
    assert_eq!(RESULT.load(Relaxed), block(0));
    assert_eq!(live(), HashSet::from([block(0)]));
    entries.disable(None);
    let off = libc::stack_t {
        ss_flags: libc::SS_DISABLE,
        ..stack
    };
    // SAFETY: sigaltstack(2) of this thread, which does not run on it.
    let failed = unsafe { libc::sigaltstack(&raw const off, ptr::null_mut()) };
    assert_eq!(failed, 0);
    clear().unwrap();
}

/// The process has one sampler, so this is one test.
#[test]
fn stack_misaligned_or_small_serves_every_hook() {
    prepare_walks();
    start(1).unwrap();
    for (is_outer, is_tallied) in [(false, false), (true, false), (false, true)] {
        if is_tallied {
            enable_tally();
        }
        let (program, entries) = program_with_hooks(is_outer);
        for off in [64, 72] {
            // Unwind rules are read again, which needs the most stack.
            clear_rules();
            let stack = Stack::new();
            check_all(&program, stack.end() - off);
            check_failed_expansion(&program, stack.end() - off);
            let used = stack.used() - off;
            assert!(used < MAX_HOOK_STACK, "{used}");
        }
        entries.disable(None);
    }
    check_signal_handler();
}
