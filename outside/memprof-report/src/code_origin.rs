//! Code origin of functions, so that a report shows the program's own functions and not the libraries that every
//! program calls: a row is the leaf-most frame of the highest origin in its stack.
//!
//! Evidence counts in this order: the user's patterns, the source file, the mapped file, the shape of a wrapper of
//! malloc, and last the name.

mod allocating_name;
mod evidence;
mod explanation;
mod function_evidence;
mod glob;
mod mapped_file;
mod name_rules;
mod namespace;
mod reason;
mod rules;
mod source_file;
mod wrappers;

use std::collections::HashSet;

use foldhash::HashMap;
use regex::Regex;

use self::evidence::ProfileEvidence;
use self::function_evidence::{FunctionEvidence, SourceEvidence};
use self::glob::matches_glob;
use self::mapped_file::MappedFile;
pub(crate) use self::mapped_file::library_stem;
pub(crate) use self::reason::{OriginReason, Verdict};
use self::rules::SCRIPTS;
use crate::allocator_frames::is_allocator_frame;
use crate::names::{Frame, Names, StringId};
use crate::stacks::{AddressId, StackId};
use crate::symbolized_profile::SymbolizedProfile;

pub(crate) use self::explanation::explain_origin;

/// Origin of a function's code, from the least to the most informative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CodeOrigin {
    /// Code that starts a program or a thread, before `main`.
    #[default]
    Startup,
    /// Standard libraries, containers and wrappers of malloc.
    Plumbing,
    /// An interpreter or a language's runtime.
    Interpreter,
    /// A library: one without symbols, or one that stores what its callers give it.
    Library,
    /// The program's own code.
    Program,
}

impl CodeOrigin {
    /// Text that tables append to a function's name; empty for the program's own.
    pub(crate) fn row_suffix(self) -> &'static str {
        match self {
            Self::Startup => " (start)",
            Self::Plumbing => " (plumbing)",
            Self::Interpreter => " (interpreter)",
            Self::Library => " (library)",
            Self::Program => "",
        }
    }
}

/// Rules that determine code origins. The default is only the built-in tables in `code_origin/rules`.
#[derive(Clone, Debug, Default)]
pub struct OriginRules {
    /// Makes every function a row: none is folded into its caller.
    pub flat: bool,
    /// Names that count as the program's own, whatever other rules say.
    pub own: Option<Regex>,
    /// Names that count as plumbing, unless `own` matches too.
    pub plumbing: Option<Regex>,
}

impl OriginRules {
    /// Returns the verdict on a function by the user's patterns for its name; `own` is tried before `plumbing`. `None`
    /// if no pattern matches.
    fn pattern_verdict(&self, function: &str) -> Option<Verdict> {
        let matches = |pattern: &Option<Regex>| {
            pattern
                .as_ref()
                .is_some_and(|pattern| pattern.is_match(function))
        };
        let origin = match () {
            () if matches(&self.own) => CodeOrigin::Program,
            () if matches(&self.plumbing) => CodeOrigin::Plumbing,
            () => return None,
        };
        Some(Verdict::new(origin, OriginReason::Pattern))
    }
}

/// Code origins of all frames of a profile.
#[derive(Debug, Default)]
pub struct CodeOrigins {
    verdicts: Vec<Verdict>,
    /// By verdict: whether the function is the allocator's, by its name.
    is_allocator: Vec<bool>,
    /// By [`AddressId`]: index of the verdict on each of its frames, innermost first.
    by_address: Vec<Box<[u32]>>,
}

/// Function, linkage name, source file and mapping of a frame; frames with the same key have one verdict.
type FrameKey = (StringId, Option<StringId>, Option<StringId>, Option<usize>);

