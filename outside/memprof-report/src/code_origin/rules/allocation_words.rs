//! Words in names of functions that allocate for their callers.

/// Ends of the names of functions that return a new block or a copy.
pub(in crate::code_origin) const ALLOCATING_ENDS: &[&str] = &[
    "alloc",
    "allocn",
    "allocate",
    "allocarray",
    "dup",
    "dupn",
    "mem_get",
    "mem_acquire",
    "memalign",
];

/// Ends of the names of functions that create or enlarge what their caller chose. Other functions of a program have
/// such names too.
pub(in crate::code_origin) const GROWING_ENDS: &[&str] = &[
    "new",
    "grow",
    "resize",
    "reserve",
    "expand",
    "extend",
    "ensure",
    "enlarge",
    "make_room",
    "makeroom",
];

/// Parts of the names of functions that have to do with memory. Words are between underscores.
pub(in crate::code_origin) const MEMORY_PARTS: &[&str] =
    &["alloc", "memory", "strdup", "_mem_", "_dup_"];
