//! Parses heap dumps in text: jemalloc's `heap_v2` and tcmalloc's legacy format.

mod checksum;
mod comments;
mod export;
mod frames;
mod legacy;
mod maps;
mod numbers;
mod pinned;
mod stripped_frames;
mod symbols;
mod tcmalloc;
mod v2;

pub use export::export;
pub use tcmalloc::write_tcmalloc;

use std::io::BufRead;

use crate::error::{Error, Quoted, Result};
use crate::limits::{Limits, ParseBudget, ProfileItem};
use crate::lines::{InputEnd, for_each_line};
use crate::profile::{Mapping, Profile, Sample, SampleValues};
use crate::pseudo_frames::StackMarks;

/// Reads a heap dump, or a symbolized one (`--- symbol`).
///
/// A complete file ends with its mappings and a newline; a truncated one is an error. With `force`, its readable
/// part is read and the profile gets a warning.
pub(crate) fn parse(input: &mut dyn BufRead, limits: &Limits, force: bool) -> Result<Profile> {
    let mut dump = DumpReader::new(limits);
    let ending = for_each_line(input, limits.line, |number, line| {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        dump.line = number;
        dump.read_line(line)
    })?;
    dump.finish(ending, force)
}

/// Returns whether the mappings start after this line.
fn starts_mappings(line: &[u8]) -> bool {
    line.starts_with(b"MAPPED_LIBRARIES:") || line.starts_with(b"--- Memory map:")
}

/// State of the parser: which lines may come next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DumpSection {
    Start,
    /// Lines `0xADDR name` of a symbolized file.
    Symbols,
    /// After `---`: the profile, with or without a line `--- heap`.
    SymbolsEnd,
    V2(v2::Expected),
    Legacy,
    Maps,
}

/// Parser state of a dump that is read line by line.
struct DumpReader<'a> {
    section: DumpSection,
    line: u64,
    /// Bytes of the lines so far.
    bytes_read: u64,
    limits: &'a Limits,
    budget: ParseBudget,
    profile: Profile,
    mappings: Vec<Mapping>,
    build_ids: Vec<(String, String)>,
    symbols: symbols::Symbols,
    checksum: checksum::DumpChecksum,
    frames: frames::AddressReader,
    /// Pseudo frames of the last stack.
    marks: StackMarks,
    threads: v2::ThreadTotals,
    /// Line after the first values that differ from those of their only thread.
    contradictory_line: Option<u64>,
}

impl<'a> DumpReader<'a> {
    fn new(limits: &'a Limits) -> Self {
        Self {
            section: DumpSection::Start,
            line: 0,
            bytes_read: 0,
            limits,
            budget: ParseBudget::new(limits),
            profile: Profile::default(),
            mappings: Vec::new(),
            build_ids: Vec::new(),
            symbols: symbols::Symbols::default(),
            checksum: checksum::DumpChecksum::default(),
            frames: frames::AddressReader::default(),
            marks: StackMarks::default(),
            threads: v2::ThreadTotals::default(),
            contradictory_line: None,
        }
    }

    /// Reads one line, given without its newline, as the current section requires. Adds it to the checksum.
    fn read_line(&mut self, line: &[u8]) -> Result<()> {
        self.bytes_read += line.len() as u64 + 1;
        self.checksum.add(line);
        match self.section {
            DumpSection::Start => self.read_header(line),
            DumpSection::V2(expected) => self.read_v2(expected, line),
            DumpSection::Legacy => self.read_legacy(line),
            DumpSection::Maps => self.read_mapping(line),
            DumpSection::Symbols => self.read_symbol(line),
            DumpSection::SymbolsEnd if line == b"--- heap" => {
                self.section = DumpSection::Start;
                Ok(())
            }
            DumpSection::SymbolsEnd => self.read_header(line),
        }
    }

