//! Reads pprof profiles, of other tools and of `--format pprof`.
//!
//! Messages are read in place, table by table: decoded as a whole, an empty message of two bytes would use fifty
//! bytes of memory.

pub(crate) mod proto;
mod wire;

use prost::Message;

pub(crate) use self::wire::FieldScan;
use self::wire::{Fields, Value};
use crate::demangle::demangle;
use crate::error::{Error, Result};
use crate::limits::{Limits, ParseBudget, ProfileItem};
use crate::names::{Frame, Names, StringId, replace_unprintable};
use crate::profile::{Address, Mapping, Profile, Sample, SampleType, SampleValues};
use crate::stacks::AddressId;

/// Field numbers of the top-level message.
mod tag {
    pub(super) const SAMPLE_TYPE: u64 = 1;
    pub(super) const SAMPLE: u64 = 2;
    pub(super) const MAPPING: u64 = 3;
    pub(super) const LOCATION: u64 = 4;
    pub(super) const FUNCTION: u64 = 5;
    pub(super) const STRING: u64 = 6;
    pub(super) const PERIOD: u64 = 12;
}

/// Reads an uncompressed `profile.proto`. Its values count as unsampled. Fails if it is malformed, is not a heap
/// profile, or exceeds `limits`.
pub(crate) fn parse(bytes: &[u8], limits: &Limits) -> Result<Profile> {
    let mut reader = Reader {
        bytes,
        limits,
        budget: ParseBudget::new(limits),
        strings: Vec::new(),
        functions: Vec::new(),
    };
    let mut sample_types: Vec<proto::ValueType> = Vec::new();
    let mut mappings = Vec::new();
    let mut period = 0;
    for field in Fields(bytes) {
        let (tag, value) = field?;
        match tag {
            tag::SAMPLE_TYPE => {
                sample_types.push(decode_message(value)?);
                reader.spend(ProfileItem::Entry)?;
            }
            tag::STRING => reader.add_string(value)?,
            tag::FUNCTION => {
                reader.functions.push(decode_message(value)?);
                reader.spend(ProfileItem::Entry)?;
            }
            tag::MAPPING if mappings.len() == limits.mappings => {
                return Err(Error::Limit {
                    what: "mappings",
                    limit: limits.mappings as u64,
                });
            }
            tag::MAPPING => mappings.push(decode_message(value)?),
            tag::PERIOD => period = value.number()?,
            _ => {}
        }
    }
    // Of functions with equal ids the last one counts: the search from behind finds it first.
    reader.functions.sort_by_key(|function| function.id);
    let columns = reader.sample_types(&sample_types)?;
    let mut profile = Profile {
        interval: (1..=i64::MAX as u64).contains(&period).then_some(period),
        has_alloc: columns
            .iter()
            .flatten()
            .any(|sample_type| sample_type.is_alloc()),
        mappings: reader.convert_mappings(&mappings)?,
        program: reader.program(&mappings)?,
        ..Profile::default()
    };
    let locations = reader.read_locations(&mut profile)?;
    reader.read_samples(&mut profile, &columns, &locations)?;
    profile.memory_left = reader.budget.memory_left(bytes.len() as u64);
    Ok(profile)
}

fn decode_message<M: Message + Default>(value: Value<'_>) -> Result<M> {
    M::decode(value.bytes()?).map_err(|error| Error::pprof(error.to_string()))
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
    functions: Vec<Option<StringId>>,
    files: Vec<Option<StringId>>,
}

impl<'a> Reader<'a> {
    /// Counts memory for an item. Fails if the budget is exceeded.
    fn spend(&mut self, item: ProfileItem) -> Result<()> {
        self.budget.spend(item, self.bytes.len() as u64)
    }

    fn add_string(&mut self, value: Value<'a>) -> Result<()> {
        self.strings.push(value.bytes()?);
        self.spend(ProfileItem::Entry)
    }

