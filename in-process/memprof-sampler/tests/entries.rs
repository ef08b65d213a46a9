//! Tests of patched entry points on functions that are patched as memprof-attach does.
#![cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
#![expect(unsafe_code, reason = "machine code")]

mod program;

use std::arch::asm;
use std::mem::transmute;
use std::sync::atomic::Ordering::Relaxed;

use memprof_sampler::{PatchedEntries, Role, Shape, memprof_entry_tables};
use program::{MOVED, Program, RET};

/// Calls the function number `index`, which returns its argument.
fn call(program: &Program, index: usize, argument: usize) -> usize {
    // SAFETY: machine code of this test, which returns its first argument, also through hooks.
    let function = unsafe {
        transmute::<usize, extern "C" fn(usize, usize) -> usize>(
            program.address(program.function(index)),
        )
    };
    function(argument, 8)
}

#[test]
fn hooks_enabled_by_role_are_disabled_again() {
    let functions = [("malloc", Shape::Size), ("realloc", Shape::Resize)];
    let mut program = Program::new(&functions.map(|(name, shape)| (name, shape, vec![RET])));
    let malloc = program.address(program.function(0));
    assert!(PatchedEntries::find(malloc).is_none());
    program.write_jump(0);
    let entries = PatchedEntries::find(malloc).unwrap();
    // The second function's write_jump is missing, as if memprof-attach was killed before it wrote it.
    assert!(!entries.is_complete());
    assert_eq!(entries.enable(), None);
    assert_eq!((entries.enabled_count(), call(&program, 0, 7)), (0, 7));
    program.write_jump(1);
    assert_eq!(entries.enable(), Some(2));
    assert_eq!((call(&program, 0, 7), call(&program, 1, 9)), (7, 9));
    entries.disable(Some(Role::Allocates));
    assert_eq!(
        (
            entries.enabled_count(),
            call(&program, 0, 7),
            call(&program, 1, 9)
        ),
        (1, 7, 9)
    );
    entries.disable(None);
    assert_eq!(
        (
            entries.enabled_count(),
            call(&program, 0, 7),
            call(&program, 1, 9)
        ),
        (0, 7, 9)
    );
    // The function begins with a write_jump that memprof-attach did not write.
    let own = program.function(0);
    program.write(own, &[0xe9, 0, 0, 0, 0]);
    assert!(PatchedEntries::find(malloc).is_none());
    program.write(program.function(0), &MOVED);
    assert_eq!(call(&program, 0, 7), 7);
}

/// Calls a function with the numbers 1 to 6 in the registers of the arguments and 7 in r10, the register of the static
/// chain.
fn call_with_registers(function: usize) -> usize {
    let returned;
    // SAFETY: machine code of this test, which returns one of these registers.
    unsafe {
        asm!(
            "call {function}",
            function = in(reg) function,
            in("rdi") 1,
            in("rsi") 2,
            in("rdx") 3,
            in("rcx") 4,
            in("r8") 5,
            in("r9") 6,
            in("r10") 7,
            lateout("rax") returned,
            clobber_abi("C"),
        );
    }
    returned
}

#[test]
fn trampoline_and_hook_pass_on_arguments() {
    // `mov REGISTER,%rax`, in the order of the numbers that `call_with_registers` passes.
    let moves: [[u8; 3]; 7] = [
        [0x48, 0x89, 0xf8],
        [0x48, 0x89, 0xf0],
        [0x48, 0x89, 0xd0],
        [0x48, 0x89, 0xc8],
        [0x4c, 0x89, 0xc0],
        [0x4c, 0x89, 0xc8],
        [0x4c, 0x89, 0xd0],
    ];
    for shape in [Shape::Size, Shape::Free, Shape::ResizeFourth, Shape::Expand] {
        let functions = moves.map(|code| ("malloc", shape, [&code[..], &[RET]].concat()));
        let mut program = Program::new(&functions);
        let functions: Vec<_> = (0..moves.len())
            .map(|index| program.address(program.function(index)))
            .collect();
        let returned = || -> Vec<_> {
            functions
                .iter()
                .map(|each| call_with_registers(*each))
                .collect()
        };
        let check = |passed: usize, state| {
            assert_eq!(
                returned()[..passed],
                [1, 2, 3, 4, 5, 6, 7][..passed],
                "{shape:?} {state}"
            );
        };
        check(7, "unpatched");
        for index in 0..moves.len() {
            program.write_jump(index);
        }
        check(7, "patched");
        let entries = PatchedEntries::find(functions[0]).unwrap();
        assert_eq!(entries.enable(), Some(moves.len()));
        // Hooks pass on five arguments.
        check(5, "hooked");
        entries.disable(None);
        check(7, "disabled");
    }
}

#[test]
fn registered_table_is_beside_malloc_once_it_is_complete() {
    let functions = [
        ("_rjem_malloc", Shape::Size),
        ("_rjem_xallocx", Shape::Expand),
    ];
    let mut program = Program::new(&functions.map(|(name, shape)| (name, shape, vec![RET])));
    memprof_entry_tables[3].store(program.address(0), Relaxed);
    program.write_jump(0);
    assert_eq!(PatchedEntries::iter_beside_malloc().count(), 0);
    program.write_jump(1);
    let entries = PatchedEntries::iter_beside_malloc().next().unwrap();
    assert_eq!(
        entries.first_function(),
        program.address(program.function(0))
    );
    assert_eq!(entries.enable(), Some(2));
    assert_eq!((call(&program, 0, 7), call(&program, 1, 9)), (7, 9));
    entries.disable(None);
    memprof_entry_tables[3].store(0, Relaxed);
}
