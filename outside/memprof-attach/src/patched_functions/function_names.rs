//! Recognizes the functions of allocators by their names.

use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

use memchr::memmem;
use memprof_sampler::{C_FUNCTIONS, NamedShapes, OTHER_FUNCTIONS, PREFIXES, Role, Shape};

/// Function by which a jemalloc is recognized, whatever its prefix: jemalloc calls it itself, so no linker omits it.
const JEMALLOC: &str = "mallctl";
/// Each allocator has functions whose names contain one of these texts.
const TEXTS: [&str; 8] = [
    JEMALLOC,
    "mi_malloc",
    "tc_malloc",
    "sn_malloc",
    "sn_rust_alloc",
    "rpmalloc",
    "dlmalloc",
    "scudo_malloc",
];
/// Group of `operator new` and `operator delete`, whose names begin with it.
const OPERATORS: &str = "_Z";

static C_SHAPES: LazyLock<HashMap<&str, Shape>> = LazyLock::new(|| shapes_by_name(C_FUNCTIONS));
static OTHER_SHAPES: LazyLock<HashMap<&str, Shape>> =
    LazyLock::new(|| shapes_by_name(OTHER_FUNCTIONS));

/// Maps each function's name in a table to its shape.
fn shapes_by_name(table: &[NamedShapes]) -> HashMap<&'static str, Shape> {
    let named = table
        .iter()
        .flat_map(|(shape, names)| names.iter().map(|name| (*name, *shape)));
    named.collect()
}

/// A function of an allocator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KnownFunction {
    pub(crate) name: String,
    pub(crate) shape: Shape,
    /// Prefix that the allocator's functions share; empty for those of C.
    pub(crate) group: String,
}

/// Names of a file's allocators.
#[derive(Debug)]
pub(crate) struct FunctionNames {
    serves_malloc: bool,
    is_program: bool,
    prefixes: HashSet<String>,
}

impl FunctionNames {
    /// Creates the names for one file, with the prefixes of all known allocators but jemalloc, which
    /// [`Self::add_jemalloc_prefix`] adds. `serves_malloc` says whether the file's `malloc` is that of the process,
    /// `is_program` whether the file is the program or a library.
    pub(crate) fn new(serves_malloc: bool, is_program: bool) -> Self {
        Self {
            serves_malloc,
            is_program,
            prefixes: PREFIXES
                .iter()
                .map(|(prefix, _)| (*prefix).to_owned())
                .collect(),
        }
    }

    /// Adds the prefix of a jemalloc if `name` is that of its function [`JEMALLOC`] (`mallctl`): the text before it.
    pub(crate) fn add_jemalloc_prefix(&mut self, name: &[u8]) {
        let prefix = name.strip_suffix(JEMALLOC.as_bytes());
        if let Some(prefix) = prefix.and_then(|prefix| str::from_utf8(prefix).ok()) {
            self.prefixes.insert(prefix.to_owned());
        }
    }

    /// Finds the allocator function with that name. `is_local` says whether the symbol is local to its file. `None` if
    /// no allocator has the name. Also `None` for a name of C that is another function here: a local one in a file that
    /// exports `malloc`, or any in a library that does not.
    pub(crate) fn find(&self, name: &[u8], is_local: bool) -> Option<KnownFunction> {
        let name = str::from_utf8(name).ok()?;
        let known = |shape: Shape, group: &str| KnownFunction {
            name: name.to_owned(),
            shape,
            group: group.to_owned(),
        };
        if let Some(shape) = OTHER_SHAPES.get(name) {
            let prefixes = PREFIXES.iter().map(|(prefix, _)| *prefix);
            let mut prefixes = prefixes.chain([OPERATORS]);
            let group = prefixes.find(|prefix| name.starts_with(prefix))?;
            let is_other = group == OPERATORS && is_local && self.serves_malloc;
            return (!is_other).then(|| known(*shape, group));
        }
        // A library calls its own `malloc` only if it exports it.
        let is_meant = match self.serves_malloc {
            true => !is_local,
            false => self.is_program,
        };
        if let Some(shape) = C_SHAPES.get(name).filter(|_| is_meant) {
            return Some(known(*shape, ""));
        }
        let mut prefixes = self.prefixes.iter().filter(|prefix| !prefix.is_empty());
        prefixes.find_map(|prefix| {
            let shape = C_SHAPES.get(name.strip_prefix(&**prefix)?)?;
            Some(known(*shape, prefix))
        })
    }

