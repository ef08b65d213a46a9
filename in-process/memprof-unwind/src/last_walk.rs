//! Where the rules of a thread's last walk lie: most of its next walk follows the same ones.
//!
//! To look a rule up takes the return address, which takes the rule of the frame before: a walk waits for one memory
//! access after the other. A trail says beforehand where each rule will be found, so the processor reads rules and
//! stack at the same time. What it says is a guess, which [`RuleTable::get`] checks: a trail may be old, another walk's, or
//! written by a signal handler meanwhile.
#![expect(unsafe_code, reason = "room that is not initialized")]

use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::rule::{PackedRule, Rule};
use crate::rule_table::{RuleIndex, RuleTable};
use crate::thread::Thread;

/// With their owner's word, 1 KiB.
pub(crate) const MOST_STEPS: usize = 127;

/// More threads than this walk without.
const TRAIL_BITS: u32 = 8;

// Among the other tables: what lies between two of them would have a page of its own as soon as it is written.
#[unsafe(link_section = ".bss.tables")]
static TRAILS: [LastWalk; 1 << TRAIL_BITS] = [const { LastWalk::new() }; 1 << TRAIL_BITS];

/// Forgets whose they are: threads may have ended.
pub(crate) fn clear_owners() {
    for trail in &TRAILS {
        trail.owner.store(0, Relaxed);
    }
}

/// The trail of one thread.
#[derive(Debug)]
#[repr(align(64))]
struct LastWalk {
    /// The thread; 0: nobody.
    owner: AtomicU64,
    /// From the innermost frame outwards.
    steps: [AtomicU64; MOST_STEPS],
}

impl LastWalk {
    const fn new() -> Self {
        Self {
            owner: AtomicU64::new(0),
            steps: [const { AtomicU64::new(0) }; MOST_STEPS],
        }
    }

    /// Whether it is that thread's. What is nobody's becomes it.
    #[inline(always)]
    fn is_owned_by(&self, thread: Thread) -> bool {
        let owner = self.owner.load(Relaxed);
        owner == thread.id() || owner == 0 && self.claim(thread)
    }

    #[cold]
    fn claim(&self, thread: Thread) -> bool {
        let (nobody, id) = (0, thread.id());
        let taken = self.owner.compare_exchange(nobody, id, Relaxed, Relaxed);
        taken.is_ok()
    }
}

/// One frame: its stack pointer, and where its rule lies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WalkStep(u64);

impl WalkStep {
    #[inline(always)]
    fn new(sp: usize, slot: RuleIndex) -> Self {
        Self((sp as u64 >> 3) << RuleIndex::BITS | u64::from(slot.bits()))
    }

    #[inline(always)]
    fn slot(self) -> RuleIndex {
        RuleIndex::from_bits(self.0 as u16)
    }

    /// Whether its frame lies within that of `sp`, which it then does not belong to any more.
    fn is_below(self, sp: usize) -> bool {
        self.0 >> RuleIndex::BITS < sp as u64 >> 3
    }

    fn is_at(self, sp: usize) -> bool {
        self.0 >> RuleIndex::BITS == sp as u64 >> 3
    }
}

/// A walk that follows its thread's trail.
#[derive(Debug)]
pub(crate) struct LastWalkCursor<'a> {
    /// The trail; empty where the thread has none.
    steps: &'static [AtomicU64],
    /// Which of them the next frame is expected to be.
    next: usize,
    /// This walk's own steps.
    made: &'a mut [MaybeUninit<WalkStep>; MOST_STEPS],
    count: usize,
    has_strayed: bool,
}

impl<'a> LastWalkCursor<'a> {
    /// Begins at the innermost frame of a thread, which is the calling one. `made` is room for this walk's steps.
    #[inline(always)]
    pub(crate) fn of(thread: Thread, made: &'a mut [MaybeUninit<WalkStep>; MOST_STEPS]) -> Self {
        let trail = &TRAILS[thread.index(TRAIL_BITS)];
        let steps: &[_] = if trail.is_owned_by(thread) {
            &trail.steps
        } else {
            &[]
        };
        Self::from_steps(steps, made)
    }

    #[inline(always)]
    fn from_steps(
        steps: &'static [AtomicU64],
        made: &'a mut [MaybeUninit<WalkStep>; MOST_STEPS],
    ) -> Self {
        Self {
            steps,
            next: 0,
            made,
            count: 0,
            has_strayed: false,
        }
    }

    /// The rule at an address of the next frame, whose stack pointer this is.
    #[inline(always)]
    pub(crate) fn rule(
        &mut self,
        table: &RuleTable,
        address: usize,
        sp: usize,
        find: impl FnOnce(usize) -> Rule,
    ) -> PackedRule {
        let (rule, slot) = match self.expected(table, address) {
            Some(found) => found,
            None => self.find_and_rejoin(table, address, sp, find),
        };
        if let Some(made) = self.made.get_mut(self.count) {
            made.write(WalkStep::new(sp, slot));
            self.count += 1;
        }
        rule
    }

    /// What the next step of the trail says, if it is true.
    #[inline(always)]
    fn expected(&mut self, table: &RuleTable, address: usize) -> Option<(PackedRule, RuleIndex)> {
        let slot = self.step()?.slot();
        let rule = table.get(slot, address)?;
        self.next += 1;
        Some((rule, slot))
    }

