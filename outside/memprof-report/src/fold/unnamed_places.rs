//! Places of the program without a symbol: in a stripped program, the library's function that such a place calls says
//! more than its offset.

use std::collections::HashMap;

use crate::calling_place::row_name_with_call;
use crate::code_origin::CodeOrigin;
use crate::names::{StringId, Strings};
use crate::profile::Profile;

/// A program is only a front of a library that has this many times its code.
const FRONT_RATIO: u64 = 8;

/// Number of a mapped file in [`UnnamedPlaces`].
type FileId = u32;

/// Mapped files of functions, by which places without a symbol and their calls of libraries are known.
#[derive(Debug, Default)]
pub(super) struct UnnamedPlaces {
    file_ids: HashMap<String, FileId>,
    /// By file: bytes of its code.
    code_bytes: Vec<u64>,
    /// By function: its file, and whether it has a symbol. `None` if it is in no file, or of an interpreted program.
    functions: Vec<Option<(FileId, bool)>>,
    /// Names of places, by the place and the function that it calls.
    calls: HashMap<(StringId, StringId), StringId>,
}

impl UnnamedPlaces {
    /// Adds the mapped files of a profile, with the size of their code. Returns, for each mapping of the profile, the
    /// number of its file; `None` for memory without a file and for unloaded code.
    pub(super) fn add_files(&mut self, profile: &Profile) -> Vec<Option<FileId>> {
        let first_new = self.code_bytes.len();
        let mappings = profile.mappings.iter();
        mappings
            .map(|mapping| {
                if !mapping.is_file() || mapping.is_unloaded() {
                    return None;
                }
                let id = match self.file_ids.get(&mapping.path) {
                    Some(id) => *id,
                    None => {
                        let id = self.code_bytes.len() as FileId;
                        self.file_ids.insert(mapping.path.clone(), id);
                        self.code_bytes.push(0);
                        id
                    }
                };
                // The base of a comparison maps the same files again.
                if mapping.executable && id as usize >= first_new {
                    self.code_bytes[id as usize] += mapping.end.0.saturating_sub(mapping.start.0);
                }
                Some(id)
            })
            .collect()
    }

    /// Records the file that contains a function, `None` if the function is in no file, and whether the function has a
    /// symbol (`named`).
    pub(super) fn add_function(&mut self, function: StringId, file: Option<FileId>, named: bool) {
        let index = function.0 as usize;
        if self.functions.len() <= index {
            self.functions.resize(index + 1, None);
        }
        self.functions[index] = file.map(|file| (file, named));
    }

    /// Returns whether any function without a symbol is the program's own. `origins` has the code origin of each
    /// function by its id.
    pub(super) fn has_unnamed_own_function(&self, origins: &[CodeOrigin]) -> bool {
        let mut functions = self.functions.iter().zip(origins);
        functions.any(|(file, origin)| {
            *origin == CodeOrigin::Program && file.is_some_and(|(_, named)| !named)
        })
    }

    /// Returns the index of the stack's innermost function of the program, and the library function that it calls: the
    /// first one with a symbol, or the first if none has one. `functions` are those of the stack, root first; `origins`
    /// has the code origin of each function by its id. `None` if the stack has no function of the program, if the
    /// innermost one has a symbol or no file, or if it calls no library function.
    ///
    /// If the program is only a front of the library (`FRONT_RATIO`), returns the last function in the library's file
    /// in place of the first: the first one is the same for all that the library does.
    pub(super) fn find_library_call(
        &self,
        functions: &[StringId],
        origins: &[CodeOrigin],
    ) -> Option<(usize, StringId)> {
        let origin_of = |id: &StringId| origins[id.0 as usize];
        let is_own = |id: &StringId| origin_of(id) == CodeOrigin::Program;
        let place = functions.iter().rposition(is_own)?;
        let (program, named) = self.file_of(functions[place])?;
        if named {
            return None;
        }
        let called = functions[place + 1..].iter().filter_map(|id| {
            let (file, named) = self.file_of(*id)?;
            (origin_of(id) == CodeOrigin::Library).then_some((*id, file, named))
        });
        let (first, library, _) = called.clone().next()?;
        let named = |(id, _, named): &(StringId, FileId, bool)| named.then_some(*id);
        let of_library = called.clone().take_while(|(_, file, _)| *file == library);
        let code_bytes = |file: FileId| self.code_bytes[file as usize];
        let is_front = code_bytes(program).saturating_mul(FRONT_RATIO) <= code_bytes(library);
        let function = match is_front {
            true => {
                let last_named = of_library.clone().filter_map(|call| named(&call)).last();
                last_named.or(of_library.last().map(|(id, ..)| id))?
            }
            false => called
                .filter_map(|call| named(&call))
                .next()
                .unwrap_or(first),
        };
        Some((place, function))
    }

    /// Returns the file of a function, and whether it has a symbol. `None` if it is in no file, or of an interpreted
    /// program.
    fn file_of(&self, function: StringId) -> Option<(FileId, bool)> {
        *self.functions.get(function.0 as usize)?
    }

