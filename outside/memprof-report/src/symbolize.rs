//! Addresses to names, outside of the host: from the files its mappings name.

mod abbreviations;
mod address;
mod dwarf;
mod elf;
mod frames;
mod jit_code;
mod jitdump;
mod limited_file;
mod minidebug;
mod perf_map;
mod scopes;
mod search;
mod segment_tree;
mod source_path;
mod units;

use std::num::NonZeroUsize;
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

pub use self::limited_file::LimitedFile;

use self::frames::CollectedFrames;
use crate::error::Result;
use crate::names::{Frame, Names};
use crate::profile::{Address, EVICTED, FileOffset, NOBODY, Profile, ProfileOrigin};
use crate::stacks::AddressId;

/// Where binaries are looked for. The default is nowhere: every name is a number.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// Stands for the main program, wherever that was.
    pub binary: Option<PathBuf>,
    /// Directories below which the mappings' paths are opened, in order: `/proc/PID/root`, `/`.
    pub roots: Vec<PathBuf>,
    /// A directory of binaries from elsewhere: by path, by file name, by build id.
    pub binary_root: Option<PathBuf>,
    /// This machine's name. A profile from another one is named from `binary_root` only, and only where
    /// the build id matches.
    pub machine: Option<String>,
    /// The living process whose just-in-time compiler is asked for names.
    pub pid: Option<u32>,
    /// Name in spite of a build id that does not match.
    pub force: bool,
}

impl Sources {
    /// The binaries of a living process, or of one that ran on this machine.
    pub fn for_process(pid: Option<u32>) -> Self {
        let root = pid.map(|pid| PathBuf::from(format!("/proc/{pid}/root")));
        let machine = rustix::system::uname();
        Self {
            binary: pid.and_then(deleted_binary),
            roots: root.into_iter().chain([PathBuf::from("/")]).collect(),
            binary_root: None,
            machine: Some(machine.nodename().to_string_lossy().into_owned()),
            pid,
            force: false,
        }
    }
}

/// The main program of a process where its file was replaced: the kernel still has what runs.
fn deleted_binary(pid: u32) -> Option<PathBuf> {
    let exe = PathBuf::from(format!("/proc/{pid}/exe"));
    let target = std::fs::read_link(&exe).ok()?;
    let is_deleted = target.to_string_lossy().ends_with(" (deleted)");
    is_deleted.then_some(exe)
}

/// Called as objects are done, with how many are and how many there are; last of all with all of them.
pub type Progress<'a> = &'a (dyn Fn(usize, usize) + Sync);

/// The addresses that lie in one file.
struct ObjectFile<'a> {
    path: &'a str,
    build_id: Option<&'a str>,
    is_main: bool,
    queries: Vec<(FileOffset, AddressId)>,
}

/// What one file told.
struct SymbolizedFile {
    frames: Vec<CollectedFrames>,
    notes: Vec<String>,
    /// Whether the file's build id is the profile's, where one is named.
    likeness: Option<BuildIdMatch>,
}

/// What build ids say of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BuildIdMatch {
    /// It is the one of the profile.
    Match,
    /// The profile has none.
    Unknown,
    /// It is another one, and names are forced.
    Mismatch,
}

