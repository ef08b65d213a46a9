//! Values of a process's GOT slots, read from its memory.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result, ensure};
use object::{Object, ObjectSection, ObjectSegment};

/// Sections with GOT slots.
const SECTIONS: [&str; 2] = [".got", ".got.plt"];

/// Values of the GOT slots of each mapped object, and the object's addresses, by its path.
#[derive(Debug, Default)]
pub(super) struct Slots {
    words: BTreeMap<String, Vec<u64>>,
    ranges: BTreeMap<String, Range<u64>>,
}

impl Slots {
    /// Reads the GOT slots of all ELF objects that a process has mapped.
    pub(super) fn read(pid: u32) -> Result<Self> {
        Self::read_permanent(pid, |_| true)
    }

    /// Reads the GOT slots of the mapped ELF objects for whose path `is_permanent` returns true. Other objects may be
    /// unloaded, or not be linked yet, while their slots are read. Fails if fewer than three objects are found.
    pub(super) fn read_permanent(pid: u32, is_permanent: impl Fn(&str) -> bool) -> Result<Self> {
        let memory = File::open(format!("/proc/{pid}/mem"))?;
        let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
        let mut slots = Self::default();
        for line in maps.lines() {
            // Range, permissions, offset in the file, device, inode, path (proc_pid_maps(5)).
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            let [range, _, offset, _, _, path] = words[..] else {
                continue;
            };
            let (start, end) = range.split_once('-').context("a range")?;
            let start = u64::from_str_radix(start, 16)?;
            let end = u64::from_str_radix(end, 16)?;
            if let Some(range) = slots.ranges.get_mut(path) {
                range.end = end;
            } else if path.starts_with('/') && offset == "00000000" && is_permanent(path) {
                slots.ranges.insert(path.to_owned(), start..end);
            }
        }
        for (path, range) in &slots.ranges {
            // Some mapped files are no ELF objects.
            let Ok(bytes) = fs::read(path) else {
                continue;
            };
            let Ok(elf) = object::File::parse(&*bytes) else {
                continue;
            };
            let first = elf.segments().map(|segment| segment.address()).min();
            let bias = range.start - first.context("segments")?;
            let mut values = Vec::new();
            let is_slots = |name: &str| SECTIONS.contains(&name);
            for section in elf
                .sections()
                .filter(|each| each.name().is_ok_and(is_slots))
            {
                let mut bytes = vec![0; usize::try_from(section.size())?];
                memory.read_exact_at(&mut bytes, bias + section.address())?;
                let words = bytes.chunks_exact(8);
                values.extend(words.map(|word| u64::from_ne_bytes(word.try_into().expect("8"))));
            }
            slots.words.insert(path.clone(), values);
        }
        ensure!(slots.words.len() > 2, "no slots: {maps}");
        Ok(slots)
    }

    /// Returns the number of slots that were read, of all objects together.
    pub(super) fn count(&self) -> usize {
        self.words.values().map(Vec::len).sum()
    }

    /// Fails if a slot holds an address of the plugin, or another value than in `before`. Slots of objects that
    /// `before` lacks have no earlier value. A slot that pointed into its own object may have any value now, because it
    /// was lazy: the dynamic loader fills it at the first call.
    pub(super) fn check_equal(&self, before: &Self) -> Result<()> {
        let plugin = |path: &str| path.contains("memory_profile.so") || path.contains("memfd:");
        let plugin_ranges: Vec<&Range<u64>> = self
            .ranges
            .iter()
            .filter(|(path, _)| plugin(path))
            .map(|(_, range)| range)
            .collect();
        for (path, words) in self.words.iter().filter(|(path, _)| !plugin(path)) {
            for word in words {
                let is_plugin = plugin_ranges.iter().any(|range| range.contains(word));
                ensure!(
                    !is_plugin,
                    "{path}: a slot has {word:#x}, an address of the plugin"
                );
            }
            let Some(values) = before.words.get(path) else {
                continue;
            };
            let range = &self.ranges[path];
            for (number, (then, now)) in values.iter().zip(words).enumerate() {
                ensure!(
                    then == now || range.contains(then),
                    "{path}: slot {number} holds {now:#x}, before it held {then:#x}"
                );
            }
        }
        Ok(())
    }
}
