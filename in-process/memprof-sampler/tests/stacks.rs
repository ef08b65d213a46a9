//! Hooks on stacks that the ABI does not promise: misaligned by 8, and hardly larger than the allocator's own need.
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
    EntryRow, EntryTable, PatchedEntries, Role, SIGNATURES, Signature, clear, enable,
    for_each_live, start,
};
use memprof_unwind::clear_rules;
use program::{Program, RET};

/// More of its stack is not used by a hook, whatever it does, beside what the allocator uses.
const NEED: usize = 1536;

/// A page to run on, below which nothing can be written.
struct Stack {
    page: *mut u8,
}

const PAGE: usize = 4096;
const PAINT: u8 = 0xa5;

impl Stack {
    fn new() -> Self {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: mmap(2): new memory.
        let guard = unsafe { libc::mmap(ptr::null_mut(), 2 * PAGE, libc::PROT_NONE, flags, -1, 0) };
        assert_ne!(guard, libc::MAP_FAILED);
        let page = guard.wrapping_byte_add(PAGE);
        // SAFETY: mprotect(2): the second page of it.
        let failed = unsafe { libc::mprotect(page, PAGE, libc::PROT_READ | libc::PROT_WRITE) };
        assert_eq!(failed, 0);
        let page = page.cast::<u8>();
        // SAFETY: the page of above.
        unsafe { page.write_bytes(PAINT, PAGE) };
        Self { page }
    }

    fn end(&self) -> usize {
        self.page as usize + PAGE
    }

    fn used(&self) -> usize {
        // SAFETY: a page that nobody writes to now.
        let bytes = unsafe { slice::from_raw_parts(self.page, PAGE) };
        PAGE - bytes.iter().take_while(|byte| **byte == PAINT).count()
    }
}

/// Calls a function with three arguments on the stack whose end is `top`.
fn call_on(top: usize, function: usize, arguments: [usize; 3]) -> usize {
    let result;
    // SAFETY: a function of the C ABI, and a stack that nobody else uses.
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
            lateout("rax") result,
            out("r12") _,
            clobber_abi("C"),
        );
    }
    result
}

fn block(index: usize) -> usize {
    0x5500_0000_0000 + index * 4096
}

/// Code of a function that gives out the block with its index, and no other.
fn code(index: usize, signature: &Signature) -> Vec<u8> {
    let movabs_rax = [&[0x48, 0xb8][..], &block(index).to_le_bytes()].concat();
    match signature.name {
        "posix_memalign" => {
            // mov %rax,(%rdi); xor %eax,%eax
            [&movabs_rax[..], &[0x48, 0x89, 0x07, 0x31, 0xc0, RET]].concat()
        }
        _ if signature.is_free() => vec![RET],
        _ => [&movabs_rax[..], &[RET]].concat(),
    }
}

/// The program's functions begin with jumps, and lead to their hooks.
fn hooked(is_outer: bool) -> (Program, PatchedEntries) {
    let functions: Vec<_> = SIGNATURES
        .iter()
        .enumerate()
        .map(|(index, signature)| (signature.name, code(index, signature)))
        .collect();
    let mut program = Program::new(&functions);
    for index in 0..functions.len() {
        program.jump(index);
        let entry = offset_of!(EntryTable, entries) + index * size_of::<EntryRow>();
        program.put(
            entry + offset_of!(EntryRow, is_outer),
            &[u8::from(is_outer)],
        );
    }
    let entries = PatchedEntries::find(program.address(program.function(0))).unwrap();
    assert_eq!(entries.enable(), Some(functions.len()));
    (program, entries)
}

fn live() -> HashSet<usize> {
    let mut live = HashSet::new();
    for_each_live(|sample| assert!(live.insert(sample.address)));
    live
}

