//! Classes of C++, by the virtual table to which an object's first word points (Itanium C++ ABI, 2.5 and
//! 2.9). The class's type information is in front of the table, also in a program without symbols.

use memprof_report::demangle;

use super::symbols::Symbols;
use crate::snapshot_memory::SnapshotMemory;

/// Most bytes of a mangled name.
const NAME_LIMIT: usize = 4096;
/// Distance from the table back to the offset-to-top, in bytes.
const OFFSET_TO_TOP: u64 = 16;
/// Distance from the table back to the pointer to the type information.
const TYPE_INFO: u64 = 8;
/// Offset of the pointer to the name in the type information.
const NAME_OFFSET: u64 = 8;

/// Name of the class whose virtual table is at an address, from the type information in front of the table, or from the
/// table's symbol if there is no type information. `None` if no such table is there, its class has no name, or one of
/// these cannot be read.
pub(super) fn class_of_vtable(
    view: &SnapshotMemory,
    symbols: &mut Symbols<'_>,
    table: u64,
) -> Option<String> {
    view.region(table).filter(|region| region.is_file)?;
    let is_in_file = |address: &u64| view.region(*address).is_some_and(|region| region.is_file);
    // An object's first word points to a primary virtual table, whose offset-to-top is 0.
    if view.read_word(table.checked_sub(OFFSET_TO_TOP)?)? != 0 {
        return None;
    }
    let type_info = view.read_word(table - TYPE_INFO)?;
    if type_info == 0 {
        // The program was compiled without type information (-fno-rtti).
        let symbol = symbols.variable_at(table)?.name;
        return class_of_symbol(&symbol);
    }
    // The type information is itself an object of the C++ library, with a virtual table.
    let is_type_info =
        is_in_file(&type_info) && view.read_word(type_info).as_ref().is_some_and(is_in_file);
    let name = view.read_word(type_info + NAME_OFFSET).filter(is_in_file);
    let name = view.read_text(name.filter(|_| is_type_info)?, NAME_LIMIT)?;
    // A leading `*` marks a class that is local to its file.
    let name = name.strip_prefix('*').unwrap_or(&name);
    class_of_symbol(&format!("_ZTV{name}"))
}

/// Name of the class whose virtual table a mangled symbol names. `None` if it is another symbol.
fn class_of_symbol(symbol: &str) -> Option<String> {
    let name = demangle(symbol.starts_with("_ZTV").then_some(symbol)?);
    let class = name.strip_prefix("{vtable(")?.strip_suffix(")}")?;
    Some(class.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbol_of_vtable_names_class() {
        let check = |symbol, expected: Option<&str>| {
            assert_eq!(class_of_symbol(symbol).as_deref(), expected, "{symbol}");
        };
        check("_ZTV7Session", Some("Session"));
        check("_ZTVN3web7SessionE", Some("web::Session"));
        check(
            "_ZTVN12_GLOBAL__N_15OrderE",
            Some("(anonymous namespace)::Order"),
        );
        check("_ZTV4ListIiE", Some("List<int>"));
        check("_ZTI7Session", None);
        check("_ZTVnonsense", None);
        check("sessions", None);
    }
}
