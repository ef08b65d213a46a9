//! The rules found so far, for all threads, without a lock.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::rule::{PackedRule, Rule};

/// User addresses on x86-64 with four-level paging are shorter.
const ADDRESS_BITS: u32 = 47;
/// log2 of the size of a piece of code whose rules lie in one line: calls in one function are
/// often followed by others of it.
const PIECE_BITS: u32 = 8;
/// log2 of how many lines there are.
const LINE_BITS: u32 = 11;
/// Rules in a line.
const WAYS: usize = 8;
/// What remains of an address beside its line.
const TAG_BITS: u32 = ADDRESS_BITS - LINE_BITS;

const _: () = assert!(TAG_BITS + PackedRule::BITS == u64::BITS);

/// The rules of 16,384 addresses; the rest are found again.
///
/// A slot is one word, so nobody reads half a rule; with its line it holds the whole address, so
/// nobody reads another one's.
#[derive(Debug)]
pub struct RuleTable {
    lines: [RuleLine; 1 << LINE_BITS],
}

/// Where a rule lies in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleIndex(u16);

const WAY_BITS: u32 = WAYS.ilog2();

impl RuleIndex {
    /// How many bits tell it from the others.
    pub const BITS: u32 = LINE_BITS + WAY_BITS;

    #[inline(always)]
    fn new(line: usize, way: usize) -> Self {
        Self(((line << WAY_BITS) | (way % WAYS)) as u16)
    }

    /// As a number of so many bits.
    #[inline(always)]
    pub fn bits(self) -> u16 {
        self.0
    }

    /// Bits beyond those do not count.
    #[inline(always)]
    pub fn from_bits(bits: u16) -> Self {
        Self(bits & ((1 << Self::BITS) - 1))
    }

    #[inline(always)]
    fn line(self) -> usize {
        usize::from(self.0 >> WAY_BITS)
    }
}

/// What the processor fetches at once.
#[derive(Debug)]
#[repr(align(64))]
struct RuleLine {
    slots: [AtomicU64; WAYS],
}

impl RuleLine {
    #[inline(always)]
    fn get(&self, way: usize, tag: u64) -> Option<PackedRule> {
        let bits = self.slots[way % WAYS].load(Relaxed) ^ tag << PackedRule::BITS;
        // 0 would be a free slot under the tag 0.
        let is_it = (1..1 << PackedRule::BITS).contains(&bits);
        is_it.then_some(PackedRule::from_bits(bits as u32))
    }

    fn is_free(&self, way: usize) -> bool {
        self.slots[way % WAYS].load(Relaxed) == 0
    }

    fn set(&self, way: usize, tag: u64, rule: PackedRule) {
        let bits = tag << PackedRule::BITS | u64::from(rule.bits());
        self.slots[way % WAYS].store(bits, Relaxed);
    }
}

impl RuleTable {
    /// Without any rule.
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

    /// The rule at an address, if it lies in that slot.
    #[inline(always)]
    pub fn get(&self, slot: RuleIndex, address: usize) -> Option<PackedRule> {
        let place = HashedAddress::of(address as u64);
        let rule = self.lines[slot.line()].get(slot.0.into(), place.tag);
        rule.filter(|_| place.line == slot.line() && address >> ADDRESS_BITS == 0)
    }

    /// The rule at an address, from `find` where it is not known, and where it lies.
    #[inline(always)]
    pub fn get_or_find(
        &self,
        address: usize,
        find: impl FnOnce(usize) -> Rule,
    ) -> (PackedRule, RuleIndex) {
        let place = HashedAddress::of(address as u64);
        match self.lines[place.line].get(place.first, place.tag) {
            Some(rule) if address >> ADDRESS_BITS == 0 => {
                (rule, RuleIndex::new(place.line, place.first))
            }
            _ => self.search_or_find(address, find),
        }
    }

    /// Out of the way of what is found at once.
    #[cold]
    #[inline(never)]
    fn search_or_find(
        &self,
        address: usize,
        find: impl FnOnce(usize) -> Rule,
    ) -> (PackedRule, RuleIndex) {
        let place = HashedAddress::of(address as u64);
        let slot = |way| RuleIndex::new(place.line, way);
        if address >> ADDRESS_BITS != 0 {
            return (Rule::Outermost.into(), slot(place.first));
        }
        let line = &self.lines[place.line];
        let mut ways = (0..WAYS).map(|offset| place.first + offset);
        let known = |way| Some((line.get(way, place.tag)?, slot(way)));
        if let Some(found) = ways.clone().find_map(known) {
            return found;
        }
        let rule = PackedRule::from(find(address));
        let way = ways.find(|&way| line.is_free(way)).unwrap_or(place.first);
        line.set(way, place.tag, rule);
        (rule, slot(way))
    }

    /// Forgets all rules.
    pub fn clear(&self) {
        for slot in self.lines.iter().flat_map(|line| &line.slots) {
            slot.store(0, Relaxed);
        }
    }
}

/// Where an address belongs.
struct HashedAddress {
    line: usize,
    /// Where to look first.
    first: usize,
    /// What tells it from all others of that line.
    tag: u64,
}

impl HashedAddress {
    /// One to one: what is mixed into the number of the line is in the tag.
    #[inline(always)]
    fn of(address: u64) -> Self {
        let (piece, within) = (address >> PIECE_BITS, address & ((1 << PIECE_BITS) - 1));
        let rest = piece >> LINE_BITS;
        let mixed = piece ^ rest ^ rest >> LINE_BITS;
        Self {
            line: (mixed & ((1 << LINE_BITS) - 1)) as usize,
            first: (within ^ within >> 3 ^ within >> 6) as usize % WAYS,
            tag: rest << PIECE_BITS | within,
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
    fn a_rule_is_found_once_and_again_after_a_clear() {
        let table = RuleTable::new();
        assert_eq!(table.rule(0x5000, |_| frame(1)), frame(1).into());
        assert_eq!(table.rule(0x5000, |_| frame(2)), frame(1).into());
        table.clear();
        assert_eq!(table.rule(0x5000, |_| frame(3)), frame(3).into());
    }

    #[test]
    fn no_address_gets_the_rule_of_another() {
        let table = RuleTable::new();
        // Many times more than fit.
        for address in (0..1 << 20).map(|n: usize| 0x7F00_0000_0000 + n * 7) {
            let own = frame(1 + (address % 1009) as u16);
            assert_eq!(table.rule(address, |_| own), own.into());
            let again = table.rule(address, |_| Rule::Unsupported);
            assert_eq!(again, own.into());
        }
    }

    #[test]
    fn a_free_slot_is_no_rule() {
        let table = RuleTable::new();
        // Of line 0 and tag 0.
        assert_eq!(table.rule(0, |_| frame(1)), frame(1).into());
    }

    #[test]
    fn a_slot_has_no_rule_of_another_address() {
        let table = RuleTable::new();
        let (_, slot) = table.get_or_find(0x7F00_0000_5000, |_| frame(1));
        for bit in 0..usize::BITS {
            assert_eq!(table.get(slot, 0x7F00_0000_5000 ^ 1 << bit), None, "{bit}");
        }
        table.clear();
        assert_eq!(table.get(slot, 0x7F00_0000_5000), None);
    }

    #[test]
    fn an_address_that_no_user_code_has_is_the_end() {
        let table = RuleTable::new();
        let check = |address| {
            let rule = table.rule(address, |_| frame(1));
            assert_eq!(rule, Rule::Outermost.into(), "{address:#x}");
        };
        check(1 << 47);
        check(usize::MAX);
    }
}
