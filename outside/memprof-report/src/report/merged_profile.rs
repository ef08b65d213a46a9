//! Merges the profiles of several processes to one. Their address spaces differ, so a place of the merged profile is an
//! address in a mapping, and two processes share it only if it has the same name in both.

use std::collections::HashMap;

use super::loaded_profile::LoadedProfile;
use crate::alloc_time::AgeBuckets;
use crate::names::{Frame, Names, StringId};
use crate::profile::{
    Address, EarlyEnds, Mapping, Profile, ProfileOrigin, ProfiledProcess, Sample, SampleType,
    UnseenFrees,
};
use crate::render::format_amount;
use crate::stacks::{AddressId, StackId};

/// Processes that a note lists by name.
const MAX_LISTED: usize = 8;

/// Merges the profiles of several processes, in this order. The first warning of the merged profile lists the
/// processes. A single profile is returned as it is. `parts` must not be empty. All must be dumps, not pprof profiles,
/// with values that are estimates.
pub(super) fn merge_processes(mut parts: Vec<LoadedProfile>) -> LoadedProfile {
    if parts.len() == 1 {
        return parts.swap_remove(0);
    }
    let mut with_samples = parts.iter().filter(|part| !part.profile.samples.is_empty());
    let sample_type = with_samples.next().or(parts.first());
    let sample_type = sample_type.map_or_else(SampleType::default, |part| part.sample_type);
    let warnings = merge_warnings(&parts);
    let mut merge = ProfileMerge::new(&parts);
    parts.into_iter().for_each(|part| merge.add_process(part));
    let ProfileMerge {
        mut profile,
        names,
        mappings,
        ..
    } = merge;
    profile.address_mappings = Some(mappings);
    profile
        .origin
        .early_ends
        .sort_by_key(|ends| std::cmp::Reverse(ends.samples));
    profile.warnings = warnings;
    profile
        .warnings
        .insert(0, processes_note(&profile.origin.processes));
    LoadedProfile {
        profile,
        names,
        sample_type,
    }
}

/// A merge in progress.
struct ProfileMerge {
    profile: Profile,
    names: Names,
    /// By [`AddressId`]: mapping of the place.
    mappings: Vec<Option<u32>>,
    /// Places at an address in a mapping, which differ by name.
    places: HashMap<(Option<u32>, Address), Vec<AddressId>>,
}

impl ProfileMerge {
    /// Starts a merge with the mappings of all processes, each once.
    fn new(parts: &[LoadedProfile]) -> Self {
        let mappings = parts.iter().flat_map(|part| &part.profile.mappings);
        let mut mappings: Vec<Mapping> = mappings.cloned().collect();
        mappings.sort_by(|one, other| mapping_key(one).cmp(&mapping_key(other)));
        mappings.dedup_by(|one, other| mapping_key(one) == mapping_key(other));
        let has_file_offsets = parts.iter().all(|part| part.profile.has_file_offsets);
        Self {
            profile: Profile {
                mappings,
                has_file_offsets,
                ..Profile::default()
            },
            names: Names::default(),
            mappings: Vec::new(),
            places: HashMap::new(),
        }
    }

    /// Adds the profile of a process: its samples, with new ids for stacks and labels, and its origin. The merged
    /// profile has the largest sample interval of all processes and the first program that is known.
    fn add_process(&mut self, part: LoadedProfile) {
        let LoadedProfile {
            profile: mut part,
            names,
            ..
        } = part;
        let inuse_space = part.samples.iter();
        let inuse_space = inuse_space.map(|sample| sample.values[SampleType::InuseSpace]);
        let process = ProfiledProcess {
            host: part.origin.host.clone(),
            pid: part.origin.pid,
            inuse_space: inuse_space.fold(0, i64::saturating_add),
        };
        let labels = self.profile.labels.merge(std::mem::take(&mut part.labels));
        let places = self.add_places(&part, &names);
        let mut stacks: HashMap<StackId, StackId> = HashMap::new();
        for sample in &part.samples {
            let stack = *stacks.entry(sample.stack).or_insert_with(|| {
                let merged = &mut self.profile.stacks;
                for frame in part.stacks.frames(sample.stack) {
                    merged.push_frame(places[frame.0 as usize]);
                }
                merged.finish_stack()
            });
            self.profile.samples.push(Sample {
                stack,
                label: sample.label.and_then(|label| labels.get(&label).copied()),
                ..*sample
            });
        }
        self.names.has_objects_line |= names.has_objects_line;
        let merged = &mut self.profile;
        merged.interval = merged.interval.max(part.interval);
        merged.has_alloc |= part.has_alloc;
        merged.is_pinned |= part.is_pinned;
        merged.ages = merge_ages(merged.ages, part.ages);
        merged.program = merged.program.take().or(part.program);
        // The budget of a process counts the whole file up to its dump.
        merged.memory_left = part.memory_left;
        merge_origin(&mut merged.origin, part.origin);
        merged.origin.processes.push(process);
    }

