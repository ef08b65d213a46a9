//! Exports a dump for other tools: without pseudo frames.
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
//! The dumps of memprof's sampler, in tcmalloc's format, are converted likewise; there a stack follows its values.
//!
//! Stacks that become equal stay separate lines. Other tools unsample each line by the mean size of its own
//! objects, like this crate, before they add them up; one line for both would stand for another number of bytes.

use std::io::{self, BufRead, Cursor, Read, Write};

use super::checksum::{self, DumpChecksum};
use super::marker_lines::{JEMALLOC_HEADER, TCMALLOC_HEADER, is_mappings_header};
use super::stripped_frames::StrippedFrames;
use crate::error::{Error, Result};
use crate::file_magic::read_magic;
use crate::limits::Limits;
use crate::lines::{InputEnd, for_each_line, split_carriage_return};

/// Writes a dump so that other tools can read it: its pseudo frames become comments. Returns the number of bytes
/// written. A file may have the dumps of several processes, one after the other. A dump without pseudo frames is copied
/// unchanged, whatever its format.
///
/// # Errors
/// `dump` is empty, is truncated text, or has lines beyond the limits; writing to `out` fails.
pub fn export_dump(dump: &mut dyn BufRead, limits: &Limits, out: &mut dyn Write) -> Result<u64> {
    let head = read_magic(dump)?;
    let mut whole = Cursor::new(&head).chain(dump);
    let Some(layout) = StackLayout::from_header(&head) else {
        return io::copy(&mut whole, out).map_err(Error::failed_to("copy the dump"));
    };
    let mut export = Export::new(layout, out);
    let ending = for_each_line(&mut whole, limits.line, |_, line| {
        if let Some(layout) = StackLayout::from_header(line).filter(|_| export.in_mappings) {
            export.finish_dump()?;
            export.start_next_dump(layout);
        }
        let (line, carriage_return) = split_carriage_return(line);
        export.carriage_return = carriage_return;
        export.export_line(line)
    })?;
    match ending {
        InputEnd::Complete => {
            export.finish_dump()?;
            Ok(export.written)
        }
        InputEnd::Truncated(line) => Err(Error::Truncated {
            problem: format!("line {line} has no end"),
        }),
    }
}

/// Text format of a dump, which determines the position of its stacks.
enum StackLayout {
    Jemalloc,
    Tcmalloc,
}

impl StackLayout {
    /// Returns the layout of the dump that begins with this line. `None` if it is no header of jemalloc or tcmalloc.
    fn from_header(line: &[u8]) -> Option<Self> {
        if line.starts_with(JEMALLOC_HEADER) {
            Some(Self::Jemalloc)
        } else if line.starts_with(TCMALLOC_HEADER) {
            Some(Self::Tcmalloc)
        } else {
            None
        }
    }
}

/// State of an export.
struct Export<'a> {
    layout: StackLayout,
    out: &'a mut dyn Write,
    /// Bytes of all dumps so far.
    written: u64,
    /// Whether the header of the dump was read.
    has_header: bool,
    stripped: StrippedFrames,
    in_mappings: bool,
    /// Carriage return at the end of the last line read, which the lines written get too. Empty if it had none.
    carriage_return: &'static [u8],
    /// Checksums of the input and of the output.
    input_checksum: DumpChecksum,
    output_checksum: DumpChecksum,
    /// Checksum line of the input, written last if other lines have changed.
    checksum_line: Option<Vec<u8>>,
}

impl<'a> Export<'a> {
    /// Creates an export to `out`, before the first line.
    fn new(layout: StackLayout, out: &'a mut dyn Write) -> Self {
        Self {
            layout,
            out,
            written: 0,
            has_header: false,
            stripped: StrippedFrames::default(),
            in_mappings: false,
            carriage_return: b"",
            input_checksum: DumpChecksum::default(),
            output_checksum: DumpChecksum::default(),
            checksum_line: None,
        }
    }

    /// Prepares for the header of another process's dump in the same file, whose format is `layout`. The number of
    /// written bytes goes on.
    fn start_next_dump(&mut self, layout: StackLayout) {
        self.layout = layout;
        self.has_header = false;
        self.in_mappings = false;
        self.input_checksum = DumpChecksum::default();
        self.output_checksum = DumpChecksum::default();
    }

    /// Writes one line of the dump, given without its end, without pseudo frames, the numbers in a stack that stand for
    /// data, not for code. Once pseudo frames were removed, a checksum line is held back for
    /// [`finish_dump`](Self::finish_dump) to replace.
    fn export_line(&mut self, line: &[u8]) -> Result<()> {
        let is_header = !std::mem::replace(&mut self.has_header, true);
        self.input_checksum.add_line(line);
        if !self.stripped.is_empty() && checksum::has_checksum(line) {
            self.checksum_line = Some(line.to_vec());
            return Ok(());
        }
        self.in_mappings |= is_mappings_header(line);
        let has_stack = match self.layout {
            _ if self.in_mappings => false,
            StackLayout::Jemalloc => line.starts_with(b"@"),
            StackLayout::Tcmalloc => !is_header && !line.trim_ascii().is_empty(),
        };
        match has_stack {
            true => {
                let rest = self.stripped.strip(line);
                self.write_line(&rest)
            }
            false => self.write_line(line),
        }
    }

