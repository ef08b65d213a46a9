//! Encodes the messages of a profile and writes them in parts.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, btree_map};
use std::io::Write;

use prost::Message;

use crate::error::Result;
use crate::label::SetLabel;
use crate::names::{NameDetail, StringId, Strings};
use crate::pprof::proto;
use crate::profile::sample_types::{Column, ValueType};
use crate::profile::{Profile, Sample};
use crate::stacks::AddressId;
use crate::symbolized_profile::SymbolizedProfile;

/// Encoded bytes after which they are written.
const PART_BYTES: usize = 64 << 10;

/// Memory of a sample of a difference besides its stack and labels, in bytes.
const BYTES_PER_DIFFERENCE: u64 = 160;

/// Encoder of one profile, with the tables that its messages refer to.
pub(super) struct Encoder<W: Write> {
    out: W,
    buffer: Vec<u8>,
    strings: Strings,
    functions: Vec<proto::Function>,
    function_ids: HashMap<(StringId, Option<StringId>), u64>,
    /// Written mappings, each with its id and start.
    mappings: HashMap<MappingKey, (u64, u64)>,
    locations: HashMap<LocationKey, u64>,
}

/// Identity of a mapping in several processes: that of a file does not depend on its address, that of other memory
/// does.
#[derive(PartialEq, Eq, Hash)]
struct MappingKey {
    file: i64,
    build_id: i64,
    offset: u64,
    bytes: u64,
    /// Address of a mapping of no file; else 0.
    start: u64,
}

/// A place in the code: two of equal keys are one location.
#[derive(PartialEq, Eq, Hash)]
struct LocationKey {
    mapping_id: u64,
    address: u64,
    /// Ids of functions, with their lines.
    lines: Vec<(u64, i64)>,
}

impl<W: Write> Encoder<W> {
    /// Creates an encoder that writes to `out`. Enters the empty string, which must be the first of a profile's string
    /// table.
    pub(super) fn new(out: W) -> Self {
        let mut strings = Strings::default();
        strings.intern("");
        Self {
            out,
            buffer: Vec::with_capacity(2 * PART_BYTES),
            strings,
            functions: Vec::new(),
            function_ids: HashMap::new(),
            mappings: HashMap::new(),
            locations: HashMap::new(),
        }
    }

    /// Returns the index of a string in the string table, adding the string if it is new.
    pub(super) fn intern_string(&mut self, string: &str) -> i64 {
        i64::from(self.strings.intern(string).0)
    }

    /// Returns the message of a sample type, adding its strings if they are new.
    pub(super) fn intern_value_type(&mut self, name: &str, unit: &str) -> proto::ValueType {
        proto::ValueType {
            r#type: self.intern_string(name),
            unit: self.intern_string(unit),
        }
    }

    /// Appends one message as the profile's field number `tag`. The buffer is written out in parts of `PART_BYTES`.
    pub(super) fn write_field(&mut self, tag: u32, message: &impl Message) -> Result<()> {
        prost::encoding::message::encode(tag, message, &mut self.buffer);
        if self.buffer.len() >= PART_BYTES {
            self.out.write_all(&self.buffer)?;
            self.buffer.clear();
        }
        Ok(())
    }

    /// Writes the samples of a profile with their values of `types`, labels and ages, and the mappings and locations to
    /// which they refer.
    pub(super) fn write_samples(
        &mut self,
        symbolized: &SymbolizedProfile,
        types: &[ValueType],
    ) -> Result<()> {
        let profile = &symbolized.profile;
        let columns = find_columns(profile, types);
        let locations = self.write_locations(symbolized)?;
        let mut message = proto::Sample::default();
        for sample in &profile.samples {
            message.location_id.clear();
            let frames = symbolized.program_frames(sample.stack).iter();
            message
                .location_id
                .extend(frames.map(|id| locations[id.0 as usize]));
            message.value.clear();
            message
                .value
                .extend(columns.iter().map(|&column| profile.value(sample, column)));
            message.label = self.convert_labels(profile, sample, true);
            // Field 2 of `Profile` in profile.proto: `sample`.
            self.write_field(2, &message)?;
        }
        Ok(())
    }

