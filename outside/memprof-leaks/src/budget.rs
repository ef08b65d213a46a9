//! Memory budget of an analysis, because the target may leave little memory on its machine. Large allocations are
//! reserved in the budget before they are made.

use crate::error::Error;

/// Default memory budget: percent of the target's resident set.
const RSS_PERCENT: u64 = 12;
/// Least default budget, in bytes: 128 MiB, because a small process may hold many objects.
const MIN_DEFAULT_BYTES: u64 = 128 << 20;
/// Bytes that `memprof` uses before an analysis: its own pages and buffers.
const BASE_BYTES: u64 = 16 << 20;

/// Memory limit of an analysis, and the bytes that are reserved so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MemoryBudget {
    limit: u64,
    reserved: u64,
}

impl MemoryBudget {
    /// Returns the budget for the analysis of a process, of which [`BASE_BYTES`] are reserved already. Both numbers are
    /// bytes. If `limit` is `None`, the limit is [`RSS_PERCENT`] percent of the process's `resident` memory, but at
    /// least [`MIN_DEFAULT_BYTES`].
    pub(crate) fn new(resident: u64, limit: Option<u64>) -> Self {
        Self {
            limit: limit.unwrap_or((resident / 100 * RSS_PERCENT).max(MIN_DEFAULT_BYTES)),
            reserved: BASE_BYTES,
        }
    }

    /// Most memory that the analysis may use, in bytes, reserved or not.
    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// Bytes that can still be reserved; 0 if the limit is reached.
    pub(crate) fn remaining(&self) -> u64 {
        self.limit.saturating_sub(self.reserved)
    }

    /// Fails with `Memory` unless `bytes` more can be reserved within `--max-memory`. Reserves nothing.
    pub(crate) fn require_bytes(&self, bytes: u64) -> Result<(), Error> {
        let needed = self.reserved.saturating_add(bytes);
        match needed > self.limit {
            true => Err(Error::Memory {
                needed,
                limit: self.limit,
            }),
            false => Ok(()),
        }
    }

    /// Reserves `bytes` for the rest of the analysis. Fails with `Memory`, and reserves nothing, if that exceeds the
    /// limit.
    pub(crate) fn reserve(&mut self, bytes: u64) -> Result<(), Error> {
        self.require_bytes(bytes)?;
        self.reserved += bytes;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_limit_is_share_of_rss_and_at_least_minimum() {
        let check = |resident, limit, expected| {
            assert_eq!(MemoryBudget::new(resident, limit).limit(), expected);
        };
        check(0, None, MIN_DEFAULT_BYTES);
        check(10_000 << 20, None, 1_200 << 20);
        check(10_000 << 20, Some(5), 5);
    }

    #[test]
    fn reserve_beyond_limit_fails_and_reserves_nothing() {
        let mut budget = MemoryBudget::new(0, Some(BASE_BYTES + 100));
        budget.reserve(60).unwrap();
        assert_eq!(budget.remaining(), 40);
        budget.require_bytes(40).unwrap();
        let error = budget.reserve(41).unwrap_err();
        assert!(
            matches!(
                error,
                Error::Memory {
                    needed,
                    limit
                } if needed == BASE_BYTES + 101 && limit == BASE_BYTES + 100
            ),
            "{error}"
        );
        assert_eq!(budget.remaining(), 40);
        assert!(budget.require_bytes(u64::MAX).is_err());
    }
}