impl BuildIdMatch {
    /// What a reader should know of names from these files.
    fn note(self, paths: &[&str]) -> String {
        const SHOWN: usize = 3;
        let shown = paths[..paths.len().min(SHOWN)].join(", ");
        let more = match paths.len().saturating_sub(SHOWN) {
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

/// Names every address of the profile. One without a name gets `libfoo.so+0x1234`; notes say why.
///
/// Frames hold return addresses: the call is one before.
pub fn symbolize(
    profile: &mut Profile,
    sources: &Sources,
    progress: Progress<'_>,
) -> Result<Names> {
    let mut names = profile.names.take().unwrap_or_default();
    let objects = objects(profile, &names);
    let answers = symbolize_files(&objects, &profile.origin, sources, progress)?;
    let mut notes = Vec::new();
    for likeness in [BuildIdMatch::Unknown, BuildIdMatch::Mismatch] {
        let of = objects.iter().zip(&answers);
        let paths: Vec<_> = of
            .filter(|(_, answer)| answer.likeness == Some(likeness))
            .map(|(object, _)| object.path)
            .collect();
        if !paths.is_empty() {
            notes.push(likeness.note(&paths));
        }
    }
    for answer in answers {
        notes.extend(answer.notes);
        for frames in answer.frames {
            frames.move_to(&mut names);
        }
    }
    profile.warnings.extend(notes);
    jit_code::name(profile, sources, &mut names);
    name_by_offset(profile, &mut names);
    Ok(names)
}

/// The name of a frame that stands for no code.
fn pseudo_name(profile: &Profile, address: Address) -> Option<&'static str> {
    match address {
        NOBODY if profile.is_pinned => Some("[not attributable]"),
        EVICTED if profile.origin.sampling_since.is_some() => Some("[stacks no longer kept]"),
        _ => None,
    }
}

/// Gives every address without frames its mapping and offset for a name. One in no mapping is its own name;
/// a warning counts these, for a dump may be cut in the middle of its mappings.
pub(crate) fn name_by_offset(profile: &mut Profile, names: &mut Names) {
    let mut unmapped = 0;
    for (index, &address) in profile.stacks.addresses().iter().enumerate() {
        let id = AddressId(index as u32);
        if !names.frames(id).is_empty() {
            continue;
        }
        let call = Address(address.0.wrapping_sub(1));
        let pseudo = pseudo_name(profile, address);
        let mapping = profile
            .mapping_of(call)
            .map(|index| &profile.mappings[index]);
        let name = match (pseudo, mapping) {
            (Some(name), _) => name.to_owned(),
            (None, None) => {
                unmapped += 1;
                format!("{call}")
            }
            (None, Some(mapping)) if mapping.is_file() || mapping.path.starts_with('[') => {
                format!("{}+{:#x}", mapping.file_name(), mapping.normalize(call).0)
            }
            (None, Some(mapping)) => {
                let kind = if mapping.executable {
                    "[jit]"
                } else {
                    "[anonymous]"
                };
                format!("{kind}+{:#x}", call.0 - mapping.start.0)
            }
        };
        let function = names.strings.intern(&name);
        names.set(
            id,
            &[Frame {
                function,
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

/// Groups the addresses without names by file.
fn objects<'a>(profile: &'a Profile, names: &Names) -> Vec<ObjectFile<'a>> {
    let main = profile.main_file().map(|mapping| mapping.path.as_str());
    let mut objects: Vec<ObjectFile<'a>> = Vec::new();
    let mut by_path = std::collections::HashMap::new();
    let by_mapping: Vec<Option<usize>> = profile
        .mappings
        .iter()
        .map(|mapping| {
            mapping.is_file().then(|| {
                *by_path.entry(mapping.path.as_str()).or_insert_with(|| {
                    objects.push(ObjectFile {
                        path: &mapping.path,
                        build_id: mapping.build_id.as_deref(),
                        is_main: main == Some(mapping.path.as_str()),
                        queries: Vec::new(),
                    });
                    objects.len() - 1
                })
            })
        })
        .collect();
    for (index, &address) in profile.stacks.addresses().iter().enumerate() {
        let id = AddressId(index as u32);
        let call = Address(address.0.wrapping_sub(1));
        let Some(mapping) = profile
            .mapping_of(call)
            .filter(|_| names.frames(id).is_empty())
        else {
            continue;
        };
        if let Some(object) = by_mapping[mapping] {
            objects[object]
                .queries
                .push((profile.mappings[mapping].normalize(call), id));
        }
    }
    objects.retain(|object| !object.queries.is_empty());
    // The long ones first, so that no core waits for the other at the end.
    objects.sort_by_key(|object| std::cmp::Reverse(object.queries.len()));
    objects
}

/// One object after the other on each core; the answers in the objects' order.
fn symbolize_files(
    objects: &[ObjectFile<'_>],
    origin: &ProfileOrigin,
    sources: &Sources,
    progress: Progress<'_>,
) -> Result<Vec<SymbolizedFile>> {
    let next = AtomicUsize::new(0);
    let done = AtomicUsize::new(0);
    let work = || {
        let mut answers = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(object) = objects.get(index) else {
                return answers;
            };
            answers.push((index, symbolize_file(object, origin, sources)));
            progress(done.fetch_add(1, Ordering::Relaxed) + 1, objects.len());
        }
    };
    let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let mut answers = thread::scope(|scope| {
        let others: Vec<_> = (1..cores.min(objects.len()))
            .map(|_| scope.spawn(work))
            .collect();
        let mut answers = work();
        for other in others {
            answers.extend(other.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        answers
    });
    // What the others told last may have come later.
    progress(objects.len(), objects.len());
    answers.sort_by_key(|(index, _)| *index);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

fn symbolize_file(
    object: &ObjectFile<'_>,
    origin: &ProfileOrigin,
    sources: &Sources,
) -> Result<SymbolizedFile> {
    let mut answer = SymbolizedFile {
        frames: Vec::new(),
        notes: Vec::new(),
        likeness: None,
    };
    // A program may be started by a link: Debian's redis-server leads to redis-check-rdb.
    let is_other = |host: &&str| object.is_main && object.path.rsplit('/').next() != Some(host);
    let name = match origin.host.as_deref().filter(is_other) {
        Some(host) => format!("{} (the file of {host})", object.path),
        None => object.path.to_owned(),
    };
    let note = |text: String| format!("{name}: {text}");
    match search::find(object, origin.machine.as_deref(), sources)? {
        search::BinaryLookup::Nothing(reason) => answer.notes.push(note(reason)),
        search::BinaryLookup::Binary(binary) => {
            answer.likeness = Some(binary.likeness);
            match elf::name(&binary, &object.queries, object.is_main) {
                Ok((frames, notes)) => {
                    answer.frames = frames;
                    answer.notes.extend(notes.into_iter().map(note));
                }
                Err(error) => answer.notes.push(note(error.to_string())),
            }
        }
    }
    Ok(answer)
}
