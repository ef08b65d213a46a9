//! Functions that begin with jumps, as memprof-attach writes them.
#![cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
#![expect(unsafe_code, reason = "machine code")]

mod program;

use std::mem::transmute;

use memprof_sampler::{PatchedEntries, Role};
use program::{MOVED, Program, RET};

fn call(program: &Program, index: usize, argument: usize) -> usize {
    // SAFETY: code that returns its argument, through hooks too.
    let function = unsafe {
        transmute::<usize, extern "C" fn(usize, usize) -> usize>(
            program.address(program.function(index)),
        )
    };
    function(argument, 8)
}

#[test]
fn functions_lead_to_hooks_and_back() {
    let mut program = Program::new(&["malloc", "realloc"].map(|name| (name, vec![RET])));
    let malloc = program.address(program.function(0));
    assert!(PatchedEntries::find(malloc).is_none());
    program.jump(0);
    let entries = PatchedEntries::find(malloc).unwrap();
    // The jump of the other one is missing: memprof-attach was killed.
    assert!(!entries.is_complete());
    assert_eq!(entries.enable(), None);
    assert_eq!((entries.count(), call(&program, 0, 7)), (0, 7));
    program.jump(1);
    assert_eq!(entries.enable(), Some(2));
    assert_eq!((call(&program, 0, 7), call(&program, 1, 9)), (7, 9));
    entries.disable(Some(Role::Allocates));
    assert_eq!(
        (entries.count(), call(&program, 0, 7), call(&program, 1, 9)),
        (1, 7, 9)
    );
    entries.disable(None);
    assert_eq!(
        (entries.count(), call(&program, 0, 7), call(&program, 1, 9)),
        (0, 7, 9)
    );
    // Other code that begins with a jump.
    let own = program.function(0);
    program.put(own, &[0xe9, 0, 0, 0, 0]);
    assert!(PatchedEntries::find(malloc).is_none());
    program.put(program.function(0), &MOVED);
    assert_eq!(call(&program, 0, 7), 7);
}
