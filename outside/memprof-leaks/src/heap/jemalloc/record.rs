//! Records of extents, jemalloc's `edata_t`; its bits and words are those of `edata.h` in jemalloc 5.3.

use std::ops::Range;
use std::sync::LazyLock;

/// Bytes of a record, and its alignment.
pub(super) const RECORD_SIZE: usize = 128;
const PAGE_SIZE: u64 = 4096;

/// Flag in the first word: the extent is a slab.
const SLAB_FLAG: u64 = 1 << 12;
/// Flag in the first word: the extent's memory is committed.
const COMMITTED_FLAG: u64 = 1 << 13;
/// Shift and mask of the extent's state in the first word.
const STATE_FIELD: (u32, u64) = (17, 7);
/// Shift and mask of the size class.
const CLASS_FIELD: (u32, u64) = (20, 0xff);
/// Shift and mask of a slab's number of free regions.
const FREE_FIELD: (u32, u64) = (28, 0x3ff);
/// First of the bits of the first word that are always 0.
const FIRST_UNUSED_BIT: u32 = 45;
/// Word of a record with a slab's bitmap; a one is a free region.
const BITMAP_WORD: usize = 8;
/// Word of a record with the profiler's context of a sampled object (`e_prof_tctx`).
const CONTEXT_WORD: usize = 10;
/// Number of size classes whose objects lie in slabs.
const SMALL_CLASS_COUNT: usize = 39;
/// Bytes of the largest extent of a small object that has one because it is sampled: 5.3.0 gives it 20 KiB.
const MAX_SAMPLED_EXTENT: u64 = 20 << 10;
/// Bytes by which an extent may be larger than its size class: the object begins at a random offset in the
/// first page.
const MAX_PADDING: u64 = PAGE_SIZE;
/// Most regions of a slab.
const MAX_REGIONS: u64 = 512;

/// Object size of each size class, in bytes.
static CLASS_SIZES: LazyLock<Vec<u64>> = LazyLock::new(|| {
    let mut sizes = vec![8, 16, 32, 48, 64];
    // Each power of two from 64 on is followed by four classes at equal distances.
    let groups = (6..62).map(|shift| 1_u64 << shift);
    sizes.extend(groups.flat_map(|base| (1..=4).map(move |quarter| base + base / 4 * quarter)));
    sizes
});

/// State of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExtentState {
    /// It has objects.
    Active,
    /// Dirty, muzzy or retained: kept for later use.
    Idle,
}

/// Kind of an extent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ExtentKind {
    /// Regions of one size, with a bitmap of the free ones.
    Slab { free: Box<[u64; 8]> },
    /// One object, or none if the extent is idle, and the word for the profiler's context.
    Large { context: u64 },
}

/// Extent, a run of pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    /// Address of its record.
    pub(super) record: u64,
    pub(super) range: Range<u64>,
    /// Address of its first object.
    first: u64,
    /// Bytes of each object.
    pub(super) size: u64,
    pub(super) state: ExtentState,
    pub(super) kind: ExtentKind,
}

impl Extent {
    /// Returns the address of a large extent's object, and the profiler's context for it. `None` for a slab, and for an
    /// object that is not sampled: its word is 1, or has an old value if jemalloc has no profiler.
    pub(super) fn profiler_context(&self) -> Option<(u64, u64)> {
        match self.kind {
            ExtentKind::Large { context } if context > PAGE_SIZE && context.is_multiple_of(8) => {
                Some((self.first, context))
            }
            _ => None,
        }
    }

    /// Address range of a large extent's object.
    pub(super) fn object_range(&self) -> Range<u64> {
        self.first..(self.first + self.size).min(self.range.end)
    }
}

