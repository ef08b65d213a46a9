//! A stack of function names, with its values.

use crate::alloc_time::AllocTime;
use crate::comparison::Comparison;
use crate::names::StringId;

/// Bytes and objects in use of an allocation time.
pub(crate) type TimedAmounts = (AllocTime, [i64; 2]);

/// A stack of functions by name, with the values of all samples that have it.
#[derive(Clone, Copy, Debug)]
pub struct FoldedStack<'f> {
    /// Functions, root first.
    pub functions: &'f [StringId],
    /// Values in the profile and in its base.
    pub values: Comparison,
    /// Bytes and objects in use in the profile, by allocation time; unordered, empty if the profile has no ages.
    pub(crate) alloc_times: &'f [TimedAmounts],
}
