//! What the slots of a process hold, read from its memory.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result, ensure};
use object::{Object, ObjectSection, ObjectSegment};

/// The sections that hold slots.
const SECTIONS: [&str; 2] = [".got", ".got.plt"];

/// The words of each object's slots, by its path, and where each object lies.
#[derive(Debug, Default)]
pub(super) struct Slots {
    words: BTreeMap<String, Vec<u64>>,
    places: BTreeMap<String, Range<u64>>,
}

impl Slots {
    pub(super) fn of(pid: u32) -> Result<Self> {
        Self::of_lasting(pid, |_| true)
    }

    /// Those of objects that stay loaded: one that comes and goes may not be there, or not yet be linked, while
    /// it is read.
    pub(super) fn of_lasting(pid: u32, stays: impl Fn(&str) -> bool) -> Result<Self> {
        let memory = File::open(format!("/proc/{pid}/mem"))?;
        let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
        let mut slots = Self::default();
        for line in maps.lines() {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            let [range, _, offset, _, _, path] = words[..] else {
                continue;
            };
            let (start, end) = range.split_once('-').context("a range")?;
            let start = u64::from_str_radix(start, 16)?;
            let end = u64::from_str_radix(end, 16)?;
            if let Some(dir) = slots.places.get_mut(path) {
                dir.end = end;
            } else if path.starts_with('/') && offset == "00000000" && stays(path) {
                slots.places.insert(path.to_owned(), start..end);
            }
        }
        for (path, dir) in &slots.places {
            // Not every mapped file is an object.
            let Ok(bytes) = fs::read(path) else {
                continue;
            };
            let Ok(elf) = object::File::parse(&*bytes) else {
                continue;
            };
            let first = elf.segments().map(|segment| segment.address()).min();
            let bias = dir.start - first.context("segments")?;
            let mut held = Vec::new();
            let is_slots = |name: &str| SECTIONS.contains(&name);
            for section in elf
                .sections()
                .filter(|each| each.name().is_ok_and(is_slots))
            {
                let mut bytes = vec![0; usize::try_from(section.size())?];
                memory.read_exact_at(&mut bytes, bias + section.address())?;
                let words = bytes.chunks_exact(8);
                held.extend(words.map(|word| u64::from_ne_bytes(word.try_into().expect("8"))));
            }
            slots.words.insert(path.clone(), held);
        }
        ensure!(slots.words.len() > 2, "no slots: {maps}");
        Ok(slots)
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.words.values().map(Vec::len).sum()
    }

    /// Fails unless they hold what they held before. One that led into its own object was lazy, and
    /// may have been filled by the loader since, with something that is not ours.
    pub(super) fn check_as(&self, before: &Self) -> Result<()> {
        let plugin = |path: &str| path.contains("memory_profile.so") || path.contains("memfd:");
        let ours: Vec<&Range<u64>> = self
            .places
            .iter()
            .filter(|(path, _)| plugin(path))
            .map(|(_, dir)| dir)
            .collect();
        for (path, words) in self.words.iter().filter(|(path, _)| !plugin(path)) {
            for word in words {
                let is_ours = ours.iter().any(|dir| dir.contains(word));
                ensure!(!is_ours, "{path}: a slot holds {word:#x}, which is ours");
            }
            let Some(held) = before.words.get(path) else {
                continue;
            };
            let dir = &self.places[path];
            for (number, (then, now)) in held.iter().zip(words).enumerate() {
                ensure!(
                    then == now || dir.contains(then),
                    "{path}: slot {number} holds {now:#x}, before it held {then:#x}"
                );
            }
        }
        Ok(())
    }
}
