//! Heap dumps in text: jemalloc's `heap_v2` and tcmalloc's legacy format.

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

/// Reads a heap dump, a symbolized one (`--- symbol`) too.
///
/// The file must be whole: ended by a newline and by its mappings. With `force` what is there is read, and
/// the profile carries a warning.
pub(crate) fn parse(input: &mut dyn BufRead, limits: &Limits, force: bool) -> Result<Profile> {
    let mut dump = DumpReader::new(limits);
    let ending = for_each_line(input, limits.line, |number, line| {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        dump.line = number;
        dump.read(line)
    })?;
    dump.finish(ending, force)
}

/// Whether the mappings follow a line.
fn starts_mappings(line: &[u8]) -> bool {
    line.starts_with(b"MAPPED_LIBRARIES:") || line.starts_with(b"--- Memory map:")
}

/// Which line may come next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DumpSection {
    Start,
    /// `0xADDR name` lines of a symbolized file.
    Symbols,
    /// Behind `---`: the profile, with or without a line `--- heap`.
    SymbolsEnd,
    V2(v2::Expected),
    Legacy,
    Maps,
}

/// A dump being read, line by line.
struct DumpReader<'a> {
    section: DumpSection,
    line: u64,
    /// Bytes of the lines so far.
    read: u64,
    limits: &'a Limits,
    budget: ParseBudget,
    profile: Profile,
    mappings: Vec<Mapping>,
    build_ids: Vec<(String, String)>,
    symbols: symbols::Symbols,
    checksum: checksum::DumpChecksum,
    frames: frames::AddressReader,
    /// Those of the stack read last.
    marks: StackMarks,
    threads: v2::ThreadTotals,
    /// The line behind the first values that are not those of their only thread.
    contradictory: Option<u64>,
}

impl<'a> DumpReader<'a> {
    fn new(limits: &'a Limits) -> Self {
        Self {
            section: DumpSection::Start,
            line: 0,
            read: 0,
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
            contradictory: None,
        }
    }

    fn read(&mut self, line: &[u8]) -> Result<()> {
        self.read += line.len() as u64 + 1;
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

    fn read_header(&mut self, line: &[u8]) -> Result<()> {
        // jeprof writes names in front of a dump.
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
        Err(self.unexpected("'heap_v2/' or 'heap profile:'", line))
    }

    /// Whether `line` starts the mappings; if so, they follow.
    fn starts_maps(&mut self, line: &[u8]) -> bool {
        let starts = starts_mappings(line);
        if starts {
            self.section = DumpSection::Maps;
        }
        starts
    }

    /// Reads the addresses of a stack, which the next [`push_sample`](Self::push_sample) ends.
    fn read_stack(&mut self, text: &[u8]) -> Result<()> {
        let stacks = &mut self.profile.stacks;
        stacks.clear();
        let known = stacks.addresses().len();
        self.marks = match self.frames.read(text, stacks) {
            Ok(marks) => marks,
            Err(wrong) => return Err(self.unexpected("an address '0x…'", wrong)),
        };
        for _ in known..self.profile.stacks.addresses().len() {
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

    /// Adds `values` at the stack read last.
    fn push_sample(&mut self, values: SampleValues) -> Result<()> {
        if self.profile.samples.len() == self.limits.samples {
            return Err(Error::Limit {
                what: "samples",
                limit: self.limits.samples as u64,
            });
        }
        let (known, depth) = (self.profile.stacks.len(), self.profile.stacks.depth());
        let stack = self.profile.stacks.finish();
        self.spend(ProfileItem::Sample)?;
        if self.profile.stacks.len() > known {
            self.spend(ProfileItem::Stack(depth))?;
        }
        self.profile.samples.push(Sample {
            stack,
            counts: [0; 2],
            birth: self.marks.birth,
            label: self.marks.label,
            values,
        });
        Ok(())
    }

    fn spend(&mut self, part: ProfileItem) -> Result<()> {
        self.budget.spend(part, self.read)
    }

    fn unexpected(&self, expected: &str, found: &[u8]) -> Error {
        Error::line(
            "heap dump",
            self.line,
            format!("expected {expected}, found {}", Quoted(found)),
        )
    }

    fn finish(mut self, ending: InputEnd, force: bool) -> Result<Profile> {
        let missing = match (ending, self.section) {
            (InputEnd::Cut(line), _) => Some(format!("line {line} has no end")),
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
        if let Some(line) = self.contradictory {
            self.profile.warnings.push(format!(
                "the values before line {line} are not those of their only thread: the dump is damaged"
            ));
        }
        self.read_as_pinned();
        self.profile.mappings =
            maps::arrange(self.mappings, self.build_ids, &mut self.profile.warnings);
        self.profile.room = self.budget.room(self.read);
        self.profile.names = self.symbols.into_names(&self.profile);
        Ok(self.profile)
    }
}
