//! Symbols that a program's file defines.

use memchr::memmem;
use object::read::elf::{ElfFile64, SectionHeader, Sym};
use object::{Endianness, ReadRef};

/// Returns the names of the symbols that a file defines and `is_selected` accepts. `text` must be a part of every name
/// to be found: a symbol table in whose names it does not occur is skipped. A symbol of both tables is returned twice.
pub(crate) fn defined_names<'d, R: ReadRef<'d>>(
    elf: &ElfFile64<'d, Endianness, R>,
    text: &[u8],
    is_selected: impl Fn(&[u8]) -> bool,
) -> Vec<&'d [u8]> {
    let mut names = Vec::new();
    for table in [elf.elf_symbol_table(), elf.elf_dynamic_symbol_table()] {
        let strings = elf.elf_section_table().section(table.string_section());
        let strings = strings.and_then(|section| section.data(elf.endian(), elf.data()));
        let Ok(strings) = strings else {
            continue;
        };
        // Nearly all programs lack the text. One search for it is faster than a check of each name.
        if memmem::find(strings, text).is_none() {
            continue;
        }
        let selected = table.iter().filter_map(|symbol| {
            let name = strings.get(symbol.st_name(elf.endian()) as usize..)?;
            let name = name.split(|byte| *byte == 0).next()?;
            let is_defined = || symbol.is_definition(elf.endian(), table.strings());
            (is_selected(name) && is_defined()).then_some(name)
        });
        names.extend(selected);
    }
    names
}