    /// Adds the places of a process, each an address in a mapping, with their names. Returns, by the address ids of
    /// `part`, the ids in the merged profile.
    fn add_places(&mut self, part: &Profile, names: &Names) -> Vec<AddressId> {
        let strings: Vec<StringId> = names
            .strings
            .iter()
            .map(|string| self.names.strings.intern(string))
            .collect();
        let string = |id: StringId| strings[id.0 as usize];
        let mappings = self.find_mappings(&part.mappings);
        let ids = (0..part.stacks.addresses().len() as u32).map(AddressId);
        ids.map(|id| {
            let frames = names.frames(id).iter().map(|frame| Frame {
                function: string(frame.function),
                linkage: frame.linkage.map(string),
                file: frame.file.map(string),
                ..*frame
            });
            let frames: Vec<Frame> = frames.collect();
            let mapping = part.mapping_of_frame(id).and_then(|index| mappings[index]);
            let place = (mapping, part.stacks.address(id));
            let merged = self.intern_place(place, &frames, names.language(id).map(string));
            if let Some(shape) = names.call_shapes.get(&id) {
                self.names.call_shapes.insert(merged, *shape);
            }
            merged
        })
        .collect()
    }

    /// Returns, for each mapping of a process, its index among the merged mappings, which are sorted and contain all of
    /// them.
    fn find_mappings(&self, mappings: &[Mapping]) -> Vec<Option<u32>> {
        let merged: Vec<_> = self.profile.mappings.iter().map(mapping_key).collect();
        let find =
            |mapping: &Mapping| Some(merged.binary_search(&mapping_key(mapping)).ok()? as u32);
        mappings.iter().map(find).collect()
    }

    /// Returns the id of the place at an address in a mapping that has these frames, adding it if it is new. `language`
    /// is that of an interpreted program; `None` for native code.
    fn intern_place(
        &mut self,
        place: (Option<u32>, Address),
        frames: &[Frame],
        language: Option<StringId>,
    ) -> AddressId {
        let known = self.places.entry(place).or_default();
        let is_same = |id: &&AddressId| {
            self.names.frames(**id) == frames && self.names.language(**id) == language
        };
        if let Some(&id) = known.iter().find(is_same) {
            return id;
        }
        let id = self.profile.stacks.add_address(place.1);
        known.push(id);
        self.mappings.push(place.0);
        match (language, frames) {
            (Some(language), [frame]) => self.names.set_managed_word(id, *frame, language),
            (_, frames) => self.names.set_frames(id, frames),
        }
        id
    }
}

/// Fields in which mappings differ, by the start first.
type MappingKey<'a> = (Address, Address, u64, bool, &'a str, Option<&'a str>);

/// Fields by which mappings of several processes are sorted and compared: two with equal keys are one.
fn mapping_key(mapping: &Mapping) -> MappingKey<'_> {
    (
        mapping.start,
        mapping.end,
        mapping.offset,
        mapping.executable,
        &mapping.path,
        mapping.build_id.as_deref(),
    )
}

/// Merges the age buckets of two processes: a sample is at least as old as the wider bucket says. The later of the two
/// times counts for both: the processes ran on one machine, with one clock.
fn merge_ages(one: Option<AgeBuckets>, other: Option<AgeBuckets>) -> Option<AgeBuckets> {
    match (one, other) {
        (Some(one), Some(other)) => Some(AgeBuckets {
            width: one.width.max(other.width),
            taken: one.taken.max(other.taken),
        }),
        (one, other) => one.or(other),
    }
}

/// Adds the origin of another process to `merged`: names and times stay those of the first process, counts are added
/// up. The path of memprof's plugin is dropped if the processes mapped different ones, and the exact count of
/// allocations always, because it is of one process. The first process's origin is copied as it is.
fn merge_origin(merged: &mut ProfileOrigin, other: ProfileOrigin) {
    if merged.processes.is_empty() {
        *merged = other;
        return;
    }
    let add = |one: &mut Option<u64>, other: Option<u64>| {
        *one = match (*one, other) {
            (Some(one), Some(other)) => Some(one.saturating_add(other)),
            (one, other) => one.or(other),
        };
    };
    add(&mut merged.samples, other.samples);
    add(&mut merged.lost_samples, other.lost_samples);
    add(
        &mut merged.unseen_allocation_bytes,
        other.unseen_allocation_bytes,
    );
    if let Some(unseen) = other.unseen_frees {
        let sum = merged.unseen_frees.get_or_insert_default();
        *sum = UnseenFrees {
            samples: sum.samples.saturating_add(unseen.samples),
            bytes: sum.bytes.saturating_add(unseen.bytes),
        };
    }
    for ends in other.early_ends {
        let is_same =
            |known: &&mut EarlyEnds| (&known.reason, &known.object) == (&ends.reason, &ends.object);
        match merged.early_ends.iter_mut().find(is_same) {
            Some(known) => known.samples = known.samples.saturating_add(ends.samples),
            None => merged.early_ends.push(ends),
        }
    }
    merged.sampling_since = merged.sampling_since.take().or(other.sampling_since);
    // A report knows the plugin by its usual file name if the processes mapped several.
    if merged.image != other.image {
        merged.image = None;
    }
    merged.tally = None;
}

