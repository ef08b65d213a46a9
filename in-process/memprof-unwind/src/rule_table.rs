//! Cache of the rules found so far. All threads share it without a lock.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::rule::{PackedRule, Rule};

/// Width of user addresses on x86-64 with four-level paging.
const ADDRESS_BITS: u32 = 47;
/// log2 of the bytes of code that share one line for their rules: a call in a function is often followed by others in
/// the same function.
const PIECE_BITS: u32 = 8;
/// log2 of the number of lines.
const LINE_BITS: u32 = 11;
/// Number of rules per line.
const WAYS: usize = 8;
/// Number of bits of an address that its line does not determine.
const TAG_BITS: u32 = ADDRESS_BITS - LINE_BITS;

const _: () = assert!(TAG_BITS + PackedRule::BITS == u64::BITS);

/// Rules of up to 16,384 addresses. A rule that was displaced is read again when it is needed.
///
/// A slot is one atomic word, so no thread reads half a rule. A slot and its line together contain the whole address,
/// so no address gets the rule of another.
#[derive(Debug)]
pub struct RuleTable {
    lines: [RuleLine; 1 << LINE_BITS],
}

/// Position of a rule in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleIndex(u16);

const WAY_BITS: u32 = WAYS.ilog2();

impl RuleIndex {
    /// Number of bits in an index.
    pub const BITS: u32 = LINE_BITS + WAY_BITS;

    /// Combines the number of a line and that of a way (a slot of the line), which is taken modulo [`WAYS`].
    #[inline(always)]
    fn new(line: usize, way: usize) -> Self {
        Self(((line << WAY_BITS) | (way % WAYS)) as u16)
    }

    /// Returns the index in the lowest [`Self::BITS`] bits.
    #[inline(always)]
    pub fn bits(self) -> u16 {
        self.0
    }

    /// Converts the lowest [`Self::BITS`] bits to an index, and ignores the others.
    #[inline(always)]
    pub fn from_bits(bits: u16) -> Self {
        Self(bits & ((1 << Self::BITS) - 1))
    }

    /// Returns the number of the line, without that of the way.
    #[inline(always)]
    fn line(self) -> usize {
        usize::from(self.0 >> WAY_BITS)
    }
}

/// One cache line of rules.
#[derive(Debug)]
#[repr(align(64))]
struct RuleLine {
    slots: [AtomicU64; WAYS],
}

impl RuleLine {
    /// Returns the rule in the slot number `way` modulo [`WAYS`]. `None` if the slot is free or has another tag.
    #[inline(always)]
    fn get(&self, way: usize, tag: u64) -> Option<PackedRule> {
        let bits = self.slots[way % WAYS].load(Relaxed) ^ tag << PackedRule::BITS;
        // 0 is a free slot, which would match tag 0. Larger values have another tag.
        let is_match = (1..1 << PackedRule::BITS).contains(&bits);
        is_match.then_some(PackedRule::from_bits(bits as u32))
    }

    /// Returns whether the slot number `way` modulo [`WAYS`] has no rule.
    fn is_free(&self, way: usize) -> bool {
        self.slots[way % WAYS].load(Relaxed) == 0
    }

    /// Stores a rule with its tag in the slot number `way` modulo [`WAYS`], in place of the slot's earlier rule.
    fn set(&self, way: usize, tag: u64, rule: PackedRule) {
        let bits = tag << PackedRule::BITS | u64::from(rule.bits());
        self.slots[way % WAYS].store(bits, Relaxed);
    }
}

impl RuleTable {
    /// Creates an empty table.
    #[expect(clippy::new_without_default, reason = "for statics")]
    pub const fn new() -> Self {
        Self {
            lines: [const {
                RuleLine {
                    slots: [const { AtomicU64::new(0) }; WAYS],
                }
            }; 1 << LINE_BITS],
        }
    }

    /// Returns the rule of an address. `None` if the slot at `index` is free or has the rule of another address, or if
    /// the address is the kernel's.
    #[inline(always)]
    pub fn get(&self, index: RuleIndex, address: usize) -> Option<PackedRule> {
        let hashed = HashedAddress::new(address as u64);
        let rule = self.lines[index.line()].get(index.0.into(), hashed.tag);
        rule.filter(|_| hashed.line == index.line() && address >> ADDRESS_BITS == 0)
    }

    /// Returns the rule of an address, and the rule's index in the table. If the table lacks the rule, stores the one
    /// that `find` returns. An address of the kernel has the rule [`Rule::Outermost`], which is not stored.
    #[inline(always)]
    pub fn get_or_find(
        &self,
        address: usize,
        find: impl FnOnce(usize) -> Rule,
    ) -> (PackedRule, RuleIndex) {
        let hashed = HashedAddress::new(address as u64);
        match self.lines[hashed.line].get(hashed.first_way, hashed.tag) {
            Some(rule) if address >> ADDRESS_BITS == 0 => {
                (rule, RuleIndex::new(hashed.line, hashed.first_way))
            }
            _ => self.search_or_insert(address, find),
        }
    }