impl CodeOrigins {
    /// Determines the code origin of each frame of a profile, first by its own evidence, then by its callers and
    /// callees: functions without a symbol in the program's plugins and libraries may become its own, wrappers of
    /// malloc and helpers in libraries plumbing. If the program is not stripped and has no function of its own but
    /// `main`, those of system libraries become its own.
    pub fn new(named: &SymbolizedProfile, origin_rules: &OriginRules) -> Self {
        let SymbolizedProfile { profile, names, .. } = named;
        let evidence = ProfileEvidence::new(named);
        let files = MappedFile::for_mappings(profile);
        let addresses = (0..profile.stacks.addresses().len() as u32).map(AddressId);
        let mappings: Vec<_> = addresses.map(|id| profile.mapping_of_frame(id)).collect();
        let mut origins = Self::default();
        let mut known: HashMap<FrameKey, u32> = HashMap::default();
        let mut sources: HashMap<StringId, SourceEvidence<'_>> = HashMap::default();
        let mut has_own_functions = false;
        for (index, &mapping) in mappings.iter().enumerate() {
            let id = AddressId(index as u32);
            let file = mapping.map_or(MappedFile::default(), |mapping| files[mapping]);
            let verdicts = names.frames(id).iter().map(|frame| {
                let key = (frame.function, frame.linkage, frame.file, mapping);
                *known.entry(key).or_insert_with(|| {
                    if names.is_managed_word(id) {
                        let verdict = script_verdict(frame, names, origin_rules);
                        has_own_functions |= verdict.origin == CodeOrigin::Program;
                        origins.verdicts.push(verdict);
                        origins.is_allocator.push(false);
                        return origins.verdicts.len() as u32 - 1;
                    }
                    let source = frame.file.map_or(SourceEvidence::Unknown, |path| {
                        let path_evidence = || SourceEvidence::new(names.strings.get(path));
                        *sources.entry(path).or_insert_with(path_evidence)
                    });
                    let function = FunctionEvidence::new(frame, names, source, file);
                    let verdict = evidence.verdict(&function, origin_rules);
                    has_own_functions |= is_own_function(&function, verdict);
                    origins.verdicts.push(verdict);
                    origins.is_allocator.push(is_allocator_frame(frame, names));
                    origins.verdicts.len() as u32 - 1
                })
            });
            let verdicts = verdicts.collect();
            origins.by_address.push(verdicts);
        }
        origins.treat_stripped_modules_as_own(named, &files, &mappings);
        if !has_own_functions && !origins.has_unnamed_own_function(named) {
            origins.treat_system_libraries_as_own();
        }
        wrappers::mark_wrappers(&mut origins, named);
        origins.treat_library_helpers_as_plumbing(named, &mappings);
        origins
    }

    /// Returns whether any function without a symbol is the program's own, by its mapped file: the program is stripped.
    fn has_unnamed_own_function(&self, named: &SymbolizedProfile) -> bool {
        (0..self.by_address.len()).any(|index| {
            let id = AddressId(index as u32);
            let frames = named.names.frames(id).iter().zip(self.verdicts(id));
            let mut unnamed = frames.filter(|(frame, _)| !frame.named);
            unnamed.any(|(_, verdict)| {
                matches!(
                    verdict.reason,
                    OriginReason::Program | OriginReason::UnnamedInModule
                )
            })
        })
    }

    /// Changes the verdicts on functions in the system's libraries: they count as the program's own. This is for a
    /// program that has no function of its own but `main`, because libraries do all its work.
    fn treat_system_libraries_as_own(&mut self) {
        for verdict in &mut self.verdicts {
            if matches!(verdict.reason, OriginReason::SystemLibrary) {
                *verdict = Verdict::new(CodeOrigin::Program, OriginReason::NamedInLibrary);
            }
        }
    }