/// Returns the warnings of all processes, each text once, after the names of the processes that have it.
fn merge_warnings(parts: &[LoadedProfile]) -> Vec<String> {
    let notes = parts.iter().map(|part| {
        let origin = &part.profile.origin;
        let name = process_name(origin.host.as_deref(), origin.pid);
        (name, part.profile.warnings.clone())
    });
    join_notes(&notes.collect::<Vec<_>>())
}

/// Joins the notes of several processes, given as pairs of a process's name and its notes. The result has each text
/// once, after the names of the processes that have it, or without names if all have it.
pub fn join_notes(processes: &[(String, Vec<String>)]) -> Vec<String> {
    // Processes are distinguished by index, because several may have one name.
    let mut joined: Vec<(&str, Vec<usize>)> = Vec::new();
    for (index, (_, notes)) in processes.iter().enumerate() {
        for note in notes {
            match joined.iter_mut().find(|(text, _)| text == note) {
                Some((_, indexes)) if indexes.last() == Some(&index) => {}
                Some((_, indexes)) => indexes.push(index),
                None => joined.push((note, vec![index])),
            }
        }
    }
    let name = |index: usize| processes[index].0.clone();
    let text = |(note, indexes): (&str, Vec<usize>)| match indexes.len() == processes.len() {
        true => note.to_owned(),
        false => {
            let names = indexes.into_iter().map(name).collect();
            format!("{}: {note}", join_first_texts(names))
        }
    };
    joined.into_iter().map(text).collect()
}

/// Name of a process in notes: `4711 (gunicorn)`.
fn process_name(host: Option<&str>, pid: Option<u32>) -> String {
    match (host, pid) {
        (Some(host), Some(pid)) => format!("{pid} ({host})"),
        (Some(host), None) => host.to_owned(),
        (None, Some(pid)) => pid.to_string(),
        (None, None) => "a process without a name".to_owned(),
    }
}

/// Returns a note that lists the processes with their bytes in use, the largest first.
fn processes_note(processes: &[ProfiledProcess]) -> String {
    let mut by_size: Vec<&ProfiledProcess> = processes.iter().collect();
    by_size.sort_by_key(|process| std::cmp::Reverse(process.inuse_space));
    let text = |process: &ProfiledProcess| {
        let name = process_name(process.host.as_deref(), process.pid);
        let amount = format_amount(process.inuse_space, SampleType::InuseSpace);
        format!("{name} {amount}")
    };
    let texts = by_size.into_iter().map(text).collect();
    format!("{} processes: {}", processes.len(), join_first_texts(texts))
}

/// Joins texts by commas: the first [`MAX_LISTED`], and the number of the others.
fn join_first_texts(texts: Vec<String>) -> String {
    let more = match texts.len().saturating_sub(MAX_LISTED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let listed: Vec<_> = texts.into_iter().take(MAX_LISTED).collect();
    format!("{}{more}", listed.join(", "))
}

#[cfg(test)]
mod tests {
    use super::join_notes;

    #[test]
    fn note_of_all_processes_has_no_names() {
        let check = |processes: &[(&str, &[&str])], expected: &[&str]| {
            let processes = processes.iter().map(|(name, notes)| {
                let notes = notes.iter().map(|note| (*note).to_owned()).collect();
                ((*name).to_owned(), notes)
            });
            let joined = join_notes(&processes.collect::<Vec<_>>());
            assert_eq!(joined, expected);
        };
        check(&[("7", &["late", "late"])], &["late"]);
        check(&[("7", &["late"]), ("8", &["late"])], &["late"]);
        check(
            &[("7", &["late"]), ("8", &["lost"])],
            &["7: late", "8: lost"],
        );
        // Two processes without a name, beside each other.
        check(&[("app", &["late"]), ("app", &["late"])], &["late"]);
        check(
            &[("app", &["late", "late"]), ("app", &[]), ("8", &["late"])],
            &["app, 8: late"],
        );
    }
}
