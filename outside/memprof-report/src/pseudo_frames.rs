//! Frames of a stack that are no code: what its samples are marked with.

use std::fmt;
use std::str::FromStr;

use crate::alloc_time::AllocTime;
use crate::label::LabelId;

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PseudoFrame {
    Birth(AllocTime),
    Label(LabelId),
}

impl PseudoFrame {
    pub(crate) fn of(frame: u64) -> Option<Self> {
        let birth = AllocTime::of(frame).map(Self::Birth);
        birth.or_else(|| LabelId::of(frame).map(Self::Label))
    }
}

/// As a comment tells it: `born=1795299940`, in seconds since 1970 (UTC); `label=7`, the number of a set.
impl fmt::Display for PseudoFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Birth(birth) => write!(f, "born={}", birth.0),
            Self::Label(label) => write!(f, "label={}", label.number()),
        }
    }
}

impl FromStr for PseudoFrame {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (kind, number) = text.split_once('=').ok_or(())?;
        let number: u32 = number.parse().map_err(drop)?;
        match kind {
            "born" => Ok(Self::Birth(AllocTime(number))),
            "label" => LabelId::new(number).map(Self::Label).ok_or(()),
            _ => Err(()),
        }
    }
}

/// All of a stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StackMarks {
    pub(crate) birth: Option<AllocTime>,
    pub(crate) label: Option<LabelId>,
}

impl StackMarks {
    pub(crate) fn add(&mut self, mark: PseudoFrame) {
        match mark {
            PseudoFrame::Birth(birth) => self.birth = Some(birth),
            PseudoFrame::Label(label) => self.label = Some(label),
        }
    }
}

/// A stack's line without the marks at its end, which other tools take for addresses.
pub(crate) fn strip_pseudo_frames(line: &[u8]) -> &[u8] {
    match last_pseudo_frame(line) {
        Some((rest, _)) => strip_pseudo_frames(rest),
        None => line,
    }
}

/// The mark at the end of a stack's line, and what stands ahead of it.
pub(crate) fn last_pseudo_frame(line: &[u8]) -> Option<(&[u8], PseudoFrame)> {
    let (rest, word) = line.split_at(line.iter().rposition(|c| *c == b' ')?);
    let digits = std::str::from_utf8(word.strip_prefix(b" 0x")?).ok()?;
    let mark = PseudoFrame::of(u64::from_str_radix(digits, 16).ok()?)?;
    Some((rest, mark))
}
