//! Explains a function's code origin: the evidence, and the option that changes it.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Write;

use super::reason::{BlockUse, OriginReason, Verdict, WrapperShape};
use super::{CodeOrigin, CodeOrigins, OriginRules};
use crate::calling_place::row_name_without_call;
use crate::error::{Error, Result};
use crate::plural::pluralize;
use crate::stacks::AddressId;
use crate::symbolized_profile::SymbolizedProfile;

/// Most functions that are explained.
const MAX_SHOWN: usize = 20;

/// Writes, for up to `MAX_SHOWN` functions named `function`, their code origin, the reason for it, and the option that
/// changes it. If no name is equal, explains those that contain it. Fails if no function has such a name, or `out`
/// fails.
pub(crate) fn explain_origin(
    named: &SymbolizedProfile,
    origin_rules: &OriginRules,
    function: &str,
    out: &mut dyn Write,
) -> Result<()> {
    let SymbolizedProfile { profile, names, .. } = named;
    let origins = CodeOrigins::new(named, origin_rules);
    let function = row_name_without_call(function);
    // By name, source file and mapped file.
    let mut found: BTreeMap<(&str, &str, &str), (Verdict, bool)> = BTreeMap::new();
    let main = profile.main_file().map(|mapping| mapping.path.as_str());
    for index in 0..profile.stacks.addresses().len() {
        let id = AddressId(index as u32);
        let mapping = profile.mapping_of_frame(id);
        let file = mapping.map_or("", |mapping| profile.mappings[mapping].path.as_str());
        for (frame, verdict) in names.frames(id).iter().zip(origins.verdicts(id)) {
            let name = names.strings.get(frame.function);
            if name.contains(function) {
                let source = frame.file.map_or("", |source| names.strings.get(source));
                found.insert((name, source, file), (verdict, main == Some(file)));
            }
        }
    }
    if found.keys().any(|(name, ..)| *name == function) {
        found.retain(|(name, ..), _| *name == function);
    }
    if found.is_empty() {
        return Err(Error::Usage(format!(
            "no function of the profile is called {function}: --flat lists all"
        )));
    }
    let more = found.len().saturating_sub(MAX_SHOWN);
    for ((name, source, file), (verdict, is_main)) in found.into_iter().take(MAX_SHOWN) {
        writeln!(out, "{name}: {}", origin_meaning(verdict.origin))?;
        writeln!(out, "  reason: {}", verdict.reason)?;
        writeln!(out, "  source file: {}", text_or_unknown(source))?;
        let program = if is_main { ", the program" } else { "" };
        writeln!(out, "  in: {}{program}", text_or_unknown(file))?;
        let pattern = format!("'^{}$'", regex::escape(name));
        match verdict.origin {
            CodeOrigin::Program => {
                writeln!(
                    out,
                    "  change: --plumbing {pattern} folds it into its callers"
                )?;
            }
            _ => writeln!(out, "  change: --own {pattern} makes it a row")?,
        }
    }
    if more > 0 {
        writeln!(
            out,
            "({more} more functions have {function} in their names)"
        )?;
    }
    Ok(())
}

/// Returns the text, or `unknown` if it is empty.
fn text_or_unknown(text: &str) -> &str {
    match text {
        "" => "unknown",
        text => text,
    }
}

/// Text for the user: the kind of code that an origin stands for, and when its functions are rows of a table.
fn origin_meaning(origin: CodeOrigin) -> &'static str {
    match origin {
        CodeOrigin::Program => "the program's own, a row",
        CodeOrigin::Library => "library, a row where no function of the program called it",
        CodeOrigin::Interpreter => {
            "interpreter, a row where no function of the program or a library called it"
        }
        CodeOrigin::Plumbing => "plumbing, folded into its callers",
        CodeOrigin::Startup => "code that starts a program or thread, folded into what it calls",
    }
}

impl fmt::Display for OriginReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pattern => f.write_str("it matches --own or --plumbing"),
            Self::LibrarySource(directory) => write!(
                f,
                "its source file is in a directory of libraries, {}",
                directory.trim_start_matches('^')
            ),
            Self::LibrarySourceAndName(pattern) => write!(
                f,
                "its source file is in a directory of libraries, and its name matches {pattern}"
            ),
            Self::OwnSource => f.write_str("its source file is in no directory of libraries"),
            Self::ScriptLibrary(pattern) => {
                write!(f, "its file is one of the language's library: {pattern}")
            }
            Self::Script => f.write_str("its file is in no directory of libraries"),
            Self::MappedFile => {
                f.write_str("the file that it is in is a known library or interpreter")
            }
            Self::Program => f.write_str("it is in the program's file, and its source is unknown"),
            Self::SystemLibrary => f.write_str("the file that it is in is a library of the system"),
            Self::NamedInLibrary => {
                f.write_str("no rule knows the library that it is in, and it has a symbol")
            }
            Self::Unloaded => f.write_str("it was unloaded before the dump was taken"),
            Self::UnnamedInLibrary => f.write_str("it is in a shared library, and has no symbol"),
            Self::HelperInLibrary => f.write_str(
                "it is in a shared library, and has no symbol, but one of its callers there has one",
            ),
            Self::UnnamedInModule => f.write_str(
                "it is in a module of the program, where neither it nor its caller has a symbol",
            ),
            Self::Wrapper(shape) => shape.fmt(f),
            Self::Name(pattern) => write!(f, "its name matches the rule {pattern}"),
            Self::Unknown => f.write_str("nothing is known of it"),
        }
    }
}

impl fmt::Display for WrapperShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "it has the shape of a wrapper of malloc: in front of the allocator in {}, from {}",
            pluralize(self.stacks.into(), "stack"),
            pluralize(self.callers.into(), "caller")
        )?;
        if self.has_many_calls {
            f.write_str(" of many in its file")?;
        }
        f.write_str(match self.block_use {
            Some(BlockUse::PassedOn) => ", it returns the block, of a size that they chose",
            Some(BlockUse::Returned) => ", it returns the block, of a size that it chose",
            Some(BlockUse::Kept) => ", it keeps the block",
            None => ", its code was not read",
        })?;
        match self.has_allocating_name {
            true => f.write_str(", and its name says that it allocates"),
            false => Ok(()),
        }
    }
}
