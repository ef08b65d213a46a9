//! Columns of rows that were read from a file of the store.

use anyhow::Context as _;
use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type, TimestampMillisecondType};
use arrow_array::{Array, RecordBatch};

use crate::process_profile::SamplerCounts;

/// Columns of a batch by name and type. A missing column, or one of another type, is an error.
pub(crate) struct Columns<'b>(pub(crate) &'b RecordBatch);

/// Column of texts, in which each distinct text is stored once.
pub(crate) struct TextColumn<'b> {
    keys: &'b [i32],
    values: Vec<&'b str>,
}

impl<'b> Columns<'b> {
    /// Returns a column by its name. Fails if there is none.
    fn array(&self, name: &str) -> anyhow::Result<&'b dyn Array> {
        let column = self.0.column_by_name(name);
        let column = column.with_context(|| format!("it has no column {name}"))?;
        Ok(column.as_ref())
    }

    /// Returns a column of 64-bit numbers. Fails if it is missing, has another type or a null.
    pub(crate) fn numbers(&self, name: &str) -> anyhow::Result<&'b [i64]> {
        let column = self.array(name)?.as_primitive_opt::<Int64Type>();
        let column = column.filter(|column| column.null_count() == 0);
        Ok(column.with_context(|| wrong_type_message(name))?.values())
    }

    /// Returns a column of 64-bit numbers, `None` for each null. Fails if it is missing or has another type.
    pub(crate) fn nullable_numbers(&self, name: &str) -> anyhow::Result<Vec<Option<i64>>> {
        let column = self.array(name)?.as_primitive_opt::<Int64Type>();
        Ok(column
            .with_context(|| wrong_type_message(name))?
            .iter()
            .collect())
    }

    /// Returns a column of 64-bit numbers, `None` for each null. A missing column, as in older files, counts as all
    /// null.
    fn nullable_numbers_or_nulls(&self, name: &str) -> anyhow::Result<Vec<Option<i64>>> {
        match self.0.column_by_name(name) {
            Some(_) => self.nullable_numbers(name),
            None => Ok(vec![None; self.0.num_rows()]),
        }
    }

    /// Returns the counts of memprof's sampler in each row. `None` if the allocator sampled, or an older agent wrote no
    /// counts.
    pub(crate) fn sampler_counts(&self) -> anyhow::Result<Vec<Option<SamplerCounts>>> {
        let mut rows = vec![[None; SamplerCounts::COLUMNS.len()]; self.0.num_rows()];
        for (index, name) in SamplerCounts::COLUMNS.into_iter().enumerate() {
            let values = self.nullable_numbers_or_nulls(name)?;
            for (row, value) in rows.iter_mut().zip(values) {
                row[index] = value;
            }
        }
        Ok(rows.into_iter().map(SamplerCounts::from_row).collect())
    }

    /// Returns the column `pid`. Fails if it is missing or has another type.
    pub(crate) fn pids(&self) -> anyhow::Result<&'b [i32]> {
        let column = self.array("pid")?.as_primitive_opt::<Int32Type>();
        Ok(column.with_context(|| wrong_type_message("pid"))?.values())
    }

    /// Returns a column of times, in milliseconds since 1970. Fails if it is missing, has another type or a null.
    pub(crate) fn times(&self, name: &str) -> anyhow::Result<&'b [i64]> {
        let column = self
            .array(name)?
            .as_primitive_opt::<TimestampMillisecondType>();
        let column = column.filter(|column| column.null_count() == 0);
        Ok(column.with_context(|| wrong_type_message(name))?.values())
    }

    /// Returns a column of texts with a dictionary. Fails if it is missing, has another type or a null.
    pub(crate) fn texts(&self, name: &str) -> anyhow::Result<TextColumn<'b>> {
        let type_error = || wrong_type_message(name);
        let column = self
            .array(name)?
            .as_dictionary_opt::<Int32Type>()
            .with_context(type_error)?;
        let values = column
            .values()
            .as_string_opt::<i32>()
            .with_context(type_error)?;
        let keys = column.keys();
        let has_no_null = keys.null_count() == 0 && values.null_count() == 0;
        anyhow::ensure!(has_no_null, type_error());
        Ok(TextColumn {
            keys: keys.values(),
            values: values.iter().flatten().collect(),
        })
    }

    /// Returns a column with a list of texts in each row; nulls within a list are left out. Fails if a list is null.
    pub(crate) fn text_lists(&self, name: &str) -> anyhow::Result<Vec<Vec<String>>> {
        let type_error = || wrong_type_message(name);
        let column = self
            .array(name)?
            .as_list_opt::<i32>()
            .with_context(type_error)?;
        let lists = column.iter().map(|list| {
            let list = list.with_context(type_error)?;
            let texts = list.as_string_opt::<i32>().with_context(type_error)?;
            Ok(texts.iter().flatten().map(str::to_owned).collect())
        });
        lists.collect()
    }

    /// Returns a column of texts without a dictionary; nulls are left out.
    pub(crate) fn plain_texts(&self, name: &str) -> anyhow::Result<Vec<&'b str>> {
        let column = self.array(name)?.as_string_opt::<i32>();
        Ok(column
            .with_context(|| wrong_type_message(name))?
            .iter()
            .flatten()
            .collect())
    }

    /// Returns the column `labels`: pairs of key and value for each row.
    pub(crate) fn labels(&self) -> anyhow::Result<Vec<Vec<(String, String)>>> {
        let type_error = || wrong_type_message("labels");
        let column = self
            .array("labels")?
            .as_map_opt()
            .with_context(type_error)?;
        let maps = column.iter().map(|entries| {
            let entries = entries.with_context(type_error)?;
            let text = |index: usize| {
                entries
                    .column(index)
                    .as_string_opt::<i32>()
                    .with_context(type_error)
            };
            let pairs = text(0)?.iter().zip(text(1)?.iter());
            Ok(pairs
                .filter_map(|(key, value)| Some((key?.to_owned(), value?.to_owned())))
                .collect())
        });
        maps.collect()
    }
}

impl<'b> TextColumn<'b> {
    /// Returns the text of a row.
    pub(crate) fn get(&self, row: usize) -> &'b str {
        self.values[self.keys[row] as usize]
    }

    /// Returns the index of each row's text in [`values`](Self::values).
    pub(crate) fn keys(&self) -> &'b [i32] {
        self.keys
    }

    /// Returns the distinct texts.
    pub(crate) fn values(&self) -> &[&'b str] {
        &self.values
    }
}

/// Returns the message for a column of another type, or with unexpected nulls.
fn wrong_type_message(column: &str) -> String {
    format!("its column {column} is of another type")
}
