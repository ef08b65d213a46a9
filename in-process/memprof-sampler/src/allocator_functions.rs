//! Functions of allocators by name, with their effect and the positions of their block and size arguments.

use crate::hooks::Role;

/// Effect of a function, and the positions of its operands. One hook serves all functions of a shape.
///
/// In the comments below, (1) is the function's first argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Shape {
    /// Allocates (1) bytes.
    Size = 1,
    /// Allocates (2) bytes.
    SecondSize,
    /// Allocates (1) × (2) bytes.
    Count,
    /// Allocates (2) × (3) bytes.
    SecondCount,
    /// Allocates (3) bytes, and stores the block at the address (1).
    Stored,
    /// Frees the block (1).
    Free,
    /// Changes the size of the block (1) to (2) bytes.
    Resize,
    /// Changes the size of the block (1) to (3) bytes.
    ResizeThird,
    /// Changes the size of the block (1) to (4) bytes.
    ResizeFourth,
    /// Changes the size of the block (1) to (2) × (3) bytes.
    ResizeCount,
    /// Changes the size of the block (2) to (3) bytes.
    SecondResize,
    /// Changes the size of the block (2) to (3) × (4) bytes.
    SecondResizeCount,
    /// Resizes the block (1) in place to at least (2) bytes, and up to (3) bytes more if possible. Returns the new
    /// size.
    Expand,
}

impl Shape {
    /// All shapes.
    pub const ALL: [Self; 13] = [
        Self::Size,
        Self::SecondSize,
        Self::Count,
        Self::SecondCount,
        Self::Stored,
        Self::Free,
        Self::Resize,
        Self::ResizeThird,
        Self::ResizeFourth,
        Self::ResizeCount,
        Self::SecondResize,
        Self::SecondResizeCount,
        Self::Expand,
    ];

    /// Returns whether functions with this shape only allocate, or free as well. A function that resizes also frees the
    /// old block. Hooks are enabled and disabled by this role.
    pub fn role(self) -> Role {
        match self {
            Self::Size | Self::SecondSize | Self::Count | Self::SecondCount | Self::Stored => {
                Role::Allocates
            }
            Self::Free
            | Self::Resize
            | Self::ResizeThird
            | Self::ResizeFourth
            | Self::ResizeCount
            | Self::SecondResize
            | Self::SecondResizeCount
            | Self::Expand => Role::Frees,
        }
    }
}

/// A shape, and the names of the functions that have it.
pub type NamedShapes = (Shape, &'static [&'static str]);

/// Functions of C and of jemalloc(3), named without an allocator's prefix.
pub const C_FUNCTIONS: &[NamedShapes] = &[
    (Shape::Size, &["malloc", "valloc", "pvalloc", "mallocx"]),
    (Shape::SecondSize, &["memalign", "aligned_alloc"]),
    (Shape::Count, &["calloc"]),
    (Shape::Stored, &["posix_memalign"]),
    (Shape::Resize, &["realloc", "rallocx"]),
    (Shape::ResizeCount, &["reallocarray"]),
    (Shape::Expand, &["xallocx"]),
    (
        Shape::Free,
        &[
            "free",
            "cfree",
            "free_sized",
            "free_aligned_sized",
            "dallocx",
            "sdallocx",
        ],
    ),
];

/// Prefixes of [`C_FUNCTIONS`], each with its allocator. jemalloc is missing because its prefix is configurable.
pub const PREFIXES: &[(&str, &str)] = &[
    ("mi_", "mimalloc"),
    ("tc_", "tcmalloc"),
    ("sn_", "snmalloc"),
    ("rp", "rpmalloc"),
    // If dlmalloc was compiled with USE_DL_PREFIX.
    ("dl", "dlmalloc"),
    ("scudo_", "scudo"),
];