    /// Creates a name for a stack's innermost function of the program, if that has no symbol, together with the library
    /// function that it calls: `git+0x1c3f calling deflateInit_`. The name is added to `names`, its code origin to
    /// `origins`. No name is created if a symbol of other code is equal to it. `functions` are those of the stack, root
    /// first.
    pub(super) fn add_call_name(
        &mut self,
        functions: &[StringId],
        names: &mut Strings,
        origins: &mut Vec<CodeOrigin>,
    ) {
        let Some((index, called)) = self.find_library_call(functions, origins) else {
            return;
        };
        let place = functions[index];
        if self.calls.contains_key(&(place, called)) {
            return;
        }
        let row = names.intern(&row_name_with_call(names.get(place), names.get(called)));
        match origins.get(row.0 as usize) {
            None => origins.push(CodeOrigin::Program),
            Some(CodeOrigin::Program) => {}
            // A symbol has the name. With another origin, it would be the place to which its own stacks are attributed.
            Some(_) => return,
        }
        self.calls.insert((place, called), row);
    }

    /// Returns the index of a stack's innermost function of the program, and the name that
    /// [`add_call_name`](Self::add_call_name) created for it and the library function that it calls. `None` if no such
    /// name was created.
    pub(super) fn find_call_name(
        &self,
        functions: &[StringId],
        origins: &[CodeOrigin],
    ) -> Option<(usize, StringId)> {
        if self.calls.is_empty() {
            return None;
        }
        let (index, called) = self.find_library_call(functions, origins)?;
        let row = self.calls.get(&(functions[index], called))?;
        Some((index, *row))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{Address, Mapping};

    /// Name of the row of a stack, root first, in a program with this much code. Each function is the program's (`p`),
    /// or one of two libraries, of 1,000 bytes of code each (`z`, `q`); `+` in its name says that it has no symbol.
    fn row(program_bytes: u64, stack: &[&str]) -> String {
        let mapping = |path: &str, bytes: u64| Mapping {
            end: Address(bytes),
            executable: true,
            path: path.to_owned(),
            ..Mapping::default()
        };
        let profile = Profile {
            mappings: vec![
                mapping("p", program_bytes),
                mapping("z", 1000),
                mapping("q", 1000),
            ],
            ..Profile::default()
        };
        let mut places = UnnamedPlaces::default();
        let files = places.add_files(&profile);
        let (mut names, mut origins) = (Strings::default(), Vec::new());
        let mut functions: Vec<_> = stack
            .iter()
            .map(|name| {
                let id = names.intern(name);
                let file = ["p", "z", "q"]
                    .iter()
                    .position(|file| name.starts_with(file));
                places.add_function(id, files[file.expect("a file")], !name.contains('+'));
                origins.push(match file {
                    Some(0) => CodeOrigin::Program,
                    _ => CodeOrigin::Library,
                });
                id
            })
            .collect();
        places.add_call_name(&functions, &mut names, &mut origins);
        if let Some((index, row)) = places.find_call_name(&functions, &origins) {
            functions[index] = row;
        }
        let row = functions
            .iter()
            .rfind(|id| origins[id.0 as usize] == CodeOrigin::Program);
        row.map_or("", |id| names.get(*id)).to_owned()
    }

    #[test]
    fn place_without_a_symbol_is_shown_with_the_function_that_it_calls() {
        let check = |bytes, stack: &[&str], expected| assert_eq!(row(bytes, stack), expected);
        check(1000, &["p+0x1", "p+0x2"], "p+0x2");
        check(1000, &["p+0x1", "p+0x2", "z_init"], "p+0x2 calling z_init");
        check(1000, &["p+0x1", "z+0x9", "z_init"], "p+0x1 calling z_init");
        check(1000, &["p+0x1", "z+0x9", "z+0xa"], "p+0x1 calling z+0x9");
        check(1000, &["p+0x1", "z_init", "p_main"], "p_main");
        check(1000, &["p_main", "z_init"], "p_main");
        check(1000, &["p+0x1", "z_init", "z_new"], "p+0x1 calling z_init");
        // The program is little more than a front of the library.
        check(100, &["p+0x1", "z_init", "z_new"], "p+0x1 calling z_new");
        check(
            100,
            &["p+0x1", "z_init", "z_new", "q_new"],
            "p+0x1 calling z_new",
        );
        check(
            100,
            &["p+0x1", "z+0x9", "z+0xa", "q_new"],
            "p+0x1 calling z+0xa",
        );
        check(100, &["z_init", "z_new"], "");
    }

    #[test]
    fn symbol_with_the_name_of_a_row_keeps_its_origin() {
        let profile = Profile {
            mappings: ["p", "z"]
                .map(|path| Mapping {
                    end: Address(1000),
                    executable: true,
                    path: path.to_owned(),
                    ..Mapping::default()
                })
                .into(),
            ..Profile::default()
        };
        let mut places = UnnamedPlaces::default();
        let files = places.add_files(&profile);
        let (mut names, mut origins) = (Strings::default(), Vec::new());
        let mut add = |name: &str, file: usize, origin| {
            let id = names.intern(name);
            places.add_function(id, files[file], !name.ends_with("0x1"));
            origins.push(origin);
            id
        };
        let place = add("p+0x1", 0, CodeOrigin::Program);
        let init = add("z_init", 1, CodeOrigin::Library);
        let symbol = add("p+0x1 calling z_init", 1, CodeOrigin::Library);
        let stacks = [[place, symbol], [place, init]];
        for stack in &stacks {
            places.add_call_name(stack, &mut names, &mut origins);
        }
        let named = stacks.map(|stack| {
            let (_, row) = places.find_call_name(&stack, &origins)?;
            Some(names.get(row))
        });
        assert_eq!(named, [Some("p+0x1 calling p+0x1 calling z_init"), None]);
        assert_eq!(origins[symbol.0 as usize], CodeOrigin::Library);
    }
}
