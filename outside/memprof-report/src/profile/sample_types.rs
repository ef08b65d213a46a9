//! Sample types of pprof profiles: any names, in any unit. Up to four of them are those of [`SampleType`]; values of
//! the others are stored beside the samples, until one of them is selected for a report.

use super::{Profile, Sample, SampleType};
use crate::error::{Error, Result};

/// Unit of a sample type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Bytes. Values in a multiple of them are converted when they are read.
    Bytes,
    /// Another unit as the file names it, such as `count` or `nanoseconds`; may be empty.
    Other(String),
}

/// Units of memory, in lower case and without a plural's `s`, each with its size in bytes as a power of two. The
/// names and sizes are those of `go tool pprof` (`internal/measurement`), with IEC's beside them.
const MEMORY: [(&[&str], u32); 6] = [
    (&["b", "byte"], 0),
    (&["kb", "kib", "kbyte", "kilobyte", "kibibyte"], 10),
    (&["mb", "mib", "mbyte", "megabyte", "mebibyte"], 20),
    (&["gb", "gib", "gbyte", "gigabyte", "gibibyte"], 30),
    (&["tb", "tib", "tbyte", "terabyte", "tebibyte"], 40),
    (&["pb", "pib", "pbyte", "petabyte", "pebibyte"], 50),
];

impl Unit {
    /// Parses a unit by its name in a profile. Returns the unit in which values are stored, and the factor that
    /// converts values of the file to it: a multiple of bytes becomes bytes, any other unit stays, with the factor 1.
    pub(crate) fn parse(text: &str) -> (Self, i64) {
        let lower = text.to_lowercase();
        // Short units such as `ms` keep their `s`.
        let singular = match lower.strip_suffix('s') {
            Some(singular) if lower.len() > 2 => singular,
            _ => &lower,
        };
        let memory = MEMORY.iter().find(|(names, _)| names.contains(&singular));
        match memory {
            Some((_, power)) => (Self::Bytes, 1 << power),
            None => (Self::Other(text.to_owned()), 1),
        }
    }

    /// Name of the unit in pprof.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Bytes => "bytes",
            Self::Other(name) => name,
        }
    }
}

/// A sample type of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ValueType {
    /// Name in reports.
    pub(crate) name: String,
    /// Name in the file: `space` and `objects` are older names of `inuse_space` and `inuse_objects`.
    pub(crate) written: String,
    pub(crate) unit: Unit,
}

impl ValueType {
    /// Creates a type with the name and unit that a profile gives it.
    pub(crate) fn new(name: &str, unit: Unit) -> Self {
        Self {
            name: name.to_owned(),
            written: name.to_owned(),
            unit,
        }
    }

    /// Returns whether the two types have the same name and unit.
    pub(crate) fn is_same_quantity(&self, other: &Self) -> bool {
        (&self.name, &self.unit) == (&other.name, &other.unit)
    }

    /// Returns the [`SampleType`] with this name and unit. `None` if it is another quantity.
    fn to_sample_type(&self) -> Option<SampleType> {
        let named = find_sample_type(&self.written)?;
        (named.is_space() == (self.unit == Unit::Bytes)).then_some(named)
    }
}

/// Returns the sample type with this name, or with the older name `space` or `objects`. `None` for any other name.
fn find_sample_type(name: &str) -> Option<SampleType> {
    let name = match name {
        "space" => "inuse_space",
        "objects" => "inuse_objects",
        name => name,
    };
    SampleType::ALL.into_iter().find(|t| t.name() == name)
}

impl From<SampleType> for ValueType {
    fn from(sample_type: SampleType) -> Self {
        Self::new(sample_type.name(), Unit::parse(sample_type.unit()).0)
    }
}

/// Position of a type's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Column {
    /// In [`Sample::values`].
    Sample(SampleType),
    /// In the [`ValueTypes`] of the profile, at this index of each row.
    Row(usize),
}

