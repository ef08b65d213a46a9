//! Files of the C library, by their names. A name proves nothing: a program may map other files with these names.

/// Whether a path is that of glibc's main library: `libc.so.6`, or before 2.34 also `libc-2.31.so`.
pub(crate) fn is_c_library(path: &[u8]) -> bool {
    has_file_name_prefix(path, &[b"libc.so.6", b"libc-2."])
}

/// Whether the last component of a path begins with one of the `prefixes`.
pub(crate) fn has_file_name_prefix(path: &[u8], prefixes: &[&[u8]]) -> bool {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    prefixes.iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c_library_is_distinguished_from_other_files() {
        for (path, expected) in [
            ("/usr/lib/x86_64-linux-gnu/libc.so.6", true),
            ("/usr/lib/libc.so.6 (deleted)", true),
            ("/lib/libc-2.31.so", true),
            ("/opt/libc-2.31/bin/web", false),
            ("/usr/lib/libcurl.so.4", false),
            ("/usr/lib/libc.so", false),
            ("libc.so.6", true),
            ("", false),
        ] {
            assert_eq!(is_c_library(path.as_bytes()), expected, "{path}");
        }
    }
}
