//! Tests of patched entry points on functions that are patched as memprof-attach does.
#![cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
#![expect(unsafe_code, reason = "machine code")]

mod program;

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

#[test]
fn registered_table_is_beside_malloc_once_it_is_complete() {
    let functions = [
        ("_rjem_malloc", Shape::Size),
        ("_rjem_xallocx", Shape::Expand),
    ];
    let mut program = Program::new(&functions.map(|(name, shape)| (name, shape, vec![RET])));
    memprof_entry_tables[3].store(program.address(0), Relaxed);
    program.write_jump(0);
    assert_eq!(PatchedEntries::beside_malloc().count(), 0);
    program.write_jump(1);
    let entries = PatchedEntries::beside_malloc().next().unwrap();
    assert_eq!(
        entries.first_function(),
        program.address(program.function(0))
    );
    assert_eq!(entries.enable(), Some(2));
    assert_eq!((call(&program, 0, 7), call(&program, 1, 9)), (7, 9));
    entries.disable(None);
    memprof_entry_tables[3].store(0, Relaxed);
}
