//! The last walk of each thread, as a cache, because the next walk of a thread mostly uses the same rules.
//!
//! Looking up a rule needs the return address, which needs the rule of the frame before: a walk waits for one memory
//! access after another. The last walk predicts the index of each rule, so the processor can read rules and stack in
//! parallel. [`RuleTable::get`] checks each prediction, because the last walk may be outdated, belong to another
//! thread, or be in the middle of a write by a signal handler.
#![expect(unsafe_code, reason = "a buffer that is not initialized")]

use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::rule::{PackedRule, Rule};
use crate::rule_table::{RuleIndex, RuleTable};
use crate::thread::Thread;

/// Maximum number of steps that are saved. With the owner's word, they take 1 KiB per thread.
pub(crate) const MAX_STEPS: usize = 127;

/// log2 of the number of threads with a last walk. Further threads walk without one.
const INDEX_BITS: u32 = 8;

// All large tables share a section: a small variable between two of them would make a page of its own resident.
#[unsafe(link_section = ".bss.tables")]
static LAST_WALKS: [LastWalk; 1 << INDEX_BITS] = [const { LastWalk::new() }; 1 << INDEX_BITS];

/// Releases the last walks of all threads, because some threads may have ended. A running thread claims a cell again at
/// its next walk.
pub(crate) fn release_last_walks() {
    for last_walk in &LAST_WALKS {
        last_walk.owner.store(0, Relaxed);
    }
}

/// The last walk of one thread.
#[derive(Debug)]
#[repr(align(64))]
struct LastWalk {
    /// Id of the thread; 0 if the cell is free.
    owner: AtomicU64,
    /// Steps of the frames, innermost first.
    steps: [AtomicU64; MAX_STEPS],
}

impl LastWalk {
    const fn new() -> Self {
        Self {
            owner: AtomicU64::new(0),
            steps: [const { AtomicU64::new(0) }; MAX_STEPS],
        }
    }

    /// Returns whether the cell belongs to `thread`. If the cell is free, claims it for the thread first.
    #[inline(always)]
    fn acquire_for(&self, thread: Thread) -> bool {
        let owner = self.owner.load(Relaxed);
        owner == thread.id() || owner == 0 && self.claim(thread)
    }

    /// Claims a free cell for `thread`. Returns false if another thread claimed it first.
    #[cold]
    fn claim(&self, thread: Thread) -> bool {
        let (free, id) = (0, thread.id());
        let claimed = self.owner.compare_exchange(free, id, Relaxed, Relaxed);
        claimed.is_ok()
    }
}

/// One frame of a walk: its stack pointer in the upper bits, and the index of its rule in the lower bits.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct WalkStep(u64);

/// Stack pointers of the frames of a walk, innermost first.
#[derive(Clone, Copy, Debug)]
pub struct StackPointers<'a> {
    words: &'a [usize],
    /// Number of bits in a word below the stack pointer. Its lowest [`ALIGNMENT_BITS`] bits, which are 0, are not
    /// stored.
    shift: u32,
}

impl<'a> StackPointers<'a> {
    /// Wraps the steps of a walk, one word for each frame: the stack pointer, with the number of a rule in its lower
    /// bits.
    pub(crate) fn from_steps(words: &'a [usize]) -> Self {
        let shift = RuleIndex::BITS - ALIGNMENT_BITS;
        Self { words, shift }
    }

    /// Wraps stack pointers that are not packed with rules.
    pub fn from_words(words: &'a [usize]) -> Self {
        Self { words, shift: 0 }
    }

    /// Returns the stack pointers without those of the first `count` frames.
    pub fn skip(self, count: usize) -> Self {
        let words = self.words.get(count..).unwrap_or_default();
        Self { words, ..self }
    }

    /// Returns the stack pointer of the frame number `index`, from the innermost one, 0. `None` if the walk had fewer
    /// frames, or did not save the step of this one.
    pub fn get(self, index: usize) -> Option<usize> {
        let word = self.words.get(index)?;
        Some(word >> self.shift & !((1 << ALIGNMENT_BITS) - 1))
    }
}

/// Number of low bits of a stack pointer that are always 0.
const ALIGNMENT_BITS: u32 = 3;

impl WalkStep {
    /// Packs a frame's stack pointer and the index of its rule.
    #[inline(always)]
    fn new(sp: usize, slot: RuleIndex) -> Self {
        Self((sp as u64 >> ALIGNMENT_BITS) << RuleIndex::BITS | u64::from(slot.bits()))
    }

    /// Returns the index of the frame's rule in the rule table.
    #[inline(always)]
    fn rule_index(self) -> RuleIndex {
        RuleIndex::from_bits(self.0 as u16)
    }

