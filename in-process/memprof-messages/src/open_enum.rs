//! Things that have a word each, in arguments and in replies.

use std::borrow::Cow;
use std::fmt;

use memprof_plugin_abi::ErrorKind;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// What has one word each.
pub trait NamedEnum: Copy + 'static {
    /// All words.
    const WORDS: &'static [&'static str];

    /// As the contract writes it: `inactive`.
    fn name(self) -> &'static str;

    /// What has that word.
    fn from_name(word: &str) -> Option<Self>;
}

/// A word in a reply. A newer plugin may have words that this version does not know: they are kept
/// as they are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum OpenEnum<T> {
    /// One that is known.
    Known(T),
    /// Any other.
    Other(String),
}

/// A word that is none of those that are known, where only these will do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownName {
    /// As it came.
    pub word: String,
    /// Those that are known.
    pub known: &'static [&'static str],
}

impl<T: NamedEnum> OpenEnum<T> {
    /// As it is written.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Known(known) => known.name(),
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

impl<T> From<T> for OpenEnum<T> {
    fn from(known: T) -> Self {
        Self::Known(known)
    }
}

impl<T: NamedEnum + Default> Default for OpenEnum<T> {
    fn default() -> Self {
        Self::Known(T::default())
    }
}

impl<T: NamedEnum + PartialEq> PartialEq<T> for OpenEnum<T> {
    fn eq(&self, other: &T) -> bool {
        matches!(self, Self::Known(known) if known == other)
    }
}

impl<T: NamedEnum> fmt::Display for OpenEnum<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl<T: NamedEnum> Serialize for OpenEnum<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de, T: NamedEnum> Deserialize<'de> for OpenEnum<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let word = Cow::<'de, str>::deserialize(deserializer)?;
        Ok(T::from_name(&word).map_or_else(|| Self::Other(word.into_owned()), Self::Known))
    }
}

impl fmt::Display for UnknownName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "unknown word {:?}; valid: {}",
            self.word,
            self.known.join(", ")
        )
    }
}

impl std::error::Error for UnknownName {}

impl NamedEnum for ErrorKind {
    const WORDS: &'static [&'static str] = Self::WORDS;

    fn name(self) -> &'static str {
        self.name()
    }

    fn from_name(word: &str) -> Option<Self> {
        Self::from_name(word)
    }
}

/// What `FromStr` does for a vocabulary.
pub(crate) fn parse<T: NamedEnum>(word: &str) -> Result<T, UnknownName> {
    T::from_name(word).ok_or_else(|| UnknownName {
        word: word.to_owned(),
        known: T::WORDS,
    })
}

macro_rules! words {
    ($(
        $(#[$meta:meta])*
        $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal $(| $older:literal)*,)+ }
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
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }

        impl $crate::open_enum::NamedEnum for $name {
            const WORDS: &'static [&'static str] = Self::WORDS;

            fn name(self) -> &'static str {
                self.name()
            }

            fn from_name(word: &str) -> Option<Self> {
                match word {
                    $($word $(| $older)* => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::UnknownName;

            fn from_str(word: &str) -> Result<Self, Self::Err> {
                $crate::open_enum::parse(word)
            }
        }

        /// Of a config, where an unknown word is an error; in a reply it is a
        /// [`OpenEnum`]($crate::OpenEnum).
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
