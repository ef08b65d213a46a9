//! Arguments of messages.

/// An argument of a message, given as `key=value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArgumentSpec {
    /// Text before the equals sign.
    pub key: &'static str,
    /// Type and accepted values of the text after the equals sign.
    pub values: ArgumentType,
    /// Description of its effect, in one line without a period.
    pub help: &'static str,
    /// Value that applies if it is omitted. `None` if there is no such value.
    pub default: Option<&'static str>,
    /// Whether the message is refused without it.
    pub is_required: bool,
    /// Whether it is another form of the argument before it in the table: only one of them may be given.
    pub is_alternative: bool,
}

/// Type and accepted values of an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgumentType {
    /// One of these names.
    OneOf(&'static [&'static str]),
    /// One of these names, which are too many for a line: help shows the placeholder before them.
    NamedOneOf(&'static str, &'static [&'static str]),
    /// A whole number.
    Integer {
        /// Smallest accepted number.
        min: u32,
        /// Largest accepted number. `None` if the host decides.
        max: Option<u32>,
        /// Typical values.
        examples: &'static [&'static str],
    },
    /// A text in a form of its own, shown by these examples.
    Examples(&'static [&'static str]),
}

impl ArgumentType {
    /// Values to offer when the argument is completed on a command line.
    pub const fn completions(&self) -> &'static [&'static str] {
        match self {
            Self::OneOf(names) | Self::NamedOneOf(_, names) | Self::Examples(names) => names,
            Self::Integer { examples, .. } => examples,
        }
    }
}

impl ArgumentSpec {
    /// Creates an optional argument without a default.
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

    /// Sets the value that applies if the argument is omitted.
    pub(crate) const fn default(mut self, value: &'static str) -> Self {
        self.default = Some(value);
        self
    }

    /// Makes the argument required.
    pub(crate) const fn required(mut self) -> Self {
        self.is_required = true;
        self
    }

    /// Makes the argument another form of the one before it in the table.
    pub(crate) const fn alternative(mut self) -> Self {
        self.is_alternative = true;
        self
    }
}
