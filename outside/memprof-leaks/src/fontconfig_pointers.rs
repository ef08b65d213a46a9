//! Pointers of libfontconfig: its objects hold others by offsets from their own addresses, so that a font cache can be
//! mapped anywhere. Layouts: fcint.h of fontconfig 2.14.

use std::collections::HashSet;
use std::ops::Range;

use crate::analysis::AnalyzedSnapshot;
use crate::error::Error;
use crate::mark::mark_reachable;
use crate::objects::Objects;
use crate::roots::Roots;
use crate::snapshot_memory::CachedReader;
use crate::unsearched::{Unsearched, UnsearchedRole};

/// Prefix of the library's file name.
const LIBRARY: &str = "libfontconfig.so";
/// Sizes of allocations with a `FcPattern` or a `FcCharSet`, both of 24 bytes, in glibc's heap and jemalloc's.
const OWNER_SIZES: Range<u64> = 24..33;
/// Size of a `FcPatternElt`, in bytes.
const ELEMENT_SIZE: u64 = 16;
/// Most elements of a pattern; fontconfig knows some 50 properties.
const MAX_ELEMENTS: u64 = 1024;
/// Most leaves of a character set: one for each 256 characters of Unicode.
const MAX_LEAVES: u64 = 0x11_0000 / 256;
/// Most patterns in patterns, plus 1.
const MAX_ROUNDS: usize = 8;

/// Reads a word of a snapshot. `None` if it cannot be read.
type ReadWord<'a> = dyn FnMut(u64) -> Option<u64> + 'a;

/// Marks the objects that only patterns and character sets of libfontconfig hold, and all that these reach. Does
/// nothing if the library is not mapped, or every object is reachable. Returns a note if the library is mapped, but
/// none of its objects was recognized.
///
/// # Errors
/// `Headroom` or `CopyEnded`: the process writes so much meanwhile that its copy takes too much memory, or was killed.
pub(crate) fn mark_fontconfig_objects(
    analyzed: &AnalyzedSnapshot<'_>,
) -> Result<Option<Unsearched>, Error> {
    let objects = &analyzed.objects;
    let mut files = analyzed.view.regions.iter().map(|region| &region.name);
    if objects.unreachable_count() == 0 || !files.any(|path| is_fontconfig(path)) {
        return Ok(None);
    }
    let mut has_found = false;
    for _ in 0..MAX_ROUNDS {
        let mut memory = CachedReader::new(&analyzed.view);
        let held = objects_held_by_font_data(objects, &mut |address| memory.read_word(address));
        if held.is_empty() {
            break;
        }
        has_found = true;
        // The held objects become roots. Of their kinds, only `kernel` takes single addresses.
        let roots = Roots {
            kernel: held,
            ..Roots::default()
        };
        mark_reachable(
            analyzed.snapshot,
            &analyzed.view,
            objects,
            &roots,
            analyzed.budget.remaining(),
            &|_| {},
        )?;
    }
    let is_unknown = !has_found && objects.unreachable_count() > 0;
    Ok(is_unknown.then(|| Unsearched {
        role: UnsearchedRole::Pointers,
        what: "patterns of libfontconfig".to_owned(),
        amount: None,
        why: "they hold their elements by offsets from their own addresses, not by pointers"
            .to_owned(),
    }))
}

/// Whether a mapped file is libfontconfig, by the name of the file.
fn is_fontconfig(path: &str) -> bool {
    let file = path.rsplit('/').next();
    file.is_some_and(|file| file.starts_with(LIBRARY))
}

/// Returns the starts of the unreachable objects that reachable patterns and character sets hold. `read_word` reads the
/// snapshot. Reads each array of leaves once, so that a hostile heap, in which many sets share one array, takes no more
/// time and memory than its size.
fn objects_held_by_font_data(objects: &Objects, read_word: &mut ReadWord<'_>) -> Vec<u64> {
    let owners = objects.reachable().map(|object| object.range);
    let owners = owners.filter(|owner| OWNER_SIZES.contains(&(owner.end - owner.start)));
    let is_held = |start: &u64| objects.unmarked_start(*start) == Some(*start);
    let (mut held, mut read) = (Vec::new(), HashSet::new());
    for owner in owners {
        held.extend(pattern_elements(objects, owner.start, read_word).filter(is_held));
        let Some(set) = CharacterSet::read(objects, owner.start, read_word) else {
            continue;
        };
        held.extend([set.leaves, set.numbers].into_iter().filter(is_held));
        if read.insert(set.leaves) {
            let places = (0..set.count).map(|leaf| set.leaves + 8 * leaf);
            let leaves = places.filter_map(|place| add_stored_offset(set.leaves, place, read_word));
            held.extend(leaves.filter(is_held));
        }
    }
    held
}