/// Sample types of a pprof profile.
#[derive(Debug, Default)]
pub(crate) struct ValueTypes {
    /// Types whose values the samples have, by [`SampleType`]. `None` if the file has none of that kind.
    in_samples: [Option<ValueType>; 4],
    /// Types whose values are in `rows`, by their index in a row. `None` after one was selected.
    in_rows: Vec<Option<ValueType>>,
    /// Rows of values, one after the other.
    rows: Vec<i64>,
}

impl ValueTypes {
    /// Decides for each type of a file which column holds its values: that of the [`SampleType`] with its name and unit
    /// if that is still free, else a new one in the rows. Returns the types, and their columns in the order of the
    /// file.
    pub(crate) fn new(types: Vec<ValueType>) -> (Self, Vec<Column>) {
        let mut arranged = Self::default();
        let columns = types.into_iter().map(|value_type| {
            let free = value_type
                .to_sample_type()
                .filter(|t| arranged.in_samples[*t as usize].is_none());
            match free {
                Some(sample_type) => {
                    arranged.in_samples[sample_type as usize] = Some(ValueType {
                        name: sample_type.name().to_owned(),
                        ..value_type
                    });
                    Column::Sample(sample_type)
                }
                None => {
                    arranged.in_rows.push(Some(value_type));
                    Column::Row(arranged.in_rows.len() - 1)
                }
            }
        });
        let columns = columns.collect();
        (arranged, columns)
    }

    /// Number of values in a row.
    pub(crate) fn row_len(&self) -> usize {
        self.in_rows.len()
    }

    /// Makes room for the rows of exactly `samples` samples.
    pub(crate) fn reserve_rows(&mut self, samples: usize) {
        self.rows
            .reserve_exact(samples.saturating_mul(self.row_len()));
    }

    /// Appends a row of [`row_len`](Self::row_len) values for the next sample.
    pub(crate) fn push_row(&mut self, values: &[i64]) {
        self.rows.extend_from_slice(values);
    }

    /// Types with the positions of their values: first the types whose values the samples have, then those of the rows.
    pub(crate) fn columns(&self) -> impl Iterator<Item = (Column, &ValueType)> {
        let in_samples = SampleType::ALL.into_iter().zip(&self.in_samples);
        let in_samples =
            in_samples.filter_map(|(place, found)| Some((Column::Sample(place), found.as_ref()?)));
        let in_rows = self.in_rows.iter().enumerate();
        in_samples
            .chain(in_rows.filter_map(|(index, found)| Some((Column::Row(index), found.as_ref()?))))
    }

    /// Returns the position of the first type that has `name` in the file or, if there is none, in reports. `None` if
    /// no type has this name.
    fn find_column(&self, name: &str) -> Option<Column> {
        let written = self.columns().find(|(_, known)| known.written == name);
        let found = written.or_else(|| self.columns().find(|(_, known)| known.name == name));
        found.map(|(column, _)| column)
    }

    /// Exchanges the values at `index` of each row with values of the samples, because reports read only those: with
    /// the bytes in use if the unit at `index` is bytes, else with the objects in use. Returns the sample type under
    /// which the row's values are stored from then on.
    fn swap_into_samples(&mut self, index: usize, samples: &mut [Sample]) -> SampleType {
        let is_bytes = |found: &Option<ValueType>| {
            found
                .as_ref()
                .is_some_and(|found| found.unit == Unit::Bytes)
        };
        let place = match is_bytes(&self.in_rows[index]) {
            true => SampleType::InuseSpace,
            false => SampleType::InuseObjects,
        };
        std::mem::swap(
            &mut self.in_samples[place as usize],
            &mut self.in_rows[index],
        );
        let length = self.row_len();
        for sample in samples {
            let value = &mut self.rows[sample.row as usize * length + index];
            std::mem::swap(&mut sample.values[place], value);
        }
        place
    }
}

