//! Our stack walk beside jemalloc's own: how fast (`cargo xtask bench unwind`), and on which stacks
//! (`cargo xtask torture unwind`). Both preload `unwind-probe`.

pub(crate) mod bench;
pub(crate) mod probe;
