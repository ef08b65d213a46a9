//! `edata_t`: what jemalloc keeps of an extent.

use std::ops::Range;
use std::sync::LazyLock;

/// Of a record, in bytes; it lies at a multiple of that.
pub(super) const LENGTH: usize = 128;
const PAGE: u64 = 4096;

/// In the first word: slab and committed, the state, the size class, and a slab's free regions.
const SLAB: u64 = 1 << 12;
const COMMITTED: u64 = 1 << 13;
const STATE: (u32, u64) = (17, 7);
const CLASS: (u32, u64) = (20, 0xff);
const FREE: (u32, u64) = (28, 0x3ff);
/// The bits that have no meaning.
const UNUSED: u32 = 45;
/// Where a slab has its bitmap, in words; a one is a free region.
const BITMAP: usize = 8;
/// Where the extent of a sampled object has its context, in words (`e_prof_tctx`).
const CONTEXT: usize = 10;
/// Size classes of which a slab has several.
const SMALL_CLASSES: usize = 39;
/// The largest extent of a small object that is sampled, and therefore lies alone: 5.3.0 gives it 20 KiB.
const SAMPLED: u64 = 20 << 10;
/// What an extent of a large object may be longer: where it begins is chosen at random within a page.
const PAD: u64 = PAGE;
const REGIONS: u64 = 512;

/// The sizes of objects, by class.
static SIZES: LazyLock<Vec<u64>> = LazyLock::new(|| {
    let mut sizes = vec![8, 16, 32, 48, 64];
    let groups = (6..62).map(|shift| 1_u64 << shift);
    sizes.extend(groups.flat_map(|base| (1..=4).map(move |quarter| base + base / 4 * quarter)));
    sizes
});

/// Whether an extent holds objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExtentState {
    Active,
    /// Dirty, muzzy or retained: kept for later.
    Idle,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ExtentKind {
    /// Regions of one size, with a bit for each one that is free.
    Slab { free: Box<[u64; 8]> },
    /// One object, or none; where the profiler's context of it may lie.
    Large { context: u64 },
}

/// A run of pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    /// Where its record lies.
    pub(super) record: u64,
    pub(super) range: Range<u64>,
    /// Where its first object begins.
    first: u64,
    /// Of each object, in bytes.
    pub(super) size: u64,
    pub(super) state: ExtentState,
    pub(super) kind: ExtentKind,
}

impl Extent {
    /// The address of its object, and the context of the profiler where it may have one. Of an object that is
    /// no sample it is 1; without a profiler, whatever the record held before.
    pub(super) fn context(&self) -> Option<(u64, u64)> {
        match self.kind {
            ExtentKind::Large { context } if context > PAGE && context.is_multiple_of(8) => {
                Some((self.first, context))
            }
            _ => None,
        }
    }

    /// The object of a large extent.
    pub(super) fn object(&self) -> Range<u64> {
        self.first..(self.first + self.size).min(self.range.end)
    }
}

