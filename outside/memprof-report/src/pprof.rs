//! Reads pprof profiles, of other tools and of `--format pprof`.
//!
//! Messages are read in place, table by table: decoded as a whole, an empty message of two bytes would use fifty
//! bytes of memory.

mod dropped_frames;
mod mappings;
mod origin;
pub(crate) mod proto;
mod samples;
mod wire;

use std::borrow::Cow;

use prost::Message;

pub(crate) use self::origin::origin_comments;
pub(crate) use self::wire::FieldScan;
use self::wire::{Fields, Value};
use crate::demangle::demangle;
use crate::error::{Error, Result};
use crate::limits::{Limits, ParseBudget, ProfileItem};
use crate::names::{Frame, Names, StringId};
use crate::plural::pluralize;
use crate::profile::sample_types::{Column, Unit};
use crate::profile::{Address, Mapping, PprofHeader, Profile};
use crate::stacks::AddressId;

/// Field numbers of the top-level message.
mod tag {
    pub(super) const SAMPLE_TYPE: u64 = 1;
    pub(super) const SAMPLE: u64 = 2;
    pub(super) const MAPPING: u64 = 3;
    pub(super) const LOCATION: u64 = 4;
    pub(super) const FUNCTION: u64 = 5;
    pub(super) const STRING: u64 = 6;
    pub(super) const DROP_FRAMES: u64 = 7;
    pub(super) const KEEP_FRAMES: u64 = 8;
    pub(super) const TIME: u64 = 9;
    pub(super) const DURATION: u64 = 10;
    pub(super) const PERIOD_TYPE: u64 = 11;
    pub(super) const PERIOD: u64 = 12;
    pub(super) const COMMENT: u64 = 13;
}

/// Reads an uncompressed `profile.proto`. Its values need no scaling by the sample interval. Fails if it is malformed,
/// has no sample type, or exceeds `limits`.
pub(crate) fn parse_uncompressed(bytes: &[u8], limits: &Limits) -> Result<Profile> {
    let mut reader = Reader {
        bytes,
        limits,
        budget: ParseBudget::new(limits),
        strings: Vec::new(),
        functions: Vec::new(),
    };
    reader.charge_memory(ProfileItem::Input(bytes.len()))?;
    let mut sample_types: Vec<proto::ValueType> = Vec::new();
    let mut sample_count = 0;
    let mut mappings = Vec::new();
    let (mut period, mut period_type) = (0, None);
    let mut header = PprofHeader::default();
    let mut comments: Vec<u64> = Vec::new();
    let (mut drop_frames, mut keep_frames) = (0, 0);
    for field in Fields(bytes) {
        let (tag, value) = field?;
        match tag {
            tag::SAMPLE_TYPE => {
                sample_types.push(decode_message(value)?);
                reader.charge_memory(ProfileItem::Entry)?;
            }
            tag::SAMPLE => sample_count += 1,
            tag::STRING => reader.add_string(value)?,
            tag::FUNCTION => {
                reader.functions.push(decode_message(value)?);
                reader.charge_memory(ProfileItem::Entry)?;
            }
            tag::MAPPING if mappings.len() == limits.mappings => {
                return Err(Error::Limit {
                    what: "mappings",
                    limit: limits.mappings as u64,
                });
            }
            tag::MAPPING => mappings.push(decode_message(value)?),
            tag::PERIOD => period = value.number()?,
            tag::PERIOD_TYPE => period_type = Some(decode_message(value)?),
            tag::DROP_FRAMES => drop_frames = value.number()?.cast_signed(),
            tag::KEEP_FRAMES => keep_frames = value.number()?.cast_signed(),
            tag::TIME => header.time_nanos = value.number()?.cast_signed(),
            tag::DURATION => header.duration_nanos = value.number()?.cast_signed(),
            tag::COMMENT => value.for_each_number(|index| {
                comments.push(index);
                reader.charge_memory(ProfileItem::Entry)
            })?,
            _ => {}
        }
    }
    reader
        .functions
        .sort_unstable_by_key(|function| function.id);
    let mut neighbours = reader.functions.windows(2);
    if let Some(pair) = neighbours.find(|pair| pair[0].id == pair[1].id) {
        let id = pair[0].id;
        return Err(Error::malformed_pprof(format!(
            "there are two functions {id}"
        )));
    }
    let (mut types, columns) = reader.arrange_value_types(&sample_types)?;
    reader.charge_samples(sample_count, &types)?;
    for index in comments {
        let comment = reader.printable_string(index.cast_signed())?;
        reader.charge_memory(ProfileItem::Text(comment.len()))?;
        header.comments.push(comment);
    }
    let program = reader.main_program(&mappings)?;
    let (mappings, indexes) = reader.convert_mappings(mappings)?;
    let mut profile = Profile {
        interval: reader.sample_interval(period, period_type)?,
        has_alloc: columns.iter().any(
            |(column, _)| matches!(column, Column::Sample(sample_type) if sample_type.is_alloc()),
        ),
        mappings,
        program,
        origin: origin::read_origin(&header.comments),
        pprof: header,
        ..Profile::default()
    };
    let mut named_mappings = Vec::new();
    let locations = reader.read_locations(&mut profile, &mut named_mappings)?;
    mappings::assign_mappings(&mut profile, &named_mappings, &indexes);
    profile.samples.reserve_exact(sample_count);
    types.reserve_rows(sample_count);
    reader.read_samples(&mut profile, types, &columns, &locations)?;
    if drop_frames != 0 {
        let keep = match keep_frames {
            0 => "".into(),
            keep => reader.string_at(keep)?,
        };
        profile.drop_frames(&reader.string_at(drop_frames)?, &keep);
    }
    profile.warnings.extend(reader.not_utf8_note());
    profile.memory_left = reader.budget.memory_left(bytes.len() as u64);
    Ok(profile)
}

