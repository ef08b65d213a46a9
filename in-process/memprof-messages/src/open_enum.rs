//! Enums with named values, for arguments and replies.

use std::borrow::Cow;
use std::fmt;

use memprof_plugin_abi::ErrorKind;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An enum with named values.
pub trait NamedEnum: Copy + 'static {
    /// Names of all values.
    const NAMES: &'static [&'static str];

    /// Returns the value's name in arguments and replies, such as `inactive`.
    fn name(self) -> &'static str;

    /// Returns the value with this name. Names of earlier versions are accepted, too. `None` if the name is unknown.
    fn from_name(name: &str) -> Option<Self>;
}

/// A name in a reply. A newer plugin may return names that this version does not know; they are preserved.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum OpenEnum<T> {
    /// A name that is known.
    Known(T),
    /// Any other name.
    Other(String),
}

/// Error for an unknown name, where only known names are accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownName {
    /// Text that was parsed.
    pub name: String,
    /// Names that are known.
    pub known: &'static [&'static str],
}

impl<T: NamedEnum> OpenEnum<T> {
    /// Returns the name as replies contain it, known or not.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Known(known) => known.name(),
            Self::Other(name) => name,
        }
    }

    /// Returns the value. `None` if the name is unknown.
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
        let name = Cow::<'de, str>::deserialize(deserializer)?;
        Ok(T::from_name(&name).map_or_else(|| Self::Other(name.into_owned()), Self::Known))
    }
}

impl fmt::Display for UnknownName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "unknown name {:?}; valid: {}",
            self.name,
            self.known.join(", ")
        )
    }
}

impl std::error::Error for UnknownName {}

impl NamedEnum for ErrorKind {
    const NAMES: &'static [&'static str] = Self::WORDS;

    fn name(self) -> &'static str {
        self.name()
    }

    fn from_name(name: &str) -> Option<Self> {
        Self::from_name(name)
    }
}

/// Parses the name of a value. Fails for an unknown name, with the list of the known ones. Every named enum uses this
/// for its `FromStr`.
pub(crate) fn parse_name<T: NamedEnum>(name: &str) -> Result<T, UnknownName> {
    T::from_name(name).ok_or_else(|| UnknownName {
        name: name.to_owned(),
        known: T::NAMES,
    })
}

/// Defines enums with named values.
macro_rules! named_enums {
    ($(
        $(#[$meta:meta])*
        $name:ident { $($(#[$doc:meta])* $variant:ident = $text:literal $(| $older:literal)*,)+ }
    )+) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$doc])* $variant,)+
        }

        impl $name {
            /// All values.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];
            /// Names of all values, in the same order.
            pub const NAMES: &'static [&'static str] = &[$($text),+];

            /// Returns the value's name in arguments and replies, such as `inactive`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                }
            }
        }

        impl $crate::open_enum::NamedEnum for $name {
            const NAMES: &'static [&'static str] = Self::NAMES;

            fn name(self) -> &'static str {
                self.name()
            }

            fn from_name(name: &str) -> Option<Self> {
                match name {
                    $($text $(| $older)* => Some(Self::$variant),)+
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

            fn from_str(name: &str) -> Result<Self, Self::Err> {
                $crate::open_enum::parse_name(name)
            }
        }

        /// For configurations, in which an unknown name is an error. Replies use an [`OpenEnum`]($crate::OpenEnum).
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let name = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                let unknown = |_| serde::de::Error::unknown_variant(&name, Self::NAMES);
                name.parse().map_err(unknown)
            }
        }
    )+};
}
pub(crate) use named_enums;
