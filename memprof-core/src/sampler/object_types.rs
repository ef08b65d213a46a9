//! Types of Python's live sampled objects, which a dump has in place of the leaf frame of their stacks.
//!
//! An object's memory holds the type once the object is made, so it is read at the dump. The program may free the
//! object meanwhile: a word that does not lead to a type gives none.

use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;

use memprof_languages::intern_object_type;
use memprof_sampler::StackRecordId;

use super::checked_memory::CheckedMemory;
use super::python_objects::ObjectMark;

/// Offsets of `PyTypeObject`, in words, in all versions from 3.8 to 3.14.
const TYPE_OF_TYPE: usize = 1;
const TYPE_NAME: usize = 3;
const BASIC_SIZE: usize = 4;
const TYPE_FLAGS: usize = 21;
const TYPE_WORDS: usize = TYPE_FLAGS + 1;

/// Bits of `tp_flags`.
const MANAGED_WEAKREF: u64 = 1 << 3;
const MANAGED_DICT: u64 = 1 << 4;
const READY: u64 = 1 << 12;
const HAVE_GC: u64 = 1 << 14;
const TYPE_SUBCLASS: u64 = 1 << 31;

/// Bytes in front of an object: `PyGC_Head`, and from 3.11 on two pointers in front of that.
const PREFIXES: [u64; 3] = [0, 16, 32];

/// Words of a block that hold an object's type after any prefix.
const BLOCK_WORDS: usize = 6;

/// Bytes of an object without its items: a count and a type at least, and at most what pymalloc serves.
const BASIC_SIZES: RangeInclusive<u64> = 16..=512;

/// Most bytes of a type's name.
const MAX_NAME: usize = 120;
/// Most distinct types, and most words that were found to lead to none.
const MAX_TYPES: usize = 10_000;
/// Most objects whose types are read, each by some 4 to 30 system calls. The rest stays untyped.
const MAX_OBJECTS: u32 = 100_000;

/// Live objects of one type with one stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TypedObjects {
    pub(super) objects: u64,
    pub(super) bytes: u64,
}

/// Live objects by stack and by the leaf frame that stands for their type.
#[derive(Debug, Default)]
pub(super) struct ObjectTypes {
    by_record: HashMap<StackRecordId, HashMap<u64, TypedObjects>>,
}

/// A type, as far as its objects' memory depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ObjectType {
    leaf: u64,
    prefix: u64,
    basic_size: u64,
}

impl ObjectTypes {
    /// Reads the types of at most [`MAX_OBJECTS`] live Python objects. Their stacks have the leaf frame of `mark`.
    /// Empty if there are none, or if there is no memory for the reads.
    #[expect(unsafe_code, reason = "the sampler's tables")]
    pub(super) fn read_live_types(mark: ObjectMark) -> Self {
        let mut marked = HashSet::new();
        // SAFETY: `DumpSlot::acquire` keeps samples from being cleared during a dump.
        unsafe {
            memprof_sampler::for_each_record(|record| {
                if record.frames.first() == Some(&mark.leaf) {
                    marked.extend(record.id);
                }
            });
        }
        let mut found = Self::default();
        if marked.is_empty() {
            return found;
        }
        let Ok(memory) = CheckedMemory::new() else {
            return found;
        };
        let mut reader = TypeReader {
            memory,
            mark,
            types: HashMap::new(),
            no_types: HashSet::new(),
        };
        let mut objects_left = MAX_OBJECTS;
        memprof_sampler::for_each_live_sample(|sample| {
            if !marked.contains(&sample.record) || objects_left == 0 {
                return;
            }
            objects_left -= 1;
            if let Some(leaf) = reader.type_leaf_frame(sample.address as u64, sample.size) {
                let stack = found.by_record.entry(sample.record).or_default();
                let objects = stack.entry(leaf).or_default();
                objects.objects += 1;
                objects.bytes += sample.size;
            }
        });
        found
    }

    /// Counts of a stack's live objects, each with the leaf frame for their type. Empty if `record` is `None`, or if no
    /// type was read.
    pub(super) fn objects_by_leaf_frame(
        &self,
        record: Option<StackRecordId>,
    ) -> impl Iterator<Item = (u64, TypedObjects)> {
        let types = record.and_then(|record| self.by_record.get(&record));
        types
            .into_iter()
            .flatten()
            .map(|(leaf, objects)| (*leaf, *objects))
    }
}

