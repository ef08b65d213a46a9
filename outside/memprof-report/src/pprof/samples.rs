//! Samples of a pprof profile: their stacks, values and labels.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::wire::Fields;
use super::{Reader, decode_message, proto, tag};
use crate::error::{Error, Result};
use crate::label::{LabelId, Labels, SetLabel};
use crate::limits::ProfileItem;
use crate::names::replace_unprintable;
use crate::profile::sample_types::{Column, Unit, ValueType, ValueTypes};
use crate::profile::{Profile, Sample, SampleValues};
use crate::stacks::AddressId;

/// Position of a value in a sample, and the factor that converts it to the unit of its type.
pub(super) type ScaledColumn = (Column, i64);

impl<'a> Reader<'a> {
    /// Decides for each sample type of the file where its values are stored. Returns the types, and for each value of a
    /// sample its column and the factor that converts it to the column's unit. Fails if there are no types, or a string
    /// is missing.
    pub(super) fn arrange_value_types(
        &self,
        types: &[proto::ValueType],
    ) -> Result<(ValueTypes, Vec<ScaledColumn>)> {
        let (mut named, mut factors) = (Vec::new(), Vec::new());
        for value_type in types {
            let (unit, factor) = Unit::parse(&self.printable_string(value_type.unit)?);
            named.push(ValueType::new(
                &self.printable_string(value_type.r#type)?,
                unit,
            ));
            factors.push(factor);
        }
        if named.is_empty() {
            return Err(Error::malformed_pprof("it has no sample type"));
        }
        let (types, columns) = ValueTypes::new(named);
        Ok((types, columns.into_iter().zip(factors).collect()))
    }

    /// Counts the memory of `count` samples with values of these `types`, before any of it is allocated. Fails if there
    /// are too many samples, or the memory budget is exceeded.
    pub(super) fn charge_samples(&mut self, count: usize, types: &ValueTypes) -> Result<()> {
        if count > self.limits.samples {
            return Err(Error::Limit {
                what: "samples",
                limit: self.limits.samples as u64,
            });
        }
        let values = count.saturating_mul(types.row_len());
        let bytes = self.bytes.len() as u64;
        self.budget.charge_all(ProfileItem::Sample, count, bytes)?;
        self.budget.charge_all(ProfileItem::Value, values, bytes)
    }

    /// Reads the samples into `profile`, with their stacks and labels. `columns` has, for each value of a sample, the
    /// column that stores it and the factor to multiply it by. `locations` has the addresses by location id, ascending.
    /// Fails if a sample is malformed, has more or fewer values than `columns`, names a location that does not exist,
    /// or exceeds a limit, or if a value overflows.
    pub(super) fn read_samples(
        &mut self,
        profile: &mut Profile,
        mut types: ValueTypes,
        columns: &[ScaledColumn],
        locations: &[(u64, AddressId)],
    ) -> Result<()> {
        let mut sets = LabelSets::default();
        let mut row = vec![0; types.row_len()];
        let mut labels: Vec<proto::Label> = Vec::new();
        for field in Fields(self.bytes) {
            let (tag::SAMPLE, value) = field? else {
                continue;
            };
            let mut values = SampleValues::default();
            let mut count = 0;
            labels.clear();
            // The fields of `Sample` in profile.proto.
            for field in Fields(value.bytes()?) {
                match field? {
                    (1, value) => value.for_each_number(|id| {
                        profile.stacks.push_frame(location_address(locations, id)?);
                        if profile.stacks.pending_depth() > self.limits.frames {
                            return Err(Error::Limit {
                                what: "frames in a stack",
                                limit: self.limits.frames as u64,
                            });
                        }
                        Ok(())
                    })?,
                    (2, value) => value.for_each_number(|number| {
                        if let Some(&(column, factor)) = columns.get(count) {
                            let scaled = (number as i64).checked_mul(factor);
                            let scaled = scaled.ok_or_else(|| Error::Overflow {
                                problem: "a value in bytes passes 63 bits".into(),
                            })?;
                            match column {
                                Column::Sample(sample_type) => values[sample_type] = scaled,
                                Column::Row(index) => row[index] = scaled,
                            }
                        }
                        count += 1;
                        Ok(())
                    })?,
                    (3, value) => labels.push(decode_message(value)?),
                    _ => {}
                }
            }
            if count != columns.len() {
                return Err(Error::malformed_pprof(
                    "a sample has more or fewer values than sample types",
                ));
            }
            let (known, depth) = (profile.stacks.len(), profile.stacks.pending_depth());
            let stack = profile.stacks.finish_stack();
            if profile.stacks.len() > known {
                self.charge_memory(ProfileItem::Stack(depth))?;
            }
            // A sample has a value for each column, so none in the row is of the sample before.
            types.push_row(&row);
            profile.samples.push(Sample {
                label: self.intern_label_set(&labels, &mut sets, &mut profile.labels)?,
                row: profile.samples.len() as u32,
                ..Sample::new(stack, values)
            });
        }
        profile.value_types = Some(types);
        Ok(())
    }

    /// Returns the set with the labels of a sample, and adds it to `labels` if it is new. A label with neither text nor
    /// number is left out. `None` if no label is left. Fails if a string is missing, or the memory budget is exceeded.
    fn intern_label_set(
        &mut self,
        found: &[proto::Label],
        sets: &mut LabelSets,
        labels: &mut Labels,
    ) -> Result<Option<LabelId>> {
        if found.is_empty() {
            return Ok(None);
        }
        if let Some(known) = sets.ids.get(found) {
            return Ok(*known);
        }
        let mut set = Vec::new();
        let mut seen = HashSet::new();
        // jemalloc_pprof repeats the label of a stack for each of its frames.
        for label in found.iter().filter(|label| seen.insert(**label)) {
            let key = self.shared_string(label.key, sets)?;
            let label = if label.str != 0 {
                SetLabel::with_text(key, self.shared_string(label.str, sets)?)
            } else if label.num != 0 || label.num_unit != 0 {
                SetLabel::with_number(key, label.num, self.shared_string(label.num_unit, sets)?)
            } else {
                // Neither text nor number: as for `go tool pprof`, no label.
                continue;
            };
            self.charge_memory(ProfileItem::Label(label.text.len()))?;
            if sets.keys.insert(Arc::clone(&label.key)) {
                labels.add_key(&label.key);
            }
            set.push(label);
        }
        let id = labels.add_set(set);
        sets.ids.insert(found.into(), id);
        Ok(id)
    }

    /// Returns the string at `index` of the profile's string table, of which all labels share one copy. Unprintable
    /// characters are replaced. Fails if there is no such string, or the memory budget is exceeded.
    fn shared_string(&mut self, index: i64, sets: &mut LabelSets) -> Result<Arc<str>> {
        if let Some(known) = sets.strings.get(&index) {
            return Ok(Arc::clone(known));
        }
        let string: Arc<str> = self.printable_string(index)?.into();
        self.charge_memory(ProfileItem::Text(string.len()))?;
        sets.strings.insert(index, Arc::clone(&string));
        Ok(string)
    }

    /// Returns the string at `index` of the profile's string table, with unprintable characters replaced. Fails if the
    /// table has no such string.
    pub(super) fn printable_string(&self, index: i64) -> Result<String> {
        Ok(replace_unprintable(&self.string_at(index)?).into_owned())
    }
}

/// Label sets that were read so far, and their strings.
#[derive(Default)]
struct LabelSets {
    ids: HashMap<Box<[proto::Label]>, Option<LabelId>>,
    strings: HashMap<i64, Arc<str>>,
    keys: HashSet<Arc<str>>,
}

/// Returns the address of the location with this id; `locations` are ascending by id. Tries index `id` − 1 first,
/// because most profiles number locations from 1. Fails if there is no such location.
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
    found.ok_or_else(|| Error::malformed_pprof(format!("there is no location {id}")))
}
