//! Classes of C++, by the table of virtual functions to which an object's first word points (Itanium C++ ABI, 2.5
//! and 2.9): it has its class's name before it, also in a program without symbols.

use memprof_report::demangle;

use super::symbols::Symbols;
use crate::snapshot_memory::SnapshotMemory;

/// Of a mangled name.
const NAME_LIMIT: usize = 4096;
/// Before the first function: the distance to the object's beginning, and the class's description.
const TO_TOP: u64 = 16;
const DESCRIPTION: u64 = 8;
/// In the description.
const NAME: u64 = 8;

/// The class whose table of virtual functions lies at an address.
pub(super) fn class_of_vtable(
    view: &SnapshotMemory,
    symbols: &mut Symbols<'_>,
    table: u64,
) -> Option<String> {
    view.region(table).filter(|region| region.is_file)?;
    let is_in_file = |address: &u64| view.region(*address).is_some_and(|region| region.is_file);
    if view.word(table.checked_sub(TO_TOP)?)? != 0 {
        return None;
    }
    let description = view.word(table - DESCRIPTION)?;
    if description == 0 {
        // Compiled without descriptions (-fno-rtti).
        let symbol = symbols.variable(table)?.name;
        return class_of(&symbol);
    }
    // It is an object of the C++ library's itself.
    let is_described =
        is_in_file(&description) && view.word(description).as_ref().is_some_and(is_in_file);
    let name = view.word(description + NAME).filter(is_in_file);
    let name = view.text(name.filter(|_| is_described)?, NAME_LIMIT)?;
    // Of a class that has no name outside of its file.
    let name = name.strip_prefix('*').unwrap_or(&name);
    class_of(&format!("_ZTV{name}"))
}

/// The class of a table's symbol.
fn class_of(symbol: &str) -> Option<String> {
    let name = demangle(symbol.starts_with("_ZTV").then_some(symbol)?);
    let class = name.strip_prefix("{vtable(")?.strip_suffix(")}")?;
    Some(class.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_s_symbol_holds_the_class() {
        let check = |symbol, expected: Option<&str>| {
            assert_eq!(class_of(symbol).as_deref(), expected, "{symbol}");
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
