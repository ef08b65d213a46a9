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
    fn column(&self, name: &str) -> anyhow::Result<&'b dyn Array> {
        let column = self.0.column_by_name(name);
        let column = column.with_context(|| format!("it has no column {name}"))?;
        Ok(column.as_ref())
    }

    /// Returns a column of 64-bit numbers. Fails if it is missing, has another type or a null.
    pub(crate) fn numbers(&self, name: &str) -> anyhow::Result<&'b [i64]> {
        let column = self.column(name)?.as_primitive_opt::<Int64Type>();
        let column = column.filter(|column| column.null_count() == 0);
        Ok(column.with_context(|| wrong_type_message(name))?.values())
    }

    /// Returns a column of 64-bit numbers, `None` for each null. Fails if it is missing or has another type.
    pub(crate) fn nullable_numbers(&self, name: &str) -> anyhow::Result<Vec<Option<i64>>> {
        let column = self.column(name)?.as_primitive_opt::<Int64Type>();
        Ok(column
            .with_context(|| wrong_type_message(name))?
            .iter()
            .collect())
    }

    /// Returns a column of 64-bit numbers, `None` for each null. A missing column, as in older files, counts as all
    /// null. Fails if it has another type.
    fn nullable_numbers_or_nulls(&self, name: &str) -> anyhow::Result<Vec<Option<i64>>> {
        match self.0.column_by_name(name) {
            Some(_) => self.nullable_numbers(name),
            None => Ok(vec![None; self.0.num_rows()]),
        }
    }

    /// Returns, for each row, the counts of memprof's own sampler. `None` for a row if the allocator sampled, or an
    /// older agent wrote no counts. Fails if a column has another type.
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

    /// Returns the column `pid`. Fails if it is missing, has another type or a null.
    pub(crate) fn pids(&self) -> anyhow::Result<&'b [i32]> {
        let column = self.column("pid")?.as_primitive_opt::<Int32Type>();
        let column = column.filter(|column| column.null_count() == 0);
        Ok(column.with_context(|| wrong_type_message("pid"))?.values())
    }

    /// Returns a column of times, in milliseconds since 1970. Fails if it is missing, has another type or a null.
    pub(crate) fn times(&self, name: &str) -> anyhow::Result<&'b [i64]> {
        let column = self
            .column(name)?
            .as_primitive_opt::<TimestampMillisecondType>();
        let column = column.filter(|column| column.null_count() == 0);
        Ok(column.with_context(|| wrong_type_message(name))?.values())
    }

    /// Returns a column of texts with a dictionary. Fails if it is missing, has another type or a null.
    pub(crate) fn texts(&self, name: &str) -> anyhow::Result<TextColumn<'b>> {
        let type_error = || wrong_type_message(name);
        let column = self
            .column(name)?
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

    /// Returns a column with a list of texts in each row. Fails if it is missing, has another type or a null.
    pub(crate) fn text_lists(&self, name: &str) -> anyhow::Result<Vec<Vec<String>>> {
        let type_error = || wrong_type_message(name);
        let column = self
            .column(name)?
            .as_list_opt::<i32>()
            .with_context(type_error)?;
        let lists = column.iter().map(|list| {
            let list = list.with_context(type_error)?;
            let texts = texts_without_null(&list).with_context(type_error)?;
            Ok(texts.map(str::to_owned).collect())
        });
        lists.collect()
    }

    /// Returns a column of texts that has no dictionary, one text for each row. Fails if it is missing, has another
    /// type or a null.
    pub(crate) fn plain_texts(&self, name: &str) -> anyhow::Result<Vec<&'b str>> {
        let texts = texts_without_null(self.column(name)?);
        Ok(texts.with_context(|| wrong_type_message(name))?.collect())
    }

    /// Returns the column `labels`: pairs of key and value for each row. Fails if it is missing, has another type or a
    /// null.
    pub(crate) fn labels(&self) -> anyhow::Result<Vec<Vec<(String, String)>>> {
        let type_error = || wrong_type_message("labels");
        let column = self
            .column("labels")?
            .as_map_opt()
            .with_context(type_error)?;
        let maps = column.iter().map(|entries| {
            let entries = entries.with_context(type_error)?;
            let texts = |index| texts_without_null(entries.column(index)).with_context(type_error);
            let pairs = texts(0)?.zip(texts(1)?);
            Ok(pairs
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .collect())
        });
        maps.collect()
    }
}

impl<'b> TextColumn<'b> {
    /// Returns the text of a row, which is looked up in the dictionary.
    pub(crate) fn get(&self, row: usize) -> &'b str {
        self.values[self.keys[row] as usize]
    }

    /// Returns the index of each row's text in [`values`](Self::values).
    pub(crate) fn keys(&self) -> &'b [i32] {
        self.keys
    }

    /// Returns the distinct texts, which [`keys`](Self::keys) index.
    pub(crate) fn values(&self) -> &[&'b str] {
        &self.values
    }
}

/// Returns the texts of a column without a dictionary. `None` if the column has another type or a null: callers match
/// rows by their positions, so no row may be left out.
fn texts_without_null(column: &dyn Array) -> Option<impl Iterator<Item = &str>> {
    let texts = column.as_string_opt::<i32>()?;
    (texts.null_count() == 0).then(|| texts.iter().flatten())
}

/// Returns the message for a column of another type, or with unexpected nulls.
fn wrong_type_message(column: &str) -> String {
    format!("its column {column} is of another type, or has a null")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::builder::{ListBuilder, MapBuilder, StringBuilder};
    use arrow_array::{ArrayRef, Int32Array, StringArray};

    use super::*;

    fn batch(name: &str, column: ArrayRef) -> RecordBatch {
        RecordBatch::try_from_iter([(name, column)]).unwrap()
    }

    #[test]
    fn null_fails_the_column_instead_of_shifting_its_rows() {
        let check = |name: &str, column: ArrayRef, read: fn(&Columns<'_>) -> anyhow::Result<()>| {
            let batch = batch(name, column);
            let error = read(&Columns(&batch)).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        };
        let texts = StringArray::from(vec![Some("malloc"), None]);
        check("function", Arc::new(texts), |columns| {
            columns.plain_texts("function").map(drop)
        });
        let pids = Int32Array::from(vec![Some(1), None]);
        check("pid", Arc::new(pids), |columns| columns.pids().map(drop));
        let mut frames = ListBuilder::new(StringBuilder::new());
        frames.values().append_null();
        frames.append(true);
        check("frames", Arc::new(frames.finish()), |columns| {
            columns.text_lists("frames").map(drop)
        });
        let mut labels = MapBuilder::new(None, StringBuilder::new(), StringBuilder::new());
        labels.keys().append_value("route");
        labels.values().append_null();
        labels.append(true).unwrap();
        check("labels", Arc::new(labels.finish()), |columns| {
            columns.labels().map(drop)
        });
    }

    #[test]
    fn texts_keep_their_rows() {
        let batch = batch("function", Arc::new(StringArray::from(vec!["a", "", "b"])));
        assert_eq!(
            Columns(&batch).plain_texts("function").unwrap(),
            ["a", "", "b"]
        );
    }
}
