//! Code that was unloaded before a dump was taken, from the comments of memprof's dumps:
//!
//! ```text
//! # code generations: 3 marked
//! # unloaded: 0-1 7f1c2a001000-7f1c2a002000 00001000 5b3c… /srv/plugins/libx.so
//! # loaded: 2 7f1c2a001000-7f1c2a003000
//! ```
//!
//! The numbers before the ranges are those of the generations in which the code was there: the first and the last one,
//! or the first one of code that is still loaded. Each stack is marked with the generation of its samples, else it is
//! of generation 0, or of any one if the header says `unmarked`. Other code of the memory map was there in all of them.
//!
//! Frames in unloaded code get addresses of their own, from [`UNLOADED_CODE`] on, in a mapping of the unloaded file.

use std::collections::HashMap;

use super::DumpReader;
use super::map_line::parse_map_line;
use crate::error::Result;
use crate::limits::ProfileItem;
use crate::profile::{Address, Mapping, Profile};
use crate::stacks::{AddressId, StackId, Stacks};
use crate::unloaded_code::UNLOADED_CODE;

/// Most ranges that are read; memprof writes as many at most. An address is compared with all of them.
const MAX_RANGES: usize = 1024;
/// Most files that are named as the possible origin of a frame.
const MAX_NAMES: usize = 3;

/// Distance between mappings of unloaded code.
const GAP: u64 = 0x1000;

/// History of the loaded code.
#[derive(Debug, Default)]
pub(super) struct CodeHistory {
    ranges: Vec<CodeRange>,
    /// Whether a stack without a mark may be of any generation.
    is_unmarked: bool,
    /// Samples with a mark, by index: their generations.
    generations: HashMap<u32, u32>,
}

/// Code that was not there in all generations.
#[derive(Debug)]
struct CodeRange {
    first: u32,
    /// Last generation, and the mapping that lay there. `None` if it is still loaded, in the memory map.
    unloaded: Option<(u32, Mapping)>,
    start: Address,
    end: Address,
}

/// Code at an address in one generation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum CodeOwner {
    /// The mapping in the memory map, if there is one.
    Current,
    /// The unloaded code with this index in the history.
    Unloaded(usize),
    /// One of the files with these names, or unknown code if there is none.
    Unknown(Vec<String>),
}

impl CodeHistory {
    /// Sets the code generation of a sample, given by its index in the profile: the number of times that code had been
    /// unloaded before. `None` changes nothing.
    pub(super) fn set_generation(&mut self, sample: usize, generation: Option<u32>) {
        if let Some(generation) = generation {
            self.generations.insert(sample as u32, generation);
        }
    }

    /// Reads the value of the comment `code generations`: `3 marked` or `3 unmarked`. Unless the value ends with
    /// ` marked`, a stack without a mark may be of any generation. The number is not needed.
    pub(super) fn read_generations(&mut self, value: &str) {
        self.is_unmarked = !value.ends_with(" marked");
    }

    /// Reads the value of the comment `unloaded`, `0-1 START-END OFFSET BUILD-ID PATH`: code that was there from
    /// generation 0 to 1, and was unloaded. Ignores a malformed value, and ranges beyond `MAX_RANGES`.
    pub(super) fn read_unloaded_code(&mut self, value: &str) {
        let parsed = || {
            let (generations, rest) = value.split_once(' ')?;
            let (first, last) = generations.split_once('-')?;
            let (range, rest) = rest.split_once(' ')?;
            let (offset, rest) = rest.split_once(' ')?;
            let (build_id, path) = rest.split_once(' ')?;
            let mapping = Mapping {
                build_id: Some(build_id.to_ascii_lowercase()).filter(|id| id != "-"),
                path: path.to_owned(),
                // The comment lacks the other fields of a memory map's line.
                ..parse_mapping(&format!("{range} r-xp {offset} 00:00 1 /"))?
            };
            Some(CodeRange {
                first: first.parse().ok()?,
                start: mapping.start,
                end: mapping.end,
                unloaded: Some((last.parse().ok()?, mapping)),
            })
        };
        self.push_range(parsed());
    }