    /// Writes the samples of a profile less those of `base`, with their values of `types`. Like Go's `net/http/pprof`,
    /// it writes one sample for each stack and set of labels, and none whose values are all 0. Ages are left out,
    /// because a block is older in the later profile. Fails if the differences exceed the memory budget.
    pub(super) fn write_differences(
        &mut self,
        symbolized: &SymbolizedProfile,
        base: &SymbolizedProfile,
        types: &[ValueType],
    ) -> Result<()> {
        let mut differences: BTreeMap<(Vec<u64>, Vec<proto::Label>), Vec<i64>> = BTreeMap::new();
        for (symbolized, sign) in [(symbolized, 1_i64), (base, -1)] {
            let profile = &symbolized.profile;
            let mut memory_left = profile.memory_left;
            let columns = find_columns(profile, types);
            let locations = self.write_locations(symbolized)?;
            for sample in &profile.samples {
                let frames = symbolized.program_frames(sample.stack).iter();
                let stack: Vec<u64> = frames.map(|id| locations[id.0 as usize]).collect();
                let labels = self.convert_labels(profile, sample, false);
                let bytes = BYTES_PER_DIFFERENCE + 8 * (stack.len() + 4 * labels.len()) as u64;
                let sums = match differences.entry((stack, labels)) {
                    btree_map::Entry::Occupied(known) => known.into_mut(),
                    btree_map::Entry::Vacant(new) => {
                        memory_left.charge(bytes)?;
                        new.insert(vec![0; columns.len()])
                    }
                };
                for (sum, &column) in sums.iter_mut().zip(&columns) {
                    let value = sign.saturating_mul(profile.value(sample, column));
                    *sum = sum.saturating_add(value);
                }
            }
        }
        for ((location_id, label), value) in differences {
            if value.iter().any(|&value| value != 0) {
                let message = proto::Sample {
                    location_id,
                    value,
                    label,
                };
                // Field 2 of `Profile` in profile.proto: `sample`.
                self.write_field(2, &message)?;
            }
        }
        Ok(())
    }

    /// Writes the locations of a profile's samples that are not written yet, and their mappings. Returns, by address
    /// id, the id of the address's location; 0 if no sample has the address.
    fn write_locations(&mut self, symbolized: &SymbolizedProfile) -> Result<Vec<u64>> {
        let SymbolizedProfile { profile, names, .. } = symbolized;
        let mut is_used = vec![false; profile.stacks.addresses().len()];
        for sample in &profile.samples {
            for id in symbolized.program_frames(sample.stack) {
                is_used[id.0 as usize] = true;
            }
        }
        let mappings = self.write_mappings(profile, &is_used, names.detail())?;
        let mut location_ids = vec![0; is_used.len()];
        let ids = (0..is_used.len() as u32).map(AddressId);
        for id in ids.filter(|id| is_used[id.0 as usize]) {
            let mapping = profile.mapping_of_frame(id);
            let (mapping_id, moved) = mapping.map_or((0, 0), |mapping| mappings[mapping]);
            let address = profile.stacks.call_address(id).0.wrapping_add(moved);
            let line = self.convert_frames(symbolized, id);
            let lines = line.iter().map(|line| (line.function_id, line.line));
            // Ids count from 1: 0 stands for no location.
            let next = self.locations.len() as u64 + 1;
            let known = self.locations.entry(LocationKey {
                mapping_id,
                address,
                lines: lines.collect(),
            });
            let (location_id, is_new) = match known {
                Entry::Occupied(known) => (*known.get(), false),
                Entry::Vacant(new) => (*new.insert(next), true),
            };
            location_ids[id.0 as usize] = location_id;
            if is_new {
                let location = proto::Location {
                    id: location_id,
                    mapping_id,
                    address,
                    line,
                };
                // Field 4 of `Profile` in profile.proto: `location`.
                self.write_field(4, &location)?;
            }
        }
        Ok(location_ids)
    }

    /// Converts the labels of a sample to messages. With `with_age`, the first one is a label `age`, the least age in
    /// seconds, if it is known.
    fn convert_labels(
        &mut self,
        profile: &Profile,
        sample: &Sample,
        with_age: bool,
    ) -> Vec<proto::Label> {
        let alloc_time = sample.alloc_time.filter(|_| with_age);
        let age = profile.ages.zip(alloc_time);
        let age = age.map(|(ages, alloc_time)| proto::Label {
            key: self.intern_string("age"),
            num: i64::from(ages.min_age(alloc_time)),
            num_unit: self.intern_string("seconds"),
            ..proto::Label::default()
        });
        let labels = sample
            .label
            .map(|label| profile.labels.labels_of_set(label));
        let labels = labels.as_deref().unwrap_or_default().iter();
        let labels = labels.map(|SetLabel { key, text, number }| match number {
            Some((number, unit)) => proto::Label {
                key: self.intern_string(key),
                num: *number,
                num_unit: self.intern_string(unit),
                ..proto::Label::default()
            },
            None => proto::Label {
                key: self.intern_string(key),
                str: self.intern_string(text),
                ..proto::Label::default()
            },
        });
        age.into_iter().chain(labels).collect()
    }

