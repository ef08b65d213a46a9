//! Libraries whose objects hold others by encoded pointers, which a search does not recognize.

use crate::unsearched::{Unsearched, UnsearchedRole};

/// A library that encodes pointers.
struct Encoder {
    /// Beginning of the file's name.
    file: &'static str,
    /// Its objects.
    objects: &'static str,
    /// Encoding.
    why: &'static str,
}

const ENCODERS: [Encoder; 1] = [Encoder {
    file: "libfontconfig.so",
    objects: "patterns of libfontconfig",
    // fcint.h, `FcPatternElts`.
    why: "they hold their elements by offsets from their own addresses, not by pointers",
}];

/// Notes on objects with encoded pointers, which may be the only holders of others. `paths` are those of the files that
/// a process has mapped.
pub(crate) fn encoded_pointer_notes<'a>(
    paths: impl Iterator<Item = &'a str> + Clone,
) -> impl Iterator<Item = Unsearched> {
    ENCODERS.iter().filter_map(move |encoder| {
        let mut files = paths.clone().filter_map(|path| path.rsplit('/').next());
        let is_mapped = files.any(|file| file.starts_with(encoder.file));
        is_mapped.then(|| Unsearched {
            role: UnsearchedRole::Pointers,
            what: encoder.objects.to_owned(),
            amount: None,
            why: encoder.why.to_owned(),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mapped_libraries_are_named() {
        let check = |paths: &[&str], expected: usize| {
            let found = encoded_pointer_notes(paths.iter().copied());
            assert_eq!(found.count(), expected, "{paths:?}");
        };
        let library = "/usr/lib/x86_64-linux-gnu/libfontconfig.so.1.12.0";
        check(&[], 0);
        check(
            &[
                "",
                "[heap]",
                "/usr/bin/fc-list",
                "/usr/share/libfontconfig1/x",
            ],
            0,
        );
        check(&["/usr/lib/libc.so.6", library, library], 1);
    }
}
