//! Frames of a stack that are no code: what its samples are marked with.

use crate::birth::Birth;
use crate::label::LabelId;

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    Birth(Birth),
    Label(LabelId),
}

impl Mark {
    pub(crate) fn of(frame: u64) -> Option<Self> {
        let birth = Birth::of(frame).map(Self::Birth);
        birth.or_else(|| LabelId::of(frame).map(Self::Label))
    }
}

/// All of a stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marks {
    pub(crate) birth: Option<Birth>,
    pub(crate) label: Option<LabelId>,
}

impl Marks {
    pub(crate) fn add(&mut self, mark: Mark) {
        match mark {
            Mark::Birth(birth) => self.birth = Some(birth),
            Mark::Label(label) => self.label = Some(label),
        }
    }
}

/// A stack's line without the marks at its end, which other tools take for addresses.
pub(crate) fn without_marks(line: &[u8]) -> &[u8] {
    let Some((rest, word)) = line
        .iter()
        .rposition(|c| *c == b' ')
        .map(|at| line.split_at(at))
    else {
        return line;
    };
    let hexadecimal = word
        .strip_prefix(b" 0x")
        .and_then(|word| std::str::from_utf8(word).ok());
    let address = hexadecimal.and_then(|word| u64::from_str_radix(word, 16).ok());
    match address.and_then(Mark::of) {
        Some(_) => without_marks(rest),
        None => line,
    }
}