    /// Returns whether the frame's stack pointer is below `sp`. The stack grows downwards, so a thread whose stack
    /// pointer is `sp` has left such a frame.
    fn is_below(self, sp: usize) -> bool {
        self.0 >> RuleIndex::BITS < sp as u64 >> ALIGNMENT_BITS
    }

    /// Returns whether the frame has this stack pointer.
    fn is_at(self, sp: usize) -> bool {
        self.0 >> RuleIndex::BITS == sp as u64 >> ALIGNMENT_BITS
    }
}

/// A walk in progress that follows its thread's last walk.
#[derive(Debug)]
pub(crate) struct LastWalkCursor<'a> {
    /// Steps of the last walk; empty if the thread has none.
    steps: &'static [AtomicU64],
    /// Index of the step that should match the next frame.
    next: usize,
    /// Steps of this walk.
    new_steps: &'a mut [MaybeUninit<WalkStep>; MAX_STEPS],
    count: usize,
    has_diverged: bool,
}

impl<'a> LastWalkCursor<'a> {
    /// Starts at the innermost frame of `thread`, which is the calling one. `new_steps` is the buffer for this walk. If
    /// another thread owns the cell for `thread`, there is no last walk, and none is saved.
    #[inline(always)]
    pub(crate) fn new(
        thread: Thread,
        new_steps: &'a mut [MaybeUninit<WalkStep>; MAX_STEPS],
    ) -> Self {
        let last_walk = &LAST_WALKS[thread.index(INDEX_BITS)];
        let steps: &[_] = if last_walk.acquire_for(thread) {
            &last_walk.steps
        } else {
            &[]
        };
        Self::from_steps(steps, new_steps)
    }

    /// Starts at the innermost frame, with `steps` as the last walk. `new_steps` is the buffer for this walk.
    #[inline(always)]
    fn from_steps(
        steps: &'static [AtomicU64],
        new_steps: &'a mut [MaybeUninit<WalkStep>; MAX_STEPS],
    ) -> Self {
        Self {
            steps,
            next: 0,
            new_steps,
            count: 0,
            has_diverged: false,
        }
    }

    /// Returns the rule at `address` for the next frame, which has the stack pointer `sp`, and records the frame for
    /// the next walk. Tries the rule that the last walk predicts. If the prediction is wrong, returns the rule in
    /// `table`, or the one that `find` returns if the table lacks the rule.
    #[inline(always)]
    pub(crate) fn next_rule(
        &mut self,
        table: &RuleTable,
        address: usize,
        sp: usize,
        find: impl FnOnce(usize) -> Rule,
    ) -> PackedRule {
        let (rule, slot) = match self.take_predicted_rule(table, address) {
            Some(found) => found,
            None => self.find_rule_and_rejoin(table, address, sp, find),
        };
        if let Some(new_step) = self.new_steps.get_mut(self.count) {
            new_step.write(WalkStep::new(sp, slot));
            self.count += 1;
        }
        rule
    }

    /// Returns the rule that the next step of the last walk predicts, with its index in `table`, and advances. `None`
    /// if the prediction is wrong, or if the last walk has no more steps.
    #[inline(always)]
    fn take_predicted_rule(
        &mut self,
        table: &RuleTable,
        address: usize,
    ) -> Option<(PackedRule, RuleIndex)> {
        let slot = self.peek_step()?.rule_index();
        let rule = table.get(slot, address)?;
        self.next += 1;
        Some((rule, slot))
    }

    /// Returns the next step of the last walk without advancing. `None` after the last step.
    #[inline(always)]
    fn peek_step(&self) -> Option<WalkStep> {
        let step = self.steps.get(self.next)?;
        Some(WalkStep(step.load(Relaxed)))
    }

    /// Finds a rule that was not predicted. If the last walk has a step with the same stack pointer, skips to that
    /// step, so that predictions can continue from it. Returns the rule of that step if it fits, otherwise the rule in
    /// `table`, or the one that `find` returns if the table lacks the rule. Also returns the rule's index in the table.
    #[cold]
    #[inline(never)]
    fn find_rule_and_rejoin(
        &mut self,
        table: &RuleTable,
        address: usize,
        sp: usize,
        find: impl FnOnce(usize) -> Rule,
    ) -> (PackedRule, RuleIndex) {
        self.has_diverged = true;
        while self.peek_step().is_some_and(|step| step.is_below(sp)) {
            self.next += 1;
        }
        if self.peek_step().is_some_and(|step| step.is_at(sp)) {
            if let Some(found) = self.take_predicted_rule(table, address) {
                return found;
            }
            self.next += 1;
        }
        table.get_or_find(address, find)
    }

    /// Saves this walk as the thread's last walk, unless the earlier last walk predicted every frame.
    #[inline(always)]
    pub(crate) fn save_if_changed(&self) {
        if self.has_diverged {
            self.overwrite_last_walk();
        }
    }

