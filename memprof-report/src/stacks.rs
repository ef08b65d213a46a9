//! Interned stacks: each distinct address and each distinct stack is kept once.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

use crate::profile::Address;

/// Names a distinct address of one [`Stacks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddressId(pub u32);

/// Names a distinct stack of one [`Stacks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StackId(pub u32);

/// Addresses and stacks, leaf first, in order of first appearance.
#[derive(Debug, Default)]
pub struct Stacks {
    addresses: Vec<Address>,
    address_ids: HashMap<Address, AddressId>,
    frames: Vec<AddressId>,
    ends: Vec<usize>,
    /// Open addressing over `ends`, keyed by the frames; a power of two, at most half full.
    slots: Vec<Option<StackId>>,
    seed: Mix,
}

impl Stacks {
    /// The id of an address, new or not.
    pub fn intern_address(&mut self, address: Address) -> AddressId {
        let next = AddressId(self.addresses.len() as u32);
        *self.address_ids.entry(address).or_insert_with(|| {
            self.addresses.push(address);
            next
        })
    }

    /// The id of a stack, new or not.
    pub fn intern(&mut self, frames: &[AddressId]) -> StackId {
        if self.slots.len() < 2 * (self.ends.len() + 1) {
            self.grow();
        }
        let mut slot = self.home(frames);
        loop {
            match self.slots[slot] {
                Some(id) if self.frames(id) == frames => return id,
                Some(_) => slot = (slot + 1) & (self.slots.len() - 1),
                None => break,
            }
        }
        let id = StackId(self.ends.len() as u32);
        self.frames.extend_from_slice(frames);
        self.ends.push(self.frames.len());
        self.slots[slot] = Some(id);
        id
    }

    /// A stack's addresses, leaf first.
    pub fn frames(&self, stack: StackId) -> &[AddressId] {
        let index = stack.0 as usize;
        let start = match index {
            0 => 0,
            _ => self.ends[index - 1],
        };
        &self.frames[start..self.ends[index]]
    }

    /// The address behind an id.
    pub fn address(&self, id: AddressId) -> Address {
        self.addresses[id.0 as usize]
    }

    /// All distinct addresses, by id.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// How many distinct stacks there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    fn home(&self, frames: &[AddressId]) -> usize {
        let mut hash = self.seed;
        for pair in frames.chunks(2) {
            let high = pair.get(1).map_or(u64::MAX, |id| u64::from(id.0) << 32);
            hash = hash.with(high | u64::from(pair[0].0));
        }
        hash.slot(self.slots.len())
    }

    fn grow(&mut self) {
        let size = (self.slots.len() * 2).max(64);
        self.slots = vec![None; size];
        for index in 0..self.ends.len() {
            let id = StackId(index as u32);
            let mut slot = self.home(self.frames(id));
            while self.slots[slot].is_some() {
                slot = (slot + 1) & (size - 1);
            }
            self.slots[slot] = Some(id);
        }
    }
}

/// A fast hash for short keys, seeded in each run so that no input can be made to collide.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mix(u64);

impl Default for Mix {
    fn default() -> Self {
        Self(RandomState::new().build_hasher().finish())
    }
}

impl Mix {
    /// The hash of what came before and `word`.
    pub(crate) fn with(self, word: u64) -> Self {
        let product = u128::from(self.0.rotate_left(23) ^ word) * 0xd6e8_feb8_6659_fd93;
        Self((product as u64) ^ ((product >> 64) as u64))
    }

    /// A slot in a table of `size`, a power of two.
    pub(crate) fn slot(self, size: usize) -> usize {
        self.0 as usize & (size - 1)
    }
}
