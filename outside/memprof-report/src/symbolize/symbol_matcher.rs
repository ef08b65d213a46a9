//! Finds the symbol of each address: the best of those that contain it, or else the last one without a size before it.

use std::ops::Range;
use std::time::Instant;

use object::elf::SHF_EXECINSTR;
use object::{
    Object, ObjectSection as _, ObjectSymbol as _, ReadRef, SectionFlags, SymbolIterator,
    SymbolKind,
};

use super::address::LinkedAddress;
use super::segment_tree::SegmentTree;
use super::unwinding_rules::FunctionCode;
use crate::stacks::AddressId;

/// Symbols between two looks at the clock.
const SYMBOLS_PER_CHECK: usize = 1 << 16;

/// Finds the best symbol for each address. The addresses are sorted, not the symbols: a symbol table of any size is
/// read once, and neither copied nor sorted.
pub(super) struct SymbolMatcher<'q, 'd> {
    queries: &'q [(LinkedAddress, AddressId)],
    deadline: Instant,
    best: SegmentTree<Candidate<'d>>,
    /// By address: the last function, and the last label, that start between the address before it and itself.
    functions: Vec<Option<Start<'d>>>,
    labels: Vec<Option<Start<'d>>>,
}

/// Symbol, ordered by preference: the narrower range, the exported name, the name with fewer leading underscores.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate<'d> {
    size: u64,
    is_local: bool,
    underscores: usize,
    name: &'d [u8],
    start: u64,
}

/// Start of a symbol's code.
#[derive(Clone, Copy)]
struct Start<'d> {
    address: u64,
    /// End of its section. `None` if the symbol has a size: no other address is in its function.
    section_end: Option<u64>,
    /// Empty if the symbol has a size: then it is not shown.
    name: &'d [u8],
}

/// Symbol of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FoundSymbol<'d> {
    /// Name, which may be any bytes.
    pub(super) name: &'d [u8],
    pub(super) code: SymbolCode,
}

/// Code that a symbol names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SymbolCode {
    /// The symbol has a size: its code contains the address.
    Sized(FunctionCode),
    /// The symbol has no size: another function, without a symbol, may begin between `start` and the address.
    Unsized { start: u64 },
}

impl<'q, 'd> SymbolMatcher<'q, 'd> {
    /// Prepares to find the symbols of `queries`, whose addresses ascend. Symbols are read until the `deadline`.
    pub(super) fn new(queries: &'q [(LinkedAddress, AddressId)], deadline: Instant) -> Self {
        Self {
            queries,
            deadline,
            best: SegmentTree::new(queries.len()),
            functions: vec![None; queries.len()],
            labels: vec![None; queries.len()],
        }
    }