    #[inline(always)]
    fn step(&self) -> Option<WalkStep> {
        let step = self.steps.get(self.next)?;
        Some(WalkStep(step.load(Relaxed)))
    }

    /// Finds the rule beside the trail, and where the trail may be met again: at the frame that lies where its next one
    /// does.
    #[cold]
    #[inline(never)]
    fn find_and_rejoin(
        &mut self,
        table: &RuleTable,
        address: usize,
        sp: usize,
        find: impl FnOnce(usize) -> Rule,
    ) -> (PackedRule, RuleIndex) {
        self.has_strayed = true;
        while self.step().is_some_and(|step| step.is_below(sp)) {
            self.next += 1;
        }
        if self.step().is_some_and(|step| step.is_at(sp)) {
            if let Some(found) = self.expected(table, address) {
                return found;
            }
            self.next += 1;
        }
        table.get_or_find(address, find)
    }

    /// Makes this walk the trail.
    #[inline(always)]
    pub(crate) fn save(&self) {
        if self.has_strayed {
            self.write();
        }
    }

    #[cold]
    #[inline(never)]
    fn write(&self) {
        for (step, made) in self.steps.iter().zip(self.made.iter()).take(self.count) {
            // SAFETY: `rule` wrote so many.
            let made = unsafe { made.assume_init() };
            step.store(made.0, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;
    use crate::rule::{Cfa, SavedBp};

    static TABLE: RuleTable = RuleTable::new();

    /// The rule of an address, which no other address of these tests has.
    fn rule_of(address: usize) -> Rule {
        Rule::Frame {
            cfa: Cfa::Sp((address % 8191) as u16),
            bp: SavedBp::Unchanged,
        }
    }

    /// Walks by frames of an address and a stack pointer; returns how many the trail did not expect.
    fn walk(trail: &'static LastWalk, frames: &[(usize, usize)]) -> usize {
        let mut made = [const { MaybeUninit::uninit() }; MOST_STEPS];
        let mut following = LastWalkCursor::from_steps(&trail.steps, &mut made);
        let strays = frames.iter().filter(|(address, sp)| {
            let step = following.step();
            let is_expected = step.is_some_and(|step| TABLE.get(step.slot(), *address).is_some());
            let rule = following.rule(&TABLE, *address, *sp, rule_of);
            assert_eq!(rule, rule_of(*address).into(), "{address:#x}");
            !is_expected
        });
        let strays = strays.count();
        following.save();
        strays
    }

    const OUTER: [(usize, usize); 3] = [(0x5010, 0x8100), (0x6020, 0x8140), (0x7030, 0x8150)];

    fn with_inner(inner: &[(usize, usize)]) -> Vec<(usize, usize)> {
        [inner, &OUTER].concat()
    }

    #[test]
    fn a_walk_strays_where_frames_differ_and_not_above() {
        let check = |before: &[(usize, usize)], now: &[(usize, usize)], strays| {
            static TRAIL: LastWalk = LastWalk::new();
            walk(&TRAIL, before);
            assert_eq!(walk(&TRAIL, before), 0, "{before:x?}");
            assert_eq!(walk(&TRAIL, now), strays, "{before:x?} {now:x?}");
            assert_eq!(walk(&TRAIL, now), 0, "{now:x?}");
        };
        let two = with_inner(&[(0x1010, 0x8020), (0x2010, 0x8080)]);
        check(&OUTER, &two, 2);
        check(&two, &OUTER, 1);
        // The innermost function is called from elsewhere in the second, and from elsewhere with another frame.
        check(&two, &with_inner(&[(0x1010, 0x8020), (0x2018, 0x8080)]), 1);
        check(&two, &with_inner(&[(0x1010, 0x8000), (0x2020, 0x8060)]), 2);
        check(&two, &with_inner(&[(0x1018, 0x8020), (0x2018, 0x8080)]), 2);
        // Another stack.
        check(&two, &[(0x1010, 0x4000), (0x9090, 0x4010)], 1);
        check(&two, &[(0x1018, 0xF000), (0x2018, 0xF010)], 2);
    }

    #[test]
    fn what_a_trail_says_is_never_taken_for_granted() {
        static TRAIL: LastWalk = LastWalk::new();
        let frames = with_inner(&[(0x1010, 0x8020)]);
        let mut random = 1_u64;
        for _ in 0..1000 {
            for step in &TRAIL.steps {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                step.store(random, Relaxed);
            }
            walk(&TRAIL, &frames);
        }
    }

    #[test]
    fn frames_beyond_the_trails_end_are_found() {
        static TRAIL: LastWalk = LastWalk::new();
        let frames = (0..200).map(|at| (0x10_0000 + 64 * at, 0x8000 + 32 * at));
        let frames: Vec<_> = frames.collect();
        assert_eq!(walk(&TRAIL, &frames), frames.len());
        assert_eq!(walk(&TRAIL, &frames), frames.len() - MOST_STEPS);
    }

    #[test]
    fn a_trail_is_one_threads_until_it_is_forgotten() {
        let trail = LastWalk::new();
        let thread = |at: usize| Thread {
            control_block: 0x7F00_0000_0000 + 64 * at,
        };
        assert!(trail.is_owned_by(thread(0)));
        assert!(!trail.is_owned_by(thread(1)));
        assert!(trail.is_owned_by(thread(0)));
        trail.owner.store(0, Relaxed);
        assert!(trail.is_owned_by(thread(1)));
    }
}
