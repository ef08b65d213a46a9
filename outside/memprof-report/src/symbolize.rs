//! Symbolizes addresses, outside of the host, from the files that its mappings name.

mod address;
mod build_id;
mod call_shapes;
mod companions;
mod debug_budget;
mod dwarf;
mod elf;
mod frames;
mod image;
mod jit_code;
mod jitdump;
mod known_frames;
mod limited_file;
mod minidebug;
pub(crate) mod moved_text;
mod object_files;
mod perf_map;
mod program;
mod read_permits;
mod regular_file;
mod scopes;
mod search;
mod sections;
mod segment_tree;
mod source_path;
mod sources;
mod split;
mod supplementary;
mod supplementary_link;
mod symbol_budget;
mod symbol_matcher;
mod units;
mod unwinding_rules;

use std::num::NonZeroUsize;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

pub use self::limited_file::LimitedFile;
pub use self::sources::Sources;

use self::frames::CollectedFrames;
use self::known_frames::BinaryId;
pub(crate) use self::known_frames::KnownFrames;
use self::object_files::{ObjectFile, group_addresses_by_file, unused_binary_note};
use self::read_permits::ReadPermits;
use self::regular_file::READ_LIMIT;
pub(crate) use self::symbol_budget::SymbolBudget;
use self::symbol_budget::TIME_LIMIT;
use crate::call_shape::CallShape;
use crate::error::Result;
use crate::module_names::ModuleNames;
use crate::names::{Frame, Names};
use crate::profile::{Address, EVICTED_STACKS, NO_STACK, Profile, ProfileOrigin, UNATTRIBUTED};
use crate::stacks::AddressId;

/// Progress callback, called with the number of finished files and of all files; the last call has both equal.
pub type Progress<'a> = &'a (dyn Fn(usize, usize) + Sync);

/// Frames and notes of one file.
struct SymbolizedFile {
    frames: Vec<CollectedFrames>,
    call_shapes: Vec<(AddressId, CallShape)>,
    notes: Vec<String>,
    /// Result of comparing build ids. `None` if no file was found.
    build_id_match: Option<BuildIdMatch>,
    /// Identity of the binary, by which other processes of the report know its frames.
    id: Option<BinaryId>,
    /// Whether the time for the file was over before all addresses were looked up.
    is_late: bool,
}

/// Result of comparing a file's build id with the profile's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BuildIdMatch {
    /// The build ids are equal.
    Match,
    /// The profile has no build id of the file.
    Unknown,
    /// The build ids differ, and `force` is set.
    Mismatch,
}

impl BuildIdMatch {
    /// Returns a note on the names from the files at `paths`, all of which have this result. Not for `Match`, which
    /// needs no note. Lists up to three paths.
    fn paths_note(self, paths: &[&str]) -> String {
        const MAX_SHOWN: usize = 3;
        let shown = paths[..paths.len().min(MAX_SHOWN)].join(", ");
        let more = match paths.len().saturating_sub(MAX_SHOWN) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        match self {
            Self::Mismatch => format!("names in spite of another build id: {shown}{more}"),
            _ => format!(
                "named by path alone, for the profile has no build id of them: {shown}{more}"
            ),
        }
    }
}

/// Symbolizes every address of the profile. One without a symbol gets a name such as `libfoo.so+0x1234`; warnings give
/// the reason. `progress` is called with the numbers of files done and of all files.
///
/// Frames hold return addresses, so the byte before each is looked up.
///
/// # Errors
/// Only binaries with another build id exist for the main program, or for the file that `sources.binary` replaces, and
/// `sources` does not force their use.
pub fn symbolize(
    profile: &mut Profile,
    sources: &Sources,
    progress: Progress<'_>,
) -> Result<Names> {
    let mut budget = SymbolBudget::new(std::slice::from_ref(profile));
    let mut known = KnownFrames::default();
    let mut names = find_symbols(profile, sources, progress, &mut budget, &mut known)?;
    let modules = ModuleNames::new([(&*profile, &names)]);
    name_addresses_by_offset(profile, &mut names, &modules);
    Ok(names)
}

