//! Names of managed frames: a table that only grows, in memory of the caller. A name is entered without a lock, and its
//! id is never used again, so that a stack that has it can be read as long as the process exists.
#![expect(unsafe_code, reason = "memory that another crate maps")]

use core::ptr;
use core::sync::atomic::{
    AtomicPtr, AtomicU8, AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

/// Upper 24 bits of a managed word: no address that a processor accepts, and the kind "function of the program". Below
/// are the name's id, and a bit that is set, because tools show a caller as the byte before its return address.
pub const MANAGED: usize = 0x4d_5004;

/// Most names.
const MAX_NAMES: u32 = 1 << 15;
/// Cells, twice the number of names.
const CELLS: usize = 2 * MAX_NAMES as usize;
/// Cells that are tried for a name.
const MAX_PROBES: usize = 64;
/// Bytes of the texts of all names.
const TEXT_BYTES: u32 = 4 << 20;
/// Id of all names for which there is no room. No cell has it. Reports show it as a function of its own.
const OTHER: usize = 0;

/// Memory of the table: zeros at first.
#[derive(Debug)]
#[repr(C)]
pub struct NameMemory {
    names: AtomicU32,
    text_used: AtomicU32,
    cells: [NameCell; CELLS],
    texts: [AtomicU8; TEXT_BYTES as usize],
}

#[derive(Debug)]
#[repr(C)]
struct NameCell {
    /// Hash of the name; 0: free.
    hash: AtomicU64,
    /// Start of the text.
    text: AtomicU32,
    function_len: AtomicU32,
    file_len: AtomicU32,
    /// Line, plus 1 once the text is complete.
    line: AtomicU32,
}

static MEMORY: AtomicPtr<NameMemory> = AtomicPtr::new(ptr::null_mut());

/// Sets the memory of the table of names. Has no effect if it was set before.
pub fn set_name_memory(memory: &'static NameMemory) {
    let memory = (&raw const *memory).cast_mut();
    // The first one stays: ids refer to it.
    let _ = MEMORY.compare_exchange(ptr::null_mut(), memory, AcqRel, Relaxed);
}

/// Returns the memory of the table of names. `None` before [`set_name_memory`].
fn name_memory() -> Option<&'static NameMemory> {
    let memory = MEMORY.load(Acquire);
    // SAFETY: `set_name_memory` stored a reference that is valid for ever.
    unsafe { memory.as_ref() }
}

/// Text of one name while it is entered.
pub(crate) trait NameText {
    /// Passes each byte of the function's name, in UTF-8, to `write`. Called at most once, before
    /// [`write_file_name`](Self::write_file_name).
    fn write_function_name(&self, write: &mut dyn FnMut(u8));
    /// Passes each byte of the file's path, in UTF-8, to `write`. Called at most once.
    fn write_file_name(&self, write: &mut dyn FnMut(u8));
    /// Returns the bytes to reserve: the maximum number that both functions write together.
    fn max_len(&self) -> u32;
}

/// Returns the managed word of the name with this hash: the number that stands for the name in stacks. Adds the name to
/// the table if it is new. If the table is full or has no memory, returns the word that stands for all names that the
/// table does not have.
pub(crate) fn intern_name_or_placeholder(hash: u64, line: u32, text: &impl NameText) -> usize {
    try_intern_name(hash, line, text).unwrap_or(managed_word(OTHER))
}

/// Returns the managed word of the name with this hash: the number that stands for the name in stacks. Adds the name to
/// the table if it is new. `None` if the table is full or has no memory.
pub(crate) fn try_intern_name(hash: u64, line: u32, text: &impl NameText) -> Option<usize> {
    let id = name_memory().and_then(|memory| memory.intern(hash, line, text));
    id.map(managed_word)
}

/// Returns the managed word of the name with this id: the number that stands for the name in stacks. It has
/// [`MANAGED`] in the upper 24 bits, then the id, then a bit that is set.
fn managed_word(id: usize) -> usize {
    MANAGED << 40 | id << 1 | 1
}

impl NameMemory {
    /// Returns the id of the name with this hash, and adds the name if it is new. Names with the same hash count as one
    /// name; texts are not compared. `None` if there is no room for a new name, or if all [`MAX_PROBES`] cells for this
    /// hash have other names. Takes no lock.
    fn intern(&self, hash: u64, line: u32, text: &impl NameText) -> Option<usize> {
        // 0 marks a free cell.
        let hash = hash | 1;
        // The start is from upper bits, because the lowest one is always set.
        let start = (hash >> 20) as usize;
        for probe in 0..MAX_PROBES {
            let id = (start + probe) % CELLS;
            let cell = self.cells.get(id).filter(|_| id != OTHER);
            let Some(cell) = cell else { continue };
            let found = cell.hash.load(Acquire);
            if found == hash {
                return Some(id);
            }
            if found != 0 {
                continue;
            }
            let place = self.reserve_name(text.max_len())?;
            match cell.hash.compare_exchange(0, hash, AcqRel, Acquire) {
                Ok(_) => {
                    self.write_name(cell, place, line, text);
                    return Some(id);
                }
                // Another thread was faster; the reserved text stays unused.
                Err(other) if other == hash => return Some(id),
                Err(_) => {}
            }
        }
        None
    }