    /// Writes the mappings to which locations refer, the main program's first. `is_used` says by address id whether a
    /// sample has the address. A file that two profiles map at different addresses is written once. Returns for each
    /// mapping its id, 0 if it is not written, and the distance to the written mapping, which is added to addresses.
    fn write_mappings(
        &mut self,
        profile: &Profile,
        is_used: &[bool],
        detail: NameDetail,
    ) -> Result<Vec<(u64, u64)>> {
        let mut is_referred = vec![false; profile.mappings.len()];
        let ids = (0..is_used.len() as u32).map(AddressId);
        for id in ids.filter(|id| is_used[id.0 as usize]) {
            if let Some(mapping) = profile.mapping_of_frame(id) {
                is_referred[mapping] = true;
            }
        }
        let main = profile.main_file().map(|main| main.path.as_str());
        let first = profile.mappings.iter().enumerate().position(|(index, m)| {
            main == Some(m.path.as_str()) && (m.executable || is_referred[index])
        });
        let mut order: Vec<usize> = first.into_iter().collect();
        order.extend(
            (0..is_referred.len()).filter(|&index| is_referred[index] && Some(index) != first),
        );
        let mut ids = vec![(0, 0); is_referred.len()];
        for index in order {
            let mapping = &profile.mappings[index];
            let filename = self.intern_string(&mapping.path);
            let build_id = self.intern_string(mapping.build_id.as_deref().unwrap_or_default());
            let key = MappingKey {
                file: filename,
                build_id,
                offset: mapping.offset,
                bytes: mapping.end.0.wrapping_sub(mapping.start.0),
                start: match mapping.path.starts_with('/') {
                    true => 0,
                    false => mapping.start.0,
                },
            };
            // Ids count from 1: 0 stands for no mapping.
            let next = self.mappings.len() as u64 + 1;
            let known = self.mappings.entry(key);
            let is_new = matches!(known, Entry::Vacant(_));
            let (id, start) = *known.or_insert((next, mapping.start.0));
            ids[index] = (id, start.wrapping_sub(mapping.start.0));
            if !is_new {
                continue;
            }
            let message = proto::Mapping {
                id,
                memory_start: mapping.start.0,
                memory_limit: mapping.end.0,
                file_offset: mapping.offset,
                filename,
                build_id,
                has_functions: detail.functions,
                has_filenames: detail.files,
                has_line_numbers: detail.lines,
                has_inline_frames: detail.inlines,
            };
            // Field 3 of `Profile` in profile.proto: `mapping`.
            self.write_field(3, &message)?;
        }
        Ok(ids)
    }

    /// Converts the frames of an address, innermost first, to lines of a location. Stores functions that are new, for
    /// [`finish`](Self::finish) to write. A frame without a symbol gets no line: readers show its mapping and address,
    /// which say more than an offset as a name, and they can still find a symbol.
    fn convert_frames(
        &mut self,
        symbolized: &SymbolizedProfile,
        address: AddressId,
    ) -> Vec<proto::Line> {
        let frames = symbolized.names.frames(address);
        let string = |id| symbolized.names.strings.get(id);
        frames
            .iter()
            .filter(|frame| frame.named)
            .map(|frame| {
                let name = self.strings.intern(string(frame.function));
                let file = frame.file.map(|file| self.strings.intern(string(file)));
                // Ids count from 1: profile.proto forbids 0.
                let next = self.functions.len() as u64 + 1;
                let id = *self.function_ids.entry((name, file)).or_insert(next);
                if id == next {
                    let name = i64::from(name.0);
                    let filename = file.map_or(0, |file| i64::from(file.0));
                    self.functions.push(proto::Function {
                        id,
                        name,
                        system_name: name,
                        filename,
                    });
                }
                proto::Line {
                    function_id: id,
                    line: i64::from(frame.line),
                }
            })
            .collect()
    }

    /// Writes the functions and strings of all messages so far, then the fields in `tail`, whose strings are interned
    /// already, and flushes the output.
    pub(super) fn finish(mut self, tail: &proto::Profile) -> Result<()> {
        // Fields 5 and 6 of `Profile` in profile.proto: `function` and `string_table`.
        for function in std::mem::take(&mut self.functions) {
            self.write_field(5, &function)?;
        }
        for index in 0..self.strings.len() as u32 {
            let string = self.strings.get(StringId(index)).to_owned();
            prost::encoding::string::encode(6, &string, &mut self.buffer);
        }
        tail.encode_raw(&mut self.buffer);
        self.out.write_all(&self.buffer)?;
        self.out.flush()?;
        Ok(())
    }
}

/// Returns the positions of a profile's values of these types, in their order. The profile must have all of them: a
/// type that it lacks would have no position.
fn find_columns(profile: &Profile, types: &[ValueType]) -> Vec<Column> {
    let known = profile.columns();
    let find = |wanted: &ValueType| {
        known
            .iter()
            .find(|(_, found)| found.is_same_quantity(wanted))
    };
    types
        .iter()
        .filter_map(|wanted| Some(find(wanted)?.0))
        .collect()
}
