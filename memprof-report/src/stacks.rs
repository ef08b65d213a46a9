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
    /// By stack.
    hashes: Vec<Mix>,
    /// Ids plus 1, by hash; open addressing, a power of two, at most half full.
    slots: Vec<u32>,
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

    /// Adds a frame, towards the root, to the stack that [`finish`](Self::finish) ends.
    pub fn push(&mut self, frame: AddressId) {
        self.frames.push(frame);
    }

    /// How many frames were pushed since the last stack.
    pub fn depth(&self) -> usize {
        self.frames.len() - self.start()
    }

    /// Forgets the frames pushed since the last stack.
    pub fn clear(&mut self) {
        self.frames.truncate(self.start());
    }

    /// The id of the stack of the frames pushed since the last one, new or not.
    pub fn finish(&mut self) -> StackId {
        if self.slots.len() < 2 * (self.ends.len() + 1) {
            self.grow();
        }
        let frames = &self.frames[self.start()..];
        let hash = self.hash(frames);
        let mut slot = hash.slot(self.slots.len());
        while self.slots[slot] != 0 {
            let id = StackId(self.slots[slot] - 1);
            if self.hashes[id.0 as usize] == hash && self.frames(id) == frames {
                self.clear();
                return id;
            }
            slot = (slot + 1) & (self.slots.len() - 1);
        }
        let id = StackId(self.ends.len() as u32);
        self.ends.push(self.frames.len());
        self.hashes.push(hash);
        self.slots[slot] = id.0 + 1;
        id
    }

    /// Where the frames pushed since the last stack begin.
    fn start(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
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

    fn hash(&self, frames: &[AddressId]) -> Mix {
        let mut chunks = frames.chunks_exact(4);
        let word = |low: AddressId, high: AddressId| u64::from(high.0) << 32 | u64::from(low.0);
        let mut hash = self.seed;
        for chunk in &mut chunks {
            hash = hash.with(word(chunk[0], chunk[1]), word(chunk[2], chunk[3]));
        }
        for id in chunks.remainder() {
            hash = hash.with(u64::from(id.0), 0);
        }
        hash.with(frames.len() as u64, 0)
    }

    fn grow(&mut self) {
        let size = (self.slots.len() * 4).max(1024);
        self.slots = vec![0; size];
        for (index, hash) in self.hashes.iter().enumerate() {
            let mut slot = hash.slot(size);
            while self.slots[slot] != 0 {
                slot = (slot + 1) & (size - 1);
            }
            self.slots[slot] = index as u32 + 1;
        }
    }
}

/// A fast hash for short keys, seeded in each run so that no input can be made to collide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mix(u64);

impl Default for Mix {
    fn default() -> Self {
        Self(RandomState::new().build_hasher().finish())
    }
}

impl Mix {
    /// The hash of what came before and two words: wyhash's step, one multiplication.
    pub(crate) fn with(self, first: u64, second: u64) -> Self {
        let product = u128::from(self.0 ^ first)
            * u128::from(second ^ self.0.rotate_left(32) ^ 0xd6e8_feb8_6659_fd93);
        Self((product as u64) ^ ((product >> 64) as u64))
    }

    /// A slot in a table of `size`, a power of two.
    pub(crate) fn slot(self, size: usize) -> usize {
        self.0 as usize & (size - 1)
    }
}
