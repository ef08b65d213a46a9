//! A dump as other tools read it: without the frames that are no code.
//!
//! ```text
//! heap_v2/512                               heap_v2/512
//!   t*: 9: 412 [0: 0]                         t*: 9: 412 [0: 0]
//! @ 0x7f9538aa2630 0x4d50010000000003       @ 0x7f9538aa2630
//!   t*: 4: 200 [0: 0]                         t*: 4: 200 [0: 0]
//! @ 0x7f9538aa2630 0x4d50010000000005       @ 0x7f9538aa2630
//!   t*: 5: 212 [0: 0]                         t*: 5: 212 [0: 0]
//!
//! MAPPED_LIBRARIES:                         MAPPED_LIBRARIES:
//! …                                         …
//!                                           # marks: label=1 of 1
//!                                           # marks: label=2 of 2
//! ```
//!
//! and the same of the text that memprof's sampler writes, tcmalloc's, where a stack stands behind its values.
//!
//! Stacks that have become the same stay apart. Other tools add them up, each unsampled by the mean size of its own
//! objects as here; one stack of both would stand for another number of bytes.

use std::io::{self, BufRead, Cursor, Read, Write};

use super::checksum::{self, DumpChecksum};
use super::starts_mappings;
use super::stripped_frames::StrippedFrames;
use crate::error::{Error, Result};
use crate::file_magic::read_magic;
use crate::limits::Limits;
use crate::lines::{InputEnd, for_each_line};

/// Writes a dump so that other tools can read it too, and returns how many bytes that are. What has no such frames stays
/// as it is, whatever its format.
///
/// # Errors
/// `dump` is empty, is text that is cut, or has lines beyond the limits; `out` takes no more.
pub fn export(dump: &mut dyn BufRead, limits: &Limits, out: &mut dyn Write) -> Result<u64> {
    let head = read_magic(dump)?;
    let mut whole = Cursor::new(&head).chain(dump);
    let text = if head.starts_with(b"heap_v2/") {
        StackLayout::Jemalloc
    } else if head.starts_with(b"heap profile:") {
        StackLayout::Tcmalloc
    } else {
        return io::copy(&mut whole, out).map_err(Error::io("copy the dump"));
    };
    let mut export = Export::new(text, out);
    let ending = for_each_line(&mut whole, limits.line, |number, line| {
        export.read(number, line)
    })?;
    match ending {
        InputEnd::Complete => export.finish(),
        InputEnd::Truncated(line) => Err(Error::Truncated {
            problem: format!("line {line} has no end"),
        }),
    }
}

/// Whose text it is, which tells where its stacks stand.
enum StackLayout {
    Jemalloc,
    Tcmalloc,
}

struct Export<'a> {
    text: StackLayout,
    out: &'a mut dyn Write,
    written: u64,
    taken_off: StrippedFrames,
    in_mappings: bool,
    /// Of what is read and of what is written.
    before: DumpChecksum,
    after: DumpChecksum,
    /// The line of the checksum, which is the last one where others have changed.
    seal: Option<Vec<u8>>,
}

impl<'a> Export<'a> {
    fn new(text: StackLayout, out: &'a mut dyn Write) -> Self {
        Self {
            text,
            out,
            written: 0,
            taken_off: StrippedFrames::default(),
            in_mappings: false,
            before: DumpChecksum::default(),
            after: DumpChecksum::default(),
            seal: None,
        }
    }

    fn read(&mut self, number: u64, line: &[u8]) -> Result<()> {
        self.before.add(line);
        if !self.taken_off.is_empty() && checksum::is_checksum(line) {
            self.seal = Some(line.to_vec());
            return Ok(());
        }
        self.in_mappings |= starts_mappings(line);
        let has_stack = match self.text {
            _ if self.in_mappings => false,
            StackLayout::Jemalloc => line.starts_with(b"@"),
            StackLayout::Tcmalloc => number > 1 && !line.trim_ascii().is_empty(),
        };
        match has_stack {
            true => {
                let rest = self.taken_off.strip(line);
                self.write(rest)
            }
            false => self.write(line),
        }
    }

    fn finish(mut self) -> Result<u64> {
        for comment in std::mem::take(&mut self.taken_off).comments() {
            self.write(comment.as_bytes())?;
        }
        if let Some(seal) = self.seal.take() {
            // What was damaged stays known as damaged.
            match self.before.mismatch() {
                true => self.write(&seal)?,
                false => {
                    let seal = self.after.line();
                    self.write(seal.as_bytes())?;
                }
            }
        }
        Ok(self.written)
    }

