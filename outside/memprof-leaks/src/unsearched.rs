//! Parts of a process that an analysis did not cover.

use std::fmt;

use memprof_report::{SampleType, format_amount};

/// Memory, heaps or kernel objects that an analysis did not cover. Displayed as a sentence with its amount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsearched {
    /// Content that the part may have.
    pub role: UnsearchedRole,
    /// Noun phrase, in the plural if it follows a count.
    pub what: String,
    /// Size or number; `None` if it is unknown, or part of `what`.
    pub amount: Option<UnsearchedAmount>,
    /// Reason why it was not searched.
    pub why: String,
}

/// Consequence of an unsearched part for the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnsearchedRole {
    /// Memory that may hold the only pointers to objects that are reported as leaked.
    Pointers,
    /// Memory that may hold objects, none of which is reported as leaked.
    Objects,
}

/// Amount of an unsearched part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum UnsearchedAmount {
    /// Bytes of memory or data.
    Bytes(u64),
    /// Number of kernel objects.
    Count(u64),
}

impl Unsearched {
    /// Describes `bytes` of memory that may hold pointers. `what` names the memory, and `why` is the reason why it was
    /// not searched.
    pub(crate) fn for_bytes(bytes: u64, what: impl Into<String>, why: impl Into<String>) -> Self {
        Self {
            role: UnsearchedRole::Pointers,
            what: what.into(),
            amount: Some(UnsearchedAmount::Bytes(bytes)),
            why: why.into(),
        }
    }

    /// Describes `count` things that may hold pointers, such as kernel objects. `what` names them in the plural, and
    /// `why` is the reason why they were not searched.
    pub(crate) fn for_count(count: u64, what: impl Into<String>, why: impl Into<String>) -> Self {
        Self {
            amount: Some(UnsearchedAmount::Count(count)),
            ..Self::for_bytes(0, what, why)
        }
    }

    /// Describes a heap, or a part of one, whose objects are not reported. `amount` is `None` if the size is unknown,
    /// or if `what` contains it.
    pub(crate) fn for_objects(
        amount: Option<UnsearchedAmount>,
        what: impl Into<String>,
        why: impl Into<String>,
    ) -> Self {
        Self {
            role: UnsearchedRole::Objects,
            amount,
            ..Self::for_bytes(0, what, why)
        }
    }

    /// Whether both are the same part of two snapshots, perhaps with different amounts.
    pub(crate) fn is_same_part(&self, other: &Self) -> bool {
        (self.role, &self.what, &self.why) == (other.role, &other.what, &other.why)
    }
}

impl fmt::Display for Unsearched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.amount {
            Some(UnsearchedAmount::Bytes(bytes)) => {
                let size = format_amount(bytes.cast_signed(), SampleType::InuseSpace);
                write!(f, "{size} of ")?;
            }
            Some(UnsearchedAmount::Count(count)) => write!(f, "{count} ")?,
            None => {}
        }
        write!(f, "{}: {}", self.what, self.why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsearched_part_is_displayed_with_its_amount() {
        let check = |part: Unsearched, expected| assert_eq!(part.to_string(), expected);
        check(
            Unsearched::for_bytes(2048, "shared memory", "no access"),
            "2.00KiB of shared memory: no access",
        );
        check(
            Unsearched::for_count(3, "message queues", "unreadable"),
            "3 message queues: unreadable",
        );
        check(
            Unsearched::for_objects(None, "glibc's heap", "unknown form"),
            "glibc's heap: unknown form",
        );
    }
}
