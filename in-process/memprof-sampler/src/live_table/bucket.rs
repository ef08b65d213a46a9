//! Bucket of the live table: eight cells for samples whose addresses have one hash.

use crate::address_hash::AddressHash;
use crate::atomic::{
    AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
    fence,
};

/// Number of cells in a bucket.
pub(super) const WAYS: usize = 8;

/// Bit set in an address while its cell is being filled or emptied. Allocators return no odd addresses.
const CLAIMED: usize = 1;

/// Eight cells. All zeros: an empty bucket.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub(crate) struct Bucket {
    /// Address of each cell's sample; 0 if the cell is empty. A search reads only this cache line.
    pub(super) addresses: [AtomicUsize; WAYS],
    /// Data of each cell's sample, in two more cache lines.
    pub(super) samples: [CellData; WAYS],
}

/// Size and record of the sample in a cell.
#[repr(C, align(16))]
#[derive(Debug, Default)]
pub(super) struct CellData {
    size: AtomicU64,
    pub(super) record: AtomicU32,
    /// Incremented before and after each write, so odd during a write.
    pub(super) version: AtomicU32,
}

/// Live sample, without its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    /// Bytes that the program requested.
    pub size: u64,
    /// First segment of its record in the [stack table](crate::stack_table).
    pub record: u32,
}

/// Cell that only the calling thread may change. [`fill`](Self::fill) ends the claim; dropping it empties the cell.
#[derive(Debug)]
pub(crate) struct ClaimedCell<'a> {
    cell: &'a AtomicUsize,
    data: &'a CellData,
    address: usize,
}

impl Bucket {
    /// Claims an empty cell for a sample at an address. `None` if all eight cells are in use or claimed.
    pub(crate) fn claim_empty_cell(&self, address: usize) -> Option<ClaimedCell<'_>> {
        self.claim_cell_holding(0, address)
    }

    /// Claims the cell of the sample at an address. `None` if there is no such sample, or another thread has claimed
    /// its cell.
    pub(crate) fn claim_sample_cell(&self, address: usize) -> Option<ClaimedCell<'_>> {
        self.claim_cell_holding(address, address)
    }

    /// Claims a cell that holds `from`, which is 0 or `address`. Tries first the cell that a hash of `address` selects:
    /// neighbouring blocks share a bucket, and so rarely compete for one cell. `None` if no cell holds `from`.
    #[inline(always)]
    fn claim_cell_holding(&self, from: usize, address: usize) -> Option<ClaimedCell<'_>> {
        let first = AddressHash::new(address).block_bits(WAYS.ilog2());
        self.claim_cell_at(first, from, address)
            .or_else(|| self.claim_other_cell(first, from, address))
    }

    /// Claims a cell other than `first` that holds `from`, which is 0 or `address`. `None` if none of them holds
    /// `from`. Not inlined, to keep the common case short.
    #[cold]
    #[inline(never)]
    fn claim_other_cell(
        &self,
        first: usize,
        from: usize,
        address: usize,
    ) -> Option<ClaimedCell<'_>> {
        let mut others = (1..WAYS).map(|after| (first + after) % WAYS);
        others.find_map(|way| self.claim_cell_at(way, from, address))
    }

    /// Claims the cell number `way` if it holds `from`, and stores `address` with the bit [`CLAIMED`] in it. `None` if
    /// the cell holds another value.
    #[inline(always)]
    fn claim_cell_at(&self, way: usize, from: usize, address: usize) -> Option<ClaimedCell<'_>> {
        let (cell, data) = (self.addresses.get(way)?, self.samples.get(way)?);
        // The load comes first, because even a failed exchange takes the cache line from other processors.
        let is_claimed = cell.load(Relaxed) == from
            && cell
                .compare_exchange(from, address | CLAIMED, Acquire, Relaxed)
                .is_ok();
        is_claimed.then(|| ClaimedCell {
            cell,
            data,
            address,
        })
    }

    /// Removes each sample, after passing its claimed cell to `drained`. Calls `wait` while another thread has claimed
    /// a cell, and returns false as soon as `wait` does.
    pub(crate) fn drain(
        &self,
        mut drained: impl FnMut(&ClaimedCell<'_>),
        mut wait: impl FnMut() -> bool,
    ) -> bool {
        for (cell, _) in self.cells() {
            loop {
                match cell.load(Acquire) {
                    0 => break,
                    claimed if claimed & CLAIMED != 0 => {
                        if !wait() {
                            return false;
                        }
                    }
                    address => {
                        // The end of the claim's scope empties the cell. If the claim fails, another thread was faster:
                        // the loop reads the cell again.
                        if let Some(claim) = self.claim_sample_cell(address) {
                            drained(&claim);
                        }
                    }
                }
            }
        }
        true
    }

    /// Empties the cells that threads have claimed. Only for a forked child, in which those threads do not exist.
    pub(crate) fn clear_claimed_cells(&self) {
        for (cell, data) in self.cells() {
            if cell.load(Relaxed) & CLAIMED != 0 {
                data.end_write();
                cell.store(0, Release);
            }
        }
    }

    /// Visits each sample with its address. May miss samples that are inserted or removed during the visits.
    pub(crate) fn visit_samples(&self, mut visit: impl FnMut(usize, Sample)) {
        for (cell, data) in self.cells() {
            let version = data.version.load(Acquire);
            let address = cell.load(Relaxed);
            let sample = data.sample();
            fence(Acquire);
            let is_whole = version % 2 == 0 && data.version.load(Relaxed) == version;
            if is_whole && address != 0 && address & CLAIMED == 0 {
                visit(address, sample);
            }
        }
    }

    /// Iterates over the cells: the address, and the data of the sample.
    fn cells(&self) -> impl Iterator<Item = (&AtomicUsize, &CellData)> {
        self.addresses.iter().zip(&self.samples)
    }
}

impl ClaimedCell<'_> {
    /// Returns the address of the sampled block.
    pub(crate) fn address(&self) -> usize {
        self.address
    }

    /// Returns the sample in the cell, which no other thread changes during the claim.
    pub(crate) fn sample(&self) -> Sample {
        self.data.sample()
    }

    /// Stores a sample in the cell, and ends the claim.
    pub(crate) fn fill(self, sample: Sample) {
        self.data.write(sample);
        self.cell.store(self.address, Release);
        // Dropping the claim would empty the cell.
        core::mem::forget(self);
    }
}

impl Drop for ClaimedCell<'_> {
    /// Empties the cell, which ends the claim. [`Self::fill`] ends it with a sample instead.
    fn drop(&mut self) {
        self.cell.store(0, Release);
    }
}

impl CellData {
    /// Stores a sample. Readers that run at the same time see that the version is odd or has changed.
    fn write(&self, sample: Sample) {
        let version = self.version.load(Relaxed);
        self.version.store(version.wrapping_add(1), Relaxed);
        // Pairs with the fence in `visit_samples`: a reader that loads a value stored below also sees the new version.
        fence(Release);
        self.size.store(sample.size, Relaxed);
        self.record.store(sample.record, Relaxed);
        self.version.store(version.wrapping_add(2), Release);
    }

    /// Makes the version even, in a forked child: a thread of the parent may have left it odd, and later samples would
    /// never be visited.
    fn end_write(&self) {
        let version = self.version.load(Relaxed);
        self.version
            .store(version.wrapping_add(version % 2), Relaxed);
    }

    /// Loads the sample's fields, which may be of two samples if another thread is writing.
    fn sample(&self) -> Sample {
        Sample {
            size: self.size.load(Relaxed),
            record: self.record.load(Relaxed),
        }
    }
}