/// Parses an extent record (`edata_t`) at the address `record`. `None` if its fields contradict each other. Panics if
/// `bytes` are fewer than a record has.
pub(super) fn parse_record(bytes: &[u8], record: u64) -> Option<Extent> {
    let word = |index: usize| {
        let bytes = bytes[8 * index..8 * index + 8].try_into();
        u64::from_le_bytes(bytes.expect("eight bytes"))
    };
    let (bits, first, length) = (word(0), word(1), word(2) & !(PAGE_SIZE - 1));
    let field = |(shift, mask): (u32, u64)| bits >> shift & mask;
    if bits >> FIRST_UNUSED_BIT != 0 || bits & COMMITTED_FLAG == 0 || first == 0 || length == 0 {
        return None;
    }
    let start = first & !(PAGE_SIZE - 1);
    let range = start..start.checked_add(length).filter(|end| *end < 1 << 47)?;
    let class = field(CLASS_FIELD) as usize;
    let extent = |size, state, kind| Extent {
        record,
        range: range.clone(),
        first,
        size,
        state,
        kind,
    };
    // 0 is `extent_state_active`.
    if field(STATE_FIELD) != 0 {
        let none = ExtentKind::Large { context: 0 };
        return Some(extent(length, ExtentState::Idle, none));
    }
    let size = *CLASS_SIZES.get(class)?;
    if bits & SLAB_FLAG == 0 {
        // An object of a small class has an extent of its own if it is sampled.
        let fits = match class < SMALL_CLASS_COUNT {
            true => length <= MAX_SAMPLED_EXTENT,
            false => length > CLASS_SIZES[class - 1] && length <= size + MAX_PADDING,
        };
        let context = word(CONTEXT_WORD);
        let kind = ExtentKind::Large { context };
        return fits.then(|| extent(size.min(length), ExtentState::Active, kind));
    }
    let regions = length / size;
    let is_filled =
        first == start && length.is_multiple_of(size) && (1..=MAX_REGIONS).contains(&regions);
    if class >= SMALL_CLASS_COUNT || !is_filled {
        return None;
    }
    let mut free = Box::new([0; 8]);
    let mut count = 0;
    for (index, bits) in free.iter_mut().enumerate() {
        // Only the bits of the slab's regions count. If this word has none, the shift by 64 gives `None`.
        let valid = regions.saturating_sub(index as u64 * 64).min(64);
        *bits = word(BITMAP_WORD + index) & u64::MAX.checked_shr(64 - valid as u32).unwrap_or(0);
        count += u64::from(bits.count_ones());
    }
    (count == field(FREE_FIELD))
        .then(|| extent(size, ExtentState::Active, ExtentKind::Slab { free }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(bits: u64, first: u64, length: u64, bitmap: &[u64]) -> Vec<u8> {
        let mut words = [0; 16];
        (words[0], words[1], words[2]) = (bits, first, length | 7);
        words[BITMAP_WORD..BITMAP_WORD + bitmap.len()].copy_from_slice(bitmap);
        words
            .iter()
            .flat_map(|word: &u64| word.to_le_bytes())
            .collect()
    }

    fn bits(slab: u64, state: u64, class: u64, free: u64) -> u64 {
        slab | COMMITTED_FLAG
            | state << STATE_FIELD.0
            | class << CLASS_FIELD.0
            | free << FREE_FIELD.0
    }

    #[test]
    fn sizes_equal_those_of_jemalloc() {
        assert_eq!(CLASS_SIZES[..9], [8, 16, 32, 48, 64, 80, 96, 112, 128]);
        assert_eq!((CLASS_SIZES[35], CLASS_SIZES[36]), (14336, 16384));
    }

    #[test]
    fn parse_accepts_consistent_records_only() {
        let start = 0x7f00_0000_0000;
        let check = |bytes: &[u8], expected: Option<(u64, ExtentState)>| {
            let found = parse_record(bytes, 0x80).map(|extent| (extent.size, extent.state));
            assert_eq!(found, expected);
        };
        // The slab has 256 regions of 16 bytes, five of them free.
        check(
            &record(bits(SLAB_FLAG, 0, 1, 5), start, 4096, &[0b1111, 0, 0, 1]),
            Some((16, ExtentState::Active)),
        );
        check(
            &record(bits(SLAB_FLAG, 0, 1, 4), start, 4096, &[0b1111, 0, 0, 1]),
            None,
        );
        // Bits after the last region are ignored.
        check(
            &record(bits(SLAB_FLAG, 0, 8, 1), start, 4096, &[1 << 31 | 1 << 32]),
            Some((128, ExtentState::Active)),
        );
        check(
            &record(bits(SLAB_FLAG, 0, 1, 0), start + 16, 4096, &[]),
            None,
        );
        check(&record(bits(SLAB_FLAG, 0, 3, 0), start, 4096, &[]), None);
        // Large extents: with a random offset in the first page, too long, and sampled.
        check(
            &record(bits(0, 0, 36, 0), start + 64, 5 * 4096, &[]),
            Some((16384, ExtentState::Active)),
        );
        check(&record(bits(0, 0, 40, 0), start, 128 * 4096, &[]), None);
        check(
            &record(bits(0, 0, 1, 0), start, 2 * 4096, &[]),
            Some((16, ExtentState::Active)),
        );
        check(
            &record(bits(0, 1, 235, 0), start, 4096, &[]),
            Some((4096, ExtentState::Idle)),
        );
        check(
            &record(bits(0, 0, 36, 0) | 1 << 63, start, 5 * 4096, &[]),
            None,
        );
        check(
            &record(bits(0, 0, 36, 0), u64::MAX - 4095, 5 * 4096, &[]),
            None,
        );
        check(&[0; RECORD_SIZE], None);
    }
}
