//! Names of functions that a dump itself has: the symbols at the start of a symbolized file, `0xADDR
//! function--inlined`, up to a line `---`, and the comments of [Go's text](super::go).

use std::collections::HashMap;

use super::numbers::parse_hexadecimal;
use super::{DumpReader, DumpSection};
use crate::error::Result;
use crate::limits::ProfileItem;
use crate::names::{Frame, Names, replace_unprintable};
use crate::profile::{Address, Profile};
use crate::stacks::AddressId;

/// A function at an address, with its source file and line if they are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SymbolFrame {
    pub(super) name: String,
    pub(super) place: Option<(String, u32)>,
}

/// Functions by address, the innermost first.
#[derive(Debug, Default)]
pub(super) struct Symbols(HashMap<Address, Vec<SymbolFrame>>);

impl DumpReader<'_> {
    /// Reads a line of the symbols that jeprof writes before a profile: `0xADDR OUTER--INLINED`, `binary=` with the
    /// program's path, or the `---` that ends the symbols. Fails if the line has another form, or the memory budget is
    /// exceeded.
    pub(super) fn read_symbol(&mut self, line: &[u8]) -> Result<()> {
        if line == b"---" {
            self.section = DumpSection::SymbolsEnd;
            return Ok(());
        }
        if let Some(path) = line.strip_prefix(b"binary=") {
            let path = String::from_utf8_lossy(path.trim_ascii());
            self.profile.program = Some(replace_unprintable(&path).into_owned());
            return self.charge_memory(ProfileItem::Text(path.len()));
        }
        let symbol = line.strip_prefix(b"0x").and_then(parse_hexadecimal);
        let Some((address, names)) = symbol.filter(|(_, name)| matches!(name, [] | [b' ', ..]))
        else {
            return Err(self.unexpected_text_error("'0xADDR name' or '---'", line));
        };
        let names = String::from_utf8_lossy(names.trim_ascii());
        let frames = split_inlined_names(&names).into_iter().rev();
        let frames = frames.map(|name| SymbolFrame { name, place: None });
        self.add_symbol(Address(address), frames.collect())
    }

    /// Adds the functions at an address, the innermost first, in place of those that it had. Fails if the names exceed
    /// the memory budget.
    pub(super) fn add_symbol(&mut self, address: Address, frames: Vec<SymbolFrame>) -> Result<()> {
        let length = |frame: &SymbolFrame| {
            frame.name.len() + frame.place.as_ref().map_or(0, |(file, _)| file.len())
        };
        let item = ProfileItem::Text(frames.iter().map(length).sum());
        let inlined = frames.len().saturating_sub(1);
        self.symbols.0.insert(address, frames);
        for _ in 0..inlined {
            self.charge_memory(ProfileItem::Entry)?;
        }
        self.charge_memory(item)
    }
}

/// Splits `outer--inlined` into the names of functions. The `--` of a C++ `operator--`, which jeprof does not escape,
/// is part of the operator's name, as are parameters that follow it.
fn split_inlined_names(text: &str) -> Vec<String> {
    const OPERATOR: &str = "operator";
    let mut names: Vec<String> = Vec::new();
    for part in text.split("--") {
        match names.last_mut() {
            Some(last) if last.ends_with(OPERATOR) => {
                last.push_str("--");
                match part.starts_with(['(', '[', '<']) {
                    true => last.push_str(part),
                    false if part.is_empty() => {}
                    false => names.push(part.to_owned()),
                }
            }
            _ if part.is_empty() => {}
            _ => names.push(part.to_owned()),
        }
    }
    names
}

impl Symbols {
    /// Returns whether functions are known at exactly this address.
    pub(super) fn contains(&self, address: Address) -> bool {
        self.0.contains_key(&address)
    }

    /// Converts the symbols to names of the profile's addresses; an address without a symbol gets none. The symbol of a
    /// return address stands at the address less 1, as Go writes all frames and jeprof all but the leaf; if there is
    /// none, the symbol at the address itself is taken. `None` if the dump has no symbols.
    pub(super) fn into_names(self, profile: &Profile) -> Option<Names> {
        if self.0.is_empty() {
            return None;
        }
        let mut names = Names::default();
        for (index, &Address(address)) in profile.stacks.addresses().iter().enumerate() {
            let call = self.0.get(&Address(address.wrapping_sub(1)));
            let Some(symbol) = call.or_else(|| self.0.get(&Address(address))) else {
                continue;
            };
            let frames: Vec<Frame> = symbol
                .iter()
                .map(|frame| {
                    let place = frame.place.as_ref();
                    Frame {
                        function: names.strings.intern(&frame.name),
                        linkage: None,
                        file: place.map(|(file, _)| names.strings.intern(file)),
                        line: place.map_or(0, |(_, line)| *line),
                        named: !frame.name.starts_with("0x"),
                    }
                })
                .collect();
            if !frames.is_empty() {
                names.set_frames(AddressId(index as u32), &frames);
            }
        }
        Some(names)
    }
}

#[cfg(test)]
mod tests {
    use super::split_inlined_names;

    #[test]
    fn decrement_operator_is_not_split() {
        for (text, expected) in [
            ("main", &["main"][..]),
            ("outer--inner", &["outer", "inner"]),
            ("It<int>::operator--", &["It<int>::operator--"]),
            ("It::operator----walk", &["It::operator--", "walk"]),
            (
                "It::operator--(int)--walk",
                &["It::operator--(int)", "walk"],
            ),
            (
                "walk--It::operator--[clone .part]",
                &["walk", "It::operator--[clone .part]"],
            ),
            ("walk--It::operator--", &["walk", "It::operator--"]),
            ("", &[]),
            ("--", &[]),
        ] {
            assert_eq!(split_inlined_names(text), expected, "{text}");
        }
    }
}