    /// Reads the value of the comment `loaded`, `2 START-END`: code that is there since generation 2 and was not
    /// unloaded. Ignores a malformed value, and ranges beyond `MAX_RANGES`.
    pub(super) fn read_loaded_code(&mut self, value: &str) {
        let parsed = || {
            let (first, range) = value.split_once(' ')?;
            // The parser expects a whole line of a memory map.
            let mapping = parse_mapping(&format!("{range} r-xp 0 00:00 1 /"))?;
            Some(CodeRange {
                first: first.parse().ok()?,
                unloaded: None,
                start: mapping.start,
                end: mapping.end,
            })
        };
        self.push_range(parsed());
    }

    /// Adds a range. Ignores `None`, which stands for a malformed comment, and ranges beyond [`MAX_RANGES`].
    fn push_range(&mut self, range: Option<CodeRange>) {
        let has_room = self.ranges.len() < MAX_RANGES;
        self.ranges.extend(range.filter(|_| has_room));
    }

    /// Finds out which code was at the address of a call. With a `generation`, only code of that generation is
    /// considered; with `None`, code of all generations. The owner is unknown if several files were at the address, or
    /// if no file was there although one is mapped there now. An address that never was in a mapping counts as current
    /// code.
    fn code_owner(&self, profile: &Profile, call: Address, generation: Option<u32>) -> CodeOwner {
        let is_now = |first, last| generation.is_none_or(|now| (first..=last).contains(&now));
        let here = |range: &&CodeRange| range.start <= call && call < range.end;
        let current = profile
            .mapping_of_address(call)
            .map(|index| &profile.mappings[index]);
        let mut loaded = self.ranges.iter().filter(|range| range.unloaded.is_none());
        let is_current = loaded
            .find(here)
            .is_none_or(|range| is_now(range.first, u32::MAX));
        let mut owners: Vec<(&Mapping, CodeOwner)> = current
            .filter(|_| is_current)
            .map(|mapping| (mapping, CodeOwner::Current))
            .into_iter()
            .collect();
        for (index, range) in self
            .ranges
            .iter()
            .enumerate()
            .filter(|(_, range)| here(range))
        {
            if let Some((last, mapping)) = &range.unloaded
                && is_now(range.first, *last)
                && !owners.iter().any(|(other, _)| other.is_same_code(mapping))
            {
                owners.push((mapping, CodeOwner::Unloaded(index)));
            }
        }
        match owners.len() {
            // Code that was never in a mapping stays where it is.
            0 if current.is_none() => CodeOwner::Current,
            1 => owners.remove(0).1,
            _ => {
                let names = owners.iter().map(|(mapping, _)| mapping.file_name());
                let mut names: Vec<_> = names.map(str::to_owned).collect();
                names.sort_unstable();
                names.dedup();
                CodeOwner::Unknown(names)
            }
        }
    }
}

/// Parses a line of a memory map. `None` if it is malformed.
fn parse_mapping(line: &str) -> Option<Mapping> {
    Some(parse_map_line(line.as_bytes())?.mapping)
}

impl Mapping {
    /// Returns whether the same file is mapped with the same distance between addresses and offsets, so that an address
    /// means the same code in both mappings. Files are compared by build id, or by path if one has no build id.
    fn is_same_code(&self, other: &Self) -> bool {
        let distance = |mapping: &Self| mapping.start.0.wrapping_sub(mapping.offset);
        let is_same_file = match (&self.build_id, &other.build_id) {
            (Some(id), Some(other)) => id == other,
            _ => self.path == other.path,
        };
        is_same_file && distance(self) == distance(other)
    }
}

