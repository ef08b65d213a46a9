//! Pseudo-random numbers that are the same in every run.

/// Sequence of pseudo-random numbers (xorshift64), determined by its seed, which must not be 0.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// Returns the next number, from 0 to `limit` - 1.
    ///
    /// # Panics
    /// `limit` is 0.
    pub fn next_below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn seed_determines_the_numbers() {
        let numbers = |seed| {
            let mut random = Random(seed);
            [(); 100].map(|()| random.next_below(10))
        };
        assert_eq!(numbers(7), numbers(7));
        assert_ne!(numbers(7), numbers(8));
        assert!((0..10).all(|number| numbers(7).contains(&number)));
    }
}