    /// Changes the verdicts on functions without a symbol in the program's plugins and libraries: they count as the
    /// program's own, unless a function with a symbol in the same file called them. Otherwise the memory of all plugins
    /// would be in one row of the table, that of the function that calls them. `files` has the file of each of the
    /// profile's mappings, `mappings` the mapping of each address.
    fn treat_stripped_modules_as_own(
        &mut self,
        named: &SymbolizedProfile,
        files: &[MappedFile<'_>],
        mappings: &[Option<usize>],
    ) {
        let SymbolizedProfile { profile, names, .. } = named;
        let module_of = |mapping: &Option<usize>| mapping.filter(|index| files[*index].is_module());
        let modules: Vec<Option<usize>> = mappings.iter().map(module_of).collect();
        if modules.iter().all(Option::is_none) {
            return;
        }
        for stack in 0..profile.stacks.len() {
            let mut module = None;
            let mut has_named_caller = false;
            for id in profile.stacks.frames(StackId(stack as u32)).iter().rev() {
                let index = id.0 as usize;
                if modules[index] != module {
                    module = modules[index];
                    has_named_caller = false;
                }
                if module.is_none() || has_named_caller {
                    continue;
                }
                for verdict in &self.by_address[index] {
                    let verdict = &mut self.verdicts[*verdict as usize];
                    if matches!(verdict.reason, OriginReason::UnnamedInLibrary) {
                        *verdict = Verdict::new(CodeOrigin::Program, OriginReason::UnnamedInModule);
                    }
                }
                has_named_caller = names.frames(*id).iter().any(|frame| frame.named);
            }
        }
    }

    /// Changes the verdicts on functions without a symbol in libraries to plumbing, which reports fold into its
    /// callers, if a function with a symbol in the same library is among their callers. So a stack with only functions
    /// of libraries counts for a function that has a name. `mappings` has the mapping of each address.
    fn treat_library_helpers_as_plumbing(
        &mut self,
        named: &SymbolizedProfile,
        mappings: &[Option<usize>],
    ) {
        let SymbolizedProfile { profile, names, .. } = named;
        let is_helper =
            |verdict: &Verdict| matches!(verdict.reason, OriginReason::UnnamedInLibrary);
        let may_have_helper = |verdicts: &[u32]| {
            let mut verdicts = verdicts.iter();
            verdicts.any(|verdict| is_helper(&self.verdicts[*verdict as usize]))
        };
        let may_have_helper: Vec<bool> = self
            .by_address
            .iter()
            .map(|verdicts| may_have_helper(verdicts))
            .collect();
        for stack in 0..profile.stacks.len() {
            let addresses = profile.stacks.frames(StackId(stack as u32));
            if !addresses.iter().any(|id| may_have_helper[id.0 as usize]) {
                continue;
            }
            let mut library = None;
            let mut has_named_caller = false;
            for id in addresses.iter().rev() {
                let mapping = mappings[id.0 as usize];
                if mapping != library {
                    (library, has_named_caller) = (mapping, false);
                }
                for (frame, verdict) in names
                    .frames(*id)
                    .iter()
                    .zip(&self.by_address[id.0 as usize])
                {
                    let verdict = &mut self.verdicts[*verdict as usize];
                    has_named_caller |= frame.named && verdict.origin == CodeOrigin::Library;
                    if has_named_caller && is_helper(verdict) {
                        *verdict =
                            Verdict::new(CodeOrigin::Plumbing, OriginReason::HelperInLibrary);
                    }
                }
            }
        }
    }

    /// Returns the origins of an address's frames, innermost first.
    pub fn origins(&self, address: AddressId) -> impl ExactSizeIterator<Item = CodeOrigin> + '_ {
        self.verdicts(address).map(|verdict| verdict.origin)
    }

    /// Returns the verdicts on an address's frames, innermost first.
    pub(crate) fn verdicts(
        &self,
        address: AddressId,
    ) -> impl ExactSizeIterator<Item = Verdict> + '_ {
        let indexes = self.by_address[address.0 as usize].iter();
        indexes.map(|index| self.verdicts[*index as usize])
    }
}

/// Returns whether a file belongs to the standard library or the packages of an interpreted language: its path matches
/// a pattern of [`SCRIPTS`].
pub(crate) fn is_script_library(path: &str) -> bool {
    SCRIPTS
        .iter()
        .any(|(_, pattern)| matches_glob(pattern, path))
}

/// Decides on a function of an interpreted program: by the user's patterns, then by its file. It is the program's own
/// if its file is in no known directory of a library, or is unknown.
fn script_verdict(frame: &Frame, names: &Names, origin_rules: &OriginRules) -> Verdict {
    let function = names.strings.get(frame.function);
    if let Some(verdict) = origin_rules.pattern_verdict(function) {
        return verdict;
    }
    let path = frame.file.map_or("", |file| names.strings.get(file));
    let mut rules = SCRIPTS.iter();
    match rules.find(|(_, pattern)| matches_glob(pattern, path)) {
        Some((origin, pattern)) => Verdict::new(*origin, OriginReason::ScriptLibrary(pattern)),
        None => Verdict::new(CodeOrigin::Program, OriginReason::Script),
    }
}

/// Returns the names of the Rust crates that have a function `main`: such a crate is the program. A `main` in a module
/// of the crate, such as `shop::cli::main`, does not count. Each of `frames` comes with the name of its function.
fn crates_with_main<'n>(frames: impl Iterator<Item = (&'n str, &'n Frame)>) -> HashSet<String> {
    frames
        .filter_map(|(name, _)| name.strip_suffix("::main"))
        .filter(|name| name.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_'))
        .map(str::to_owned)
        .collect()
}

/// Returns whether a function is the program's own and has a symbol. False for the start-up code that every program
/// has: `main`, and names with a leading `_`, such as `_start`.
fn is_own_function(function: &FunctionEvidence<'_>, verdict: Verdict) -> bool {
    verdict.origin == CodeOrigin::Program
        && function.is_named
        && function.name != "main"
        && !function.name.starts_with('_')
}
