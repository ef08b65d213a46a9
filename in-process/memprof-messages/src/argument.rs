//! An argument of a message.

/// An argument, given as `key=value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArgumentSpec {
    /// Before the `=`.
    pub key: &'static str,
    /// Behind it.
    pub values: ArgumentType,
    /// What it does, in one line without a period.
    pub help: &'static str,
    /// What holds where it is left out, if that is a value.
    pub default: Option<&'static str>,
    /// The message is refused without it.
    pub is_required: bool,
    /// It says the same as the one before it in the table: only one of them may be given.
    pub is_alternative: bool,
}

/// What an argument takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgumentType {
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// One of these words, which are too many for a line: help shows the name in their place.
    NamedOneOf(&'static str, &'static [&'static str]),
    /// A whole number.
    Integer {
        /// The least one.
        least: u32,
        /// The greatest one; none where the host decides.
        most: Option<u32>,
        /// Numbers that somebody may want.
        examples: &'static [&'static str],
    },
    /// A text of the argument's own form, of which these are examples.
    Examples(&'static [&'static str]),
}

impl ArgumentType {
    /// What may be offered to somebody who types it.
    pub const fn completions(&self) -> &'static [&'static str] {
        match self {
            Self::OneOf(words) | Self::NamedOneOf(_, words) | Self::Examples(words) => words,
            Self::Integer { examples, .. } => examples,
        }
    }
}

impl ArgumentSpec {
    pub(crate) const fn new(key: &'static str, values: ArgumentType, help: &'static str) -> Self {
        Self {
            key,
            values,
            help,
            default: None,
            is_required: false,
            is_alternative: false,
        }
    }

    pub(crate) const fn default(mut self, value: &'static str) -> Self {
        self.default = Some(value);
        self
    }

    pub(crate) const fn required(mut self) -> Self {
        self.is_required = true;
        self
    }

    pub(crate) const fn alternative(mut self) -> Self {
        self.is_alternative = true;
        self
    }
}
