//! Things that have a word each, in arguments and in replies.

use std::borrow::Cow;
use std::fmt;

use memprof_plugin_abi::ErrorKind;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// What has one word each.
pub trait Vocabulary: Copy + 'static {
    /// All words.
    const WORDS: &'static [&'static str];

    /// As the contract writes it: `inactive`.
    fn word(self) -> &'static str;

    /// What has that word.
    fn of_word(word: &str) -> Option<Self>;
}

/// A word in a reply. A newer plugin may have words that this version does not know: they are kept
/// as they are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Word<T> {
    /// One that is known.
    Known(T),
    /// Any other.
    Other(String),
}

/// A word that is none of those that are known, where only these will do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownWord {
    /// As it came.
    pub word: String,
    /// Those that are known.
    pub known: &'static [&'static str],
}

impl<T: Vocabulary> Word<T> {
    /// As it is written.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Known(known) => known.word(),
            Self::Other(word) => word,
        }
    }

    /// What it means, where that is known.
    pub const fn known(&self) -> Option<T> {
        match self {
            Self::Known(known) => Some(*known),
            Self::Other(_) => None,
        }
    }
}

impl<T> From<T> for Word<T> {
    fn from(known: T) -> Self {
        Self::Known(known)
    }
}

impl<T: Vocabulary + Default> Default for Word<T> {
    fn default() -> Self {
        Self::Known(T::default())
    }
}

impl<T: Vocabulary + PartialEq> PartialEq<T> for Word<T> {
    fn eq(&self, other: &T) -> bool {
        matches!(self, Self::Known(known) if known == other)
    }
}

impl<T: Vocabulary> fmt::Display for Word<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl<T: Vocabulary> Serialize for Word<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de, T: Vocabulary> Deserialize<'de> for Word<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let word = Cow::<'de, str>::deserialize(deserializer)?;
        Ok(T::of_word(&word).map_or_else(|| Self::Other(word.into_owned()), Self::Known))
    }
}

impl fmt::Display for UnknownWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "unknown word {:?}; valid: {}",
            self.word,
            self.known.join(", ")
        )
    }
}

impl std::error::Error for UnknownWord {}

impl Vocabulary for ErrorKind {
    const WORDS: &'static [&'static str] = Self::WORDS;

    fn word(self) -> &'static str {
        self.word()
    }

    fn of_word(word: &str) -> Option<Self> {
        Self::of_word(word)
    }
}

/// What `FromStr` does for a vocabulary.
pub(crate) fn parse<T: Vocabulary>(word: &str) -> Result<T, UnknownWord> {
    T::of_word(word).ok_or_else(|| UnknownWord {
        word: word.to_owned(),
        known: T::WORDS,
    })
}

macro_rules! words {
    ($(
        $(#[$meta:meta])*
        $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal,)+ }
    )+) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$doc])* $variant,)+
        }

        impl $name {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];
            /// Their words, in the same order.
            pub const WORDS: &'static [&'static str] = &[$($word),+];

            /// As the contract writes it: `inactive`.
            pub const fn word(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }

        impl $crate::words::Vocabulary for $name {
            const WORDS: &'static [&'static str] = Self::WORDS;

            fn word(self) -> &'static str {
                self.word()
            }

            fn of_word(word: &str) -> Option<Self> {
                match word {
                    $($word => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.word())
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::UnknownWord;

            fn from_str(word: &str) -> Result<Self, Self::Err> {
                $crate::words::parse(word)
            }
        }

        /// Of a config, where an unknown word is an error; in a reply it is a
        /// [`Word`]($crate::Word).
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let word = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                let unknown = |_| serde::de::Error::unknown_variant(&word, Self::WORDS);
                word.parse().map_err(unknown)
            }
        }
    )+};
}
pub(crate) use words;
