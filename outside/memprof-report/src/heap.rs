//! Parses heap dumps in text: jemalloc's `heap_v2`, and tcmalloc's legacy format, which Go writes too.

mod address_reader;
mod checksum;
mod code_history;
mod comments;
mod export;
mod go;
mod header_word;
mod legacy;
mod map_line;
mod maps;
mod marker_lines;
mod numbers;
mod pinned;
mod stack_text;
mod stripped_frames;
mod symbols;
mod tcmalloc;
mod v2;

pub use export::export_dump;
pub(crate) use marker_lines::starts_dump;
pub use tcmalloc::write_tcmalloc;

use std::io::BufRead;

use crate::error::{Error, Quoted, Result};
use crate::limits::{Limits, ParseBudget, ProfileItem, reserve_in_steps};
use crate::lines::{InputEnd, for_each_line, split_carriage_return};
use crate::names::replace_unprintable;
use crate::profile::{Address, Profile, Sample, SampleValues};
use crate::pseudo_frames::StackMarks;
use crate::unsample::describe_header_agreement;
use marker_lines::{
    JEMALLOC_HEADER, TCMALLOC_HEADER, is_mappings_header, starts_next_dump, strip_message_prefix,
};

/// Reads a heap dump, or a symbolized one (`--- symbol`), and those of other processes that follow it in the file.
///
/// A complete file ends with a newline, and with its mappings if its system writes them; a truncated one is an error.
/// With `force`, its readable part is read and the profile gets a warning. Another dump can only follow mappings.
pub(crate) fn parse_dumps(
    input: &mut dyn BufRead,
    limits: &Limits,
    force: bool,
) -> Result<Vec<Profile>> {
    let mut profiles = Vec::new();
    let mut dump = DumpReader::new(limits);
    let ending = for_each_line(input, limits.line, |number, line| {
        let (line, _) = split_carriage_return(line);
        if dump.section == DumpSection::Maps && starts_next_dump(line) {
            let next = dump.reader_of_next_dump();
            let complete = std::mem::replace(&mut dump, next);
            profiles.push(complete.finish(InputEnd::Complete, force)?);
            if profiles.len() >= limits.dumps {
                return Err(Error::Limit {
                    what: "dumps",
                    limit: limits.dumps as u64,
                });
            }
        }
        dump.line = number;
        dump.read_line(line)
    })?;
    profiles.push(dump.finish(ending, force)?);
    Ok(profiles)
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
    map: maps::MemoryMap,
    build_ids: Vec<(String, String)>,
    code_history: code_history::CodeHistory,
    /// Number of the header's line, from 1.
    header_line: u64,
    /// Texts of the allocator's [messages](marker_lines::MESSAGE_PREFIXES).
    writer_warnings: Vec<String>,
    /// State of a dump in tcmalloc's format. `None` for jemalloc's.
    legacy: Option<legacy::LegacyDump>,
    /// Comments of Go's text on the last stack: address of the call, and function.
    go_frames: Vec<(Address, symbols::SymbolFrame)>,
    has_go_comments: bool,
    symbols: symbols::Symbols,
    checksum: checksum::DumpChecksum,
    addresses: address_reader::AddressReader,
    /// Pseudo frames of the last stack.
    marks: StackMarks,
    threads: v2::ThreadTotals,
    /// Number of the line after the first values that differ from those of their only thread.
    contradictory_line: Option<u64>,
}

impl<'a> DumpReader<'a> {
    /// Creates the state before the first line. `limits` bound what is read.
    fn new(limits: &'a Limits) -> Self {
        Self {
            section: DumpSection::Start,
            line: 0,
            bytes_read: 0,
            limits,
            budget: ParseBudget::new(limits),
            profile: Profile::default(),
            map: maps::MemoryMap::default(),
            build_ids: Vec::new(),
            code_history: code_history::CodeHistory::default(),
            header_line: 0,
            writer_warnings: Vec::new(),
            legacy: None,
            go_frames: Vec::new(),
            has_go_comments: false,
            symbols: symbols::Symbols::default(),
            checksum: checksum::DumpChecksum::default(),
            addresses: address_reader::AddressReader::default(),
            marks: StackMarks::default(),
            threads: v2::ThreadTotals::default(),
            contradictory_line: None,
        }
    }

