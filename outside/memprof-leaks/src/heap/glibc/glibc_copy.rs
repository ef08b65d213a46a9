//! Copies of glibc in a process, each with arenas of its own: a process has several after dlmopen(3), with `LD_AUDIT`,
//! and if a statically linked program calls dlopen(3).

use super::arena::{Arena, find_arenas_in};
use super::layout::is_in_c_library;
use super::main_arena::brk_range;
use super::parameters::Parameters;
use crate::snapshot_memory::SnapshotMemory;

/// Copy of glibc whose malloc was used.
#[derive(Debug)]
pub(super) struct GlibcCopy {
    pub(super) main_arena: Arena,
    pub(super) other_arenas: Vec<Arena>,
    /// State that its arenas share; `None` if it is not found.
    pub(super) parameters: Option<Parameters>,
}

impl GlibcCopy {
    /// Finds all copies by their arenas. Searches the variables of the files that are named like glibc's main library.
    /// If the program's own copy is not among these, also searches all other files, because glibc may be linked
    /// statically into one.
    pub(super) fn find_all(view: &SnapshotMemory) -> Vec<Self> {
        let data = || {
            let regions = view.regions.iter();
            regions
                .filter(|region| region.is_file && region.is_writable && !region.pages.is_empty())
        };
        let libraries = data().filter(|region| is_in_c_library(region));
        let mut copies: Vec<_> = libraries
            .filter_map(|region| Self::new(view, find_arenas_in(view, region)?))
            .collect();
        // Without memory of brk(2), no copy that uses it is missing (`glibc.malloc.hugetlb=2`).
        let may_lack_own =
            brk_range(view).is_some() && !copies.iter().any(|copy| copy.may_use_brk(view));
        if copies.is_empty() || may_lack_own {
            let mut others = data().filter(|region| !is_in_c_library(region));
            let linked = others.find_map(|region| find_arenas_in(view, region));
            copies.extend(linked.and_then(|arenas| Self::new(view, arenas)));
        }
        copies
    }

    /// Creates the copy with these arenas, of which the first is the main one, and finds their shared parameters in
    /// memory. `None` if `arenas` is empty.
    fn new(view: &SnapshotMemory, mut arenas: Vec<Arena>) -> Option<Self> {
        let others = arenas.split_off(1.min(arenas.len()));
        let main = arenas.pop()?;
        Some(Self {
            main_arena: main,
            other_arenas: others,
            parameters: Parameters::find(view, &main),
        })
    }

    /// Whether the copy's main arena may have memory of brk(2). glibc lets only the program's own copy use it
    /// (`__always_fail_morecore`).
    pub(super) fn may_use_brk(&self, view: &SnapshotMemory) -> bool {
        let began_there = |parameters: &Parameters| {
            brk_range(view).is_some_and(|brk| brk.contains(&parameters.first_chunk))
        };
        self.main_arena.is_contiguous(view) || self.parameters.as_ref().is_some_and(began_there)
    }

    /// Whether one of the copy's arenas has memory; also true if the main arena's top chunk cannot be read. False for a
    /// copy that allocated nothing, which has no thread caches.
    pub(super) fn has_memory(&self, view: &SnapshotMemory) -> bool {
        !self.other_arenas.is_empty() || self.main_arena.top_chunk(view) != Some(None)
    }

    /// Arenas of the copy, the main one first.
    pub(super) fn arenas(&self) -> impl Iterator<Item = &Arena> {
        std::iter::once(&self.main_arena).chain(&self.other_arenas)
    }
}
