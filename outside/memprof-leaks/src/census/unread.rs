//! Objects and tables that a census could not read, with their sizes.

use memprof_report::{SampleType, format_amount};

use crate::objects::Objects;
use crate::python::ObjectSize;
use crate::snapshot_memory::SnapshotMemory;

/// Number of things, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Amount {
    count: u64,
    bytes: u64,
}

impl Amount {
    /// Counts one more object or table, of `bytes` bytes.
    pub(super) fn add_item(&mut self, bytes: u64) {
        self.count += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Returns a text such as `1.50MiB in 12 objects`, in which `things` is the last word.
    fn to_text(self, things: &str) -> String {
        let size = format_amount(self.bytes.cast_signed(), SampleType::InuseSpace);
        format!("{size} in {} {things}", self.count)
    }
}

/// Objects and tables that were not read.
#[derive(Debug, Default)]
pub(super) struct Unread {
    /// Objects whose types were not read.
    pub(super) untyped: Amount,
    /// Objects of types beyond those that have a row.
    pub(super) other_types: Amount,
    /// Objects whose fields are inconsistent.
    pub(super) inconsistent: Amount,
    /// Tables in memory that no known allocator gave out.
    pub(super) foreign_tables: Amount,
}

impl Unread {
    /// Counts the tables of an object that lie outside all walked heaps, each at most up to the end of its mapping.
    /// Omits tables at unmapped addresses, and tables in mapped files: those are constants of the interpreter.
    pub(super) fn add_foreign_tables(
        &mut self,
        size: &ObjectSize,
        objects: &Objects,
        view: &SnapshotMemory,
    ) {
        for &(table, bytes) in size.tables.iter().flatten() {
            if bytes == 0 || objects.object_at(table).is_some() {
                continue;
            }
            if let Some(region) = view.region(table).filter(|region| !region.is_file) {
                self.foreign_tables
                    .add_item(bytes.min(region.range.end - table));
            }
        }
    }

    /// Returns a warning, with number and size, for each kind of objects or tables that were not read, or not counted
    /// by type.
    pub(super) fn warnings(&self) -> Vec<String> {
        let kinds = [
            (
                self.untyped,
                "objects are in no row: too many types were read before theirs",
            ),
            (
                self.other_types,
                "objects have one row together, because there are too many types",
            ),
            (
                self.inconsistent,
                "objects have inconsistent fields: their own memory counts, without tables",
            ),
            (
                self.foreign_tables,
                "tables of objects do not count: they lie in memory of an allocator that is not known",
            ),
        ];
        let kinds = kinds.into_iter().filter(|(amount, _)| amount.count > 0);
        kinds.map(|(amount, text)| amount.to_text(text)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_said_with_its_size() {
        let mut unread = Unread::default();
        assert_eq!(unread.warnings(), [""; 0]);
        unread.untyped.add_item(48);
        unread.untyped.add_item(2000);
        unread.inconsistent.add_item(u64::MAX);
        let warnings = unread.warnings();
        assert!(
            warnings[0].starts_with("2.00KiB in 2 objects are in no row"),
            "{warnings:?}"
        );
        assert_eq!(warnings.len(), 2);
    }
}
