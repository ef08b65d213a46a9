//! Encodes the messages of a profile and writes them in parts.

use std::collections::HashMap;
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

/// Encoder of one profile, with the tables that its messages refer to.
pub(super) struct Encoder<W: Write> {
    out: W,
    buffer: Vec<u8>,
    strings: Strings,
    functions: Vec<proto::Function>,
    function_ids: HashMap<(StringId, Option<StringId>), u64>,
    mappings: u64,
    locations: u64,
}

impl<W: Write> Encoder<W> {
    pub(super) fn new(out: W) -> Self {
        let mut strings = Strings::default();
        strings.intern("");
        Self {
            out,
            buffer: Vec::with_capacity(2 * PART_BYTES),
            strings,
            functions: Vec::new(),
            function_ids: HashMap::new(),
            mappings: 0,
            locations: 0,
        }
    }

    /// Index of a string, adding it if it is new.
    pub(super) fn string(&mut self, string: &str) -> i64 {
        i64::from(self.strings.intern(string).0)
    }

    pub(super) fn value_type(&mut self, name: &str, unit: &str) -> proto::ValueType {
        proto::ValueType {
            r#type: self.string(name),
            unit: self.string(unit),
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

    /// Writes the samples of a profile, times `sign` (1 or −1), with the mappings and locations to which they refer.
    pub(super) fn write_samples(
        &mut self,
        symbolized: &SymbolizedProfile,
        types: &[ValueType],
        sign: i64,
    ) -> Result<()> {
        let SymbolizedProfile {
            profile,
            names,
            depths,
        } = symbolized;
        let known = profile.columns();
        let columns: Vec<Column> = types
            .iter()
            .filter_map(|wanted| known.iter().find(|(_, found)| found.is_same(wanted)))
            .map(|(column, _)| *column)
            .collect();
        let mut is_used = vec![false; profile.stacks.addresses().len()];
        let mut message = proto::Sample::default();
        for sample in &profile.samples {
            let frames =
                &profile.stacks.frames(sample.stack)[depths[sample.stack.0 as usize] as usize..];
            message.location_id.clear();
            message
                .location_id
                .extend(frames.iter().map(|id| self.locations + u64::from(id.0) + 1));
            message.value.clear();
            message.value.extend(
                columns
                    .iter()
                    .map(|&column| sign.saturating_mul(profile.value(sample, column))),
            );
            message.label = self.labels(profile, sample);
            self.write_field(2, &message)?;
            for id in frames {
                is_used[id.0 as usize] = true;
            }
        }
        let detail = names.detail();
        let mappings = self.write_mappings(profile, &is_used, detail)?;
        let ids = (0..profile.stacks.addresses().len() as u32).map(AddressId);
        for id in ids.filter(|id| is_used[id.0 as usize]) {
            let mapping = profile.mapping_of_frame(id);
            let location = proto::Location {
                id: self.locations + u64::from(id.0) + 1,
                mapping_id: mapping.map_or(0, |mapping| mappings[mapping]),
                address: profile.stacks.call(id).0,
                line: self.lines(symbolized, id),
            };
            self.write_field(4, &location)?;
        }
        self.locations += profile.stacks.addresses().len() as u64;
        Ok(())
    }

    /// Labels of a sample: `age` in seconds, and those of its label set.
    fn labels(&mut self, profile: &Profile, sample: &Sample) -> Vec<proto::Label> {
        let age = profile.ages.zip(sample.alloc_time);
        let age = age.map(|(ages, alloc_time)| proto::Label {
            key: self.string("age"),
            num: i64::from(ages.min_age(alloc_time)),
            num_unit: self.string("seconds"),
            ..proto::Label::default()
        });
        let labels = sample.label.map(|label| profile.labels.set(label));
        let labels = labels.as_deref().unwrap_or_default().iter();
        let labels = labels.map(|SetLabel { key, text, number }| match number {
            Some((number, unit)) => proto::Label {
                key: self.string(key),
                num: *number,
                num_unit: self.string(unit),
                ..proto::Label::default()
            },
            None => proto::Label {
                key: self.string(key),
                str: self.string(text),
                ..proto::Label::default()
            },
        });
        age.into_iter().chain(labels).collect()
    }

    /// Writes the mappings to which locations refer, the main program's first. Returns the id of each mapping, 0 if
    /// it is not written.
    fn write_mappings(
        &mut self,
        profile: &Profile,
        is_used: &[bool],
        detail: NameDetail,
    ) -> Result<Vec<u64>> {
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
        let mut ids = vec![0; is_referred.len()];
        for index in order {
            let mapping = &profile.mappings[index];
            self.mappings += 1;
            ids[index] = self.mappings;
            let message = proto::Mapping {
                id: self.mappings,
                memory_start: mapping.start.0,
                memory_limit: mapping.end.0,
                file_offset: mapping.offset,
                filename: self.string(&mapping.path),
                build_id: self.string(mapping.build_id.as_deref().unwrap_or_default()),
                has_functions: detail.functions,
                has_filenames: detail.files,
                has_line_numbers: detail.lines,
                has_inline_frames: detail.inlines,
            };
            self.write_field(3, &message)?;
        }
        Ok(ids)
    }

    /// Converts the frames of an address, innermost first, to lines, and collects functions that are new. A frame without
    /// a symbol has none: its mapping and address tell more than a number for a name, and readers can still name it.
    fn lines(&mut self, symbolized: &SymbolizedProfile, address: AddressId) -> Vec<proto::Line> {
        let frames = symbolized.names.frames(address);
        let string = |id| symbolized.names.strings.get(id);
        frames
            .iter()
            .filter(|frame| frame.named)
            .map(|frame| {
                let name = self.strings.intern(string(frame.function));
                let file = frame.file.map(|file| self.strings.intern(string(file)));
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

    /// Writes the functions and strings that were collected and the fields in `tail`, and flushes the output.
    pub(super) fn finish(mut self, tail: &proto::Profile) -> Result<()> {
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
