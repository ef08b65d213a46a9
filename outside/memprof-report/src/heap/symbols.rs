//! Reads the symbols at the start of a symbolized file: `0xADDR function--inlined`, up to a line `---`.

use std::collections::HashMap;

use super::numbers::parse_hexadecimal;
use super::{DumpReader, DumpSection};
use crate::error::Result;
use crate::limits::ProfileItem;
use crate::names::{Frame, Names};
use crate::profile::{Address, Profile};
use crate::stacks::AddressId;

/// Function names by address, with inlined functions separated by `--`.
#[derive(Debug, Default)]
pub(super) struct Symbols(HashMap<Address, String>);

impl DumpReader<'_> {
    /// Reads a line of the symbols: `0xADDR name`, `binary=`, which is skipped, or the `---` that ends them. Fails if
    /// it is none of these.
    pub(super) fn read_symbol(&mut self, line: &[u8]) -> Result<()> {
        if line == b"---" {
            self.section = DumpSection::SymbolsEnd;
            return Ok(());
        }
        if line.starts_with(b"binary=") {
            return Ok(());
        }
        let symbol = line.strip_prefix(b"0x").and_then(parse_hexadecimal);
        let Some((address, name)) = symbol.filter(|(_, name)| name.first() == Some(&b' ')) else {
            return Err(self.unexpected_error("'0xADDR name' or '---'", line));
        };
        let name = String::from_utf8_lossy(name.trim_ascii()).into_owned();
        let item = ProfileItem::Text(name.len());
        self.symbols.0.insert(Address(address), name);
        self.spend(item)
    }
}

impl Symbols {
    /// Converts the symbols to names of the profile's addresses. jeprof wrote them by other addresses: the leaf's own,
    /// and of all other frames one less. `None` if the dump has no symbols.
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
                .rsplit("--")
                .map(|name| {
                    let function = names.strings.intern(name);
                    Frame {
                        function,
                        file: None,
                        line: 0,
                        named: !name.starts_with("0x"),
                    }
                })
                .collect();
            names.set(AddressId(index as u32), &frames);
        }
        Some(names)
    }
}
