//! Code origins of functions of common libraries.

use super::{CodeOrigin, NameRule, Reach};

/// Functions by name; the first match counts. Used after the table that belongs to no library.
pub(in crate::code_origin) const LIBRARIES: &[NameRule] = &[
    // LLVM's containers and pools.
    NameRule::new(
        CodeOrigin::Plumbing,
        Reach::Distinct,
        &[
            "llvm::allocate_buffer",
            "llvm::safe_malloc",
            "llvm::safe_calloc",
            "llvm::safe_realloc",
            "llvm::SmallVector*",
            "llvm::SmallPtrSet*",
            "llvm::DenseMap*",
            "llvm::StringMap*",
            "llvm::FoldingSet*",
            "llvm::BumpPtrAllocator*",
            "llvm::BitVector*",
            "llvm::ilist*",
        ],
    ),
    // Protobuf's containers, arenas and streams; messages are the program's own.
    NameRule::new(
        CodeOrigin::Plumbing,
        Reach::Distinct,
        &[
            "google::protobuf::Arena*",
            "google::protobuf::Map<*",
            "google::protobuf::RepeatedField*",
            "google::protobuf::RepeatedPtrField*",
            "google::protobuf::internal::*",
            "google::protobuf::io::*",
        ],
    ),
    // Vala's containers, of which its compiler has a copy.
    NameRule::new(
        CodeOrigin::Plumbing,
        Reach::With(&["gee", "vala"]),
        &[
            "gee_*",
            "vala_array_list_*",
            "vala_collection_*",
            "vala_hash_map_*",
            "vala_hash_set_*",
            "vala_iterable_*",
            "vala_list_*",
            "vala_map_*",
            "vala_set_*",
        ],
    ),
    // GLib.
    NameRule::new(
        CodeOrigin::Plumbing,
        Reach::With(&["glib", "gobject", "gio"]),
        &[
            "g_malloc*",
            "g_try_malloc*",
            "g_realloc*",
            "g_try_realloc*",
            "g_slice_*",
            "g_strdup*",
            "g_strndup",
            "g_strconcat",
            "g_strjoin*",
            "g_strsplit*",
            "g_strv*",
            "g_memdup*",
            "g_list_*",
            "g_slist_*",
            "g_queue_*",
            "g_hash_table_*",
            "g_array_*",
            "g_ptr_array_*",
            "g_byte_array_*",
            "g_bytes_*",
            "g_string_*",
            "g_tree_*",
            "g_sequence_*",
            "g_vasprintf",
            "g_object_new*",
            "g_type_create_instance",
            "g_aligned_alloc*",
            "g_rc_box_*",
            "g_atomic_rc_box_*",
        ],
    ),
    // Memory in libxml2 and SQLite is of the program that stores it there, if that has a name: an interpreter's
    // extension often has none.
    NameRule::new(CodeOrigin::Library, Reach::With(&["sqlite"]), &["sqlite3*"]),
    NameRule::new(
        CodeOrigin::Library,
        Reach::With(&["xml2", "libxml"]),
        &[
            "xmlAdd*",
            "xmlBuf*",
            "xmlCopy*",
            "xmlCtxt*",
            "xmlDict*",
            "xmlDoc*",
            "xmlHash*",
            "xmlInit*",
            "xmlNew*",
            "xmlParse*",
            "xmlRead*",
            "xmlSAX2*",
            "xmlSet*",
            "xmlString*",
            "xmlText*",
            "xmlXPath*",
        ],
    ),
];