    /// Creates the reader of the dump that follows this one in the file. It continues the memory budget, which is for
    /// the whole file.
    fn reader_of_next_dump(&self) -> Self {
        Self {
            bytes_read: self.bytes_read,
            budget: self.budget,
            ..Self::new(self.limits)
        }
    }

    /// Reads one line, given without its newline, by the rules of the current section. Blanks at the end of the line
    /// are ignored. Adds the line to the checksum, which covers the lines from the header on. Fails if the line is
    /// malformed or a limit is exceeded.
    fn read_line(&mut self, line: &[u8]) -> Result<()> {
        self.bytes_read += line.len() as u64 + 1;
        if matches!(self.section, DumpSection::Start | DumpSection::SymbolsEnd) {
            // The checksum covers the dump from its header on, not the symbols that jeprof writes before it.
            self.checksum = checksum::DumpChecksum::default();
        }
        self.checksum.add_line(line);
        let line = line.trim_ascii_end();
        match self.section {
            DumpSection::Start => self.read_header(line),
            DumpSection::V2(expected) => self.read_v2_line(expected, line),
            DumpSection::Legacy => self.read_legacy_line(line),
            DumpSection::Maps => self.read_mapping(line),
            DumpSection::Symbols => self.read_symbol(line),
            DumpSection::SymbolsEnd => self.read_header(line),
        }
    }

    /// Reads a line up to the header, which determines the format. Before it, blank lines, `--- heap`, `--- growth` and
    /// `--- profile` of `jeprof --raw` are skipped, and messages of the allocator become warnings. `--- symbol` starts
    /// a table of symbols, at most once. Fails on any other line.
    fn read_header(&mut self, line: &[u8]) -> Result<()> {
        if let Some(warning) = strip_message_prefix(line) {
            let warning = String::from_utf8_lossy(warning.trim_ascii());
            self.charge_memory(ProfileItem::Text(warning.len()))?;
            self.writer_warnings
                .extend((!warning.is_empty()).then(|| replace_unprintable(&warning).into_owned()));
            return Ok(());
        }
        if matches!(line, b"" | b"--- heap" | b"--- growth" | b"--- profile") {
            return Ok(());
        }
        self.header_line = self.line;
        if let Some(interval) = line.strip_prefix(JEMALLOC_HEADER) {
            return self.read_v2_header(interval);
        }
        if let Some(rest) = line.strip_prefix(TCMALLOC_HEADER) {
            return self.read_legacy_header(rest);
        }
        if line == b"--- symbol" && self.section == DumpSection::Start {
            self.section = DumpSection::Symbols;
            return Ok(());
        }
        Err(self.unexpected_text_error("'heap_v2/' or 'heap profile:'", line))
    }

    /// Returns whether `line` is the header of the mappings. If so, the following lines are read as mappings.
    fn enter_mappings_at_header(&mut self, line: &[u8]) -> bool {
        let starts = is_mappings_header(line);
        if starts {
            self.section = DumpSection::Maps;
        }
        starts
    }