/// Returns the address of the elements of the `FcPattern` at `start`. The pattern begins with the number and the
/// capacity of its elements, 32 bits each, and their offset. `None` if these cannot be read or do not fit together:
/// then no pattern is at `start`.
fn pattern_elements(objects: &Objects, start: u64, read_word: &mut ReadWord<'_>) -> Option<u64> {
    let counts = read_word(start)?;
    let (count, capacity) = (counts & 0xffff_ffff, counts >> 32);
    let elements = add_stored_offset(start, start + 8, read_word)?;
    let is_pattern = count <= capacity
        && (1..=MAX_ELEMENTS).contains(&capacity)
        && is_object_with_size(objects, elements, capacity * ELEMENT_SIZE);
    is_pattern.then_some(elements)
}

/// The arrays of a `FcCharSet`, with `count` elements each.
struct CharacterSet {
    /// Address of the distances of the leaves from this address, 8 bytes each.
    leaves: u64,
    /// Address of the numbers of the leaves, 2 bytes each.
    numbers: u64,
    count: u64,
}

impl CharacterSet {
    /// Reads the `FcCharSet` at `start`: the number of its references and `count`, 32 bits each, the offset of the
    /// leaves, and that of their numbers. `None` if these cannot be read or do not fit together: then no set is at
    /// `start`.
    fn read(objects: &Objects, start: u64, read_word: &mut ReadWord<'_>) -> Option<Self> {
        let set = Self {
            count: read_word(start)? >> 32,
            leaves: add_stored_offset(start, start + 8, read_word)?,
            numbers: add_stored_offset(start, start + 16, read_word)?,
        };
        let is_set = (1..=MAX_LEAVES).contains(&set.count)
            && is_object_with_size(objects, set.leaves, 8 * set.count)
            && is_object_with_size(objects, set.numbers, 2 * set.count);
        is_set.then_some(set)
    }
}

/// Adds the offset that is stored at `address`, which may be negative, to `start`. `None` if the offset is 0 or cannot
/// be read.
fn add_stored_offset(start: u64, address: u64, read_word: &mut ReadWord<'_>) -> Option<u64> {
    let offset = read_word(address).filter(|offset| *offset != 0)?;
    Some(start.wrapping_add(offset))
}

/// Whether an object of the heap starts at `start` and has at least `size` bytes.
fn is_object_with_size(objects: &Objects, start: u64, size: u64) -> bool {
    let object = objects.object_at(start);
    object.is_some_and(|object| object.range.start == start && object.size() >= size)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::objects::Span;

    const HEAP: u64 = 0x5555_5000_1000;
    const OWNER: u64 = HEAP;
    const ARRAY: u64 = HEAP + 0x100;
    const NUMBERS: u64 = HEAP + 0x200;
    const LEAF: u64 = HEAP + 0x300;

    /// Checks what an object with these words holds, in a heap of arrays of 0xf0 bytes.
    #[track_caller]
    fn check(words: &[(u64, u64)], expected: &[u64]) {
        let mut span = Span::new(HEAP..HEAP + 0x400, 16, 0);
        for start in [OWNER, OWNER + 0x20, ARRAY, NUMBERS, LEAF] {
            span.add_object(start, true);
        }
        let objects = Objects::new(vec![span]);
        objects.mark_target(OWNER);
        objects.mark_scanned(OWNER);
        let words: HashMap<_, _> = words.iter().copied().collect();
        let held = objects_held_by_font_data(&objects, &mut |address| {
            Some(words.get(&address).copied().unwrap_or(0))
        });
        assert_eq!(held, expected);
    }

    #[test]
    fn patterns_hold_their_elements() {
        let pattern = |capacity: u64, offset| [(OWNER, capacity << 32 | 3), (OWNER + 8, offset)];
        check(&pattern(15, ARRAY - OWNER), &[ARRAY]);
        // More elements than the array has, fewer than the count, and an offset to no object.
        check(&pattern(17, ARRAY - OWNER), &[]);
        check(&pattern(2, ARRAY - OWNER), &[]);
        check(&pattern(15, ARRAY - OWNER + 16), &[]);
    }

    #[test]
    fn character_sets_hold_their_arrays_and_leaves() {
        let set = [
            (OWNER, 1 << 32 | 1),
            (OWNER + 8, ARRAY - OWNER),
            (OWNER + 16, NUMBERS - OWNER),
            (ARRAY, LEAF - ARRAY),
        ];
        // As a pattern of one element, the array is found twice.
        check(&set, &[ARRAY, ARRAY, NUMBERS, LEAF]);
        check(&set[..2], &[ARRAY]);
    }

    #[test]
    fn only_the_library_is_recognized_by_its_file() {
        assert!(is_fontconfig(
            "/usr/lib/x86_64-linux-gnu/libfontconfig.so.1.12.0"
        ));
        for path in [
            "",
            "[heap]",
            "/usr/bin/fc-list",
            "/usr/share/libfontconfig1/x",
        ] {
            assert!(!is_fontconfig(path), "{path}");
        }
    }
}
