//! Types of Python 3, by the type to which each object points (Include/object.h): `ob_type` leads to a type, whose
//! own type leads to `type`, which is its own. The dict of an object's attributes (`__dict__`) is where its type says;
//! since 3.11 most objects have none until somebody asks for it.

use std::collections::HashMap;
use std::rc::Rc;

use crate::objects::{LINKS, Object, Objects};
use crate::snapshot_memory::{CachedReader, SnapshotMemory};

/// What the collector of cycles has before an object (`PyGC_Head`: the next one in its list, the one before), and
/// 3.11 and newer before that.
const BEFORE: [u64; 3] = [0, LINKS, LINKS + 16];
const PREVIOUS: u64 = 8;
/// Of links, what the collector keeps of its own.
const LINK_FLAGS: u64 = 0b11;
/// In an object: the count of references, its type. In a type: its name, its flags, and where its objects have the
/// pointer to the dict of their attributes (`tp_dictoffset`).
const TYPE: u64 = 8;
const NAME: u64 = 24;
const FLAGS: u64 = 168;
const DICT_OFFSET: u64 = 288;
/// `Py_TPFLAGS_HAVE_GC`: the collector may have them in its list.
const IS_COLLECTED: u64 = 1 << 14;
/// `Py_TPFLAGS_MANAGED_DICT`, since 3.11: that pointer is before the object.
const HAS_MANAGED_DICT: u64 = 1 << 4;
const MANAGED_DICT: i64 = -24;
pub(crate) const DICT: &str = "dict";
/// In a dict: its table of keys; that of values where the keys are those of other dicts too, else null.
const KEYS: u64 = 32;
const VALUES: u64 = 40;
const LEAST: u64 = 16;
/// Since 3.12, the sign of a count of 32 bits (`_Py_IsImmortal`).
const LEAST_IMMORTAL: u32 = 1 << 31;
const NAME_LIMIT: usize = 256;
const KNOWN_LIMIT: usize = 1 << 18;

#[derive(Debug)]
pub(crate) struct Python<'a> {
    view: &'a SnapshotMemory,
    types: HashMap<u64, Option<PythonType>>,
}

#[derive(Clone, Debug)]
struct PythonType {
    name: Rc<str>,
    is_collected: bool,
    /// Where its objects have the pointer to the dict of their attributes, from where they begin.
    dict: Option<i64>,
}

impl<'a> Python<'a> {
    /// Where the interpreter, or a program that embeds it, is mapped.
    pub(crate) fn find(view: &'a SnapshotMemory) -> Option<Self> {
        let is_python = |name: &str| {
            let file = name.rsplit('/').next().unwrap_or(name);
            file.starts_with("python3") || file.starts_with("libpython3")
        };
        let is_found = view.regions.iter().any(|region| is_python(&region.name));
        is_found.then(|| Self {
            view,
            types: HashMap::new(),
        })
    }

    /// Tells all links of the collector, which lead from each object to all others, not to what it holds.
    pub(crate) fn record_gc_heads(&mut self, objects: &Objects) {
        let mut memory = CachedReader::new(self.view);
        for object in objects.all() {
            if let Some(links) = self.gc_head(&mut memory, &object) {
                objects.set_gc_head(links);
            }
        }
    }

    /// Where an object has them. They prove themselves: who comes next knows who came before.
    fn gc_head(&mut self, memory: &mut CachedReader<'_>, object: &Object) -> Option<u64> {
        let (before, of_type) = self.find_type(memory, object)?;
        let links = object.range.start + before.checked_sub(LINKS)?;
        let next = memory.word(links)? & !LINK_FLAGS;
        let is_linked = of_type.is_collected
            && next != 0
            && memory.uncached_word(next.checked_add(PREVIOUS)?)? & !LINK_FLAGS == links;
        is_linked.then_some(links)
    }

    /// The type of an object.
    pub(super) fn type_of(
        &mut self,
        memory: &mut CachedReader<'_>,
        object: &Object,
    ) -> Option<Rc<str>> {
        let (_, of_type) = self.find_type(memory, object)?;
        Some(of_type.name)
    }

    /// The type of an object, and the address of the dict of its attributes, where it has one.
    pub(super) fn attributes(
        &mut self,
        memory: &mut CachedReader<'_>,
        object: &Object,
    ) -> Option<(Rc<str>, u64)> {
        let (before, of_type) = self.find_type(memory, object)?;
        let place = (object.range.start + before).checked_add_signed(of_type.dict?)?;
        let is_inside = object.range.contains(&place);
        Some((of_type.name, is_inside.then(|| memory.word(place))??))
    }

    /// The address of the table that a dict shares with no other.
    pub(super) fn table(&mut self, memory: &mut CachedReader<'_>, dict: &Object) -> Option<u64> {
        let (before, of_type) = self.find_type(memory, dict)?;
        let start = dict.range.start + before;
        if &*of_type.name != DICT || start + VALUES >= dict.range.end {
            return None;
        }
        match memory.word(start + VALUES)? {
            0 => memory.word(start + KEYS),
            values => Some(values),
        }
    }

    fn find_type(
        &mut self,
        memory: &mut CachedReader<'_>,
        object: &Object,
    ) -> Option<(u64, PythonType)> {
        BEFORE.into_iter().find_map(|before| {
            let start = object.range.start + before;
            if start + LEAST > object.range.end || !is_count(memory.word(start)?) {
                return None;
            }
            let address = memory.word(start + TYPE)?;
            Some((before, self.type_at(address)?))
        })
    }

    fn type_at(&mut self, address: u64) -> Option<PythonType> {
        if !address.is_multiple_of(8) || address < 4096 {
            return None;
        }
        if self.types.len() > KNOWN_LIMIT {
            self.types.clear();
        }
        let view = self.view;
        // What looks like an address may be any number.
        let type_of = |object: u64| view.word(object.checked_add(TYPE)?);
        let of_type = || {
            let above = type_of(address)?;
            let topmost = type_of(above)?;
            let is_its_own = type_of(topmost)? == topmost;
            let is_type = is_its_own && name_at(view, topmost)? == "type";
            let name = is_type.then(|| name_at(view, address)).flatten()?;
            Some(PythonType {
                name: name.into(),
                is_collected: view.word(address + FLAGS)? & IS_COLLECTED != 0,
                dict: dict_offset(view, address),
            })
        };
        let known = self.types.entry(address);
        known.or_insert_with(of_type).clone()
    }
}

/// A count of references, of 32 bits since 3.12, above which lie flags.
fn is_count(word: u64) -> bool {
    word as u32 != 0 && word >> 48 == 0
}

/// How many references there are to the object that begins there; 0 to an immortal one, which counts none.
pub(crate) fn references(memory: &mut CachedReader<'_>, start: u64) -> u32 {
    let count = memory.word(start).unwrap_or_default() as u32;
    if count < LEAST_IMMORTAL { count } else { 0 }
}

fn name_at(view: &SnapshotMemory, of_type: u64) -> Option<String> {
    let name = view.text(view.word(of_type + NAME)?, NAME_LIMIT)?;
    let is_name = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
    (!name.is_empty() && is_name(&name)).then_some(name)
}

/// None where the objects have no such dict, or where its place depends on their length.
fn dict_offset(view: &SnapshotMemory, of_type: u64) -> Option<i64> {
    if view.word(of_type + FLAGS)? & HAS_MANAGED_DICT != 0 {
        return Some(MANAGED_DICT);
    }
    let offset = view.word(of_type + DICT_OFFSET)? as i64;
    (offset > 0).then_some(offset)
}
