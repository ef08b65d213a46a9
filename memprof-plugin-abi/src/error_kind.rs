//! The kinds of errors, as a number in C and as a word in JSON.

use std::fmt;

use crate::Status;
use crate::raw::{
    MEMPROF_ABI_MISMATCH, MEMPROF_ALLOCATOR, MEMPROF_BUSY, MEMPROF_INTERNAL,
    MEMPROF_INVALID_ARGUMENT, MEMPROF_IO, MEMPROF_PANIC, MEMPROF_UNAVAILABLE,
    MEMPROF_UNKNOWN_MESSAGE, MEMPROF_UNSUPPORTED,
};

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $status:ident, $word:literal;)+) => {
        /// Why something failed, for a program to branch on.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum ErrorKind {
            $($(#[$doc])* $kind,)+
        }

        impl ErrorKind {
            /// All words, in the order of the kinds.
            pub const WORDS: &'static [&'static str] = &[$($word),+];

            /// The word in a reply's `error.kind`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $word,)+
                }
            }

            /// The kind of that word.
            pub fn from_name(name: &str) -> Option<Self> {
                match name {
                    $($word => Some(Self::$kind),)+
                    _ => None,
                }
            }

            /// The negative number that a call through the ABI returns.
            pub const fn status(self) -> Status {
                match self {
                    $(Self::$kind => $status,)+
                }
            }
        }

        impl From<Status> for ErrorKind {
            /// An unknown number is an internal error, as memprof.h says.
            fn from(status: Status) -> Self {
                match status {
                    $($status => Self::$kind,)+
                    _ => Self::Internal,
                }
            }
        }
    };
}

kinds! {
    /// The plugin has no message of that name.
    UnknownMessage = MEMPROF_UNKNOWN_MESSAGE, "unknown_message";
    /// An argument or a setting is malformed, unknown or out of range.
    InvalidArgument = MEMPROF_INVALID_ARGUMENT, "invalid_argument";
    /// This allocator or build cannot do it.
    Unsupported = MEMPROF_UNSUPPORTED, "unsupported";
    /// The two sides were built for different versions of the contract.
    AbiMismatch = MEMPROF_ABI_MISMATCH, "abi_mismatch";
    /// Something that excludes this call is running; try again.
    Busy = MEMPROF_BUSY, "busy";
    /// The allocator refused.
    Allocator = MEMPROF_ALLOCATOR, "allocator";
    /// The plugin panicked; the panic was contained.
    Panic = MEMPROF_PANIC, "panic";
    /// Any other failure.
    Internal = MEMPROF_INTERNAL, "internal";
    /// It could work, but not in this process as it was started.
    Unavailable = MEMPROF_UNAVAILABLE, "unavailable";
    /// The operating system refused: a file, a directory, a thread, memory.
    Io = MEMPROF_IO, "io";
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
