//! Types of an interpreter's objects, as leaf frames: names in the table of functions, in a file of no program's.

use crate::names::{NameText, try_intern_name};

/// Place of the name of a type where a function has its file.
pub const OBJECT_FILE: &str = "<object>";

/// Most bytes of the name of a type.
const MAX_TYPE_NAME: usize = 120;

struct TypeName<'a>(&'a [u8]);

/// Returns the managed word that stands for the type of an object in stacks. Adds the type to the table of names if it
/// is new. `name` is the type's name in UTF-8, of which the first 120 bytes count. `None` if the table is full or has
/// no memory; the common word of all names without room would be wrong, because it stands for functions. Allocates
/// nothing.
pub fn intern_object_type(name: &[u8]) -> Option<usize> {
    let name = TypeName(name.get(..MAX_TYPE_NAME).unwrap_or(name));
    let bytes = OBJECT_FILE.bytes().chain(name.0.iter().copied());
    let hash = bytes.fold(1, |hash: u64, byte| {
        // An odd factor whose bits are well mixed: 2^64 divided by the golden ratio.
        let mixed = (hash ^ u64::from(byte)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        mixed ^ mixed >> 29
    });
    try_intern_name(hash, 0, &name)
}

impl NameText for TypeName<'_> {
    fn write_function_name(&self, write: &mut dyn FnMut(u8)) {
        self.0.iter().copied().for_each(write);
    }

    fn write_file_name(&self, write: &mut dyn FnMut(u8)) {
        OBJECT_FILE.bytes().for_each(write);
    }

    fn max_len(&self) -> u32 {
        (self.0.len() + OBJECT_FILE.len()) as u32
    }
}