struct TypeReader {
    memory: CheckedMemory,
    mark: ObjectMark,
    types: HashMap<u64, ObjectType>,
    /// Words that lead to no type.
    no_types: HashSet<u64>,
}

impl TypeReader {
    /// Returns the leaf frame that stands for the type of a Python object, the one in the block of `size` bytes at
    /// address `block`. `None` if the block holds no object, or if its type cannot be read.
    fn type_leaf_frame(&mut self, block: u64, size: u64) -> Option<u64> {
        let words: [u64; BLOCK_WORDS] = match self.memory.read_words(block) {
            Some(words) => words,
            // The block may be shorter, and the memory behind it unreadable.
            None => {
                let [count, object_type] = self.memory.read_words(block)?;
                [count, object_type, 0, 0, 0, 0]
            }
        };
        PREFIXES.iter().find_map(|prefix| {
            // The type is the second word of an object, after its reference count.
            let object_type = *words.get(*prefix as usize / 8 + 1)?;
            let found = self.cached_type_at(object_type)?;
            let least = prefix.checked_add(found.basic_size)?;
            let is_object = found.prefix == *prefix && least <= size;
            is_object.then_some(found.leaf)
        })
    }

    /// Returns the type at an address, which is read once and then remembered. `None` if there is no type, or if
    /// [`MAX_TYPES`] others are remembered.
    fn cached_type_at(&mut self, address: u64) -> Option<ObjectType> {
        if address == 0 || !address.is_multiple_of(8) {
            return None;
        }
        if let Some(known) = self.types.get(&address) {
            return Some(*known);
        }
        if self.no_types.contains(&address) || self.types.len() >= MAX_TYPES {
            return None;
        }
        let found = self.read_type(address);
        match found {
            Some(found) => {
                self.types.insert(address, found);
            }
            None if self.no_types.len() < MAX_TYPES => {
                self.no_types.insert(address);
            }
            None => {}
        }
        found
    }

    /// Whether the Python object at the address `class` is `type` itself, or a class whose own type is `type`, as each
    /// metaclass is.
    fn is_class_of_types(&self, class: u64) -> bool {
        let is_type = |class: u64| class == self.mark.type_type;
        let type_of = |class: u64| {
            let words: Option<[u64; TYPE_OF_TYPE + 1]> = self.memory.read_words(class);
            words.map(|words| words[TYPE_OF_TYPE])
        };
        is_type(class) || type_of(class).is_some_and(is_type)
    }

    /// Reads the type at an address, and adds its name to the table of names. `None` if the memory there does not look
    /// like a type, or if the table is full.
    fn read_type(&self, address: u64) -> Option<ObjectType> {
        let words: [u64; TYPE_WORDS] = self.memory.read_words(address)?;
        let class = words[TYPE_OF_TYPE];
        let [flags, basic_size] = [words[TYPE_FLAGS], words[BASIC_SIZE]];
        let is_type = flags & READY != 0 && BASIC_SIZES.contains(&basic_size);
        if !is_type || !self.is_class_of_types(class) {
            return None;
        }
        // A type's type is a class of types: `type` itself, or a metaclass.
        let class: [u64; TYPE_WORDS] = self.memory.read_words(class)?;
        if class[TYPE_FLAGS] & (READY | TYPE_SUBCLASS) != READY | TYPE_SUBCLASS {
            return None;
        }
        let mut buffer = [0; MAX_NAME];
        let name = self.memory.read(words[TYPE_NAME], &mut buffer);
        let name = name.split(|byte| *byte == 0).next()?;
        let is_name = std::str::from_utf8(name).is_ok_and(|name| {
            name.starts_with(|c: char| c.is_alphabetic() || c == '_')
                && !name.chars().any(|c| c.is_control() || c.is_whitespace())
        });
        // Without room for the name, the object stays untyped.
        let leaf = is_name.then(|| intern_object_type(name))??;
        Some(ObjectType {
            leaf: leaf as u64,
            prefix: object_prefix_bytes(flags, self.mark.minor),
            basic_size,
        })
    }
}

