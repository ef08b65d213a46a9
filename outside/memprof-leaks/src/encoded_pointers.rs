//! Libraries whose objects hold others by encoded pointers, which a search does not recognize.

use crate::unsearched::{Unsearched, UnsearchedRole};

/// A library that encodes pointers.
struct Encoder {
    /// Prefix of the library's file name.
    file: &'static str,
    /// Name of its objects in reports.
    objects: &'static str,
    /// Reason why a scan finds no pointers in them.
    why: &'static str,
}

const ENCODERS: [Encoder; 1] = [Encoder {
    file: "libfontconfig.so",
    objects: "patterns of libfontconfig",
    // Source: `FcPatternElts` in fontconfig's fcint.h.
    why: "they hold their elements by offsets from their own addresses, not by pointers",
}];

/// Returns notes for the report: one for each known encoder of pointers whose library is among `paths`, the files that
/// a process has mapped. The encoder's objects hold encoded pointers, so that objects which only they hold look leaked.
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
