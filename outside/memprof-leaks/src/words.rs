//! Words of memory that may be pointers.

/// Bytes of a pointer.
pub(crate) const WORD: usize = 8;
/// Distance in bytes of the words that may be pointers: packed structures of the kernel's interfaces, such as `struct
/// epoll_event`, have pointers at multiples of 4.
pub(crate) const WORD_STEP: usize = 4;

/// Word that begins [`WORD_STEP`] bytes after the start of `word` and ends in `next`, the word behind it.
#[inline]
pub(crate) fn word_between(word: u64, next: u64) -> u64 {
    const { assert!(2 * WORD_STEP == WORD) };
    word >> 32 | next << 32
}
