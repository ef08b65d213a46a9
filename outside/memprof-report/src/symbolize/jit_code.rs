//! Code that lies in no file, because the program made it while it ran: what its just-in-time compiler wrote for
//! `perf` names it.

use std::fs::File;
use std::io::BufReader;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::search::{SearchPath, open};
use super::{Sources, jitdump, perf_map};
use crate::names::{Frame, Names};
use crate::profile::Profile;
use crate::stacks::AddressId;

/// The most jitdumps of a profile that are read: a forked child has its parent's mapped too.
const JITDUMPS: usize = 4;

/// Names what lies in no file and has no name yet.
pub(super) fn name(profile: &mut Profile, sources: &Sources, names: &mut Names) {
    let addresses = unnamed(profile, names);
    if addresses.is_empty() {
        return;
    }
    let mut set = |found: Vec<(AddressId, String)>| {
        for (id, name) in found {
            let frame = Frame {
                function: names.strings.intern(&name),
                file: None,
                line: 0,
                named: true,
            };
            names.set(id, &[frame]);
        }
    };
    let process = sources.pid.and_then(LiveProcess::find);
    if let Some(map) = process.as_ref().and_then(LiveProcess::perf_map) {
        set(perf_map::names(map, &addresses));
    }
    let mut notes = Vec::new();
    for (path, writer) in jitdumps(profile) {
        match open_jitdump(path, profile, sources, process.as_ref()) {
            None => notes.push(format!(
                "{path}: no such file here, code that it describes has no names"
            )),
            Some(dump) => match jitdump::names(BufReader::new(dump), writer, &addresses) {
                Ok(found) => set(found),
                Err(error) => notes.push(format!("{path}: {error}")),
            },
        }
    }
    profile.warnings.extend(notes);
}

/// The calls in no file and without a name, sorted.
fn unnamed(profile: &Profile, names: &Names) -> Vec<(u64, AddressId)> {
    let mut addresses: Vec<(u64, AddressId)> = (0..profile.stacks.addresses().len())
        .map(|index| AddressId(index as u32))
        .filter(|&id| {
            let mapping = profile.mapping_of_frame(id);
            let in_file = mapping.is_some_and(|index| profile.mappings[index].is_file());
            !in_file && names.frames(id).is_empty()
        })
        .map(|id| (profile.stacks.address(id).0.wrapping_sub(1), id))
        .collect();
    addresses.sort_unstable();
    addresses
}

/// The jitdumps that the process had mapped, each once, and who wrote them.
fn jitdumps(profile: &Profile) -> Vec<(&str, u32)> {
    let mut found = Vec::new();
    for mapping in &profile.mappings {
        let one = jitdump::writer(mapping).map(|writer| (mapping.path.as_str(), writer));
        found.extend(one.filter(|one| !found.contains(one)));
    }
    found.truncate(JITDUMPS);
    found
}

/// A file of the process's user, while it lives; later what lies there, as with a binary without a build id.
fn open_jitdump(
    path: &str,
    profile: &Profile,
    sources: &Sources,
    process: Option<&LiveProcess>,
) -> Option<File> {
    if let Some(process) = process {
        return process.open(Path::new(path));
    }
    let (theirs, ours) = (&profile.origin.machine, &sources.machine);
    let foreign = theirs.is_some() && ours.is_some() && theirs != ours;
    let roots = sources.roots.iter().filter(|_| !foreign);
    let mut places = roots.map(|root| SearchPath {
        root: root.clone(),
        path: path.into(),
    });
    places.find_map(|place| open(&place))
}

/// A living process.
struct LiveProcess {
    root: PathBuf,
    /// What the process itself takes for its number.
    own_pid: u32,
    effective_user: u32,
}

impl LiveProcess {
    fn find(pid: u32) -> Option<Self> {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let numbers = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key))?;
            let numbers = line.split_ascii_whitespace();
            numbers
                .map(|number| number.parse::<u32>().ok())
                .collect::<Option<Vec<_>>>()
        };
        Some(Self {
            root: PathBuf::from(format!("/proc/{pid}/root")),
            own_pid: *numbers("NSpid:")?.last()?,
            effective_user: *numbers("Uid:")?.get(1)?,
        })
    }

    fn perf_map(&self) -> Option<File> {
        self.open(Path::new(&format!("/tmp/perf-{}.map", self.own_pid)))
    }

    /// A file of its user's: anybody may write to `/tmp`.
    fn open(&self, path: &Path) -> Option<File> {
        let file = open(&SearchPath {
            root: self.root.clone(),
            path: path.into(),
        })?;
        (file.metadata().ok()?.uid() == self.effective_user).then_some(file)
    }
}
