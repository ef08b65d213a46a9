//! Names JIT code, which is in no file, with what the JIT compiler wrote for `perf`.

use std::fs::File;
use std::io::BufReader;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::regular_file::{SearchPath, open_regular};
use super::{Sources, SymbolBudget, jitdump, perf_map, time_limit_note};
use crate::names::{Frame, Names};
use crate::profile::Profile;
use crate::stacks::AddressId;

/// Most jitdumps that are read for a profile: a forked child has its parent's mapped too.
const MAX_JITDUMPS: usize = 4;

/// Names addresses that are in no file and have no name yet, from the perf map of a running process and from jitdumps,
/// two files in which JIT compilers describe their code, until the `budget` is spent. Adds warnings to the profile on
/// jitdumps that cannot be read, and on names that are left out.
pub(super) fn name_jit_code(
    profile: &mut Profile,
    sources: &Sources,
    names: &mut Names,
    budget: &mut SymbolBudget,
) {
    let addresses = unnamed_addresses(profile, names);
    if addresses.is_empty() {
        return;
    }
    // JIT code is of one process only.
    let deadline = budget.deadline(1);
    let mut left_out = 0;
    let mut set = |found: Vec<(AddressId, String)>| {
        for (id, name) in found {
            if !names.strings.contains(&name) && !budget.charge_jit_name(&name) {
                left_out += 1;
                continue;
            }
            let frame = Frame {
                function: names.strings.intern(&name),
                linkage: None,
                file: None,
                line: 0,
                named: true,
            };
            names.set_frames(id, &[frame]);
        }
    };
    let process = sources.pid.and_then(LiveProcess::find);
    if let Some(map) = process.as_ref().and_then(LiveProcess::open_perf_map) {
        set(perf_map::read_names(map, &addresses, deadline));
    }
    let mut notes = Vec::new();
    for (path, writer) in mapped_jitdumps(profile) {
        match open_jitdump(path, profile, sources, process.as_ref()) {
            None => notes.push(format!(
                "{path}: no such file here, code that it describes has no names"
            )),
            Some(dump) => {
                match jitdump::read_names(BufReader::new(dump), writer, &addresses, deadline) {
                    Ok(found) => set(found),
                    Err(error) => notes.push(format!("{path}: {error}")),
                }
            }
        }
    }
    if budget.is_time_used_up() {
        notes.push(time_limit_note(
            "names of code made at run time",
            addresses.len(),
        ));
    }
    if left_out > 0 {
        notes.push(format!(
            "{left_out} addresses of code made at run time have no name, because the names are too long together"
        ));
    }
    profile.warnings.extend(notes);
}

/// Returns the addresses of calls that are in no file and have no name yet, ascending, with their ids. The address of a
/// call is the byte before the return address.
fn unnamed_addresses(profile: &Profile, names: &Names) -> Vec<(u64, AddressId)> {
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

/// Returns the paths of the jitdumps that the process had mapped, each once and at most [`MAX_JITDUMPS`], with the ids
/// of the processes that wrote them.
fn mapped_jitdumps(profile: &Profile) -> Vec<(&str, u32)> {
    let mut found = Vec::new();
    for mapping in &profile.mappings {
        let jitdump = jitdump::writer_pid(mapping).map(|writer| (mapping.path.as_str(), writer));
        found.extend(jitdump.filter(|jitdump| !found.contains(jitdump)));
    }
    found.truncate(MAX_JITDUMPS);
    found
}

/// Opens a jitdump. While the process runs, only a file of the process's user counts, because anybody may write to
/// `/tmp`. After its end, when `process` is `None`, any file at `path` counts. `None` if there is no such file, or if
/// the process has ended and the profile is of another machine.
fn open_jitdump(
    path: &str,
    profile: &Profile,
    sources: &Sources,
    process: Option<&LiveProcess>,
) -> Option<File> {
    if let Some(process) = process {
        return process.open_own_file(Path::new(path));
    }
    let (profile_machine, machine) = (&profile.origin.machine, &sources.machine);
    let is_foreign = profile_machine.is_some() && machine.is_some() && profile_machine != machine;
    let roots = sources.roots.iter().filter(|_| !is_foreign);
    let mut paths = roots.map(|root| SearchPath {
        root: root.clone(),
        path: path.into(),
    });
    paths.find_map(|path| open_regular(&path))
}

/// A running process.
struct LiveProcess {
    root: PathBuf,
    /// Process id in the process's own namespace.
    own_pid: u32,
    effective_user: u32,
}

impl LiveProcess {
    /// Finds a running process in /proc, with its id in its own PID namespace and its effective user. `None` if the
    /// process has ended, or its status cannot be read.
    fn find(pid: u32) -> Option<Self> {
        let status = std::fs::read(format!("/proc/{pid}/status")).ok()?;
        // The program's name may have bytes that are not UTF-8.
        let status = String::from_utf8_lossy(&status);
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

    /// Opens the map that the process's JIT compiler writes for `perf`. `None` if there is none of the process's user.
    fn open_perf_map(&self) -> Option<File> {
        self.open_own_file(Path::new(&format!("/tmp/perf-{}.map", self.own_pid)))
    }

    /// Opens a file in the root directory of the process. `None` unless it belongs to the process's user, because
    /// anybody may write to `/tmp`.
    fn open_own_file(&self, path: &Path) -> Option<File> {
        let file = open_regular(&SearchPath {
            root: self.root.clone(),
            path: path.into(),
        })?;
        (file.metadata().ok()?.uid() == self.effective_user).then_some(file)
    }
}
