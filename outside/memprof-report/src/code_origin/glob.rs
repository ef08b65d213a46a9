//! Patterns of names, in which `*` is any text.

use memchr::memmem;

/// Returns whether `name` matches `pattern`, in which `*` is any text.
pub(super) fn matches_glob(pattern: &str, name: &str) -> bool {
    // Fast path: most patterns differ in the first byte, and each function is compared with all of them.
    if pattern.as_bytes().first() != name.as_bytes().first() && !pattern.starts_with('*') {
        return false;
    }
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(rest) = name.strip_prefix(first) else {
        return false;
    };
    if first.len() == pattern.len() {
        return rest.is_empty();
    }
    let mut rest = rest.as_bytes();
    let mut last = "";
    for part in parts {
        last = part;
        // `str::find` prepares a searcher, which takes longer than to search such a short name.
        match memmem::find(rest, part.as_bytes()) {
            Some(index) => rest = &rest[index + part.len()..],
            None => return false,
        }
    }
    last.is_empty() || name.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::matches_glob;

    #[test]
    fn star_matches_any_text() {
        for (pattern, name) in [
            ("xmlNew*", "xmlNewNode"),
            ("std", "std"),
            ("*::operator new*", "llvm::User::operator new"),
            ("[*]+0x*", "[jit]+0x12"),
        ] {
            assert!(matches_glob(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [("std", "stdlib"), ("a*b", "abc"), ("xml*Node", "xmlNew")] {
            assert!(!matches_glob(pattern, name), "{pattern} {name}");
        }
    }
}