    /// Writes comments with the removed pseudo frames, then the checksum line that [`export_line`](Self::export_line)
    /// held back, if any, with a checksum of the output. A damaged dump keeps its wrong checksum.
    fn finish_dump(&mut self) -> Result<()> {
        let stripped = std::mem::take(&mut self.stripped);
        for comment in stripped
            .pseudo_frame_comments()
            .chain(stripped.managed_word_comments())
        {
            self.write_line(comment.as_bytes())?;
        }
        if let Some(checksum_line) = self.checksum_line.take() {
            // A damaged dump keeps its wrong checksum, so that it stays recognizable as damaged.
            match self.input_checksum.is_mismatch() {
                true => self.write_line(&checksum_line)?,
                false => {
                    let checksum_line = self.output_checksum.format_comment();
                    self.write_line(checksum_line.as_bytes())?;
                }
            }
        }
        Ok(())
    }

    /// Writes a line and the end of the last line read, and adds the line to the output's checksum.
    fn write_line(&mut self, line: &[u8]) -> Result<()> {
        self.output_checksum.add_line(line);
        for part in [line, self.carriage_return, b"\n"] {
            self.written += part.len() as u64;
            let written = self.out.write_all(part);
            written.map_err(Error::failed_to("write the dump"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LABEL: &str = "0x4d50010000000003";
    const ALLOC_TIME: &str = "0x4d50020000000007";

    fn exported(dump: &str) -> Result<String> {
        let mut out = Vec::new();
        let length = export_dump(&mut dump.as_bytes(), &Limits::default(), &mut out)?;
        assert_eq!(length, out.len() as u64);
        Ok(String::from_utf8(out).expect("it is text"))
    }

    /// Adds a checksum that is not the last line.
    fn with_checksum(dump: &str) -> String {
        let mut sum = DumpChecksum::default();
        let dump = format!("{dump}# memprof 2\n");
        dump.lines().for_each(|line| sum.add_line(line.as_bytes()));
        let tail = "# stacks: 2";
        sum.add_line(tail.as_bytes());
        format!("{dump}{}\n{tail}\n", sum.format_comment())
    }

    fn dump(first: &str, second: &str, comments: &str) -> String {
        format!(
            "heap_v2/512\n  t*: 9: 412 [0: 0]\n@ 0x7f 0x80{first}\n  t*: 4: 200 [0: 0]\n@ 0x7f 0x80{second}\n  \
             t*: 5: 212 [0: 0]\n\nMAPPED_LIBRARIES:\n7f-80 r-xp 00000000 00:00 0 /x\n# ages: 60 700\n{comments}"
        )
    }

    #[test]
    fn pseudo_frames_become_comments() {
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
    fn tcmalloc_text_is_exported_too() {
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
        let written = crate::write_tcmalloc(
            &mut marked.as_bytes(),
            &Limits::default(),
            &std::collections::HashSet::new(),
            &mut tcmalloc,
        );
        written.expect("it is whole");
        let leaf_less_1 = exported
            .replace("@ 0x7f", "@ 0x7e")
            .replace("@ 0x81", "@ 0x80");
        assert_eq!(String::from_utf8_lossy(&tcmalloc), leaf_less_1);
    }

    #[test]
    fn export_reads_like_its_dump() {
        let read = |layout: &str| {
            let mut profile =
                crate::parse_profile(&mut layout.as_bytes(), &Limits::default(), false)?;
            crate::unsample(&mut profile)?;
            let samples = profile.samples.iter();
            let samples = samples.map(|sample| (sample.values, sample.alloc_time, sample.label));
            Ok::<_, Error>((samples.collect::<Vec<_>>(), profile.ages, profile.warnings))
        };
        let marked = with_checksum(&dump(
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
    fn carriage_returns_at_line_ends_are_kept() {
        let with_returns = |dump: &str| dump.replace('\n', "\r\n");
        let check = |dump: &str| {
            let export = exported(&with_returns(dump)).expect("it is whole");
            assert_eq!(
                export,
                with_returns(&exported(dump).expect("it is whole")),
                "{dump}"
            );
            let profiles =
                crate::input::parse_profiles(&mut export.as_bytes(), &Limits::default(), false);
            for profile in profiles.expect("it is whole") {
                assert_eq!(profile.warnings, Vec::<String>::new(), "{export}");
            }
        };
        check(&dump("", "", ""));
        let managed = format!(" 0x4d50040000000007 0x81 {LABEL}");
        let marked = with_checksum(&dump(&managed, &format!(" {ALLOC_TIME}"), ""));
        assert!(!exported(&marked).expect("it is whole").contains("0x4d50"));
        check(&marked);
        check(&with_checksum(&dump(" 0x4d50040000000007", "", "")));
        check(&format!("{marked}{marked}"));
    }

    #[test]
    fn damaged_dump_exports_as_damaged() {
        let warned = |layout: &str| {
            let profile = crate::parse_profile(&mut layout.as_bytes(), &Limits::default(), false);
            let warnings = profile.expect("it can be read").warnings;
            warnings.iter().any(|warning| warning.contains("checksum"))
        };
        let marked = with_checksum(&dump(&format!(" {LABEL}"), "", ""));
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
    fn dump_without_pseudo_frames_is_unchanged() {
        let check = |layout: &str| assert_eq!(exported(layout).expect("it is whole"), layout);
        check(&with_checksum(&dump("", "", "")));
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
