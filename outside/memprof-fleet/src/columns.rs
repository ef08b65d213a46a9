//! The columns of rows that were read from a file of the store.

use anyhow::Context as _;
use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type, TimestampMillisecondType};
use arrow_array::{Array, RecordBatch};

/// A batch's columns by name and type; one that is not there is damage.
pub(crate) struct Columns<'b>(pub(crate) &'b RecordBatch);

/// A column of texts, each distinct one kept once.
pub(crate) struct TextColumn<'b> {
    keys: &'b [i32],
    values: Vec<&'b str>,
}

impl<'b> Columns<'b> {
    fn array(&self, name: &str) -> anyhow::Result<&'b dyn Array> {
        let column = self.0.column_by_name(name);
        let column = column.with_context(|| format!("it has no column {name}"))?;
        Ok(column.as_ref())
    }

    /// Numbers of 64 bits, none of them null.
    pub(crate) fn numbers(&self, name: &str) -> anyhow::Result<&'b [i64]> {
        let column = self.array(name)?.as_primitive_opt::<Int64Type>();
        let column = column.filter(|column| column.null_count() == 0);
        Ok(column.with_context(|| wrong_type(name))?.values())
    }

    /// The same, where each may be null.
    pub(crate) fn nullable(&self, name: &str) -> anyhow::Result<Vec<Option<i64>>> {
        let column = self.array(name)?.as_primitive_opt::<Int64Type>();
        Ok(column.with_context(|| wrong_type(name))?.iter().collect())
    }

    /// The same of a column that older files lack: null in each row.
    pub(crate) fn added(&self, name: &str) -> anyhow::Result<Vec<Option<i64>>> {
        match self.0.column_by_name(name) {
            Some(_) => self.nullable(name),
            None => Ok(vec![None; self.0.num_rows()]),
        }
    }

    pub(crate) fn pids(&self) -> anyhow::Result<&'b [i32]> {
        let column = self.array("pid")?.as_primitive_opt::<Int32Type>();
        Ok(column.with_context(|| wrong_type("pid"))?.values())
    }

    pub(crate) fn times(&self, name: &str) -> anyhow::Result<&'b [i64]> {
        let column = self
            .array(name)?
            .as_primitive_opt::<TimestampMillisecondType>();
        let column = column.filter(|column| column.null_count() == 0);
        Ok(column.with_context(|| wrong_type(name))?.values())
    }

    pub(crate) fn texts(&self, name: &str) -> anyhow::Result<TextColumn<'b>> {
        let wrong = || wrong_type(name);
        let column = self
            .array(name)?
            .as_dictionary_opt::<Int32Type>()
            .with_context(wrong)?;
        let values = column.values().as_string_opt::<i32>().with_context(wrong)?;
        let keys = column.keys();
        let is_whole = keys.null_count() == 0 && values.null_count() == 0;
        anyhow::ensure!(is_whole, wrong());
        Ok(TextColumn {
            keys: keys.values(),
            values: values.iter().flatten().collect(),
        })
    }

    /// The lists of texts of each row.
    pub(crate) fn lists(&self, name: &str) -> anyhow::Result<Vec<Vec<String>>> {
        let wrong = || wrong_type(name);
        let column = self.array(name)?.as_list_opt::<i32>().with_context(wrong)?;
        let lists = column.iter().map(|list| {
            let list = list.with_context(wrong)?;
            let texts = list.as_string_opt::<i32>().with_context(wrong)?;
            Ok(texts.iter().flatten().map(str::to_owned).collect())
        });
        lists.collect()
    }

    pub(crate) fn plain(&self, name: &str) -> anyhow::Result<Vec<&'b str>> {
        let column = self.array(name)?.as_string_opt::<i32>();
        Ok(column
            .with_context(|| wrong_type(name))?
            .iter()
            .flatten()
            .collect())
    }

    /// The labels of each row.
    pub(crate) fn labels(&self) -> anyhow::Result<Vec<Vec<(String, String)>>> {
        let wrong = || wrong_type("labels");
        let column = self.array("labels")?.as_map_opt().with_context(wrong)?;
        let maps = column.iter().map(|entries| {
            let entries = entries.with_context(wrong)?;
            let text = |at: usize| {
                entries
                    .column(at)
                    .as_string_opt::<i32>()
                    .with_context(wrong)
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
    pub(crate) fn get(&self, row: usize) -> &'b str {
        self.values[self.keys[row] as usize]
    }

    /// By row: the index of its text in [`values`](Self::values).
    pub(crate) fn keys(&self) -> &'b [i32] {
        self.keys
    }

    pub(crate) fn values(&self) -> &[&'b str] {
        &self.values
    }
}

fn wrong_type(column: &str) -> String {
    format!("its column {column} is of another type")
}