impl DumpReader<'_> {
    /// Moves frames in unloaded code, which the memory map does not show any more, to addresses that nothing else uses.
    /// Adds mappings for them, and names the unloaded files in a warning. Fails if the frames exceed the memory budget.
    pub(super) fn move_frames_in_unloaded_code(&mut self) -> Result<()> {
        let history = std::mem::take(&mut self.code_history);
        let places = history.changed_ranges();
        let is_changed = |address: &Address| {
            // A frame is a return address, and the call lies before it.
            let call = Address(address.0.wrapping_sub(1));
            let after = places.partition_point(|(start, _)| *start <= call);
            after > 0 && call < places[after - 1].1
        };
        let addresses = self.profile.stacks.addresses();
        let is_changed: Vec<bool> = match places.as_slice() {
            [] => return Ok(()),
            _ => addresses.iter().map(is_changed).collect(),
        };
        if !is_changed.contains(&true) {
            return Ok(());
        }
        let known = is_changed.len();
        let mut moved = MovedFrames {
            history: &history,
            profile: &self.profile,
            is_changed,
            owners: HashMap::new(),
            mappings: HashMap::new(),
            added: Vec::new(),
            stacks: Stacks::default(),
            known: HashMap::new(),
        };
        let samples = (0..).zip(&self.profile.samples);
        let stacks: Vec<_> = samples
            .map(|(index, sample)| moved.add_stack(sample.stack, history.generation_of(index)))
            .collect();
        let MovedFrames {
            added,
            stacks: rebuilt,
            ..
        } = moved;
        self.profile.stacks = rebuilt;
        for (sample, stack) in self.profile.samples.iter_mut().zip(stacks) {
            sample.stack = stack;
        }
        for _ in known..self.profile.stacks.addresses().len() {
            self.charge_memory(ProfileItem::Address)?;
        }
        let mut names: Vec<_> = added
            .iter()
            .map(|mapping| mapping.file_name().to_owned())
            .collect();
        names.sort_unstable();
        names.dedup();
        if !names.is_empty() {
            self.profile.warnings.push(format!(
                "memory was allocated by code that has been unloaded since: {}",
                join_names(&names, ", ")
            ));
        }
        self.profile.mappings.extend(added);
        self.profile.mappings.sort_by_key(|mapping| mapping.start);
        Ok(())
    }
}

impl CodeHistory {
    /// Starts and ends of the ranges of code that was loaded late or unloaded, ascending. Ranges that overlap or touch
    /// are joined.
    fn changed_ranges(&self) -> Vec<(Address, Address)> {
        let ranges = self.ranges.iter();
        let mut places: Vec<_> = ranges.map(|range| (range.start, range.end)).collect();
        places.sort_unstable();
        places.dedup_by(|next, place| {
            let is_joined = next.0 <= place.1;
            if is_joined {
                place.1 = place.1.max(next.1);
            }
            is_joined
        });
        places
    }

    /// Returns the generation of the code in a sample's stack, by the sample's index: that of its mark, else 0. `None`
    /// if the sample has no mark and the dump says that such samples may be of any generation.
    fn generation_of(&self, sample: u32) -> Option<u32> {
        let marked = self.generations.get(&sample).copied();
        marked.or((!self.is_unmarked).then_some(0))
    }
}

/// Stacks with their frames in unloaded code at other addresses.
struct MovedFrames<'a> {
    history: &'a CodeHistory,
    profile: &'a Profile,
    /// By id of an address in the profile: whether the history has a range for it.
    is_changed: Vec<bool>,
    /// Owner of an address in a generation, as the distance to its new address.
    owners: HashMap<(AddressId, Option<u32>), u64>,
    /// Distances by owner and, for unknown code, start of the range.
    mappings: HashMap<(CodeOwner, Address), u64>,
    added: Vec<Mapping>,
    stacks: Stacks,
    known: HashMap<(StackId, Option<u32>), StackId>,
}

