//! Interned stacks: each distinct address and each distinct stack is stored once.

use std::cmp::Ordering;
use std::hash::{BuildHasher, Hasher, RandomState};

use foldhash::HashMap;
use hashbrown::HashTable;

use crate::address::Address;
use crate::limits::reserve_in_steps;
use crate::managed::ManagedNames;

/// Id of a place in one [`Stacks`]. Several places of a pprof profile may have the same address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddressId(pub u32);

/// Id of a distinct stack in one [`Stacks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StackId(pub u32);

/// Places and distinct stacks, leaf first, in order of first appearance.
#[derive(Debug, Default)]
pub struct Stacks {
    addresses: Vec<Address>,
    address_ids: HashMap<Address, AddressId>,
    frames: Vec<AddressId>,
    ends: Vec<usize>,
    /// Index of the stacks by hash. Empty while stacks come in jemalloc's order: then a stack greater than the last is
    /// new.
    known: HashTable<StackEntry>,
    /// Whether the stacks are not in that order.
    is_unordered: bool,
    seed: StackHasher,
    /// Names of the managed words among the addresses.
    pub(crate) managed: ManagedNames,
}

/// Entry of the index. Stores half of the hash because computing it again would read all frames.
#[derive(Clone, Copy, Debug)]
struct StackEntry {
    hash: u32,
    id: StackId,
}

