//! The rules found so far, for all threads, without a lock.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::rule::{Packed, Rule};

/// log2 of how many rules are kept; the rest are found again.
const INDEX_BITS: u32 = 14;
/// User addresses on x86-64 with four-level paging are shorter.
const ADDRESS_BITS: u32 = 48;
/// What remains of an address beside its place in the table.
const TAG_BITS: u32 = ADDRESS_BITS - INDEX_BITS;

const _: () = assert!(TAG_BITS + Packed::BITS == u64::BITS);

/// Rules by address. A later one takes an earlier one's place.
///
/// A slot is one word, so nobody reads half a rule; and it holds the whole address, so nobody
/// reads another one's.
#[derive(Debug)]
pub struct Table {
    slots: [AtomicU64; 1 << INDEX_BITS],
}

impl Table {
    /// Without any rule.
    #[expect(clippy::new_without_default, reason = "for statics")]
    pub const fn new() -> Self {
        Self {
            slots: [const { AtomicU64::new(0) }; 1 << INDEX_BITS],
        }
    }

    /// The rule at an address, from `find` where it is not known yet.
    #[inline(always)]
    pub fn get_or_find(&self, address: usize, find: impl FnOnce(usize) -> Rule) -> Rule {
        let address = address as u64;
        if address >> ADDRESS_BITS != 0 {
            return Rule::Outermost;
        }
        let (index, tag) = place(address);
        let slot = &self.slots[index];
        let known = slot.load(Relaxed);
        if known >> Packed::BITS == tag && known != 0 {
            return Packed::from_bits(known as u32 & ((1 << Packed::BITS) - 1)).into();
        }
        let rule = find(address as usize);
        let bits = Packed::from(rule).bits();
        slot.store(tag << Packed::BITS | u64::from(bits), Relaxed);
        rule
    }

    /// Forgets all rules.
    pub fn clear(&self) {
        for slot in &self.slots {
            slot.store(0, Relaxed);
        }
    }
}

/// Where an address belongs, and what tells it from the others that belong there. One to one: both
/// steps can be undone.
#[inline(always)]
fn place(address: u64) -> (usize, u64) {
    const MASK: u64 = (1 << ADDRESS_BITS) - 1;
    // Odd, near 2^48 divided by the golden ratio (Knuth, TAOCP 3, 6.4).
    let mixed = address.wrapping_mul(0x9E37_79B9_7F4B) & MASK;
    let mixed = mixed ^ mixed >> (ADDRESS_BITS / 2 + 1);
    let index = mixed & ((1 << INDEX_BITS) - 1);
    (index as usize, mixed >> INDEX_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::{Cfa, SavedBp};

    fn frame(words: u16) -> Rule {
        Rule::Frame {
            cfa: Cfa::Sp(words),
            bp: SavedBp::Unchanged,
        }
    }

    #[test]
    fn a_rule_is_found_once_and_again_after_a_clear() {
        let table = Table::new();
        assert_eq!(table.get_or_find(0x5000, |_| frame(1)), frame(1));
        assert_eq!(table.get_or_find(0x5000, |_| frame(2)), frame(1));
        table.clear();
        assert_eq!(table.get_or_find(0x5000, |_| frame(3)), frame(3));
    }

    #[test]
    fn no_address_gets_the_rule_of_another() {
        let table = Table::new();
        // Many times more than fit.
        for address in (0..1 << 20).map(|n: usize| 0x7F00_0000_0000 + n * 7) {
            let own = frame(1 + (address % 1009) as u16);
            assert_eq!(table.get_or_find(address, |_| own), own);
            let again = table.get_or_find(address, |_| Rule::Unsupported);
            assert_eq!(again, own);
        }
    }

    #[test]
    fn an_address_that_no_user_code_has_is_the_end() {
        let table = Table::new();
        let check = |address| {
            let rule = table.get_or_find(address, |_| frame(1));
            assert_eq!(rule, Rule::Outermost, "{address:#x}");
        };
        check(1 << 48);
        check(usize::MAX);
    }
}