/// Calls every function once on the stack that ends at `top`: each that allocates gives a sample, each that frees takes
/// one.
fn check_all(program: &Program, top: usize) {
    let mut stored = 0_usize;
    let call =
        |index: usize, arguments| call_on(top, program.address(program.function(index)), arguments);
    let mut given = HashSet::new();
    for (index, signature) in SIGNATURES.iter().enumerate() {
        match (signature.role, signature.is_free()) {
            (Role::Allocates, _) if signature.name == "posix_memalign" => {
                assert_eq!(call(index, [&raw mut stored as usize, 64, 100]), 0);
                assert_eq!(stored, block(index));
            }
            (Role::Allocates, _) => assert_eq!(call(index, [100, 300, 500]), block(index)),
            (Role::Frees, true) => {
                let old = given.iter().next().copied().unwrap_or(block(0));
                call(index, [old, 100, 5]);
                given.remove(&old);
                continue;
            }
            (Role::Frees, false) => {
                let old = given.iter().next().copied().unwrap_or(block(0));
                assert_eq!(call(index, [old, 100, 5]), block(index));
                given.remove(&old);
            }
        }
        given.insert(block(index));
        assert_eq!(live(), given, "{}", signature.name);
    }
    clear().unwrap();
}

fn prepare_walks() {
    // SAFETY: dlsym(3) with a NUL-terminated name.
    let find = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_dl_find_object".as_ptr()) };
    // SAFETY: dlfcn.h gives the function of this name this type.
    let find = unsafe { transmute::<*mut libc::c_void, memprof_unwind::FindObject>(find) };
    // SAFETY: getauxval(3) reads a constant of this process.
    memprof_unwind::prepare(find, unsafe { libc::getauxval(libc::AT_RANDOM) } as usize);
}

static MALLOC: AtomicUsize = AtomicUsize::new(0);
static PLACE: AtomicUsize = AtomicUsize::new(0);

/// Allocates with a stack pointer off by 8 in a signal handler, on the smallest alternate stack that has room for it.
fn in_handler() {
    extern "C" fn handle(_: libc::c_int) {
        let local = 0_u128;
        let top = (&raw const local as usize & !15) - 256 - 8;
        PLACE.store(call_on(top, MALLOC.load(Relaxed), [100, 3, 5]), Relaxed);
    }
    let (program, entries) = hooked(false);
    MALLOC.store(program.address(program.function(0)), Relaxed);
    clear_rules();
    // SAFETY: getauxval(3) reads a constant of this process.
    let frame = unsafe { libc::getauxval(libc::AT_MINSIGSTKSZ) } as usize;
    let mut memory = vec![0_u8; frame.max(libc::MINSIGSTKSZ) + 512 + NEED];
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
    // SAFETY: raise(3): returns when the handler has.
    assert_eq!(unsafe { libc::raise(libc::SIGUSR1) }, 0);
    assert_eq!(PLACE.load(Relaxed), block(0));
    assert_eq!(live(), HashSet::from([block(0)]));
    entries.disable(None);
    let off = libc::stack_t {
        ss_flags: libc::SS_DISABLE,
        ..stack
    };
    // SAFETY: sigaltstack(2): of this thread, which is not on it.
    let failed = unsafe { libc::sigaltstack(&raw const off, ptr::null_mut()) };
    assert_eq!(failed, 0);
    clear().unwrap();
}

/// One test: there is one sampler in a process.
#[test]
fn stack_misaligned_or_small_serves_every_hook() {
    prepare_walks();
    start(1).unwrap();
    for (is_outer, is_tallied) in [(false, false), (true, false), (false, true)] {
        if is_tallied {
            enable();
        }
        let (program, entries) = hooked(is_outer);
        for off in [64, 72] {
            // Rules are read again, which takes most.
            clear_rules();
            let stack = Stack::new();
            check_all(&program, stack.end() - off);
            let used = stack.used() - off;
            assert!(used < NEED, "{used}");
        }
        entries.disable(None);
    }
    in_handler();
}
