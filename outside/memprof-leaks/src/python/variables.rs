//! Variables of modules and attributes of classes.

use std::collections::HashSet;
use std::rc::Rc;

use super::class_names::CLASS_DICT;
use super::dicts::Dict;
use super::interpreters::Interpreters;
use super::python_type::TypeFlag;
use super::types::PythonTypes;
use crate::snapshot_memory::SnapshotMemory;

/// Most variables of a process that are found; the others are reached from their modules.
const MAX_VARIABLES: usize = 1 << 17;
/// Most bytes of the variables' names: many variables may have one long name.
const MAX_NAME_BYTES: usize = 32 << 20;
/// Most entries of all dicts that are read: many modules may have one dict.
const MAX_READ_ENTRIES: u64 = 1 << 22;
/// Most classes whose attributes are found.
const MAX_CLASSES: usize = 1 << 16;
/// Depth of classes in classes whose attributes are found.
const MAX_DEPTH: usize = 4;
/// `PyModuleObject.md_dict`.
const MODULE_DICT: u64 = 16;

/// Types of objects that a class has for its methods and their documentation, and of plain constants.
const CLASS_PARTS: [&str; 16] = [
    "function",
    "classmethod",
    "staticmethod",
    "property",
    "getset_descriptor",
    "member_descriptor",
    "method_descriptor",
    "classmethod_descriptor",
    "wrapper_descriptor",
    "builtin_function_or_method",
    "str",
    "int",
    "float",
    "bool",
    "NoneType",
    "bytes",
];

/// Owner of a variable's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum VariableOwner {
    /// Data in a variable, or in an attribute of a class.
    Data {
        /// `module.NAME` or `module.Class.NAME`.
        name: String,
        /// Type of its value.
        class: Rc<str>,
    },
    /// A function, a class or a constant of a module.
    Module(Rc<str>),
}

/// A pointer from a module's or a class's table to a value.
#[derive(Clone, Debug)]
pub(crate) struct PythonVariable {
    pub(crate) owner: VariableOwner,
    /// Address of the table that contains the pointer.
    pub(crate) table: u64,
    /// Address of the value.
    pub(crate) value: u64,
}

/// Search for variables.
struct VariableSearch<'a, 't> {
    view: &'a SnapshotMemory,
    interpreters: &'a Interpreters,
    types: &'t mut PythonTypes<'a>,
    seen: HashSet<u64>,
    /// Number of entries that may still be read.
    budget: u64,
    /// Bytes of the names of `found`.
    name_bytes: usize,
    found: Vec<PythonVariable>,
    left_out: LeftOut,
}

/// Numbers of parts that a limit has left out.
#[derive(Clone, Copy, Debug, Default)]
struct LeftOut {
    /// Modules whose variables were not read.
    modules: u64,
    /// Classes whose attributes were not read.
    classes: u64,
    /// Variables of other modules and classes.
    variables: u64,
}

impl LeftOut {
    /// Warning about the parts that a limit has left out, with their numbers. `None` if nothing was left out.
    fn warning(self) -> Option<String> {
        let parts = [
            (self.modules, "modules"),
            (self.classes, "classes"),
            (self.variables, "single variables"),
        ];
        let parts = parts.iter().filter(|(count, _)| *count > 0);
        let parts: Vec<_> = parts
            .map(|(count, part)| format!("{count} {part}"))
            .collect();
        (!parts.is_empty()).then(|| {
            format!(
                "what Python's variables hold is shown below others for {}: too much was read before, or a table has too \
                 many entries",
                parts.join(", ")
            )
        })
    }
}

/// Finds the variables of all modules in `sys.modules`, and those of their classes, until a limit is reached. Also
/// returns a warning with the numbers of modules, classes and variables that are left out; `None` if none is.
pub(crate) fn find_variables<'a>(
    view: &'a SnapshotMemory,
    interpreters: &'a Interpreters,
    types: &mut PythonTypes<'a>,
) -> (Vec<PythonVariable>, Option<String>) {
    let mut search = VariableSearch {
        view,
        interpreters,
        types,
        seen: HashSet::new(),
        budget: MAX_READ_ENTRIES,
        name_bytes: 0,
        found: Vec::new(),
        left_out: LeftOut::default(),
    };
    for modules in &interpreters.modules {
        for (name, module) in search
            .read_dict(*modules)
            .map_or(Vec::new(), |dict| dict.entries)
        {
            search.add_module(name, module);
        }
    }
    (search.found, search.left_out.warning())
}