/// Converts a string of the profile to text; bytes that are not UTF-8 become `\xNN`, so that different strings stay
/// apart.
fn to_utf8_text(string: &[u8]) -> Cow<'_, str> {
    str::from_utf8(string).map_or_else(
        |_| {
            let mut text = String::new();
            for chunk in string.utf8_chunks() {
                text += chunk.valid();
                let escaped = chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}"));
                text.extend(escaped);
            }
            Cow::Owned(text)
        },
        Cow::Borrowed,
    )
}

/// Decodes a message of `profile.proto`. Fails if the value is a number, or the message is malformed.
fn decode_message<M: Message + Default>(value: Value<'_>) -> Result<M> {
    M::decode(value.bytes()?).map_err(|error| Error::malformed_pprof(error.to_string()))
}

/// Tables of a profile, which the other messages refer to by index.
struct Reader<'a> {
    bytes: &'a [u8],
    limits: &'a Limits,
    budget: ParseBudget,
    strings: Vec<&'a [u8]>,
    functions: Vec<proto::Function>,
}

/// By string index: the id of the demangled or printable name. Each string is demangled once, however many frames
/// use it.
struct InternedStrings {
    /// Names, which are shown as the file has them.
    functions: Vec<Option<StringId>>,
    /// System names, which are demangled.
    symbols: Vec<Option<StringId>>,
    files: Vec<Option<StringId>>,
}

impl<'a> Reader<'a> {
    /// Counts the memory of an item. Fails if the budget, which is in proportion to the input, is exceeded.
    fn charge_memory(&mut self, item: ProfileItem) -> Result<()> {
        self.budget.charge(item, self.bytes.len() as u64)
    }

    /// Adds the next string of the table. Fails if the value is a number, or the memory budget is exceeded.
    fn add_string(&mut self, value: Value<'a>) -> Result<()> {
        self.strings.push(value.bytes()?);
        self.charge_memory(ProfileItem::Entry)
    }