    /// Returns the string with that index. Fails if there is none, or it is not UTF-8.
    fn string(&self, index: i64) -> Result<&'a str> {
        let string = usize::try_from(index)
            .ok()
            .and_then(|index| self.strings.get(index));
        let string = string.ok_or_else(|| Error::pprof(format!("there is no string {index}")))?;
        str::from_utf8(string).map_err(|_| Error::pprof(format!("string {index} is not UTF-8")))
    }

    /// Maps each value of a sample to its type. `None` for types other than the four of [`SampleType`]. Fails if all
    /// are others.
    fn sample_types(&self, types: &[proto::ValueType]) -> Result<Vec<Option<SampleType>>> {
        let mut columns = Vec::new();
        for value_type in types {
            columns.push(match self.string(value_type.r#type)? {
                "space" => Some(SampleType::InuseSpace),
                "objects" => Some(SampleType::InuseObjects),
                name => SampleType::ALL.into_iter().find(|t| t.name() == name),
            });
        }
        if columns.iter().all(Option::is_none) {
            return Err(Error::pprof(
                "it is not a heap profile: no sample type inuse_* or alloc_*",
            ));
        }
        Ok(columns)
    }

    /// Converts the mappings, sorted and without those that overlap an earlier one.
    fn convert_mappings(&mut self, messages: &[proto::Mapping]) -> Result<Vec<Mapping>> {
        let mut mappings = Vec::new();
        for mapping in messages {
            let build_id = self.string(mapping.build_id)?;
            let path = self.string(mapping.filename)?;
            self.spend(ProfileItem::Text(path.len() + build_id.len()))?;
            mappings.push(Mapping {
                start: Address(mapping.memory_start),
                end: Address(mapping.memory_limit),
                offset: mapping.file_offset,
                executable: true,
                path: replace_unprintable(path).into_owned(),
                build_id: (!build_id.is_empty())
                    .then(|| replace_unprintable(build_id).into_owned()),
            });
        }
        mappings.sort_by_key(|mapping| mapping.start);
        let mut end = Address(0);
        mappings.retain(|mapping| {
            let keep = mapping.start >= end && mapping.end > mapping.start;
            if keep {
                end = mapping.end;
            }
            keep
        });
        Ok(mappings)
    }

    /// Returns the path of the main program: by `profile.proto` that of the first mapping, but some writers keep another
    /// order, so libraries and memory are skipped. `None` if all are.
    fn program(&self, messages: &[proto::Mapping]) -> Result<Option<String>> {
        for message in messages {
            let mapping = Mapping {
                path: replace_unprintable(self.string(message.filename)?).into_owned(),
                ..Mapping::default()
            };
            if mapping.is_file() && !mapping.is_library_by_name() {
                return Ok(Some(mapping.path));
            }
        }
        Ok(None)
    }

    /// Interns all locations. Returns (location id, address), ascending by location id. pprof has addresses of calls,
    /// [`Profile`] return addresses: one more. Two locations may share an address or have none; those get addresses at
    /// the upper end, outside of any mapping. Fails if two locations have one id.
    fn read_locations(&mut self, profile: &mut Profile) -> Result<Vec<(u64, AddressId)>> {
        let mut names = Names::default();
        let mut known = InternedStrings {
            functions: vec![None; self.strings.len()],
            files: vec![None; self.strings.len()],
        };
        let mut ids: Vec<(u64, AddressId)> = Vec::new();
        let mut frames = Vec::new();
        for field in Fields(self.bytes) {
            let (tag::LOCATION, value) = field? else {
                continue;
            };
            self.spend(ProfileItem::Address)?;
            let (mut location_id, mut address) = (0, 0);
            frames.clear();
            for field in Fields(value.bytes()?) {
                match field? {
                    (1, value) => location_id = value.number()?,
                    (3, value) => address = value.number()?,
                    (4, value) => {
                        self.spend(ProfileItem::Inlined)?;
                        frames.push(self.convert_line(
                            decode_message(value)?,
                            &mut names,
                            &mut known,
                        )?);
                    }
                    _ => {}
                }
            }
            let before = profile.stacks.addresses().len();
            let mut id = profile
                .stacks
                .intern_address(Address(address.wrapping_add(1)));
            if address == 0 || (id.0 as usize) < before {
                id = profile
                    .stacks
                    .intern_address(Address(u64::MAX - ids.len() as u64));
            }
            if !frames.is_empty() {
                names.set(id, &frames);
            }
            ids.push((location_id, id));
        }
        ids.sort_unstable_by_key(|(location, _)| *location);
        if let Some(pair) = ids.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(Error::pprof(format!(
                "there are two locations {}",
                pair[0].0
            )));
        }
        profile.names = Some(names);
        Ok(ids)
    }

    /// Converts a line of a location to a frame. Fails if the profile has no such function, or lacks one of its
    /// strings.
    fn convert_line(
        &mut self,
        line: proto::Line,
        names: &mut Names,
        known: &mut InternedStrings,
    ) -> Result<Frame> {
        let after = self.functions.partition_point(|f| f.id <= line.function_id);
        let function = after.checked_sub(1).map(|index| self.functions[index]);
        let function = function.filter(|function| function.id == line.function_id);
        let function = function
            .ok_or_else(|| Error::pprof(format!("there is no function {}", line.function_id)))?;
        let name = match self.string(function.name)? {
            "" => function.system_name,
            _ => function.name,
        };
        let file = match self.string(function.filename)? {
            "" => None,
            file => Some(self.intern(&mut known.files, function.filename, file, names)?),
        };
        let text = self.string(name)?;
        let function = match known.functions[name as usize] {
            Some(function) => function,
            None => self.intern(&mut known.functions, name, &demangle(text), names)?,
        };
        Ok(Frame {
            function,
            file,
            line: u32::try_from(line.line).unwrap_or(0),
            named: true,
        })
    }

    /// Returns the id of `text`, the displayed form of the string with that index. `known` caches the ids by index.
    fn intern(
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
        self.spend(ProfileItem::Text(text.len()))?;
        let id = names.strings.intern(text);
        *known = Some(id);
        Ok(id)
    }

    /// Reads the samples into `profile`; `columns` has the type of each value, `locations` are ascending by id. Fails
    /// if a sample is malformed, names no location, or exceeds a limit.
    fn read_samples(
        &mut self,
        profile: &mut Profile,
        columns: &[Option<SampleType>],
        locations: &[(u64, AddressId)],
    ) -> Result<()> {
        for field in Fields(self.bytes) {
            let (tag::SAMPLE, value) = field? else {
                continue;
            };
            if profile.samples.len() == self.limits.samples {
                return Err(Error::Limit {
                    what: "samples",
                    limit: self.limits.samples as u64,
                });
            }
            let mut values = SampleValues::default();
            let mut count = 0;
            for field in Fields(value.bytes()?) {
                match field? {
                    (1, value) => value.for_each_number(|id| {
                        profile.stacks.push(location_address(locations, id)?);
                        if profile.stacks.depth() > self.limits.frames {
                            return Err(Error::Limit {
                                what: "frames in a stack",
                                limit: self.limits.frames as u64,
                            });
                        }
                        Ok(())
                    })?,
                    (2, value) => value.for_each_number(|number| {
                        if let Some(Some(sample_type)) = columns.get(count) {
                            values[*sample_type] = number as i64;
                        }
                        count += 1;
                        Ok(())
                    })?,
                    _ => {}
                }
            }
            if count != columns.len() {
                return Err(Error::pprof(
                    "a sample has more or fewer values than sample types",
                ));
            }
            let (known, depth) = (profile.stacks.len(), profile.stacks.depth());
            let stack = profile.stacks.finish();
            self.spend(ProfileItem::Sample)?;
            if profile.stacks.len() > known {
                self.spend(ProfileItem::Stack(depth))?;
            }
            profile.samples.push(Sample::new(stack, values));
        }
        Ok(())
    }
}

/// Returns the address of the location with that id; `locations` are ascending by id. Tries index `id` − 1 first,
/// because most profiles number them from 1. Fails if there is none.
fn location_address(locations: &[(u64, AddressId)], id: u64) -> Result<AddressId> {
    let guess = usize::try_from(id.wrapping_sub(1)).ok();
    let guessed = guess.and_then(|index| locations.get(index));
    let found = match guessed {
        Some(&(location, address)) if location == id => Some(address),
        _ => locations
            .binary_search_by_key(&id, |(location, _)| *location)
            .ok()
            .map(|index| locations[index].1),
    };
    found.ok_or_else(|| Error::pprof(format!("there is no location {id}")))
}