impl MovedFrames<'_> {
    /// Copies a stack of the profile to `self.stacks`, with its frames in unloaded code at their new addresses. Returns
    /// the id of the copy. `generation` is that of the stack's code; `None` if it may be any.
    fn add_stack(&mut self, stack: StackId, generation: Option<u32>) -> StackId {
        let frames = self.profile.stacks.frames(stack);
        let has_changed = frames.iter().any(|id| self.is_changed[id.0 as usize]);
        // Without changed code, a stack is the same in all generations.
        let key = (stack, generation.filter(|_| has_changed));
        if let Some(known) = self.known.get(&key) {
            return *known;
        }
        for id in frames {
            let address = self.profile.stacks.address(*id);
            let distance = match self.is_changed[id.0 as usize] {
                true => self.find_move_distance(*id, generation),
                false => 0,
            };
            let id = self
                .stacks
                .intern_address(Address(address.0.wrapping_add(distance)));
            self.stacks.push_frame(id);
        }
        let moved = self.stacks.finish_stack();
        self.known.insert(key, moved);
        moved
    }

    /// Finds the distance in bytes by which an address moves to the mapping of its unloaded code, which is created if
    /// it is new. 0 if the code is still in the memory map. `generation` is that of the code; `None` if it may be any.
    fn find_move_distance(&mut self, id: AddressId, generation: Option<u32>) -> u64 {
        if let Some(known) = self.owners.get(&(id, generation)) {
            return *known;
        }
        let call = self.profile.stacks.call_address(id);
        let distance = match self.history.code_owner(self.profile, call, generation) {
            CodeOwner::Current => 0,
            owner => self.map_unloaded_code(owner, call),
        };
        self.owners.insert((id, generation), distance);
        distance
    }

    /// Creates a mapping for unloaded code at addresses that nothing else uses, unless `owner` has one already. `call`
    /// is an address in that code. Returns the distance in bytes from the code's old addresses to the mapping. Unknown
    /// code gets a mapping for each page.
    fn map_unloaded_code(&mut self, owner: CodeOwner, call: Address) -> u64 {
        let mapping = match &owner {
            CodeOwner::Unloaded(index) => {
                let unloaded = self.history.ranges[*index].unloaded.as_ref();
                unloaded
                    .map(|(_, mapping)| mapping.clone())
                    .unwrap_or_default()
            }
            CodeOwner::Current | CodeOwner::Unknown(_) => Mapping {
                start: Address(call.0 & !(GAP - 1)),
                end: Address((call.0 | (GAP - 1)).saturating_add(1)),
                executable: true,
                path: match &owner {
                    CodeOwner::Unknown(names) if !names.is_empty() => {
                        format!("[unloaded {}]", join_names(names, " or "))
                    }
                    _ => "[unloaded code]".to_owned(),
                },
                ..Mapping::default()
            },
        };
        let key = (owner, mapping.start);
        if let Some(known) = self.mappings.get(&key) {
            return *known;
        }
        let last = self.added.last().map(|last| last.end.0.wrapping_add(GAP));
        let start = last.unwrap_or(UNLOADED_CODE.0);
        let distance = start.wrapping_sub(mapping.start.0);
        self.added.push(Mapping {
            start: Address(start),
            end: Address(mapping.end.0.wrapping_add(distance)),
            ..mapping
        });
        self.mappings.insert(key, distance);
        distance
    }
}