    /// Returns the string at `index` of the string table, in which bytes that are not UTF-8 become `\xNN`. Fails if the
    /// table has no such string.
    fn string_at(&self, index: i64) -> Result<Cow<'a, str>> {
        let string = usize::try_from(index)
            .ok()
            .and_then(|index| self.strings.get(index));
        let string =
            string.ok_or_else(|| Error::malformed_pprof(format!("there is no string {index}")))?;
        Ok(to_utf8_text(string))
    }

    /// Returns a note on the strings that are not UTF-8 and are shown escaped. `None` if all are UTF-8.
    fn not_utf8_note(&self) -> Option<String> {
        let strings = self.strings.iter();
        let count = strings
            .filter(|string| str::from_utf8(string).is_err())
            .count();
        (count > 0).then(|| {
            format!(
                "{count} of its {} strings are not UTF-8: their other bytes are shown as \\xNN",
                self.strings.len()
            )
        })
    }

    /// Returns the mean number of bytes between samples. `None` if the profile has no period, or one that is no
    /// positive number of bytes. Fails if the string of the period's unit is missing.
    fn sample_interval(
        &self,
        period: u64,
        period_type: Option<proto::ValueType>,
    ) -> Result<Option<u64>> {
        let Some(period_type) = period_type else {
            return Ok(None);
        };
        let (unit, factor) = Unit::parse(&self.string_at(period_type.unit)?);
        let bytes = period.cast_signed().checked_mul(factor);
        let bytes = bytes.filter(|bytes| unit == Unit::Bytes && *bytes > 0);
        Ok(bytes.map(i64::cast_unsigned))
    }

    /// Returns the path of the main program: that of the first mapping which is neither a library by its name nor
    /// memory. By profile.proto the first mapping is the program, but some writers keep another order. `None` if there
    /// is no such mapping. Fails if a mapping's string is missing.
    fn main_program(&self, messages: &[proto::Mapping]) -> Result<Option<String>> {
        for message in messages {
            let mapping = Mapping {
                path: self.printable_string(message.filename)?,
                ..Mapping::default()
            };
            if mapping.is_file() && !mapping.is_library_by_name() {
                return Ok(Some(mapping.path));
            }
        }
        Ok(None)
    }

    /// Adds an address to `profile` for each location, also if two have the same one. Adds the ids of their mappings to
    /// `named_mappings`. Returns the location ids with the ids of their addresses, sorted by location id.
    ///
    /// The addresses are one higher than in the file: pprof has those of calls, [`Profile`] return addresses. Frames
    /// without a name are left out, with a warning. Fails if two locations have the same id.
    fn read_locations(
        &mut self,
        profile: &mut Profile,
        named_mappings: &mut Vec<u64>,
    ) -> Result<Vec<(u64, AddressId)>> {
        let mut names = Names::default();
        let mut known = InternedStrings {
            functions: vec![None; self.strings.len()],
            symbols: vec![None; self.strings.len()],
            files: vec![None; self.strings.len()],
        };
        let mut ids: Vec<(u64, AddressId)> = Vec::new();
        let mut frames = Vec::new();
        let mut nameless = 0;
        for field in Fields(self.bytes) {
            let (tag::LOCATION, value) = field? else {
                continue;
            };
            self.charge_memory(ProfileItem::Address)?;
            let (mut location_id, mut mapping_id, mut address) = (0, 0, 0_u64);
            frames.clear();
            // The fields of `Location` in profile.proto.
            for field in Fields(value.bytes()?) {
                match field? {
                    (1, value) => location_id = value.number()?,
                    (2, value) => mapping_id = value.number()?,
                    (3, value) => address = value.number()?,
                    (4, value) => {
                        self.charge_memory(ProfileItem::Inlined)?;
                        let line = decode_message(value)?;
                        match self.convert_line(line, &mut names, &mut known)? {
                            Some(frame) => frames.push(frame),
                            None => nameless += 1,
                        }
                    }
                    _ => {}
                }
            }
            let id = profile.stacks.add_address(Address(address.wrapping_add(1)));
            named_mappings.push(mapping_id);
            if !frames.is_empty() {
                names.set_frames(id, &frames);
            }
            ids.push((location_id, id));
        }
        ids.sort_unstable_by_key(|(location, _)| *location);
        if let Some(pair) = ids.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(Error::malformed_pprof(format!(
                "there are two locations {}",
                pair[0].0
            )));
        }
        if nameless > 0 {
            let frames = pluralize(nameless, "frame");
            let note = format!("{frames} without a function's name are left out");
            profile.warnings.push(note);
        }
        profile.names = Some(names);
        Ok(ids)
    }

    /// Converts a line of a location to a frame. A function without a name gets its system name, demangled. `None` if
    /// it has neither. Fails if the profile has no such function, or lacks one of its strings.
    fn convert_line(
        &mut self,
        line: proto::Line,
        names: &mut Names,
        known: &mut InternedStrings,
    ) -> Result<Option<Frame>> {
        let after = self.functions.partition_point(|f| f.id <= line.function_id);
        let function = after.checked_sub(1).map(|index| self.functions[index]);
        let function = function.filter(|function| function.id == line.function_id);
        let function = function.ok_or_else(|| {
            Error::malformed_pprof(format!("there is no function {}", line.function_id))
        })?;
        let is_named = !self.string_at(function.name)?.is_empty();
        let name = match is_named {
            true => function.name,
            false => function.system_name,
        };
        if self.string_at(name)?.is_empty() {
            return Ok(None);
        }
        let file = self.string_at(function.filename)?;
        let file = match &*file {
            "" => None,
            file => {
                Some(self.intern_string_at(&mut known.files, function.filename, file, names)?)
            }
        };
        // A name is as the writer wants it (`get @@iterator`); a system name is a symbol.
        let known = match is_named {
            true => &mut known.functions,
            false => &mut known.symbols,
        };
        let function = match known[name as usize] {
            Some(function) => function,
            None => {
                let text = self.string_at(name)?;
                let text = match is_named {
                    true => text,
                    false => Cow::Owned(demangle(&text).into_owned()),
                };
                self.intern_string_at(known, name, &text, names)?
            }
        };
        Ok(Some(Frame {
            function,
            linkage: None,
            file,
            line: u32::try_from(line.line).unwrap_or(0),
            named: true,
        }))
    }

    /// Returns the id of `text`, the displayed form of the string at `index` of the string table. Enters a new text
    /// into `names`. `known` caches the ids by index. Fails if the memory budget is exceeded.
    fn intern_string_at(
        &mut self,
        known: &mut [Option<StringId>],
        index: i64,
        text: &str,
        names: &mut Names,
    ) -> Result<StringId> {
        let known = &mut known[index as usize];
        if let Some(id) = known {
            return Ok(*id);
        }
        self.charge_memory(ProfileItem::Text(text.len()))?;
        let id = names.strings.intern(text);
        *known = Some(id);
        Ok(id)
    }
}

#[cfg(test)]
mod tests;
