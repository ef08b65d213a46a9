//! How much memory looking at a process may take, so that a machine on which that process is large has room for it.
//! What takes much is counted before it is made.

use crate::error::Error;

/// Of the process's resident memory, in hundredths.
const SHARE: u64 = 12;
/// And not less: a small process may have many objects.
const LEAST: u64 = 128 << 20;
/// What `memprof` has before it looks at a process: its own pages and buffers.
const OWN: u64 = 16 << 20;

/// What may be taken, and what is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MemoryBudget {
    limit: u64,
    taken: u64,
}

impl MemoryBudget {
    /// For a process that has so much resident memory, unless a limit is given.
    pub(crate) fn new(resident: u64, limit: Option<u64>) -> Self {
        Self {
            limit: limit.unwrap_or((resident / 100 * SHARE).max(LEAST)),
            taken: OWN,
        }
    }

    /// In bytes.
    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// What may still be taken, in bytes.
    pub(crate) fn left(&self) -> u64 {
        self.limit.saturating_sub(self.taken)
    }

    /// Fails where so many bytes more are too many.
    ///
    /// # Errors
    /// `Memory`.
    pub(crate) fn require(&self, bytes: u64) -> Result<(), Error> {
        let needed = self.taken.saturating_add(bytes);
        match needed > self.limit {
            true => Err(Error::Memory {
                needed,
                limit: self.limit,
            }),
            false => Ok(()),
        }
    }

    /// Takes so many bytes.
    ///
    /// # Errors
    /// `Memory`.
    pub(crate) fn take(&mut self, bytes: u64) -> Result<(), Error> {
        self.require(bytes)?;
        self.taken += bytes;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_the_process_and_not_less_than_the_least() {
        let check = |resident, limit, expected| {
            assert_eq!(MemoryBudget::new(resident, limit).limit(), expected);
        };
        check(0, None, LEAST);
        check(10_000 << 20, None, 1_200 << 20);
        check(10_000 << 20, Some(5), 5);
    }

    #[test]
    fn what_is_taken_counts() {
        let mut budget = MemoryBudget::new(0, Some(OWN + 100));
        budget.take(60).unwrap();
        assert_eq!(budget.left(), 40);
        budget.require(40).unwrap();
        let error = budget.take(41).unwrap_err();
        assert!(
            matches!(
                error,
                Error::Memory {
                    needed,
                    limit
                } if needed == OWN + 101 && limit == OWN + 100
            ),
            "{error}"
        );
        assert_eq!(budget.left(), 40);
        assert!(budget.require(u64::MAX).is_err());
    }
}