    /// Searches all ways of the address's line. If the rule is missing, stores the rule that `find` returns: in a free
    /// way, or in place of the rule in the address's first way. Returns [`Rule::Outermost`] for an address of the
    /// kernel. Not inlined, to keep the common case small.
    #[cold]
    #[inline(never)]
    fn search_or_insert(
        &self,
        address: usize,
        find: impl FnOnce(usize) -> Rule,
    ) -> (PackedRule, RuleIndex) {
        let hashed = HashedAddress::new(address as u64);
        let slot = |way| RuleIndex::new(hashed.line, way);
        if address >> ADDRESS_BITS != 0 {
            return (Rule::Outermost.into(), slot(hashed.first_way));
        }
        let line = &self.lines[hashed.line];
        let mut ways = (0..WAYS).map(|offset| hashed.first_way + offset);
        let known = |way| Some((line.get(way, hashed.tag)?, slot(way)));
        if let Some(found) = ways.clone().find_map(known) {
            return found;
        }
        let rule = PackedRule::from(find(address));
        let way = ways
            .find(|&way| line.is_free(way))
            .unwrap_or(hashed.first_way);
        line.set(way, hashed.tag, rule);
        (rule, slot(way))
    }

    /// Removes all rules, so that each is found again.
    pub fn clear(&self) {
        for slot in self.lines.iter().flat_map(|line| &line.slots) {
            slot.store(0, Relaxed);
        }
    }
}

/// Line, way and tag of an address.
struct HashedAddress {
    line: usize,
    /// First way to probe.
    first_way: usize,
    /// The rest of the address. Line and tag together identify the address.
    tag: u64,
}

impl HashedAddress {
    /// Splits an address into line, way and tag. The mapping is one to one, because the bits that are mixed into the
    /// line number are also in the tag.
    #[inline(always)]
    fn new(address: u64) -> Self {
        let (piece, within) = (address >> PIECE_BITS, address & ((1 << PIECE_BITS) - 1));
        let upper = piece >> LINE_BITS;
        let mixed = piece ^ upper ^ upper >> LINE_BITS;
        Self {
            line: (mixed & ((1 << LINE_BITS) - 1)) as usize,
            first_way: (within ^ within >> 3 ^ within >> 6) as usize % WAYS,
            tag: upper << PIECE_BITS | within,
        }
    }
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

    impl RuleTable {
        fn rule(&self, address: usize, find: impl FnOnce(usize) -> Rule) -> PackedRule {
            let (rule, slot) = self.get_or_find(address, find);
            let is_found = address >> ADDRESS_BITS == 0;
            assert_eq!(self.get(slot, address), is_found.then_some(rule));
            rule
        }
    }

    #[test]
    fn cleared_rule_is_found_again() {
        let table = RuleTable::new();
        assert_eq!(table.rule(0x5000, |_| frame(1)), frame(1).into());
        assert_eq!(table.rule(0x5000, |_| frame(2)), frame(1).into());
        table.clear();
        assert_eq!(table.rule(0x5000, |_| frame(3)), frame(3).into());
    }

    #[test]
    fn crowded_table_keeps_addresses_apart() {
        let table = RuleTable::new();
        // Many times more addresses than slots.
        for address in (0..1 << 20).map(|n: usize| 0x7F00_0000_0000 + n * 7) {
            let own = frame(1 + (address % 1009) as u16);
            assert_eq!(table.rule(address, |_| own), own.into());
            let again = table.rule(address, |_| Rule::Unsupported);
            assert_eq!(again, own.into());
        }
    }

    #[test]
    fn free_slot_holds_no_rule() {
        let table = RuleTable::new();
        // An address with line 0 and tag 0.
        assert_eq!(table.rule(0, |_| frame(1)), frame(1).into());
    }

    #[test]
    fn slot_of_other_address_holds_no_rule() {
        let table = RuleTable::new();
        let (_, slot) = table.get_or_find(0x7F00_0000_5000, |_| frame(1));
        for bit in 0..usize::BITS {
            assert_eq!(table.get(slot, 0x7F00_0000_5000 ^ 1 << bit), None, "{bit}");
        }
        table.clear();
        assert_eq!(table.get(slot, 0x7F00_0000_5000), None);
    }

    #[test]
    fn address_outside_user_space_is_outermost() {
        let table = RuleTable::new();
        let check = |address| {
            let rule = table.rule(address, |_| frame(1));
            assert_eq!(rule, Rule::Outermost.into(), "{address:#x}");
        };
        check(1 << 47);
        check(usize::MAX);
    }
}