/// Joins the first [`MAX_NAMES`] names, as in `libx.so or liby.so`, with `others` for the rest.
fn join_names(names: &[String], separator: &str) -> String {
    let shown = names.iter().take(MAX_NAMES).map(String::as_str);
    let others = (names.len() > MAX_NAMES).then_some("others");
    let all: Vec<_> = shown.chain(others).collect();
    all.join(separator)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Limits;

    const LIBRARIES: &str = "8000-9000 r-xp 00001000 08:01 3 /srv/libc1.so\n";

    /// Reads a dump with a stack for each text, such as `0x8101 0x4d50030000000003`.
    fn read(stacks: &[&str], comments: &str) -> Profile {
        let mut text = String::from("heap profile: 1: 8 [1: 8] @ heap_v2/1\n");
        for stack in stacks {
            text += &format!("1: 8 [1: 8] @ {stack}\n");
        }
        text += &format!("\nMAPPED_LIBRARIES:\n{LIBRARIES}{comments}");
        super::super::parse_dumps(&mut text.as_bytes(), &Limits::default(), false)
            .unwrap_or_else(|error| panic!("{error}: {text}"))
            .swap_remove(0)
    }

    /// Mapping and offset of each sample's leaf.
    fn leaves(profile: &Profile) -> Vec<String> {
        let leaf = |stack| {
            let leaf = profile.stacks.frames(stack)[0];
            let call = profile.stacks.call_address(leaf);
            match profile
                .mapping_of_address(call)
                .map(|index| &profile.mappings[index])
            {
                None => format!("{call}"),
                Some(mapping) => format!("{} {:#x}", mapping.path, mapping.file_offset(call).0),
            }
        };
        let samples = profile.samples.iter();
        samples.map(|sample| leaf(sample.stack)).collect()
    }

    fn mark(generation: u64) -> String {
        format!("{:#x}", 0x4d_5003 << 40 | generation << 1 | 1)
    }

    #[test]
    fn frame_is_of_the_file_that_lay_there_then() {
        let comments = "# code generations: 4 marked\n\
                        # unloaded: 0-0 8000-8800 00002000 aa /srv/liba.so\n\
                        # unloaded: 1-2 8000-9000 00000000 - /srv/b c/libb.so\n\
                        # unloaded: 2-2 8000-9000 00000000 cc /srv/libx.so\n\
                        # loaded: 3 8000-9000\n";
        let stacks = [
            "0x8101".to_owned(),
            format!("0x8101 {}", mark(1)),
            format!("0x8101 {}", mark(2)),
            format!("0x8101 {}", mark(3)),
            // Nothing that is known.
            "0x8901".to_owned(),
            "0xa101".to_owned(),
        ];
        let stacks: Vec<_> = stacks.iter().map(String::as_str).collect();
        let profile = read(&stacks, comments);
        let expected = [
            "/srv/liba.so 0x2100",
            "/srv/b c/libb.so 0x100",
            "[unloaded libb.so or libx.so] 0x100",
            "/srv/libc1.so 0x1100",
            "[unloaded code] 0x900",
            "0xa100",
        ];
        assert_eq!(leaves(&profile), expected);
        assert!(
            profile
                .mappings
                .windows(2)
                .all(|pair| pair[0].end <= pair[1].start),
            "{:?}",
            profile.mappings
        );
        let unmarked = read(&["0x8101"], &comments.replace(" marked", " unmarked"));
        let expected = "[unloaded liba.so or libb.so or libc1.so or others] 0x100";
        assert_eq!(leaves(&unmarked), [expected]);
        // As other tools get it: without pseudo frames.
        let exported = format!("{comments}# marks: code=1 of 1\n");
        let exported = read(&["0x8101"], &exported);
        assert_eq!(leaves(&exported), ["/srv/b c/libb.so 0x100"]);
    }

    #[test]
    fn file_that_came_back_is_one_file() {
        let comments = "# code generations: 3 unmarked\n\
                        # unloaded: 0-1 8000-9000 00001000 - /srv/libc1.so\n\
                        # loaded: 2 8000-9000\n";
        assert_eq!(
            leaves(&read(&["0x8101"], comments)),
            ["/srv/libc1.so 0x1100"]
        );
    }

    #[test]
    fn malformed_history_is_ignored() {
        for line in [
            "unloaded: 0-0 8000-9000 0 aa",
            "unloaded: 0 8000-9000 0 aa /a",
            "unloaded: 0-x 8000-9000 0 aa /a",
            "unloaded: 0-0 9000-8000 0 aa /a",
            "unloaded: 0-0 8000-9000 zz aa /a",
            "unloaded: ",
            "loaded: 8000-9000",
            "loaded: 1 8000",
        ] {
            let profile = read(&["0x8101"], &format!("# {line}\n"));
            assert_eq!(leaves(&profile), ["/srv/libc1.so 0x1100"], "{line}");
        }
    }
}
