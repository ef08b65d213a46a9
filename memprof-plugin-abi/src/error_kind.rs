//! Kinds of errors. A kind is a number in C and a name in JSON.

use std::fmt;

use crate::Status;
use crate::raw::{
    MEMPROF_ABI_MISMATCH, MEMPROF_ALLOCATOR, MEMPROF_BUSY, MEMPROF_INTERNAL,
    MEMPROF_INVALID_ARGUMENT, MEMPROF_IO, MEMPROF_PANIC, MEMPROF_UNAVAILABLE,
    MEMPROF_UNKNOWN_MESSAGE, MEMPROF_UNSUPPORTED,
};

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $status:ident, $word:literal;)+) => {
        /// Kind of an error, for a program to branch on.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum ErrorKind {
            $($(#[$doc])* $kind,)+
        }

        impl ErrorKind {
            /// All names, in the order of the kinds.
            pub const WORDS: &'static [&'static str] = &[$($word),+];

            /// Returns the name of the kind, for a reply's `error.kind`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $word,)+
                }
            }

            /// Returns the kind with this name. `None` if the name is unknown.
            pub fn from_name(name: &str) -> Option<Self> {
                match name {
                    $($word => Some(Self::$kind),)+
                    _ => None,
                }
            }

            /// Returns the negative status that a call through the ABI returns for this kind.
            pub const fn status(self) -> Status {
                match self {
                    $(Self::$kind => $status,)+
                }
            }
        }

        impl From<Status> for ErrorKind {
            /// Converts a status. An unknown number is an internal error, as memprof.h documents.
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
    /// The plugin has no message of this name.
    UnknownMessage = MEMPROF_UNKNOWN_MESSAGE, "unknown_message";
    /// An argument or a setting is malformed, unknown or out of range.
    InvalidArgument = MEMPROF_INVALID_ARGUMENT, "invalid_argument";
    /// This allocator or build does not support the request.
    Unsupported = MEMPROF_UNSUPPORTED, "unsupported";
    /// Host and plugin were built for different versions of the contract.
    AbiMismatch = MEMPROF_ABI_MISMATCH, "abi_mismatch";
    /// An operation that excludes this one is running; try again.
    Busy = MEMPROF_BUSY, "busy";
    /// The allocator refused.
    Allocator = MEMPROF_ALLOCATOR, "allocator";
    /// The plugin panicked; the panic was caught.
    Panic = MEMPROF_PANIC, "panic";
    /// Any other failure.
    Internal = MEMPROF_INTERNAL, "internal";
    /// The request is supported, but not in this process, because of the way it was started.
    Unavailable = MEMPROF_UNAVAILABLE, "unavailable";
    /// The operating system refused access to a file, a directory, a thread or memory.
    Io = MEMPROF_IO, "io";
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
