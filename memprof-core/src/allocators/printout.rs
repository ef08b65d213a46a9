//! An allocator's statistics printout and its options, and the functions through which the plugin reads statistics.

use std::ffi::CString;
use std::io;

use memprof_messages::HeapTotals;
use rustix::io::Errno;

use crate::allocators::mallctl::Mallctl;
use crate::error::{Error, ErrorKind, Result};

/// Maximum length of a printout in bytes. With hundreds of arenas, jemalloc prints megabytes.
const MAX_PRINTOUT: usize = 256 * 1024;

/// Option letters of `malloc_stats_print` (jemalloc(3)).
const OPTION_LETTERS: &str = "Jgmdablxeh";

/// Options of `malloc_stats_print`: `J` selects JSON, each other letter omits a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrintOptions(CString);

impl PrintOptions {
    /// Parses letters, such as `Ja`.
    ///
    /// # Errors
    /// `InvalidArgument`: a letter that jemalloc does not know, or a repeated one.
    pub fn parse(letters: &str) -> Result<Self> {
        let invalid = |reason: &str| {
            let message = format!("opts={letters:?} {reason}");
            let remedy =
                format!("valid letters: {OPTION_LETTERS}, each at most once; for example opts=Ja");
            Err(Error::new(ErrorKind::InvalidArgument, message).with_remedy(remedy))
        };
        if let Some(unknown) = letters
            .chars()
            .find(|letter| !OPTION_LETTERS.contains(*letter))
        {
            return invalid(&format!("has the unknown letter {unknown:?}"));
        }
        let is_repeated = |(index, letter)| letters[..index].contains::<char>(letter);
        if letters.char_indices().any(is_repeated) {
            return invalid("has a letter twice");
        }
        // No valid letter is NUL, so this cannot fail.
        Ok(Self(CString::new(letters).unwrap_or_default()))
    }

    /// Whether the printout is JSON, because the letters contain `J`.
    pub fn is_json(&self) -> bool {
        self.0.as_bytes().contains(&b'J')
    }
}

/// Text that an allocator printed, up to a maximum length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Printout {
    bytes: Vec<u8>,
    limit: usize,
    is_cut: bool,
}

impl Default for Printout {
    /// Creates an empty printout of at most `MAX_PRINTOUT` bytes.
    fn default() -> Self {
        Self {
            bytes: Vec::new(),
            limit: MAX_PRINTOUT,
            is_cut: false,
        }
    }
}

impl Printout {
    /// Prints the statistics of a jemalloc with these options, cut after [`MAX_PRINTOUT`] bytes. Empty if the program
    /// lacks `malloc_stats_print`.
    pub(crate) fn from_jemalloc(mallctl: &Mallctl, options: &PrintOptions) -> Self {
        let mut printout = Self::default();
        mallctl.print_stats(&options.0, &mut |piece| printout.push(piece));
        printout
    }

    /// Copies a text, cut after [`MAX_PRINTOUT`] bytes.
    pub(crate) fn from_text(text: &[u8]) -> Self {
        let mut printout = Self::default();
        printout.push(text);
        printout
    }

    /// Creates an empty printout of at most `limit` bytes, and allocates its memory at once.
    ///
    /// # Errors
    /// `Io` with ENOMEM: there is not enough memory.
    pub(crate) fn with_capacity(limit: usize) -> Result<Self> {
        let mut bytes = Vec::new();
        let reserved = bytes.try_reserve_exact(limit);
        reserved.map_err(|_| Error::io("find memory for the report", &Errno::NOMEM.into()))?;
        Ok(Self {
            bytes,
            limit,
            is_cut: false,
        })
    }

    /// Returns the text, with bytes that are not UTF-8 replaced. A note at the end says if it was cut.
    pub fn into_text(self) -> String {
        let limit = self.limit;
        let text = String::from_utf8_lossy(&self.bytes).into_owned();
        if self.is_cut {
            return text
                + &format!("\n… cut after {limit} bytes; ask for less (opts=a, or a lower max)\n");
        }
        text
    }

    /// Appends as much of a piece as the limit allows. Never fails: once a piece does not fit or memory runs out, the
    /// text is marked as cut, and further pieces are dropped.
    pub(crate) fn push(&mut self, piece: &[u8]) {
        let fitting = &piece[..piece.len().min(self.limit.saturating_sub(self.bytes.len()))];
        // The memory comes from the allocator that is being described, which may have run out of it.
        let has_room = self.bytes.try_reserve(fitting.len()).is_ok();
        if has_room && !self.is_cut {
            self.bytes.extend_from_slice(fitting);
        }
        self.is_cut |= !has_room || fitting.len() < piece.len();
    }
}

impl io::Write for Printout {
    /// Never fails. Bytes beyond the limit are dropped, and count as written.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.push(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads a jemalloc's heap totals. Provided by the plugin: this needs tikv-jemalloc-ctl, and only a cdylib can bind
/// that crate to a jemalloc of the host.
pub type ReadTotals = fn(&Mallctl) -> Result<HeapTotals>;

/// Reads the `malloc_stats_print` output of a jemalloc, without the parts for each arena. Provided by the plugin, like
/// [`ReadTotals`].
pub type ReadPrintout = fn(&Mallctl) -> Result<Printout>;

/// Functions of the plugin that read a jemalloc's statistics.
#[derive(Clone, Copy, Debug)]
pub struct JemallocReaders {
    /// Reads the heap totals from `stats.*` (jemalloc(3)).
    pub totals: ReadTotals,
    /// Reads the output of `malloc_stats_print`.
    pub printout: ReadPrintout,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocators::fake::{Behaviour, fake_mallctl};

    #[test]
    fn invalid_option_letters_are_refused() {
        let check = |letters: &str, expected: &str| {
            let error = PrintOptions::parse(letters).unwrap_err();
            assert_eq!(error.message, expected);
            assert!(error.remedy.contains(OPTION_LETTERS), "{error:?}");
        };
        check("Jz", "opts=\"Jz\" has the unknown letter 'z'");
        check("a\0", "opts=\"a\\0\" has the unknown letter '\\0'");
        check("é", "opts=\"é\" has the unknown letter 'é'");
        check("aba", "opts=\"aba\" has a letter twice");
        assert!(PrintOptions::parse(OPTION_LETTERS).unwrap().is_json());
        assert!(!PrintOptions::parse("").unwrap().is_json());
    }

    #[test]
    fn pieces_of_any_size_are_joined() {
        struct PrintingFake;
        impl Behaviour for PrintingFake {
            const PRINTOUT_PIECES: &'static [&'static std::ffi::CStr] = &[c"a", c"", c"bc\n"];
        }
        let options = PrintOptions::parse("a").unwrap();
        let printout = Printout::from_jemalloc(&fake_mallctl::<PrintingFake>(), &options);
        assert_eq!(printout.into_text(), "abc\n");
    }

    #[test]
    fn long_printout_is_cut_with_note() {
        let mut printout = Printout::default();
        let piece = [b'x'; 1000];
        (0..=MAX_PRINTOUT / piece.len()).for_each(|_| printout.push(&piece));
        let text = printout.into_text();
        let (kept, note) = text.split_once('\n').unwrap();
        assert_eq!(kept.len(), MAX_PRINTOUT);
        assert!(note.starts_with("… cut after 262144 bytes"), "{note}");
    }
}