    /// Reads the addresses of a stack, which the next [`push_sample`](Self::push_sample) completes. A stack in another
    /// writer's spelling is rewritten as jemalloc's first ([`stack_text::normalize_stack_text`]). Fails if an address
    /// is malformed, or the stack exceeds a limit.
    fn read_stack(&mut self, text: &[u8]) -> Result<()> {
        let stacks = &mut self.profile.stacks;
        stacks.clear_pending();
        let previous = stacks.addresses().len();
        self.marks = match self.addresses.read_addresses(text, stacks) {
            Ok(marks) => marks,
            Err(token) => {
                stacks.clear_pending();
                // Calls itself once at most: a normalized text has no further normal form.
                match stack_text::normalize_stack_text(text) {
                    Some(text) => return self.read_stack(&text),
                    None => return Err(self.unexpected_text_error("an address '0x…'", token)),
                }
            }
        };
        for _ in previous..self.profile.stacks.addresses().len() {
            self.charge_memory(ProfileItem::Address)?;
        }
        if self.profile.stacks.pending_depth() > self.limits.frames {
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
        let (previous, depth) = (
            self.profile.stacks.len(),
            self.profile.stacks.pending_depth(),
        );
        let stack = self.profile.stacks.finish_stack();
        self.charge_memory(ProfileItem::Sample)?;
        if self.profile.stacks.len() > previous {
            self.charge_memory(ProfileItem::Stack(depth))?;
        }
        let index = self.profile.samples.len();
        self.code_history
            .set_generation(index, self.marks.code_generation);
        reserve_in_steps(&mut self.profile.samples, 1);
        self.profile.samples.push(Sample {
            stack,
            counts: [0; 2],
            alloc_time: self.marks.alloc_time,
            label: self.marks.label,
            row: 0,
            values,
        });
        Ok(())
    }

    /// Counts the memory of an item. Fails if the budget is exceeded, which is in proportion to the input read so far.
    fn charge_memory(&mut self, part: ProfileItem) -> Result<()> {
        self.budget.charge(part, self.bytes_read)
    }

    /// Error for a text in the current line that is not as expected. It quotes the text.
    fn unexpected_text_error(&self, expected: &str, found: &[u8]) -> Error {
        Error::malformed_line(
            "heap dump",
            self.line,
            format!("expected {expected}, found {}", Quoted(found)),
        )
    }

    /// Checks that the dump is complete, and completes the profile: scales Go's samples, sorts the mappings, moves
    /// frames in unloaded code, and converts symbols. Fails for a truncated dump unless `force` is set, which makes it
    /// a warning. A damaged dump, by its checksum or values, only gets a warning.
    fn finish(mut self, ending: InputEnd, force: bool) -> Result<Profile> {
        self.finish_go_stack()?;
        let has_maps = self.section == DumpSection::Maps;
        let missing = match ending {
            InputEnd::Truncated(line) => Some(format!("line {line} has no end")),
            InputEnd::Complete if has_maps => None,
            InputEnd::Complete => self.problem_if_incomplete(),
        };
        if let Some(legacy) = self.legacy.take() {
            self.finish_legacy(&legacy, has_maps)?;
        }
        match missing {
            Some(problem) if !force => return Err(Error::Truncated { problem }),
            Some(problem) => {
                let warning = format!("the heap dump is truncated: {problem}");
                self.profile.warnings.push(warning);
            }
            // Only now: a truncated dump may lack the other threads of the last stack.
            None => {
                self.record_thread_contradiction(self.line + 1);
                if self.checksum.is_mismatch() {
                    let warning = "the dump is damaged: its checksum differs";
                    self.profile.warnings.push(warning.to_owned());
                }
            }
        }
        if let Some(line) = self.contradictory_line {
            self.profile.warnings.push(format!(
                "the values before line {line} are not those of their only thread: the dump is damaged"
            ));
        }
        if !self.writer_warnings.is_empty() {
            let warning = format!("its writer warns: {}", self.writer_warnings.join(" "));
            self.profile.warnings.push(warning);
        }
        self.convert_if_pinned_slabs();
        self.profile.has_file_offsets = self.map.has_offsets();
        self.profile.mappings = std::mem::take(&mut self.map).finish(
            std::mem::take(&mut self.build_ids),
            &mut self.profile.warnings,
        );
        self.move_frames_in_unloaded_code()?;
        self.profile.memory_left = self.budget.memory_left(self.bytes_read);
        self.profile.names = self.symbols.into_names(&self.profile);
        Ok(self.profile)
    }

    /// Checks a dump without mappings, and returns what is missing. `None` if the stacks add up to the totals in the
    /// header, so that the dump is complete: jemalloc writes no mappings on Windows, nor does Go. Then also adds a
    /// warning, unless Go's comments explain why there are no mappings.
    fn problem_if_incomplete(&mut self) -> Option<String> {
        let agreement = match (self.section, &self.legacy) {
            (DumpSection::Legacy, Some(legacy)) => self
                .is_legacy_complete(legacy)
                .then(|| "its stacks add up to its header".to_owned()),
            (DumpSection::V2(v2::Expected::Any | v2::Expected::Maps), _) => {
                describe_header_agreement(&self.profile)
            }
            _ => None,
        };
        let Some(agreement) = agreement else {
            let missing = match self.section {
                DumpSection::Start | DumpSection::Symbols | DumpSection::SymbolsEnd => {
                    "heap profile"
                }
                _ => "MAPPED_LIBRARIES",
            };
            return Some(format!("no {missing} after line {}", self.line));
        };
        if !self.has_go_comments {
            self.profile.warnings.push(format!(
                "the heap dump has no memory map, so functions are addresses; it is complete if its system writes none, \
                 as jemalloc on Windows, else it is damaged: {agreement}"
            ));
        }
        None
    }
}