/// Finds the symbols of a profile's addresses; an address without a symbol gets no frames. Also completes the profile:
/// sets its program if it names none, and restores mappings of code over which other memory was mapped. Stops when the
/// process's share of the `budget` is spent; warnings say what has no names because of it. Frames of files that other
/// processes of the report have mapped too are copied from `known`, and added to it. `progress` is called with the
/// numbers of files done and of all files.
///
/// # Errors
/// Only binaries with another build id exist for the main program, or for the file that `sources.binary` replaces, and
/// `sources` does not force their use.
pub(crate) fn find_symbols(
    profile: &mut Profile,
    sources: &Sources,
    progress: Progress<'_>,
    budget: &mut SymbolBudget,
    known: &mut KnownFrames,
) -> Result<Names> {
    let mut names = profile.names.take().unwrap_or_default();
    budget.begin_process(profile);
    program::set_program_if_unnamed(profile, sources);
    moved_text::restore_mappings(profile, Some(sources));
    let files = group_addresses_by_file(profile, &names, sources);
    let results = symbolize_files(&files, &profile.origin, sources, progress, budget, known)?;
    let mut notes: Vec<String> = unused_binary_note(&files, profile, sources)
        .into_iter()
        .collect();
    for build_id_match in [BuildIdMatch::Unknown, BuildIdMatch::Mismatch] {
        let pairs = files.iter().zip(&results);
        let paths: Vec<_> = pairs
            .filter(|(_, result)| result.build_id_match == Some(build_id_match))
            .map(|(file, _)| file.path)
            .collect();
        if !paths.is_empty() {
            notes.push(build_id_match.paths_note(&paths));
        }
    }
    for (file, result) in files.iter().zip(results) {
        for frames in result.frames {
            frames.move_to(&mut names);
        }
        names.call_shapes.extend(result.call_shapes);
        if let Some(id) = result.id {
            known.copy_to(&id, &file.queries, &mut names);
            if budget.sharer_count(file.path, file.build_id) > 1 {
                known.add_file(id, file, &result.notes, result.is_late, &names);
            }
        }
        notes.extend(result.notes);
    }
    profile.warnings.extend(notes);
    jit_code::name_jit_code(profile, sources, &mut names, budget);
    budget.end_process();
    Ok(names)
}

/// Returns the name that reports show for an address that stands for no code, such as `[no stack]`. `None` for an
/// address of code; in profiles that cannot have the pseudo frames `UNATTRIBUTED` and `EVICTED_STACKS`, these are such
/// addresses, too.
fn pseudo_frame_name(profile: &Profile, address: Address) -> Option<&'static str> {
    match address {
        UNATTRIBUTED if profile.is_pinned => Some("[not attributable]"),
        EVICTED_STACKS if profile.origin.sampling_since.is_some() => {
            Some("[stacks no longer kept]")
        }
        NO_STACK => Some("[no stack]"),
        _ => None,
    }
}

/// Names every address without frames by module and offset. An address in no mapping is its own name; a warning counts
/// these, because a dump may be truncated in its mappings.
pub(crate) fn name_addresses_by_offset(
    profile: &mut Profile,
    names: &mut Names,
    modules: &ModuleNames,
) {
    let mut unmapped = 0;
    for id in (0..profile.stacks.addresses().len() as u32).map(AddressId) {
        if !names.frames(id).is_empty() {
            continue;
        }
        let pseudo = pseudo_frame_name(profile, profile.stacks.address(id));
        let mapping = profile.mapping_of_frame(id);
        unmapped += usize::from(pseudo.is_none() && mapping.is_none());
        let mapping = mapping.map(|index| &profile.mappings[index]);
        let name = match pseudo {
            Some(name) => name.to_owned(),
            None => modules.place_name(mapping, profile.stacks.call_address(id)),
        };
        let function = names.strings.intern(&name);
        names.set_frames(
            id,
            &[Frame {
                function,
                linkage: None,
                file: None,
                line: 0,
                named: pseudo.is_some(),
            }],
        );
    }
    if unmapped > 0 {
        let warning = format!("{unmapped} addresses lie in no mapping");
        profile.warnings.push(warning);
    }
}