impl VariableSearch<'_, '_> {
    /// Reads the dict at an address. `None` if no dict is there, it is too large, or too many entries were read before.
    fn read_dict(&mut self, address: u64) -> Option<Dict> {
        let layout = &self.interpreters.layout;
        Dict::read(self.view, layout, address, self.types, &mut self.budget)
    }

    /// Reads the `str` at an address. `None` if no `str` is there, it is too long for a name, or too many names were
    /// read before.
    fn read_text(&mut self, address: u64) -> Option<String> {
        self.interpreters
            .layout
            .read_text(self.view, address, self.types)
    }

    /// Adds the variables of a module, and those of classes that it defines, unless it was added by another name. Skips
    /// other modules, and names that begin with two underscores. Counts in `left_out` what a limit leaves out.
    fn add_module(&mut self, name: u64, module: u64) {
        if !self.types.is_module(module) || !self.seen.insert(module) {
            return;
        }
        let Some(module_name) = self.read_text(name) else {
            self.left_out.modules += u64::from(self.types.is_name_budget_used_up());
            return;
        };
        let dict = self.view.read_field(module, MODULE_DICT);
        let Some(dict) = dict.and_then(|dict| self.read_dict(dict)) else {
            self.left_out.modules += 1;
            return;
        };
        let own: Rc<str> = module_name.as_str().into();
        for (key, value) in dict.entries {
            // Names such as `__loader__` are those of the import system.
            let name = self.read_text(key).filter(|name| !name.starts_with("__"));
            let (Some(name), Some(class)) = (name, self.types.class_name_of(value)) else {
                self.left_out.variables += u64::from(self.types.is_name_budget_used_up());
                continue;
            };
            if self.types.is_module(value) {
                continue;
            }
            if self.is_full() {
                self.left_out.variables += 1;
                continue;
            }
            let name = format!("{module_name}.{name}");
            let is_class = self.types.has_flag(value, TypeFlag::Class);
            if is_class && self.is_defined_in(value, &module_name) {
                self.add_class(&name, value, MAX_DEPTH);
            }
            let is_data = !is_class && !CLASS_PARTS.contains(&&*class);
            let owner = match is_data {
                true => VariableOwner::Data { name, class },
                false => VariableOwner::Module(Rc::clone(&own)),
            };
            self.add_variable(owner, dict.table, value);
        }
    }

    /// Whether the limit of variables, or of bytes in their names, is reached.
    fn is_full(&self) -> bool {
        self.found.len() >= MAX_VARIABLES || self.name_bytes >= MAX_NAME_BYTES
    }

    /// Adds a variable of `owner`: `table` is the address of the table with the pointer to the object at `value`.
    /// Counts the bytes of its name.
    fn add_variable(&mut self, owner: VariableOwner, table: u64, value: u64) {
        if let VariableOwner::Data { name, .. } = &owner {
            self.name_bytes += name.len();
        }
        self.found.push(PythonVariable {
            owner,
            table,
            value,
        });
    }

    /// Whether a class has the name of that module as its `__module__`. False if that cannot be read, or too many
    /// entries were read before.
    fn is_defined_in(&mut self, class: u64, module: &str) -> bool {
        let layout = &self.interpreters.layout;
        let found = layout.module_of_class(self.view, class, self.types, &mut self.budget);
        found.as_deref() == Some(module)
    }

    /// Adds the attributes of a class that are data, and those of classes in it, down to `depth` levels. Does nothing
    /// for a class that was added before. Counts in `left_out` what a limit leaves out.
    fn add_class(&mut self, name: &str, class: u64, depth: usize) {
        if depth == 0 || self.seen.contains(&class) {
            return;
        }
        let address = self.view.read_field(class, CLASS_DICT);
        if address == Some(0) {
            // From 3.12 on, static types have no dict here; they hold nothing of the program.
            return;
        }
        let address = address.filter(|_| self.seen.len() < MAX_CLASSES);
        if address.is_some() {
            self.seen.insert(class);
        }
        let Some(dict) = address.and_then(|address| self.read_dict(address)) else {
            self.left_out.classes += 1;
            return;
        };
        for (key, value) in dict.entries {
            let own = self.read_text(key).filter(|own| !own.starts_with("__"));
            let (Some(own), Some(class)) = (own, self.types.class_name_of(value)) else {
                self.left_out.variables += u64::from(self.types.is_name_budget_used_up());
                continue;
            };
            let name = format!("{name}.{own}");
            if self.types.has_flag(value, TypeFlag::Class) {
                self.add_class(&name, value, depth - 1);
            } else if CLASS_PARTS.contains(&&*class) {
                continue;
            } else if self.is_full() {
                self.left_out.variables += 1;
            } else {
                self.add_variable(VariableOwner::Data { name, class }, dict.table, value);
            }
        }
    }
}