impl Profile {
    /// Types of the profile's values with their positions: those of the pprof file or, for a text dump, the sample
    /// types that it has, which are two or four.
    pub(crate) fn columns(&self) -> Vec<(Column, ValueType)> {
        match &self.value_types {
            Some(types) => types
                .columns()
                .map(|(column, value_type)| (column, value_type.clone()))
                .collect(),
            None => SampleType::ALL
                .into_iter()
                .filter(|t| self.has_alloc || !t.is_alloc())
                .map(|t| (Column::Sample(t), t.into()))
                .collect(),
        }
    }

    /// Returns the value of a sample in a column; 0 for a column of the rows if the profile has no rows.
    pub(crate) fn value(&self, sample: &Sample, column: Column) -> i64 {
        match (column, &self.value_types) {
            (Column::Sample(sample_type), _) => sample.values[sample_type],
            (Column::Row(index), Some(types)) => {
                types.rows[sample.row as usize * types.row_len() + index]
            }
            (Column::Row(_), None) => 0,
        }
    }

    /// Returns the name and unit of the values that the samples have as `sample_type`: those of the pprof file, of a
    /// type that was selected in its place, or else of the sample type itself.
    pub(crate) fn value_type(&self, sample_type: SampleType) -> ValueType {
        let types = self.value_types.as_ref();
        let found = types.and_then(|types| types.in_samples[sample_type as usize].clone());
        found.unwrap_or_else(|| sample_type.into())
    }

    /// Selects the type called `name` for reports. If its values are not in the samples, exchanges them with the values
    /// in use of the samples. Returns the sample type under which the values are from now on. Fails if the profile has
    /// no such type; a profile of pinned slabs has `inuse_space` only.
    pub(crate) fn select_type(&mut self, name: &str) -> Result<SampleType> {
        let Some(types) = &mut self.value_types else {
            let columns = self.columns();
            return find_sample_type(name)
                .filter(|t| !self.is_pinned || *t == SampleType::InuseSpace)
                .filter(|t| {
                    columns
                        .iter()
                        .any(|(column, _)| *column == Column::Sample(*t))
                })
                .ok_or_else(|| self.missing_type_error(name));
        };
        match types.find_column(name) {
            Some(Column::Sample(sample_type)) => Ok(sample_type),
            Some(Column::Row(index)) => Ok(types.swap_into_samples(index, &mut self.samples)),
            None => Err(self.missing_type_error(name)),
        }
    }