    /// Counts a new name and reserves `len` bytes for its text. Nothing releases the reserved bytes. Returns the text's
    /// start. `None` if the table has [`MAX_NAMES`] names or too few bytes are free.
    fn reserve_name(&self, len: u32) -> Option<u32> {
        let is_full = self.names.load(Relaxed) >= MAX_NAMES
            || self.text_used.load(Relaxed).saturating_add(len) > TEXT_BYTES;
        if is_full || self.names.fetch_add(1, Relaxed) >= MAX_NAMES {
            return None;
        }
        let place = self.text_used.fetch_add(len, Relaxed);
        (place.checked_add(len)? <= TEXT_BYTES).then_some(place)
    }

    /// Writes a name's text, at most the reserved [`NameText::max_len`] bytes, at index `place` of the texts, and then
    /// fills in its cell. The line is written last, because it marks the text as complete for other threads.
    fn write_name(&self, cell: &NameCell, place: u32, line: u32, text: &impl NameText) {
        let end = place.saturating_add(text.max_len());
        let mut next = place;
        let mut write = |byte: u8| {
            if next < end
                && let Some(cell) = self.texts.get(next as usize)
            {
                cell.store(byte, Relaxed);
                next += 1;
            }
            next
        };
        let mut after_function = place;
        text.write_function_name(&mut |byte| after_function = write(byte));
        let mut after_file = after_function;
        text.write_file_name(&mut |byte| after_file = write(byte));
        cell.text.store(place, Relaxed);
        cell.function_len.store(after_function - place, Relaxed);
        cell.file_len.store(after_file - after_function, Relaxed);
        // 0 marks an incomplete text, so the line is stored plus 1.
        cell.line.store(line.saturating_add(1), Release);
    }
}

/// A name in the table.
#[derive(Clone, Copy, Debug)]
pub struct ManagedName<'a> {
    /// Managed word in stacks.
    pub word: u64,
    /// Bytes of the function's name, then of its file's, in UTF-8.
    text: &'a [AtomicU8],
    function_len: usize,
    /// Line that was executed; 0 if unknown.
    pub line: u32,
}

impl ManagedName<'_> {
    /// Iterates over the bytes of the function's qualified name, in UTF-8.
    pub fn function(&self) -> impl Iterator<Item = u8> + '_ {
        let function = self.text.iter().take(self.function_len);
        function.map(|byte| byte.load(Relaxed))
    }

    /// Iterates over the bytes of the file's path, in UTF-8, as the program names it.
    pub fn file(&self) -> impl Iterator<Item = u8> + '_ {
        let file = self.text.iter().skip(self.function_len);
        file.map(|byte| byte.load(Relaxed))
    }
}

/// Visits all names in the table, in no particular order. Skips names that are just being added.
pub fn for_each_name(mut visit: impl FnMut(ManagedName<'_>)) {
    let Some(memory) = name_memory() else { return };
    for (id, cell) in memory.cells.iter().enumerate() {
        let line = cell.line.load(Acquire);
        let [start, function_len, file_len] = [&cell.text, &cell.function_len, &cell.file_len]
            .map(|word| word.load(Relaxed) as usize);
        let text = memory.texts.get(start..start + function_len + file_len);
        // A cell has 0 until its text is complete, and then the line plus 1.
        if let (Some(line), Some(text)) = (line.checked_sub(1), text) {
            let word = managed_word(id) as u64;
            visit(ManagedName {
                word,
                text,
                function_len,
                line,
            });
        }
    }
}

/// Returns the number of names in the table. With long texts, the table is full before it has [`MAX_NAMES`] names.
pub(crate) fn name_count() -> u32 {
    let names = name_memory().map_or(0, |memory| memory.names.load(Relaxed));
    names.min(MAX_NAMES)
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::alloc::{Layout, alloc_zeroed};
    use std::format;
    use std::string::String;
    use std::vec::Vec;

    use super::*;

    struct Text(String, String);

    impl NameText for Text {
        fn write_function_name(&self, write: &mut dyn FnMut(u8)) {
            self.0.bytes().for_each(write);
        }
        fn write_file_name(&self, write: &mut dyn FnMut(u8)) {
            self.1.bytes().for_each(write);
        }
        fn max_len(&self) -> u32 {
            (self.0.len() + self.1.len()) as u32
        }
    }

    #[test]
    fn full_table_counts_further_names_as_others() {
        // SAFETY: the layout has a size.
        let memory = unsafe { alloc_zeroed(Layout::new::<NameMemory>()) };
        // SAFETY: it has room for the table, of which zeros are a valid value, and is never freed.
        let memory = unsafe { &*memory.cast::<NameMemory>() };
        set_name_memory(memory);
        let name = |number: u64| Text(format!("f{number}"), "größe.py".into());
        let word = |number: u64| {
            let hash = number.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            intern_name_or_placeholder(hash, number as u32, &name(number))
        };
        let words: Vec<usize> = (0..100_000).map(word).collect();
        let other = MANAGED << 40 | 1;
        let named = words.iter().filter(|word| **word != other).count();
        assert_eq!(named, MAX_NAMES as usize);
        assert_eq!(name_count(), MAX_NAMES);
        assert_eq!(try_intern_name(u64::MAX, 1, &name(0)), None);
        // The names that are in keep their words.
        let again: Vec<usize> = (0..1000).map(word).collect();
        assert_eq!(again, words[..1000]);
        let mut found = 0;
        for_each_name(|name| {
            found += 1;
            let number = words.iter().position(|word| *word as u64 == name.word);
            let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
            assert_eq!(number, Some(name.line as usize));
            assert_eq!(text(name.function().collect()), format!("f{}", name.line));
            assert_eq!(text(name.file().collect()), "größe.py");
        });
        assert_eq!(found, MAX_NAMES);
    }
}