    /// Overwrites the steps of the last walk with those of this walk. Further steps of the last walk stay.
    #[cold]
    #[inline(never)]
    fn overwrite_last_walk(&self) {
        for (step, new_step) in self
            .steps
            .iter()
            .zip(self.new_steps.iter())
            .take(self.count)
        {
            // SAFETY: `next_rule` initialized the first `count` steps.
            let new_step = unsafe { new_step.assume_init() };
            step.store(new_step.0, Relaxed);
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

    /// Rule of an address; different for all addresses in these tests.
    fn rule_of(address: usize) -> Rule {
        Rule::Frame {
            cfa: Cfa::Sp((address % 8191) as u16),
            bp: SavedBp::Unchanged,
        }
    }

    /// Walks frames of an address and a stack pointer. Returns how many were not predicted.
    fn walk(last_walk: &'static LastWalk, frames: &[(usize, usize)]) -> usize {
        let mut new_steps = [const { MaybeUninit::uninit() }; MAX_STEPS];
        let mut cursor = LastWalkCursor::from_steps(&last_walk.steps, &mut new_steps);
        let unpredicted = frames.iter().filter(|(address, sp)| {
            let step = cursor.peek_step();
            let is_predicted =
                step.is_some_and(|step| TABLE.get(step.rule_index(), *address).is_some());
            let rule = cursor.next_rule(&TABLE, *address, *sp, rule_of);
            assert_eq!(rule, rule_of(*address).into(), "{address:#x}");
            !is_predicted
        });
        let unpredicted = unpredicted.count();
        cursor.save_if_changed();
        unpredicted
    }

    const OUTER: [(usize, usize); 3] = [(0x5010, 0x8100), (0x6020, 0x8140), (0x7030, 0x8150)];

    fn with_inner(inner: &[(usize, usize)]) -> Vec<(usize, usize)> {
        [inner, &OUTER].concat()
    }

    #[test]
    fn walk_searches_only_frames_that_differ() {
        let check = |before: &[(usize, usize)], now: &[(usize, usize)], unpredicted| {
            static LAST_WALK: LastWalk = LastWalk::new();
            walk(&LAST_WALK, before);
            assert_eq!(walk(&LAST_WALK, before), 0, "{before:x?}");
            assert_eq!(walk(&LAST_WALK, now), unpredicted, "{before:x?} {now:x?}");
            assert_eq!(walk(&LAST_WALK, now), 0, "{now:x?}");
        };
        let two = with_inner(&[(0x1010, 0x8020), (0x2010, 0x8080)]);
        check(&OUTER, &two, 2);
        check(&two, &OUTER, 1);
        // The innermost function is called from another line, then from other functions.
        check(&two, &with_inner(&[(0x1010, 0x8020), (0x2018, 0x8080)]), 1);
        check(&two, &with_inner(&[(0x1010, 0x8000), (0x2020, 0x8060)]), 2);
        check(&two, &with_inner(&[(0x1018, 0x8020), (0x2018, 0x8080)]), 2);
        // Another stack.
        check(&two, &[(0x1010, 0x4000), (0x9090, 0x4010)], 1);
        check(&two, &[(0x1018, 0xF000), (0x2018, 0xF010)], 2);
    }

    #[test]
    fn random_last_walk_yields_correct_rules() {
        static LAST_WALK: LastWalk = LastWalk::new();
        let frames = with_inner(&[(0x1010, 0x8020)]);
        let mut random = 1_u64;
        for _ in 0..1000 {
            for step in &LAST_WALK.steps {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                step.store(random, Relaxed);
            }
            walk(&LAST_WALK, &frames);
        }
    }

    #[test]
    fn frames_beyond_max_steps_are_found() {
        static LAST_WALK: LastWalk = LastWalk::new();
        let frames = (0..200).map(|index| (0x10_0000 + 64 * index, 0x8000 + 32 * index));
        let frames: Vec<_> = frames.collect();
        assert_eq!(walk(&LAST_WALK, &frames), frames.len());
        assert_eq!(walk(&LAST_WALK, &frames), frames.len() - MAX_STEPS);
    }

    #[test]
    fn last_walk_belongs_to_one_thread_until_cleared() {
        let last_walk = LastWalk::new();
        let thread = |index: usize| Thread {
            control_block: 0x7F00_0000_0000 + 64 * index,
        };
        assert!(last_walk.acquire_for(thread(0)));
        assert!(!last_walk.acquire_for(thread(1)));
        assert!(last_walk.acquire_for(thread(0)));
        last_walk.owner.store(0, Relaxed);
        assert!(last_walk.acquire_for(thread(1)));
    }
}