    /// Returns the error for a sample type that the profile lacks, with the reason or the names of the types that it
    /// has.
    fn missing_type_error(&self, name: &str) -> Error {
        let is_alloc = SampleType::ALL
            .iter()
            .any(|t| t.is_alloc() && t.name() == name);
        let names = || {
            let columns = self.columns().into_iter();
            let names = columns.map(|(_, found)| match found.written.as_str() {
                "" => "one without a name".to_owned(),
                _ => found.written,
            });
            let names: Vec<_> = names.collect();
            names.join(", ")
        };
        Error::Usage(match &self.value_types {
            _ if self.is_pinned => {
                format!("it has no {name}: a profile of pinned slabs has bytes only, inuse_space")
            }
            None if is_alloc => format!(
                "it has no {name}: it counts only what is in use (jemalloc counts allocations with prof_accum:true)"
            ),
            _ => format!(
                "it has no {name}, but: {} (--sample-type NAME selects one)",
                names()
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Column, Unit, ValueType, ValueTypes};
    use crate::profile::{Profile, Sample, SampleType, SampleValues};
    use crate::stacks::StackId;

    #[test]
    fn multiples_of_bytes_are_converted() {
        let check = |unit: &str, factor: Option<i64>| {
            let (parsed, found) = Unit::parse(unit);
            assert_eq!((parsed == Unit::Bytes).then_some(found), factor, "{unit}");
        };
        check("bytes", Some(1));
        check("B", Some(1));
        check("kilobytes", Some(1 << 10));
        check("kB", Some(1 << 10));
        check("KiB", Some(1 << 10));
        check("MiB", Some(1 << 20));
        check("megabyte", Some(1 << 20));
        check("GB", Some(1 << 30));
        for other in ["count", "", "s", "nanoseconds", "pages", "bs", "k"] {
            check(other, None);
        }
    }

    fn value_type(name: &str, unit: &str) -> ValueType {
        ValueType::new(name, Unit::parse(unit).0)
    }

    #[test]
    fn types_are_found_by_name_and_unit() {
        let check = |types: &[(&str, &str)], expected: &[Column]| {
            let types = types.iter().map(|(name, unit)| value_type(name, unit));
            assert_eq!(ValueTypes::new(types.collect()).1, expected);
        };
        let (space, objects) = (SampleType::InuseSpace, SampleType::InuseObjects);
        check(
            &[("objects", "count"), ("space", "kB")],
            &[Column::Sample(objects), Column::Sample(space)],
        );
        // A second type of a name, and one whose unit is of another kind.
        check(
            &[
                ("inuse_space", "bytes"),
                ("space", "bytes"),
                ("alloc_space", "pages"),
            ],
            &[Column::Sample(space), Column::Row(0), Column::Row(1)],
        );
        check(&[("cpu", "nanoseconds")], &[Column::Row(0)]);
    }

    #[test]
    fn type_is_found_by_its_name_in_the_file_first() {
        let check = |names: [&str; 2], name: &str, expected| {
            let types = names.iter().map(|name| value_type(name, "bytes"));
            let (types, _) = ValueTypes::new(types.collect());
            assert_eq!(types.find_column(name), Some(expected), "{names:?}");
        };
        let (first, second) = (Column::Sample(SampleType::InuseSpace), Column::Row(0));
        check(["space", "inuse_space"], "space", first);
        check(["space", "inuse_space"], "inuse_space", second);
        check(["inuse_space", "space"], "space", second);
        check(["space", "heap"], "inuse_space", first);
        check(["inuse_space", "inuse_space"], "inuse_space", first);
    }

    #[test]
    fn selected_type_takes_the_place_of_another() {
        let types = [("inuse_space", "bytes"), ("heap", "bytes"), ("cpu", "ms")];
        let (mut types, _) = ValueTypes::new(
            types
                .iter()
                .map(|(name, unit)| value_type(name, unit))
                .collect(),
        );
        types.push_row(&[10, 20]);
        types.push_row(&[30, 40]);
        let sample = |row, value| Sample {
            row,
            ..Sample::new(StackId(0), SampleValues([0, 0, 0, value]))
        };
        let mut profile = Profile {
            value_types: Some(types),
            samples: vec![sample(0, 1), sample(1, 2)],
            ..Profile::default()
        };
        let values = |profile: &Profile, sample_type| -> Vec<i64> {
            let samples = profile.samples.iter();
            samples.map(|sample| sample.values[sample_type]).collect()
        };
        let space = profile.select_type("heap").unwrap();
        assert_eq!(space, SampleType::InuseSpace);
        assert_eq!(values(&profile, space), [10, 30]);
        assert_eq!(profile.value_type(space).name, "heap");
        let count = profile.select_type("cpu").unwrap();
        assert_eq!(count, SampleType::InuseObjects);
        assert_eq!(values(&profile, count), [20, 40]);
        let all: Vec<(String, i64)> = profile
            .columns()
            .into_iter()
            .map(|(column, found)| (found.name, profile.value(&profile.samples[1], column)))
            .collect();
        let expected = [("cpu", 40), ("heap", 30), ("inuse_space", 2)];
        assert_eq!(all, expected.map(|(name, value)| (name.to_owned(), value)));
        let error = profile.select_type("alloc_space").unwrap_err().to_string();
        assert_eq!(
            error,
            "it has no alloc_space, but: cpu, heap, inuse_space (--sample-type NAME selects one)"
        );
    }
}