    /// Reads the symbols of a file, until the deadline: the functions that it defines, and labels in its code. A symbol
    /// that fits an address better replaces one of an earlier file.
    pub(super) fn add_file<R: ReadRef<'d>>(&mut self, file: &object::File<'d, R>) {
        let sections = code_sections(file);
        self.add_symbols(file.dynamic_symbols(), &sections);
        self.add_symbols(file.symbols(), &sections);
    }

    /// Reads symbols, until the deadline. A function contains the bytes that its size says. A function without a size,
    /// and a label, reach to the next symbol or the end of their section; `sections` are the ranges of those with code.
    fn add_symbols<R: ReadRef<'d>>(
        &mut self,
        symbols: SymbolIterator<'d, '_, R>,
        sections: &[Range<u64>],
    ) {
        for (index, symbol) in symbols.enumerate() {
            if index.is_multiple_of(SYMBOLS_PER_CHECK) && Instant::now() > self.deadline {
                return;
            }
            let is_function = match symbol.kind() {
                SymbolKind::Text => true,
                SymbolKind::Unknown => false,
                _ => continue,
            };
            if symbol.is_undefined() {
                continue;
            }
            let (address, size) = (symbol.address(), symbol.size());
            let first = self.queries.partition_point(|&(query, _)| query < address);
            let Some(&(next, _)) = self.queries.get(first) else {
                continue;
            };
            let starts = match is_function {
                true => &mut self.functions[first],
                false => &mut self.labels[first],
            };
            let is_sized = is_function && size > 0;
            let is_last = starts.is_none_or(|known| match known.address == address {
                true => is_sized,
                false => known.address < address,
            });
            let is_candidate = is_sized && next - address < size;
            if !is_last && !is_candidate {
                continue;
            }
            // Other names are not shown, and to find their ends would read the whole table of strings.
            let name = match is_sized && !is_candidate {
                true => Ok(&b""[..]),
                false => symbol.name_bytes(),
            };
            let Ok(name) = name else {
                continue;
            };
            if is_last {
                let mut code = sections.iter();
                let section_end = match is_sized {
                    true => None,
                    false => code
                        .find(|section| section.contains(&address))
                        .map(|section| section.end),
                };
                // A symbol outside of code has no address of code after it.
                if is_sized || section_end.is_some_and(|end| next < end && !name.is_empty()) {
                    *starts = Some(Start {
                        address,
                        section_end,
                        name,
                    });
                }
            }
            if is_candidate {
                let contained =
                    self.queries[first..].partition_point(|&(query, _)| query - address < size);
                let candidate = Candidate {
                    size,
                    is_local: symbol.is_local(),
                    underscores: name.iter().take_while(|&&byte| byte == b'_').count(),
                    name,
                    start: address,
                };
                self.best.insert(first..first + contained, candidate);
            }
        }
    }

    /// Returns whether every address is in a symbol that has a size. A symbol without a size may end before the
    /// address, so a further file may have a better one.
    pub(super) fn is_complete(&self) -> bool {
        let is_sized = |symbol: FoundSymbol<'_>| matches!(symbol.code, SymbolCode::Sized(_));
        self.symbols().all(|symbol| symbol.is_some_and(is_sized))
    }

    /// Returns the best symbol of each address, in the order of the queries: a function whose size contains it, else
    /// the last function or label before it, if that has no size and is in the same section. `None` if there is
    /// neither.
    pub(super) fn symbols(&self) -> impl Iterator<Item = Option<FoundSymbol<'d>>> {
        let starts = self.functions.iter().zip(&self.labels).zip(self.queries);
        let (mut function, mut label): (Option<Start<'d>>, Option<Start<'d>>) = (None, None);
        let nearest = starts.map(move |((next_function, next_label), &(query, _))| {
            function = next_function.or(function);
            label = next_label.or(label);
            let after = |start: &Start<'_>| start.section_end.is_some_and(|end| query < end);
            // A label in a function is a part of it.
            let of_function = function.filter(after);
            let of_label = label
                .filter(after)
                .filter(|label| function.is_none_or(|function| function.address < label.address));
            of_function.or(of_label)
        });
        let best = self.best.best_candidates().zip(nearest);
        best.map(|(best, nearest)| match (best, nearest) {
            (Some(best), _) => Some(FoundSymbol {
                name: best.name,
                code: SymbolCode::Sized(FunctionCode {
                    start: best.start,
                    bytes: best.size,
                }),
            }),
            (None, nearest) => nearest.map(|start| FoundSymbol {
                name: start.name,
                code: SymbolCode::Unsized {
                    start: start.address,
                },
            }),
        })
    }
}

/// Returns the ranges of addresses of the sections that contain code.
fn code_sections<'d, R: ReadRef<'d>>(file: &object::File<'d, R>) -> Vec<Range<u64>> {
    let is_code = |section: &object::Section<'d, '_, R>| match section.flags() {
        SectionFlags::Elf { sh_flags, .. } => sh_flags.0 & SHF_EXECINSTR.0 != 0,
        _ => false,
    };
    let sections = file.sections().filter(is_code);
    let range = |section: object::Section<'d, '_, R>| {
        section.address()..section.address().saturating_add(section.size())
    };
    sections.map(range).collect()
}
