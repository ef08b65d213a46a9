//! `CPython`'s own structures in a snapshot: its interpreters, their modules, and the variables of these.
//!
//! Only versions are read whose layout is known, and only after `sys.modules` was found to be a dict that contains the
//! module `sys`. Names of fields are those of `CPython`'s headers.

mod class_names;
mod dicts;
mod gc_heads;
mod interpreters;
mod layout;
mod python_type;
mod sizes;
mod type_cache;
mod types;
mod variables;

pub(crate) use self::interpreters::{FrameMemory, Interpreters};
pub(crate) use self::sizes::{ObjectSize, elements_of_object, size_of_object};
pub(crate) use self::types::{DICT_TYPE, PythonTypes, reference_count};
pub(crate) use self::variables::{VariableOwner, find_variables};