    /// Reads the first line of a dump, which determines its format. Fails if it is of none.
    fn read_header(&mut self, line: &[u8]) -> Result<()> {
        // jeprof writes symbols before the dump, which the checksum does not cover.
        self.checksum = checksum::DumpChecksum::default();
        self.checksum.add(line);
        if let Some(interval) = line.strip_prefix(b"heap_v2/") {
            return self.read_v2_header(interval);
        }
        if let Some(rest) = line.strip_prefix(b"heap profile:") {
            return self.read_legacy_header(rest);
        }
        if line == b"--- symbol" && self.line == 1 {
            self.section = DumpSection::Symbols;
            return Ok(());
        }
        Err(self.unexpected_error("'heap_v2/' or 'heap profile:'", line))
    }

    /// Returns whether `line` starts the mappings, and enters their section if so.
    fn enter_mappings(&mut self, line: &[u8]) -> bool {
        let starts = starts_mappings(line);
        if starts {
            self.section = DumpSection::Maps;
        }
        starts
    }

    /// Reads the addresses of a stack, which the next [`push_sample`](Self::push_sample) completes. Fails if one is
    /// malformed, or the stack exceeds a limit.
    fn read_stack(&mut self, text: &[u8]) -> Result<()> {
        let stacks = &mut self.profile.stacks;
        stacks.clear();
        let previous = stacks.addresses().len();
        self.marks = match self.frames.read(text, stacks) {
            Ok(marks) => marks,
            Err(token) => return Err(self.unexpected_error("an address '0x…'", token)),
        };
        for _ in previous..self.profile.stacks.addresses().len() {
            self.spend(ProfileItem::Address)?;
        }
        if self.profile.stacks.depth() > self.limits.frames {
            return Err(Error::Limit {
                what: "frames in a stack",
                limit: self.limits.frames as u64,
            });
        }
        Ok(())
    }

    /// Completes the stack of the last [`read_stack`](Self::read_stack), and adds a sample with `values` to it. Fails
    /// if the profile exceeds a limit.
    fn push_sample(&mut self, values: SampleValues) -> Result<()> {
        if self.profile.samples.len() == self.limits.samples {
            return Err(Error::Limit {
                what: "samples",
                limit: self.limits.samples as u64,
            });
        }
        let (previous, depth) = (self.profile.stacks.len(), self.profile.stacks.depth());
        let stack = self.profile.stacks.finish();
        self.spend(ProfileItem::Sample)?;
        if self.profile.stacks.len() > previous {
            self.spend(ProfileItem::Stack(depth))?;
        }
        self.profile.samples.push(Sample {
            stack,
            counts: [0; 2],
            alloc_time: self.marks.alloc_time,
            label: self.marks.label,
            values,
        });
        Ok(())
    }

    /// Counts memory for an item. Fails if the budget is exceeded.
    fn spend(&mut self, part: ProfileItem) -> Result<()> {
        self.budget.spend(part, self.bytes_read)
    }

    /// Error for an unexpected text in the current line.
    fn unexpected_error(&self, expected: &str, found: &[u8]) -> Error {
        Error::line(
            "heap dump",
            self.line,
            format!("expected {expected}, found {}", Quoted(found)),
        )
    }

    /// Checks that the dump is complete, and completes the profile. With `force`, a truncated dump is only a warning; a
    /// damaged one always is.
    fn finish(mut self, ending: InputEnd, force: bool) -> Result<Profile> {
        let missing = match (ending, self.section) {
            (InputEnd::Truncated(line), _) => Some(format!("line {line} has no end")),
            (_, DumpSection::Maps) => None,
            _ => Some(format!("no MAPPED_LIBRARIES after line {}", self.line)),
        };
        if let Some(problem) = missing {
            if !force {
                return Err(Error::Truncated { problem });
            }
            self.profile
                .warnings
                .push(format!("the heap dump is truncated: {problem}"));
        } else if self.checksum.mismatch() {
            self.profile
                .warnings
                .push("the dump is damaged: its checksum differs".into());
        }
        if let Some(line) = self.contradictory_line {
            self.profile.warnings.push(format!(
                "the values before line {line} are not those of their only thread: the dump is damaged"
            ));
        }
        self.read_as_pinned();
        self.profile.mappings =
            maps::arrange(self.mappings, self.build_ids, &mut self.profile.warnings);
        self.profile.memory_left = self.budget.memory_left(self.bytes_read);
        self.profile.names = self.symbols.into_names(&self.profile);
        Ok(self.profile)
    }
}
