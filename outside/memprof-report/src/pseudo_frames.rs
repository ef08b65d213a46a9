//! Pseudo frames of a stack: data that samples are marked with.

use std::fmt;
use std::str::FromStr;

use crate::alloc_time::AllocTime;
use crate::label::LabelId;

/// Data in one pseudo frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PseudoFrame {
    AllocTime(AllocTime),
    Label(LabelId),
    /// Generation of the code that was loaded when the block was allocated.
    CodeGeneration(u32),
}

/// Bits 40 to 63 of a pseudo frame with a code generation.
const CODE_GENERATION: u64 = 0x4d_5003;

impl PseudoFrame {
    /// Decodes a pseudo frame, a number in a stack that stands for data: bits 40 to 63 are its kind, bits 1 to 32 its
    /// value. `None` if `frame` has no known kind, as an address of code.
    pub(crate) fn from_stack_word(frame: u64) -> Option<Self> {
        let alloc_time = AllocTime::from_pseudo_frame(frame).map(Self::AllocTime);
        alloc_time
            .or_else(|| LabelId::from_pseudo_frame(frame).map(Self::Label))
            .or_else(|| {
                (frame >> 40 == CODE_GENERATION)
                    .then_some(Self::CodeGeneration((frame >> 1) as u32))
            })
    }
}

/// Form in a comment: `born=1795299940`, in seconds since 1970 (UTC); `label=7`, the id of a set; `code=2`.
impl fmt::Display for PseudoFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AllocTime(alloc_time) => write!(f, "born={}", alloc_time.seconds()),
            Self::Label(label) => write!(f, "label={}", label.number()),
            Self::CodeGeneration(generation) => write!(f, "code={generation}"),
        }
    }
}

impl FromStr for PseudoFrame {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (kind, number) = text.split_once('=').ok_or(())?;
        let number: u32 = number.parse().map_err(drop)?;
        match kind {
            "born" => AllocTime::from_seconds(number)
                .map(Self::AllocTime)
                .ok_or(()),
            "label" => LabelId::from_number(number).map(Self::Label).ok_or(()),
            "code" => Ok(Self::CodeGeneration(number)),
            _ => Err(()),
        }
    }
}

/// All pseudo frames of a stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StackMarks {
    pub(crate) alloc_time: Option<AllocTime>,
    pub(crate) label: Option<LabelId>,
    pub(crate) code_generation: Option<u32>,
}

impl StackMarks {
    /// Stores a pseudo frame by its kind; a later one of a kind replaces an earlier one.
    pub(crate) fn add(&mut self, mark: PseudoFrame) {
        match mark {
            PseudoFrame::AllocTime(alloc_time) => self.alloc_time = Some(alloc_time),
            PseudoFrame::Label(label) => self.label = Some(label),
            PseudoFrame::CodeGeneration(generation) => self.code_generation = Some(generation),
        }
    }
}

/// Removes the pseudo frames at the end of a stack's line, which other tools would take for addresses.
pub(crate) fn strip_pseudo_frames(mut line: &[u8]) -> &[u8] {
    while let Some((rest, _)) = last_pseudo_frame(line) {
        line = rest;
    }
    line
}

/// Returns the pseudo frame at the end of a stack's line, and the text before it. `None` if the last word is no pseudo
/// frame. Ignores blanks at the end, as the parser does.
pub(crate) fn last_pseudo_frame(line: &[u8]) -> Option<(&[u8], PseudoFrame)> {
    let line = line.trim_ascii_end();
    let (rest, word) = line.split_at(line.iter().rposition(|c| *c == b' ')?);
    let digits = std::str::from_utf8(word.strip_prefix(b" 0x")?).ok()?;
    let mark = PseudoFrame::from_stack_word(u64::from_str_radix(digits, 16).ok()?)?;
    Some((rest, mark))
}
