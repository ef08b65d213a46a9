//! Names of functions in reports: parameters are shown only where functions differ in nothing else.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use crate::demangle::{
    Language, demangle_with_parameters, demangle_with_parameters_and_suffix,
    may_have_parameters_or_suffix,
};
use crate::names::{Frame, Names, StringId};
use crate::stacks::AddressId;
use crate::symbolized_profile::SymbolizedProfile;

/// Names that several functions have, with different parameters.
#[derive(Debug, Default)]
pub(crate) struct Overloads(HashSet<String>);

impl Overloads {
    /// Finds the overloads in all profiles of a report, so that they have the same names in each: C++ functions of one
    /// name whose parameters differ, perhaps in two profiles.
    pub(crate) fn new<'p>(profiles: impl Iterator<Item = &'p SymbolizedProfile>) -> Self {
        let mut first: HashMap<&str, &str> = HashMap::new();
        let mut overloads = HashSet::new();
        for named in profiles {
            let names = &named.names;
            let mut seen = HashSet::new();
            for index in 0..named.profile.stacks.addresses().len() as u32 {
                for frame in names.frames(AddressId(index)) {
                    let Some(linkage) = frame.linkage.filter(|linkage| seen.insert(*linkage))
                    else {
                        continue;
                    };
                    let (function, symbol) = (
                        names.strings.get(frame.function),
                        names.strings.get(linkage),
                    );
                    if Language::from_symbol(symbol) != Some(Language::Cpp) {
                        continue;
                    }
                    let known = *first.entry(function).or_insert(symbol);
                    if known != symbol
                        && !overloads.contains(function)
                        && demangle_with_parameters(known) != demangle_with_parameters(symbol)
                    {
                        overloads.insert(function.to_owned());
                    }
                }
            }
        }
        Self(overloads)
    }
}

/// Names of a profile's functions, with a cache.
#[derive(Debug)]
pub(crate) struct FunctionNames<'p> {
    names: &'p Names,
    overloads: &'p Overloads,
    /// Whether clones and overloads always have names of their own.
    is_flat: bool,
    cache: HashMap<(StringId, StringId), String>,
}

impl<'p> FunctionNames<'p> {
    /// Creates an empty cache. With `is_flat`, clones and overloads always have names of their own.
    pub(crate) fn new(names: &'p Names, overloads: &'p Overloads, is_flat: bool) -> Self {
        Self {
            names,
            overloads,
            is_flat,
            cache: HashMap::new(),
        }
    }

    /// Returns the name of a frame's function for reports. The name of an overload has its parameters. If `is_flat` is
    /// set, the names of all functions with a symbol have parameters and clone suffixes.
    pub(crate) fn name(&mut self, frame: &Frame) -> Cow<'_, str> {
        let function = self.names.strings.get(frame.function);
        let linkage = frame.linkage.filter(|linkage| match self.is_flat {
            true => may_have_parameters_or_suffix(self.names.strings.get(*linkage)),
            false => self.overloads.0.contains(function),
        });
        let Some(linkage) = linkage else {
            return Cow::Borrowed(function);
        };
        let symbol = self.names.strings.get(linkage);
        let is_flat = self.is_flat;
        let known = self.cache.entry((frame.function, linkage));
        Cow::Borrowed(known.or_insert_with(|| match is_flat {
            true => demangle_with_parameters_and_suffix(symbol),
            false => demangle_with_parameters(symbol).into_owned(),
        }))
    }
}