/// What the bytes at an address say, where they are a record's.
pub(super) fn parse(bytes: &[u8], record: u64) -> Option<Extent> {
    let word = |at: usize| {
        let bytes = bytes[8 * at..8 * at + 8].try_into();
        u64::from_le_bytes(bytes.expect("eight bytes"))
    };
    let (bits, first, length) = (word(0), word(1), word(2) & !(PAGE - 1));
    let field = |(shift, mask): (u32, u64)| bits >> shift & mask;
    if bits >> UNUSED != 0 || bits & COMMITTED == 0 || first == 0 || length == 0 {
        return None;
    }
    let start = first & !(PAGE - 1);
    let range = start..start.checked_add(length).filter(|end| *end < 1 << 47)?;
    let class = field(CLASS) as usize;
    let extent = |size, state, kind| Extent {
        record,
        range: range.clone(),
        first,
        size,
        state,
        kind,
    };
    if field(STATE) != 0 {
        let none = ExtentKind::Large { context: 0 };
        return Some(extent(length, ExtentState::Idle, none));
    }
    let size = *SIZES.get(class)?;
    if bits & SLAB == 0 {
        let fits = match class < SMALL_CLASSES {
            true => length <= SAMPLED,
            false => length > SIZES[class - 1] && length <= size + PAD,
        };
        let context = word(CONTEXT);
        let kind = ExtentKind::Large { context };
        return fits.then(|| extent(size.min(length), ExtentState::Active, kind));
    }
    let regions = length / size;
    let is_whole =
        first == start && length.is_multiple_of(size) && (1..=REGIONS).contains(&regions);
    if class >= SMALL_CLASSES || !is_whole {
        return None;
    }
    let mut free = Box::new([0; 8]);
    let mut count = 0;
    for (at, place) in free.iter_mut().enumerate() {
        let valid = regions.saturating_sub(at as u64 * 64).min(64);
        *place = word(BITMAP + at) & u64::MAX.checked_shr(64 - valid as u32).unwrap_or(0);
        count += u64::from(place.count_ones());
    }
    (count == field(FREE)).then(|| extent(size, ExtentState::Active, ExtentKind::Slab { free }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(bits: u64, first: u64, length: u64, bitmap: &[u64]) -> Vec<u8> {
        let mut words = [0; 16];
        (words[0], words[1], words[2]) = (bits, first, length | 7);
        words[BITMAP..BITMAP + bitmap.len()].copy_from_slice(bitmap);
        words
            .iter()
            .flat_map(|word: &u64| word.to_le_bytes())
            .collect()
    }

    fn bits(slab: u64, state: u64, class: u64, free: u64) -> u64 {
        slab | COMMITTED | state << STATE.0 | class << CLASS.0 | free << FREE.0
    }

    #[test]
    fn sizes_by_class() {
        assert_eq!(SIZES[..9], [8, 16, 32, 48, 64, 80, 96, 112, 128]);
        assert_eq!((SIZES[35], SIZES[36]), (14336, 16384));
    }

    #[test]
    fn a_record_proves_itself() {
        let at = 0x7f00_0000_0000;
        let check = |bytes: &[u8], expected: Option<(u64, ExtentState)>| {
            let found = parse(bytes, 0x80).map(|extent| (extent.size, extent.state));
            assert_eq!(found, expected);
        };
        // 256 regions of 16 bytes, five of them free.
        check(
            &record(bits(SLAB, 0, 1, 5), at, 4096, &[0b1111, 0, 0, 1]),
            Some((16, ExtentState::Active)),
        );
        check(
            &record(bits(SLAB, 0, 1, 4), at, 4096, &[0b1111, 0, 0, 1]),
            None,
        );
        // Beyond the last region bits have no meaning.
        check(
            &record(bits(SLAB, 0, 8, 1), at, 4096, &[1 << 31 | 1 << 32]),
            Some((128, ExtentState::Active)),
        );
        check(&record(bits(SLAB, 0, 1, 0), at + 16, 4096, &[]), None);
        check(&record(bits(SLAB, 0, 3, 0), at, 4096, &[]), None);
        // Large: with a random place in its first page, too long, sampled.
        check(
            &record(bits(0, 0, 36, 0), at + 64, 5 * 4096, &[]),
            Some((16384, ExtentState::Active)),
        );
        check(&record(bits(0, 0, 40, 0), at, 128 * 4096, &[]), None);
        check(
            &record(bits(0, 0, 1, 0), at, 2 * 4096, &[]),
            Some((16, ExtentState::Active)),
        );
        check(
            &record(bits(0, 1, 235, 0), at, 4096, &[]),
            Some((4096, ExtentState::Idle)),
        );
        check(
            &record(bits(0, 0, 36, 0) | 1 << 63, at, 5 * 4096, &[]),
            None,
        );
        check(
            &record(bits(0, 0, 36, 0), u64::MAX - 4095, 5 * 4096, &[]),
            None,
        );
        check(&[0; LENGTH], None);
    }
}
