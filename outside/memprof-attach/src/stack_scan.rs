//! Scans the stack of a waiting thread for signal handlers and allocators.

use memprof_ptrace::remote_call::is_signal_frame;

use crate::target::Target;

/// Bytes of a stack that are searched for a signal handler.
const STACK_SCAN_LIMIT: u64 = 256 << 10;
/// Words of a stack that are searched for return addresses into allocators. Words further up may be left over from
/// returned functions.
const RECENT_WORDS: usize = 512;

/// Fails if the 256 KiB of the stack above `pointer` contain a signal frame, whose interrupted code may hold a lock, or
/// cannot be read. If `is_allocator_likely`, also fails if one of the 512 words next to `pointer` is an address in an
/// allocator.
pub(crate) fn require_clean_stack(
    target: &Target,
    pointer: u64,
    is_allocator_likely: bool,
) -> Result<(), &'static str> {
    let stack = target.mapping_at(pointer).ok_or("a thread has no stack")?;
    let length = (stack.range.end - pointer).min(STACK_SCAN_LIMIT) & !7;
    let mut bytes = vec![0; length as usize];
    let read = target.memory.read(pointer, &mut bytes);
    read.map_err(|_| "a thread's stack cannot be read")?;
    let words = bytes.chunks_exact(8);
    let words: Vec<u64> = words
        .map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")))
        .collect();
    let restorer = target.gadgets.restorer;
    if (0..words.len()).any(|index| is_signal_frame(&words[index..], restorer)) {
        return Err("its threads are in signal handlers");
    }
    let is_allocator = |word: &u64| target.allocators.iter().any(|code| code.contains(word));
    if is_allocator_likely && words.iter().take(RECENT_WORDS).any(is_allocator) {
        return Err("its threads are in an allocator");
    }
    Ok(())
}