/// Symbolizes the files on all cores, each until the deadline that the `budget` gives it. Blocks until all are done.
/// Returns the results in the order of the files. `progress` is called with the numbers of files done and of all files.
/// Fails with the error of the first file in this order that has one.
fn symbolize_files(
    files: &[ObjectFile<'_>],
    origin: &ProfileOrigin,
    sources: &Sources,
    progress: Progress<'_>,
    budget: &SymbolBudget,
    known: &KnownFrames,
) -> Result<Vec<SymbolizedFile>> {
    let next = AtomicUsize::new(0);
    let done = AtomicUsize::new(0);
    let permits = ReadPermits::new(READ_LIMIT);
    let work = || {
        let mut results = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(file) = files.get(index) else {
                return results;
            };
            let deadline = budget.deadline(budget.sharer_count(file.path, file.build_id));
            let result = symbolize_file(file, origin, sources, &permits, deadline, known);
            results.push((index, result));
            progress(done.fetch_add(1, Ordering::Relaxed) + 1, files.len());
        }
    };
    let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let mut results = thread::scope(|scope| {
        let others: Vec<_> = (1..cores.min(files.len()))
            .map(|_| scope.spawn(work))
            .collect();
        let mut results = work();
        for other in others {
            results.extend(other.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        results
    });
    // Threads may have reported their counts out of order.
    progress(files.len(), files.len());
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Returns a note on `count` addresses whose `parts` (names, lines) were not read because [`TIME_LIMIT`] passed.
fn time_limit_note(parts: &str, count: usize) -> String {
    format!(
        "the {parts} of {count} addresses are not read: {} s are for the names of a report, of which each process has a \
         part; --binary-root names a directory with a stripped copy, or --no-symbols leaves all names out",
        TIME_LIMIT.as_secs()
    )
}

/// Symbolizes those addresses of one file that are not `known`, until the deadline; notes say what could not be read.
/// Waits until the `permits` allow to hold the file in memory. Fails if only binaries with another build id exist for
/// the main program, or for the file that `sources.binary` replaces, and `sources` does not force their use.
fn symbolize_file(
    file: &ObjectFile<'_>,
    origin: &ProfileOrigin,
    sources: &Sources,
    permits: &ReadPermits,
    deadline: Instant,
    known: &KnownFrames,
) -> Result<SymbolizedFile> {
    let mut result = SymbolizedFile {
        frames: Vec::new(),
        call_shapes: Vec::new(),
        notes: Vec::new(),
        build_id_match: None,
        id: None,
        is_late: false,
    };
    // A program may be started by a symbolic link: Debian's redis-server points to redis-check-rdb.
    let is_other = |host: &&str| file.is_main && file.path.rsplit('/').next() != Some(host);
    let name = match origin.host.as_deref().filter(is_other) {
        Some(host) => format!("{} (the file of {host})", file.path),
        None => file.path.to_owned(),
    };
    let note = |text: String| format!("{name}: {text}");
    let is_late = || Instant::now() > deadline;
    if is_late() && !known.has_file(file) {
        result
            .notes
            .push(note(time_limit_note("names", file.queries.len())));
        return Ok(result);
    }
    match search::find_binary(file, origin.machine.as_deref(), sources)? {
        search::BinaryLookup::Nothing(reason) => result.notes.push(note(reason)),
        search::BinaryLookup::Binary(mut binary) => {
            result.build_id_match = Some(binary.build_id_match);
            result.id = BinaryId::new(&binary, file);
            let mut queries = file.queries.clone();
            if let Some(id) = &result.id {
                queries = known.unknown_queries(id, &queries);
                if queries.is_empty() {
                    result.notes.extend_from_slice(known.file_notes(id));
                    return Ok(result);
                }
            }
            binary.find_debug_file(deadline);
            if is_late() {
                result
                    .notes
                    .push(note(time_limit_note("names", queries.len())));
                result.is_late = true;
                return Ok(result);
            }
            let file = &ObjectFile {
                queries,
                mappings: file.mappings.clone(),
                ..*file
            };
            let _held = permits.acquire(binary.file_bytes());
            match elf::symbolize_file(&binary, file, deadline) {
                Ok((frames, call_shapes, notes)) => {
                    result.frames = frames;
                    result.call_shapes = call_shapes;
                    result.notes.extend(notes.into_iter().map(note));
                }
                Err(error) => result.notes.push(note(error.to_string())),
            }
            result.is_late = is_late();
        }
    }
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::object_files::CodeQuery;
    use super::*;
    use crate::profile::FileOffset;

    #[test]
    fn file_is_not_read_after_the_deadline() {
        let query = CodeQuery {
            address: Address(0x1000),
            offset: FileOffset(0x1000),
            id: AddressId(0),
            is_near_leaf: true,
        };
        let file = ObjectFile {
            path: "/proc/self/exe",
            is_main: true,
            has_offsets: true,
            queries: vec![query; 3],
            ..ObjectFile::default()
        };
        let sources = Sources::for_process(None);
        let check = |deadline: Instant, expected: bool| {
            let permits = ReadPermits::new(READ_LIMIT);
            let origin = ProfileOrigin::default();
            let known = KnownFrames::default();
            let result = symbolize_file(&file, &origin, &sources, &permits, deadline, &known);
            let notes = result.unwrap().notes;
            let is_late = notes
                .iter()
                .any(|note| note.contains("the names of 3 addresses are not read"));
            assert_eq!(is_late, expected, "{notes:?}");
        };
        let now = Instant::now();
        check(now, true);
        check(now + TIME_LIMIT, false);
    }
}