/// Bytes in front of the objects of a type with these flags, in `CPython` 3.`minor`: 16 for the header of the garbage
/// collector, and 16 for the two pointers that the flags request from 3.11 on.
fn object_prefix_bytes(flags: u64, minor: u8) -> u64 {
    let pointers = match minor {
        ..=10 => 0,
        11 => MANAGED_DICT,
        _ => MANAGED_DICT | MANAGED_WEAKREF,
    };
    let head = if flags & HAVE_GC != 0 { 16 } else { 0 };
    head + if flags & pointers != 0 { 16 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Layout of a type, and an object of it behind a prefix. The type's type is a metaclass.
    struct Program {
        type_type: Vec<u64>,
        class: Vec<u64>,
        object_type: Vec<u64>,
        block: Vec<u64>,
    }

    fn program(flags: u64, prefix: usize, basic_size: u64) -> Program {
        let type_type = vec![0; TYPE_WORDS];
        let mut class = vec![0; TYPE_WORDS];
        class[TYPE_OF_TYPE] = type_type.as_ptr() as u64;
        class[TYPE_FLAGS] = READY | TYPE_SUBCLASS;
        let mut object_type = vec![0; TYPE_WORDS];
        object_type[TYPE_OF_TYPE] = class.as_ptr() as u64;
        object_type[TYPE_NAME] = c"Session".as_ptr() as u64;
        object_type[BASIC_SIZE] = basic_size;
        object_type[TYPE_FLAGS] = flags;
        let mut block = vec![0; 16];
        block[prefix / 8] = 1;
        block[prefix / 8 + 1] = object_type.as_ptr() as u64;
        Program {
            type_type,
            class,
            object_type,
            block,
        }
    }

    fn reader(program: &Program, minor: u8) -> TypeReader {
        TypeReader {
            memory: CheckedMemory::new().unwrap(),
            mark: ObjectMark {
                leaf: 0,
                minor,
                type_type: program.type_type.as_ptr() as u64,
            },
            types: HashMap::new(),
            no_types: HashSet::new(),
        }
    }

    fn leaf(program: &Program, minor: u8) -> Option<u64> {
        // Names need a table, as an activation maps it.
        memprof_sampler::map_name_table().unwrap();
        let size = 8 * program.block.len() as u64;
        reader(program, minor).type_leaf_frame(program.block.as_ptr() as u64, size)
    }

    #[test]
    fn type_is_found_only_behind_the_prefix_of_its_flags() {
        for (minor, flags, prefix) in [
            (8, READY, 0),
            (8, READY | HAVE_GC, 16),
            (10, READY | HAVE_GC | MANAGED_DICT, 16),
            (11, READY | HAVE_GC | MANAGED_DICT, 32),
            (11, READY | HAVE_GC | MANAGED_WEAKREF, 16),
            (12, READY | HAVE_GC | MANAGED_WEAKREF, 32),
        ] {
            for found in PREFIXES {
                let program = program(flags, found as usize, 40);
                let is_found = leaf(&program, minor).is_some();
                assert_eq!(is_found, found == prefix, "{minor} {flags:x} {found}");
            }
        }
    }

    #[test]
    fn memory_that_is_no_type_gives_none() {
        let check = |change: fn(&mut Program)| {
            let mut program = program(READY, 0, 40);
            assert!(leaf(&program, 11).is_some());
            change(&mut program);
            assert_eq!(leaf(&program, 11), None);
        };
        check(|program| program.block[1] = 0);
        check(|program| program.block[1] += 1);
        check(|program| program.block[1] = 8);
        check(|program| program.object_type[TYPE_FLAGS] = 0);
        check(|program| program.object_type[TYPE_OF_TYPE] = 8);
        check(|program| program.object_type[TYPE_NAME] = 8);
        check(|program| program.object_type[TYPE_NAME] = c"7".as_ptr() as u64);
        check(|program| program.object_type[TYPE_NAME] = c"a b".as_ptr() as u64);
        for bad in [0, 8, 136, 513, 1 << 20, u64::MAX] {
            let program = program(READY, 0, bad);
            assert_eq!(leaf(&program, 11), None, "{bad}");
        }
        check(|program| program.class[TYPE_FLAGS] = READY);
        // A class that is no type's, as of memory that looks like one.
        check(|program| program.class[TYPE_OF_TYPE] = 8);
        check(|program| program.class[TYPE_OF_TYPE] = program.class.as_ptr() as u64);
    }

    #[test]
    fn words_that_lead_to_no_type_leave_room_for_types() {
        let program = program(READY, 0, 40);
        let mut reader = reader(&program, 11);
        memprof_sampler::map_name_table().unwrap();
        for word in 1..=MAX_TYPES as u64 + 10 {
            assert_eq!(reader.cached_type_at(8 * word), None);
        }
        assert_eq!(reader.no_types.len(), MAX_TYPES);
        assert!(
            reader
                .cached_type_at(program.object_type.as_ptr() as u64)
                .is_some()
        );
    }
}