    /// Returns the groups of `functions` to patch; a group is the common prefix of an allocator's names. Returns all
    /// groups if the file serves `malloc`. Otherwise returns only the groups that both allocate and free. If the C++
    /// operators are the only such group, returns none: they then belong to the C++ library, and call `malloc`.
    pub(crate) fn groups_to_patch<'a>(
        &self,
        functions: impl Iterator<Item = &'a KnownFunction>,
    ) -> HashSet<String> {
        let (mut allocating, mut freeing) = (HashSet::new(), HashSet::new());
        for function in functions {
            match (function.shape.role(), function.shape) {
                (Role::Allocates, _) => allocating.insert(function.group.clone()),
                (Role::Frees, Shape::Free) => freeing.insert(function.group.clone()),
                (Role::Frees, _) => false,
            };
        }
        let complete: HashSet<_> = allocating.intersection(&freeing).cloned().collect();
        match complete.iter().all(|group| group == OPERATORS) && !self.serves_malloc {
            true => HashSet::new(),
            // The names of malloc's owner are checked one by one.
            false if self.serves_malloc => allocating.union(&freeing).cloned().collect(),
            false => complete,
        }
    }
}

/// Returns whether a table of names may contain those of an allocator that does not serve `malloc`.
pub(crate) fn may_contain_allocator(names: &[u8]) -> bool {
    TEXTS
        .iter()
        .any(|text| memmem::find(names, text.as_bytes()).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks which of the symbols count as allocator functions; a local symbol ends with `*`.
    fn check(serves_malloc: bool, is_program: bool, symbols: &[&str], expected: &[&str]) {
        let mut names = FunctionNames::new(serves_malloc, is_program);
        for symbol in symbols {
            names.add_jemalloc_prefix(symbol.trim_end_matches('*').as_bytes());
        }
        let found: Vec<_> = symbols
            .iter()
            .filter_map(|symbol| {
                names.find(
                    symbol.trim_end_matches('*').as_bytes(),
                    symbol.ends_with('*'),
                )
            })
            .collect();
        let groups = names.groups_to_patch(found.iter());
        let found = found.iter().filter(|each| groups.contains(&each.group));
        let found: Vec<_> = found.map(|each| &*each.name).collect();
        assert_eq!(found, expected, "{symbols:?}");
    }

    #[test]
    fn functions_of_allocators_with_any_prefix_are_recognized() {
        let beside = |symbols: &[&str], expected: &[&str]| check(false, true, symbols, expected);
        let rust = [
            "_rjem_mallctl",
            "_rjem_malloc",
            "_rjem_sdallocx",
            "_rjem_mallctlbymib",
        ];
        beside(&rust, &["_rjem_malloc", "_rjem_sdallocx"]);
        beside(
            &["duckdb_je_mallctl*", "duckdb_je_malloc*", "duckdb_je_free*"],
            &["duckdb_je_malloc", "duckdb_je_free"],
        );
        // Of no jemalloc: a function of that prefix may do anything.
        beside(&["my_malloc", "my_free"], &[]);
        // Without one that frees, nothing is complete.
        beside(&["mi_malloc", "mi_version"], &[]);
        beside(
            &["mi_malloc_aligned", "mi_free"],
            &["mi_malloc_aligned", "mi_free"],
        );
        beside(
            &["sn_rust_alloc", "sn_rust_dealloc", "sn_rust_realloc"],
            &["sn_rust_alloc", "sn_rust_dealloc", "sn_rust_realloc"],
        );
        beside(&["rpmalloc", "rpfree"], &["rpmalloc", "rpfree"]);
        // The C++ library's operators, and those of an allocator.
        beside(&["_Znwm", "_ZdlPv"], &[]);
        beside(
            &["_Znwm", "_ZdlPv", "je_mallctl", "je_malloc", "je_free"],
            &["_Znwm", "_ZdlPv", "je_malloc", "je_free"],
        );
        // A malloc that the program hides from its libraries.
        beside(&["malloc*", "free*"], &["malloc", "free"]);
    }

    #[test]
    fn names_of_c_are_those_of_the_owner_of_malloc() {
        check(
            true,
            true,
            &["malloc", "free", "realloc*"],
            &["malloc", "free"],
        );
        check(
            false,
            false,
            &["malloc", "free", "mi_malloc", "mi_free"],
            &["mi_malloc", "mi_free"],
        );
        check(
            true,
            false,
            &["malloc", "free", "mi_new", "_Znwm"],
            &["malloc", "free", "mi_new", "_Znwm"],
        );
    }
}
