//! What an allocator prints of itself, as it was asked for.

use std::ffi::CString;
use std::io;

use rustix::io::Errno;

use crate::allocators::mallctl::Mallctl;
use crate::error::{Error, ErrorKind, Result};

/// The longest printout that is passed on: with hundreds of arenas it grows to megabytes.
const LIMIT: usize = 256 * 1024;

/// The letters that jemalloc(3) gives for `malloc_stats_print`.
const LETTERS: &str = "Jgmdablxeh";

/// Options of `malloc_stats_print`: `J` for JSON, the others leave something out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrintOptions(CString);

impl PrintOptions {
    /// Parses letters, such as `Ja`.
    ///
    /// # Errors
    /// `Invalid`: a letter that jemalloc does not know, or one twice.
    pub fn parse(letters: &str) -> Result<Self> {
        let invalid = |why: &str| {
            let message = format!("opts={letters:?} {why}");
            let remedy =
                format!("valid letters: {LETTERS}, each at most once; for example opts=Ja");
            Err(Error::new(ErrorKind::InvalidArgument, message).remedy(remedy))
        };
        if let Some(unknown) = letters.chars().find(|letter| !LETTERS.contains(*letter)) {
            return invalid(&format!("has the unknown letter {unknown:?}"));
        }
        let is_repeated = |(at, letter)| letters[..at].contains::<char>(letter);
        if letters.char_indices().any(is_repeated) {
            return invalid("has a letter twice");
        }
        Ok(Self(CString::new(letters).unwrap_or_default()))
    }

    /// Whether the printout is JSON.
    pub fn is_json(&self) -> bool {
        self.0.as_bytes().contains(&b'J')
    }
}

/// What an allocator printed, as far as it was kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Printout {
    bytes: Vec<u8>,
    limit: usize,
    is_cut: bool,
}

impl Default for Printout {
    fn default() -> Self {
        Self {
            bytes: Vec::new(),
            limit: LIMIT,
            is_cut: false,
        }
    }
}

impl Printout {
    /// What `mallctl` prints under these options.
    pub(crate) fn of(mallctl: &Mallctl, options: &PrintOptions) -> Self {
        let mut printout = Self::default();
        mallctl.print_stats(&options.0, &mut |piece| printout.push(piece));
        printout
    }

    /// Of a text that is at hand.
    pub(crate) fn from(text: &[u8]) -> Self {
        let mut printout = Self::default();
        printout.push(text);
        printout
    }

    /// An empty one that takes `limit` bytes without allocating.
    ///
    /// # Errors
    /// There is no memory for it.
    pub(crate) fn with_room(limit: usize) -> Result<Self> {
        let mut bytes = Vec::new();
        let reserved = bytes.try_reserve_exact(limit);
        reserved.map_err(|_| Error::io("find memory for the report", &Errno::NOMEM.into()))?;
        Ok(Self {
            bytes,
            limit,
            is_cut: false,
        })
    }

    /// The text, and a line that tells where it was cut.
    pub fn into_text(self) -> String {
        let limit = self.limit;
        let text = String::from_utf8_lossy(&self.bytes).into_owned();
        if self.is_cut {
            return text
                + &format!("\n… cut after {limit} bytes; ask for less (opts=a, or a lower max)\n");
        }
        text
    }

    pub(crate) fn push(&mut self, piece: &[u8]) {
        let kept = &piece[..piece.len().min(self.limit.saturating_sub(self.bytes.len()))];
        // The allocator is what it asks about: it may have nothing left.
        let has_room = self.bytes.try_reserve(kept.len()).is_ok();
        if has_room && !self.is_cut {
            self.bytes.extend_from_slice(kept);
        }
        self.is_cut |= !has_room || kept.len() < piece.len();
    }
}

impl io::Write for Printout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.push(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocators::fake::{Behaviour, fake};

    #[test]
    fn letters_are_checked() {
        let check = |letters: &str, expected: &str| {
            let error = PrintOptions::parse(letters).unwrap_err();
            assert_eq!(error.message, expected);
            assert!(error.remedy.contains(LETTERS), "{error:?}");
        };
        check("Jz", "opts=\"Jz\" has the unknown letter 'z'");
        check("a\0", "opts=\"a\\0\" has the unknown letter '\\0'");
        check("é", "opts=\"é\" has the unknown letter 'é'");
        check("aba", "opts=\"aba\" has a letter twice");
        assert!(PrintOptions::parse(LETTERS).unwrap().is_json());
        assert!(!PrintOptions::parse("").unwrap().is_json());
    }

    #[test]
    fn pieces_of_any_size_are_put_together() {
        struct Talking;
        impl Behaviour for Talking {
            const PRINTED: &'static [&'static std::ffi::CStr] = &[c"a", c"", c"bc\n"];
        }
        let options = PrintOptions::parse("a").unwrap();
        let printout = Printout::of(&fake::<Talking>(), &options);
        assert_eq!(printout.into_text(), "abc\n");
    }

    #[test]
    fn a_long_printout_is_cut_and_says_so() {
        let mut printout = Printout::default();
        let piece = [b'x'; 1000];
        (0..=LIMIT / piece.len()).for_each(|_| printout.push(&piece));
        let text = printout.into_text();
        let (kept, note) = text.split_once('\n').unwrap();
        assert_eq!(kept.len(), LIMIT);
        assert!(note.starts_with("… cut after 262144 bytes"), "{note}");
    }
}
