//! Hints of a function's name that it allocates.

use super::rules::{ALLOCATING_ENDS, GROWING_ENDS, MEMORY_PARTS};

/// Hints of a name at allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AllocatingName {
    /// Whether a word of the name says that the function returns a new block, or a copy.
    pub(super) allocates: bool,
    /// Whether a word says that it creates or enlarges something.
    pub(super) grows: bool,
    /// Whether a word means memory.
    pub(super) mentions_memory: bool,
}

impl AllocatingName {
    /// Reads the hints in the last component of a function's path. The component's end decides whether the function
    /// allocates or grows something; digits at the end, and a last word of one letter, are ignored, because they mark a
    /// variant. A name mentions memory if it ends like an allocating name, or contains a word for memory.
    pub(super) fn parse(name: &str) -> Self {
        let plain = name.split('(').next().unwrap_or(name);
        let plain = plain.trim_end_matches('>');
        let last = plain.rsplit(['.', ':', '<', ' ']).next().unwrap_or(plain);
        let lower = last.to_ascii_lowercase();
        let trimmed = lower.trim_end_matches(|c: char| c.is_ascii_digit() || c == '_');
        let word = match trimmed.rsplit_once('_') {
            Some((rest, letter)) if letter.len() == 1 => rest,
            _ => trimmed,
        };
        let ends = |ends: &[&str]| ends.iter().any(|end| word.ends_with(end));
        let words = format!("_{lower}_");
        let allocates = ends(ALLOCATING_ENDS);
        Self {
            allocates,
            grows: ends(GROWING_ENDS),
            mentions_memory: allocates || MEMORY_PARTS.iter().any(|part| words.contains(part)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::AllocatingName;

    #[test]
    fn names_of_wrappers_say_that_they_allocate() {
        let check = |name, allocates, grows, mentions_memory| {
            let expected = AllocatingName {
                allocates,
                grows,
                mentions_memory,
            };
            assert_eq!(AllocatingName::parse(name), expected, "{name}");
        };
        for name in [
            "xmalloc",
            "CPLMalloc",
            "MEM_mallocN",
            "tor_malloc_",
            "ber_memalloc_x",
            "g_strdup",
            "isc__mem_get",
            "aws_mem_acquire",
            "ruby_xmalloc2",
            "shop::Pool::allocate",
            "arena<int>::allocate",
            "caml_stat_alloc_2",
        ] {
            check(name, true, false, true);
        }
        for name in [
            "AcquireQuantumMemory",
            "pool_alloc_nocache",
            "malloc_multiply",
            "palloc_room",
        ] {
            check(name, false, false, true);
        }
        for name in ["buffer_new", "table_grow", "Vec::reserve"] {
            check(name, false, true, false);
        }
        for name in [
            "load_config",
            "session_open",
            "list_append",
            "add_member",
            "system_get",
            "add_up",
            "main",
            "",
            "Cart::add",
        ] {
            check(name, false, false, false);
        }
    }
}