/// Functions that have no prefixed variant, or that only one allocator has.
pub const OTHER_FUNCTIONS: &[NamedShapes] = &[
    (
        Shape::Size,
        &[
            // operator new and new[]: plain, nothrow, aligned, both.
            "_Znwm",
            "_Znam",
            "_ZnwmRKSt9nothrow_t",
            "_ZnamRKSt9nothrow_t",
            "_ZnwmSt11align_val_t",
            "_ZnamSt11align_val_t",
            "_ZnwmSt11align_val_tRKSt9nothrow_t",
            "_ZnamSt11align_val_tRKSt9nothrow_t",
            // mimalloc.h.
            "mi_zalloc",
            "mi_malloc_small",
            "mi_zalloc_small",
            "mi_malloc_aligned",
            "mi_malloc_aligned_at",
            "mi_zalloc_aligned",
            "mi_zalloc_aligned_at",
            "mi_new",
            "mi_new_nothrow",
            "mi_new_aligned",
            "mi_new_aligned_nothrow",
            // tcmalloc.h of gperftools.
            "tc_malloc_skip_new_handler",
            "tc_new",
            "tc_new_nothrow",
            "tc_new_aligned",
            "tc_new_aligned_nothrow",
            "tc_newarray",
            "tc_newarray_nothrow",
            "tc_newarray_aligned",
            "tc_newarray_aligned_nothrow",
            // rpmalloc.h.
            "rpzalloc",
        ],
    ),
    (
        Shape::SecondSize,
        &[
            "mi_heap_malloc",
            "mi_theap_malloc",
            "mi_heap_zalloc",
            "mi_theap_zalloc",
            "mi_heap_malloc_small",
            "mi_theap_malloc_small",
            "mi_heap_malloc_aligned",
            "mi_theap_malloc_aligned",
            "mi_heap_malloc_aligned_at",
            "mi_theap_malloc_aligned_at",
            "mi_heap_zalloc_aligned",
            "mi_theap_zalloc_aligned",
            "mi_heap_zalloc_aligned_at",
            "mi_theap_zalloc_aligned_at",
            "mi_heap_alloc_new",
            "mi_theap_alloc_new",
            // rust.cc of snmalloc.
            "sn_rust_alloc",
            "sn_rust_alloc_zeroed",
            "rpaligned_zalloc",
        ],
    ),
    (
        Shape::Count,
        &[
            "mi_mallocn",
            "mi_calloc_aligned",
            "mi_calloc_aligned_at",
            "mi_new_n",
        ],
    ),
    (
        Shape::SecondCount,
        &[
            "mi_heap_calloc",
            "mi_theap_calloc",
            "mi_heap_mallocn",
            "mi_theap_mallocn",
            "mi_heap_calloc_aligned",
            "mi_theap_calloc_aligned",
            "mi_heap_calloc_aligned_at",
            "mi_theap_calloc_aligned_at",
            "mi_heap_alloc_new_n",
            "mi_theap_alloc_new_n",
            "rpaligned_calloc",
        ],
    ),
    (
        Shape::Free,
        &[
            // operator delete and delete[]: plain, nothrow, sized, aligned, sized and aligned, aligned and nothrow.
            "_ZdlPv",
            "_ZdaPv",
            "_ZdlPvRKSt9nothrow_t",
            "_ZdaPvRKSt9nothrow_t",
            "_ZdlPvm",
            "_ZdaPvm",
            "_ZdlPvSt11align_val_t",
            "_ZdaPvSt11align_val_t",
            "_ZdlPvmSt11align_val_t",
            "_ZdaPvmSt11align_val_t",
            "_ZdlPvSt11align_val_tRKSt9nothrow_t",
            "_ZdaPvSt11align_val_tRKSt9nothrow_t",
            "mi_free_size",
            "mi_free_size_aligned",
            "mi_free_aligned",
            "mi_free_small",
            "tc_delete",
            "tc_delete_nothrow",
            "tc_delete_sized",
            "tc_delete_aligned",
            "tc_delete_aligned_nothrow",
            "tc_delete_sized_aligned",
            "tc_deletearray",
            "tc_deletearray_nothrow",
            "tc_deletearray_sized",
            "tc_deletearray_aligned",
            "tc_deletearray_aligned_nothrow",
            "tc_deletearray_sized_aligned",
            "sn_rust_dealloc",
        ],
    ),
    (
        Shape::Resize,
        &[
            "mi_reallocf",
            "mi_rezalloc",
            "mi_realloc_aligned",
            "mi_realloc_aligned_at",
            "mi_rezalloc_aligned",
            "mi_rezalloc_aligned_at",
            "mi_new_realloc",
        ],
    ),
    (Shape::ResizeThird, &["rpaligned_realloc"]),
    (Shape::ResizeFourth, &["sn_rust_realloc"]),
    (
        Shape::ResizeCount,
        &[
            "mi_reallocn",
            "mi_recalloc",
            "mi_recalloc_aligned",
            "mi_recalloc_aligned_at",
            "mi_aligned_recalloc",
            "mi_aligned_offset_recalloc",
            "mi_new_reallocn",
        ],
    ),
    (
        Shape::SecondResize,
        &[
            "mi_heap_realloc",
            "mi_theap_realloc",
            "mi_heap_reallocf",
            "mi_theap_reallocf",
            "mi_heap_rezalloc",
            "mi_theap_rezalloc",
            "mi_heap_realloc_aligned",
            "mi_theap_realloc_aligned",
            "mi_heap_realloc_aligned_at",
            "mi_theap_realloc_aligned_at",
            "mi_heap_rezalloc_aligned",
            "mi_theap_rezalloc_aligned",
            "mi_heap_rezalloc_aligned_at",
            "mi_theap_rezalloc_aligned_at",
        ],
    ),
    (
        Shape::SecondResizeCount,
        &[
            "mi_heap_reallocn",
            "mi_theap_reallocn",
            "mi_heap_recalloc",
            "mi_theap_recalloc",
            "mi_heap_recalloc_aligned",
            "mi_theap_recalloc_aligned",
        ],
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_has_one_shape() {
        let names = || {
            let tables = C_FUNCTIONS.iter().chain(OTHER_FUNCTIONS);
            tables.flat_map(|(_, names)| *names)
        };
        for name in names() {
            assert_eq!(names().filter(|other| *other == name).count(), 1, "{name}");
        }
    }
}
