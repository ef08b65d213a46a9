//! Lines that mark the parts of a heap dump: its start, messages before it, and its mappings.

/// First bytes of jemalloc's header, and of tcmalloc's.
pub(super) const JEMALLOC_HEADER: &[u8] = b"heap_v2/";
pub(super) const TCMALLOC_HEADER: &[u8] = b"heap profile:";

/// First bytes of a dump, after blanks.
const DUMP_STARTS: [&[u8]; 6] = [
    JEMALLOC_HEADER,
    TCMALLOC_HEADER,
    b"--- symbol",
    b"--- growth",
    b"--- heap\n",
    b"--- heap\r",
];

/// Prefixes of lines that allocators write before a dump: warnings of tcmalloc, and what jemalloc prints to standard
/// error (`prof_leak:true`), which may be in the same file.
pub(super) const MESSAGE_PREFIXES: [&[u8]; 2] = [b"%warn", b"<jemalloc>:"];

/// Returns the text of a message that the allocator wrote before its dump. `None` if the line is no message.
pub(super) fn strip_message_prefix(line: &[u8]) -> Option<&[u8]> {
    MESSAGE_PREFIXES
        .iter()
        .find_map(|prefix| line.strip_prefix(*prefix))
}

/// Returns whether a file that starts with these bytes, after blanks, is a heap dump in text, which may begin with
/// messages of the allocator.
pub(crate) fn starts_dump(magic: &[u8]) -> bool {
    let text = magic.trim_ascii_start();
    strip_message_prefix(text).is_some() || DUMP_STARTS.iter().any(|start| text.starts_with(start))
}

/// Returns whether a line after mappings is the header of another process's dump.
pub(super) fn starts_next_dump(line: &[u8]) -> bool {
    line.starts_with(JEMALLOC_HEADER) || line.starts_with(TCMALLOC_HEADER)
}

/// Returns whether the mappings start after `line`.
pub(super) fn is_mappings_header(line: &[u8]) -> bool {
    let line = line.trim_ascii_start();
    line.starts_with(b"MAPPED_LIBRARIES:") || line.starts_with(b"--- Memory map:")
}