    fn write(&mut self, line: &[u8]) -> Result<()> {
        self.after.add(line);
        self.written += line.len() as u64 + 1;
        let written = self.out.write_all(line);
        let written = written.and_then(|()| self.out.write_all(b"\n"));
        written.map_err(Error::io("write the dump"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LABEL: &str = "0x4d50010000000003";
    const ALLOC_TIME: &str = "0x4d50020000000007";

    fn exported(dump: &str) -> Result<String> {
        let mut out = Vec::new();
        let length = export(&mut dump.as_bytes(), &Limits::default(), &mut out)?;
        assert_eq!(length, out.len() as u64);
        Ok(String::from_utf8(out).expect("it is text"))
    }

    /// With a checksum in its place, which is not at the end.
    fn sealed(dump: &str) -> String {
        let mut sum = DumpChecksum::default();
        let dump = format!("{dump}# memprof 2\n");
        dump.lines().for_each(|line| sum.add(line.as_bytes()));
        let tail = "# stacks: 2";
        sum.add(tail.as_bytes());
        format!("{dump}{}\n{tail}\n", sum.line())
    }

    fn dump(first: &str, second: &str, comments: &str) -> String {
        format!(
            "heap_v2/512\n  t*: 9: 412 [0: 0]\n@ 0x7f 0x80{first}\n  t*: 4: 200 [0: 0]\n@ 0x7f 0x80{second}\n  \
             t*: 5: 212 [0: 0]\n\nMAPPED_LIBRARIES:\n7f-80 r-xp 00000000 00:00 0 /x\n# ages: 60 700\n{comments}"
        )
    }

    #[test]
    fn marks_become_comments() {
        let check = |marks: [&str; 2], comments: &str| {
            let [first, second] = marks.map(|marks| match marks {
                "" => String::new(),
                marks => format!(" {marks}"),
            });
            let result = exported(&dump(&first, &second, ""));
            assert_eq!(result.expect("it is whole"), dump("", "", comments));
        };
        check(["", ""], "");
        check([LABEL, ""], "# marks: label=1 of 1\n");
        check([ALLOC_TIME, ALLOC_TIME], "# marks: born=3 of 1 2\n");
        let both = format!("{LABEL} {ALLOC_TIME}");
        let comments = "# marks: label=1 born=3 of 2\n# marks: born=3 of 1\n";
        check([ALLOC_TIME, &both], comments);
    }

    #[test]
    fn the_text_of_memprofs_sampler_too() {
        let dump = |first: &str, second: &str, comments: &str| {
            format!(
                "heap profile: 9: 412 [9: 412] @ heap_v2/512\n 4: 200 [4: 200] @ 0x7f 0x80{first}\n \
                 5: 212 [5: 212] @ 0x81{second}\n\nMAPPED_LIBRARIES:\n7f-80 r-xp 00000000 00:00 0 /x\n{comments}"
            )
        };
        let marked = dump(&format!(" {LABEL} {ALLOC_TIME}"), &format!(" {LABEL}"), "");
        let comments = "# marks: label=1 of 2\n# marks: label=1 born=3 of 1\n";
        let exported = exported(&marked).expect("it is whole");
        assert_eq!(exported, dump("", "", comments));
        let mut tcmalloc = Vec::new();
        let written =
            crate::write_tcmalloc(&mut marked.as_bytes(), &Limits::default(), &mut tcmalloc);
        written.expect("it is whole");
        assert_eq!(String::from_utf8_lossy(&tcmalloc), exported);
    }

    #[test]
    fn the_reader_says_the_same_of_both() {
        let read = |text: &str| {
            let mut profile = crate::parse(&mut text.as_bytes(), &Limits::default(), false)?;
            crate::unsample(&mut profile)?;
            let samples = profile.samples.iter();
            let samples = samples.map(|sample| (sample.values, sample.alloc_time, sample.label));
            Ok::<_, Error>((samples.collect::<Vec<_>>(), profile.ages, profile.warnings))
        };
        let marked = sealed(&dump(
            &format!(" {LABEL} {ALLOC_TIME}"),
            &format!(" {ALLOC_TIME}"),
            "",
        ));
        let (samples, ages, warnings) = read(&marked).expect("it is whole");
        assert!(samples[0].1.is_some() && samples[0].2.is_some());
        assert_eq!(warnings, Vec::<String>::new());
        let export = exported(&marked).expect("it is whole");
        assert!(!export.contains("@ 0x7f 0x80 "), "{export}");
        assert_eq!(
            read(&export).expect("it is whole"),
            (samples, ages, warnings)
        );
        assert_eq!(exported(&export).expect("it is whole"), export);
    }

    #[test]
    fn what_was_damaged_stays_known_as_damaged() {
        let warned = |text: &str| {
            let profile = crate::parse(&mut text.as_bytes(), &Limits::default(), false);
            let warnings = profile.expect("it can be read").warnings;
            warnings.iter().any(|warning| warning.contains("checksum"))
        };
        let marked = sealed(&dump(&format!(" {LABEL}"), "", ""));
        let whole = exported(&marked).expect("it is whole");
        assert!(!warned(&whole), "{whole}");
        let damaged = marked.replace("4: 200", "4: 201");
        assert!(warned(&exported(&damaged).expect("it has all lines")));
        let unsealed = marked.replace("# checksum:", "# checksums:");
        assert!(warned(&exported(&unsealed).expect("it has all lines")));
        let later = whole.replace("of 1", "of 2");
        assert!(warned(&later), "{later}");
    }

    #[test]
    fn all_else_stays_as_it_is() {
        let check = |text: &str| assert_eq!(exported(text).expect("it is whole"), text);
        check(&sealed(&dump("", "", "")));
        check("heap profile: 1: 8 [1: 8] @ heap_v2/1\n1: 8 [1: 8] @ 0x10\n\nMAPPED_LIBRARIES:\n");
        check("\u{1f}no text at all");
        check("x");
        let mappings = dump("", "", &format!("@ 0x1 {LABEL}\n"));
        check(&mappings);
        let cut = dump(&format!(" {LABEL}"), "", "# half a line");
        let error = exported(&cut).expect_err("it is cut").to_string();
        assert!(error.contains("line 11 has no end"), "{error}");
        assert!(exported("").is_err());
    }
}
