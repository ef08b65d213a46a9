//! Names of classes with their modules.

use super::dicts::Dict;
use super::layout::Layout;
use super::types::PythonTypes;
use crate::snapshot_memory::SnapshotMemory;

/// `PyTypeObject.tp_dict`.
pub(super) const CLASS_DICT: u64 = 264;
/// Module of the interpreter's own types, which is not shown.
const BUILTINS: &str = "builtins";

impl Layout {
    /// Name of a class that the program has made, as `module.Class` or `module.Outer.Inner`; without the module if that
    /// is `builtins`. `budget` is the number of dict entries that may still be read; those that are read are
    /// subtracted. `None` if the class has no `__module__`, or its names cannot be read within the budget.
    pub(super) fn class_name(
        &self,
        view: &SnapshotMemory,
        class: u64,
        types: &mut PythonTypes<'_>,
        budget: &mut u64,
    ) -> Option<String> {
        // `PyHeapTypeObject.ht_qualname` is in front of `ht_cached_keys` in all versions.
        let name = view.read_field(class, self.cached_keys - 8)?;
        let name = self.read_text(view, name, types)?;
        let module = self.module_of_class(view, class, types, budget)?;
        Some(match module.as_str() {
            BUILTINS => name,
            module => format!("{module}.{name}"),
        })
    }

    /// Module of a class, its `__module__`. `budget` is the number of dict entries that may still be read. `None` if
    /// the class has no such entry, or it cannot be read within `budget`.
    pub(super) fn module_of_class(
        &self,
        view: &SnapshotMemory,
        class: u64,
        types: &mut PythonTypes<'_>,
        budget: &mut u64,
    ) -> Option<String> {
        let dict = Dict::read(
            view,
            self,
            view.read_field(class, CLASS_DICT)?,
            types,
            budget,
        )?;
        dict.entries.into_iter().find_map(|(key, value)| {
            let is_module = self.read_text(view, key, types)? == "__module__";
            is_module.then(|| self.read_text(view, value, types))?
        })
    }
}