impl StackEntry {
    /// Spreads the stored half of a hash over 64 bits, because the index uses the lowest and the highest of them.
    fn spread_hash(hash: u32) -> u64 {
        u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

impl Stacks {
    /// Returns the id of an address, adding it if it is new.
    pub fn intern_address(&mut self, address: Address) -> AddressId {
        let next = AddressId(self.addresses.len() as u32);
        *self.address_ids.entry(address).or_insert_with(|| {
            self.addresses.push(address);
            next
        })
    }

    /// Adds an address, and returns a new id even if the address is known: in another mapping it is other code.
    pub fn add_address(&mut self, address: Address) -> AddressId {
        self.addresses.push(address);
        AddressId(self.addresses.len() as u32 - 1)
    }

    /// Appends a frame to the pending stack, at its root side: frames come leaf first.
    pub fn push_frame(&mut self, frame: AddressId) {
        reserve_in_steps(&mut self.frames, 1);
        self.frames.push(frame);
    }

    /// Number of frames in the pending stack.
    pub fn pending_depth(&self) -> usize {
        self.frames.len() - self.pending_start()
    }

    /// Drops the frames of the pending stack.
    pub fn clear_pending(&mut self) {
        self.frames.truncate(self.pending_start());
    }

    /// Completes the pending stack. Returns its id, adding the stack if it is new. As long as the stacks come in the
    /// order of jemalloc's dumps, only the last one can be equal, so no index is needed. From the first stack that is
    /// out of order on, an index finds equal ones.
    pub fn finish_stack(&mut self) -> StackId {
        if !self.is_unordered {
            match self.compare_pending_with_last() {
                Ordering::Greater => return self.store_pending_stack(),
                Ordering::Equal => {
                    self.clear_pending();
                    return StackId(self.ends.len() as u32 - 1);
                }
                Ordering::Less => self.is_unordered = true,
            }
        }
        if self.known.is_empty() {
            self.index_stacks();
        }
        let frames = &self.frames[self.pending_start()..];
        let hash = self.hash_frames(frames);
        let is_equal = |known: &StackEntry| known.hash == hash && self.frames(known.id) == frames;
        let known = self.known.find(StackEntry::spread_hash(hash), is_equal);
        if let Some(&StackEntry { id, .. }) = known {
            self.clear_pending();
            return id;
        }
        let id = self.store_pending_stack();
        self.index_stack(StackEntry { hash, id });
        id
    }

    /// Adds a stack that is not in the index yet.
    fn index_stack(&mut self, entry: StackEntry) {
        let spread_hash = |entry: &StackEntry| StackEntry::spread_hash(entry.hash);
        self.known
            .insert_unique(spread_hash(&entry), entry, spread_hash);
    }

    /// Stores the pending stack as a new one, and returns its id.
    fn store_pending_stack(&mut self) -> StackId {
        let id = StackId(self.ends.len() as u32);
        self.ends.push(self.frames.len());
        id
    }

    /// Compares the pending stack with the last one in the order of jemalloc's dumps (`prof_gctx_comp`): by addresses
    /// as bytes, then by ids, since an address may have several ids. Greater if there is no last one.
    fn compare_pending_with_last(&self) -> Ordering {
        let Some(last) = self.ends.len().checked_sub(1) else {
            return Ordering::Greater;
        };
        let last = self.frames(StackId(last as u32));
        let frames = &self.frames[self.pending_start()..];
        let same = frames.iter().zip(last).take_while(|(a, b)| a == b).count();
        let key = |id: &AddressId| (self.address(*id).0.to_ne_bytes(), id.0);
        let (next, last) = (frames.get(same).map(key), last.get(same).map(key));
        next.cmp(&last)
    }

    /// Start of the pending stack in `frames`.
    fn pending_start(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Lets `select` change the frames of each stack, leaf first; the ids of the stacks stay. A stack from which it
    /// removes all frames stays as it was.
    pub(crate) fn select_frames(&mut self, mut select: impl FnMut(&mut Vec<AddressId>)) {
        let mut selected = Vec::with_capacity(self.frames.len());
        let mut ends = Vec::with_capacity(self.ends.len());
        let mut stack = Vec::new();
        for id in (0..self.ends.len() as u32).map(StackId) {
            stack.clear();
            stack.extend_from_slice(self.frames(id));
            select(&mut stack);
            match stack.is_empty() {
                true => selected.extend_from_slice(self.frames(id)),
                false => selected.append(&mut stack),
            }
            ends.push(selected.len());
        }
        (self.frames, self.ends) = (selected, ends);
        // The hashes and the order are those of the old frames.
        self.known.clear();
        self.is_unordered = true;
    }

    /// Releases the memory of the index of stacks. It is built again when a stack is added, unless all stacks are in
    /// jemalloc's order.
    pub(crate) fn drop_index(&mut self) {
        self.known = HashTable::new();
    }

    /// Returns the addresses of a stack, leaf first.
    pub fn frames(&self, stack: StackId) -> &[AddressId] {
        let index = stack.0 as usize;
        let start = match index {
            0 => 0,
            _ => self.ends[index - 1],
        };
        &self.frames[start..self.ends[index]]
    }

    /// Returns the address with this id. Panics if there is none.
    pub fn address(&self, id: AddressId) -> Address {
        self.addresses[id.0 as usize]
    }

    /// Returns the address of a frame's call: the byte before the return address.
    pub fn call_address(&self, id: AddressId) -> Address {
        Address(self.address(id).0.wrapping_sub(1))
    }

    /// Returns all addresses, by id.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Number of distinct stacks.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are no stacks.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the lower half of the hash of a stack's frames, in their order.
    fn hash_frames(&self, frames: &[AddressId]) -> u32 {
        self.seed.hash_ids(frames, |frame| frame.0) as u32
    }

    /// Adds all stacks so far to the empty index, which is needed from the first stack that is out of order.
    fn index_stacks(&mut self) {
        for id in (0..self.ends.len() as u32).map(StackId) {
            let hash = self.hash_frames(self.frames(id));
            self.index_stack(StackEntry { hash, id });
        }
    }
}

/// Fast hash for short keys, seeded per process so that no input can force collisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StackHasher(u64);

impl Default for StackHasher {
    fn default() -> Self {
        Self(RandomState::new().build_hasher().finish())
    }
}

impl StackHasher {
    /// Returns the hash with two more words added, by one multiplication as in wyhash. The constant is odd and its bits
    /// have no pattern.
    pub(crate) fn with_words(self, first: u64, second: u64) -> Self {
        let product = u128::from(self.0 ^ first)
            * u128::from(second ^ self.0.rotate_left(32) ^ 0xd6e8_feb8_6659_fd93);
        Self((product as u64) ^ ((product >> 64) as u64))
    }

    /// Returns the hash of a list of ids, by their numbers in this order. `self` is the seed.
    #[inline]
    pub(crate) fn hash_ids<T: Copy>(self, ids: &[T], number: impl Fn(T) -> u32) -> u64 {
        let mut chunks = ids.chunks_exact(4);
        let word = |low, high| u64::from(number(high)) << 32 | u64::from(number(low));
        let mut hash = self;
        for chunk in &mut chunks {
            hash = hash.with_words(word(chunk[0], chunk[1]), word(chunk[2], chunk[3]));
        }
        for id in chunks.remainder() {
            hash = hash.with_words(u64::from(number(*id)), 0);
        }
        hash.with_words(ids.len() as u64, 0).0
    }

    /// Slot of the hash in a table of `size` slots, a power of two.
    pub(crate) fn slot(self, size: usize) -> usize {
        self.0 as usize & (size - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::{Address, StackId, Stacks};

    #[test]
    fn each_stack_is_stored_once_in_any_order() {
        let mut stacks = Stacks::default();
        let mut ids = |list: &[&[u64]]| -> Vec<u32> {
            let id = |stack: &&[u64]| {
                for &address in *stack {
                    let frame = stacks.intern_address(Address(address));
                    stacks.push_frame(frame);
                }
                let StackId(id) = stacks.finish_stack();
                id
            };
            list.iter().map(id).collect()
        };
        // Compared as bytes, 0x100 comes before 1.
        assert_eq!(
            ids(&[&[], &[0x100], &[0x100, 9], &[1], &[1, 2]]),
            [0, 1, 2, 3, 4]
        );
        assert_eq!(ids(&[&[1, 2], &[1], &[0x100, 9], &[]]), [4, 3, 2, 0]);
        assert_eq!(ids(&[&[1, 3], &[1, 2], &[1, 3], &[0x100]]), [5, 4, 5, 1]);
        assert_eq!(stacks.len(), 6);
    }

    #[test]
    fn equal_stack_is_found_after_the_index_was_dropped() {
        let add = |stacks: &mut Stacks, addresses: &[u64]| {
            for address in addresses {
                let frame = stacks.intern_address(Address(*address));
                stacks.push_frame(frame);
            }
            stacks.finish_stack().0
        };
        let mut stacks = Stacks::default();
        assert_eq!(add(&mut stacks, &[1, 2]), 0);
        assert_eq!(add(&mut stacks, &[1]), 1);
        stacks.drop_index();
        assert_eq!(add(&mut stacks, &[1, 2]), 0);
        let mut stacks = Stacks::default();
        assert_eq!(add(&mut stacks, &[1, 5]), 0);
        assert_eq!(add(&mut stacks, &[2]), 1);
        stacks.select_frames(|frames| frames.retain(|id| id.0 != 0));
        assert_eq!(add(&mut stacks, &[5]), 0);
    }
}
