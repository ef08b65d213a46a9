//! Arguments of messages.

/// Specification of a message's argument `key=value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArgumentSpec {
    /// Text before the equals sign.
    pub key: &'static str,
    /// Type and accepted values of the text after the equals sign.
    pub values: ArgumentType,
    /// Description of its effect, in one line without a period.
    pub help: &'static str,
    /// Value that applies if the argument is omitted. `None` if there is no such value.
    pub default: Option<&'static str>,
    /// Whether the message is rejected without the argument.
    pub is_required: bool,
    /// Whether it is an alternative to the argument before it in the table: only one of them may be given.
    pub is_alternative: bool,
}

/// Type and accepted values of an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgumentType {
    /// One of these names.
    OneOf(&'static [&'static str]),
    /// One of these names. They are too many for one line, so help shows the placeholder instead.
    NamedOneOf(&'static str, &'static [&'static str]),
    /// A whole number.
    Integer {
        /// Smallest accepted number.
        min: u32,
        /// Largest accepted number. `None` if the host determines it.
        max: Option<u32>,
        /// Typical values.
        examples: &'static [&'static str],
    },
    /// Text in another format, which these examples show.
    Examples(&'static [&'static str]),
}

impl ArgumentType {
    /// Returns the values to suggest when the argument is completed on a command line.
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
    pub(crate) const fn with_default(mut self, value: &'static str) -> Self {
        self.default = Some(value);
        self
    }

    /// Makes the argument mandatory: the message is rejected without it.
    pub(crate) const fn required(mut self) -> Self {
        self.is_required = true;
        self
    }

    /// Makes the argument an alternative to the one before it in the table: only one of them may be given.
    pub(crate) const fn alternative(mut self) -> Self {
        self.is_alternative = true;
        self
    }
}
