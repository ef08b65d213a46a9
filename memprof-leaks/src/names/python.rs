//! Types of Python 3, by the type to which each object points (Include/object.h): `ob_type` leads to a type, whose
//! own type leads to `type`, which is its own.

use std::collections::HashMap;
use std::rc::Rc;

use crate::objects::Object;
use crate::view::{View, Window};

/// What the collector of cycles has before an object (`PyGC_Head`), and 3.11 and newer before that.
pub(super) const COLLECTOR_HEAD: u64 = 16;
const BEFORE: [u64; 3] = [0, COLLECTOR_HEAD, COLLECTOR_HEAD + 16];
/// In an object: the count of references, its type. In a type: its name.
const TYPE: u64 = 8;
const NAME: u64 = 24;
const LEAST: u64 = 16;
const NAME_LIMIT: usize = 256;
const KNOWN_LIMIT: usize = 1 << 18;

#[derive(Debug)]
pub(super) struct Python<'a> {
    view: &'a View,
    types: HashMap<u64, Option<Rc<str>>>,
}

impl<'a> Python<'a> {
    /// Where the interpreter, or a program that embeds it, is mapped.
    pub(super) fn find(view: &'a View) -> Option<Self> {
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

    /// Where in its memory an object begins, and its type.
    pub(super) fn type_of(
        &mut self,
        memory: &mut Window<'_>,
        object: &Object,
    ) -> Option<(u64, Rc<str>)> {
        BEFORE.into_iter().find_map(|before| {
            let start = object.range.start + before;
            if start + LEAST > object.range.end || !is_count(memory.word(start)?) {
                return None;
            }
            let address = memory.word(start + TYPE)?;
            Some((before, self.type_at(address)?))
        })
    }

    fn type_at(&mut self, address: u64) -> Option<Rc<str>> {
        if !address.is_multiple_of(8) || address < 4096 {
            return None;
        }
        if self.types.len() > KNOWN_LIMIT {
            self.types.clear();
        }
        let view = self.view;
        // What looks like an address may be any number.
        let type_of = |object: u64| view.word(object.checked_add(TYPE)?);
        let name = || {
            let above = type_of(address)?;
            let topmost = type_of(above)?;
            let is_its_own = type_of(topmost)? == topmost;
            let is_type = is_its_own && name_at(view, topmost)? == "type";
            is_type.then(|| name_at(view, address)).flatten()
        };
        let known = self.types.entry(address);
        known.or_insert_with(|| name().map(Rc::from)).clone()
    }
}

/// A count of references, of 32 bits since 3.12, above which lie flags.
fn is_count(word: u64) -> bool {
    word as u32 != 0 && word >> 48 == 0
}

fn name_at(view: &View, of_type: u64) -> Option<String> {
    let name = view.text(view.word(of_type + NAME)?, NAME_LIMIT)?;
    let is_name = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
    (!name.is_empty() && is_name(&name)).then_some(name)
}
