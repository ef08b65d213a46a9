//! Merges the small files of agents into one per hour, after the hour.
//!
//! A merged file lists the files that it contains, and these do not count once it exists: its single write is the
//! moment of the change. They are deleted afterwards. Merged files of an hour are numbered, and one is created only if
//! the number is free that followed the last one when the files were listed, so that only one of two concurrent merges
//! succeeds: a file that the other one merged is not in its listing as merged.

use std::collections::{BTreeMap, HashMap};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use memprof_output::{note, print};

use crate::config::Config;
use crate::read_rows::read_rows;
use crate::scan::list_table_files;
use crate::schema::{INCOMING_FOLDER, Rows, Table};
use crate::store::{CreateOutcome, Object, ProfileStore};
use crate::time::{Hour, Instant};

/// Time after an hour's end in which its files may still arrive.
pub(crate) const GRACE_PERIOD: Duration = Duration::from_secs(20 * 60);

/// Most files that are merged into one: their names must fit into its footer, of which the reader takes 32 MiB.
pub(crate) const MAX_SOURCES: usize = 100_000;

/// Numbers of merged files, and of files into which they were merged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CompactStats {
    pub(crate) files: usize,
    pub(crate) merged_into: usize,
}

/// Runs `memprof fleet compact`: merges the files of past hours, and prints their number. Fails if the store cannot be
/// read or written.
pub(crate) fn run(config: &Config) -> anyhow::Result<ExitCode> {
    let store = Arc::new(ProfileStore::open(&config.store)?);
    let stats = compact(&store, Instant::now().minus(GRACE_PERIOD))?;
    print(&format!(
        "merged {} files into {}",
        stats.files, stats.merged_into
    ));
    Ok(ExitCode::SUCCESS)
}

/// Merges the agents' files of each hour that ended before `until` into one, or into several if there are very many, and
/// deletes the merged ones. Files that cannot be read are named on stderr and left as they are. Returns the numbers of
/// merged and of new files. Fails if a request to the store fails.
pub(crate) fn compact(store: &Arc<ProfileStore>, until: Instant) -> anyhow::Result<CompactStats> {
    let mut stats = CompactStats::default();
    for table in Table::ALL {
        let found = list_table_files(store, table, (Instant(0), until))?;
        // These files were merged before, but not deleted.
        for object in &found.merged {
            store.delete(&object.name)?;
        }
        for (name, reason) in &found.damaged {
            note(&format!("{name} is left as it is: {reason}"));
        }
        let mut by_hour: BTreeMap<&Hour, Vec<&Object>> = BTreeMap::new();
        for (hour, object) in &found.counted {
            let is_over = hour.end().is_some_and(|end| end <= until);
            if is_over && object.name.starts_with(INCOMING_FOLDER) {
                by_hour.entry(hour).or_default().push(object);
            }
        }
        for (hour, objects) in by_hour {
            let number = found.next_numbers.get(hour).copied().unwrap_or(0);
            let merged = merge_in_parts(store, table, hour, number, &objects, MAX_SOURCES)?;
            stats.files += merged.files;
            stats.merged_into += merged.merged_into;
        }
    }
    Ok(stats)
}

/// Merges files of an hour as [`merge_hour`] does, at most `max` into each new file. The new files have consecutive
/// numbers, from `number` on. Returns the numbers of merged and of new files. Fails if a request to the store fails.
fn merge_in_parts(
    store: &Arc<ProfileStore>,
    table: Table,
    hour: &Hour,
    mut number: u32,
    objects: &[&Object],
    max: usize,
) -> anyhow::Result<CompactStats> {
    let mut stats = CompactStats::default();
    for part in objects.chunks(max) {
        let merged = merge_hour(store, table, hour, number, part)?;
        if merged > 0 {
            stats.files += merged;
            stats.merged_into += 1;
            number = number.saturating_add(1);
        }
    }
    Ok(stats)
}

/// Merges files of an hour into the file with the number `number`, and deletes them. Files that cannot be read are
/// named on stderr and left out. Returns the number of merged files; 0 if there was nothing to merge, or another agent
/// has merged the hour since the files were listed. Fails if a request to the store fails.
fn merge_hour(
    store: &Arc<ProfileStore>,
    table: Table,
    hour: &Hour,
    number: u32,
    objects: &[&Object],
) -> anyhow::Result<usize> {
    let mut rows = Rows::default();
    let mut contexts = HashMap::new();
    let mut sources = Vec::new();
    for object in objects {
        match read_rows(store, table, object) {
            Ok(file_rows) => {
                rows.add(file_rows, &mut contexts);
                sources.push(object.name.clone());
            }
            Err(error) => note(&format!("{} is left as it is: {error:#}", object.name)),
        }
    }
    let Some(bytes) = rows.encode(table, Some(&sources))? else {
        return Ok(0);
    };
    let name = format!("{}/{}/{number:05}.parquet", table.name(), hour.directory());
    if store.create(&name, bytes.into())? == CreateOutcome::Exists {
        // This agent may have written the file, if the reply to an earlier attempt was lost. The next run sees that in
        // the file's list of sources.
        note(&format!(
            "{name} was written meanwhile: that hour is looked at the next time"
        ));
        return Ok(0);
    }
    for source in &sources {
        store.delete(source)?;
    }
    Ok(sources.len())
}

impl Rows {
    /// Adds the rows of another file. `known` has the index in `self` of each context, by process key and time; new
    /// contexts are added to `self` and to `known`.
    fn add(&mut self, other: Self, known: &mut HashMap<(String, Instant), usize>) {
        let contexts: Vec<usize> = other
            .contexts
            .into_iter()
            .map(|context| {
                let key = (context.instance.clone(), context.time);
                *known.entry(key).or_insert_with(|| {
                    self.contexts.push(context);
                    self.contexts.len() - 1
                })
            })
            .collect();
        let samples = other.samples.into_iter();
        self.samples
            .extend(samples.map(|(index, sample)| (contexts[index], sample)));
        let profiles = other.profiles.into_iter();
        self.profiles
            .extend(profiles.map(|(index, totals)| (contexts[index], totals)));
        self.stacks.extend(other.stacks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process_profile::NamedStack;
    use crate::scan::TableFiles;

    /// Writes a table of one stack to the store. With `sources` it is a merged file; `None` is for an agent's.
    fn write_stacks(store: &ProfileStore, name: &str, sources: Option<&[String]>) {
        let mut rows = Rows::default();
        rows.stacks.push(NamedStack {
            stack_id: 7,
            function: "grow".to_owned(),
            frames: Vec::new(),
        });
        let bytes = rows.encode(Table::Stacks, sources).unwrap().unwrap();
        store.create(name, bytes.into()).unwrap();
    }

    /// Returns the names of all merged files of stacks, and of all files of agents.
    fn hourly_names(store: &ProfileStore) -> Vec<String> {
        let prefixes = [Table::Stacks.name(), INCOMING_FOLDER];
        let objects = prefixes
            .iter()
            .flat_map(|prefix| store.list(prefix).unwrap());
        objects.map(|object| object.name).collect()
    }

    #[test]
    fn very_many_files_are_merged_into_several() {
        let directory = tempfile::tempdir().unwrap();
        let url = format!("file://{}", directory.path().display());
        let store = Arc::new(ProfileStore::open(&url).unwrap());
        let hour = "stacks/date=2026-11-21/hour=07";
        for digit in ["a", "b", "c"] {
            let name = format!("{INCOMING_FOLDER}/{hour}/{}.parquet", digit.repeat(32));
            write_stacks(&store, &name, None);
        }
        let listed = list_table_files(&store, Table::Stacks, (Instant(0), Instant::now())).unwrap();
        let objects: Vec<_> = listed.counted.iter().map(|(_, object)| object).collect();
        let (first, _) = &listed.counted[0];
        let stats = merge_in_parts(&store, Table::Stacks, first, 4, &objects, 2).unwrap();
        assert_eq!((stats.files, stats.merged_into), (3, 2));
        let names = [4, 5].map(|number| format!("{hour}/{number:05}.parquet"));
        assert_eq!(hourly_names(&store), names);
    }

    /// The longest name of an agent's file, [`MAX_SOURCES`] times.
    #[test]
    fn largest_merged_file_can_be_read() {
        let directory = tempfile::tempdir().unwrap();
        let url = format!("file://{}", directory.path().display());
        let store = Arc::new(ProfileStore::open(&url).unwrap());
        let hour = "profiles/date=2026-11-21/hour=07";
        let source = format!("{INCOMING_FOLDER}/{hour}/{}.parquet", "a".repeat(32));
        let name = "stacks/date=2026-11-21/hour=07/00000.parquet";
        write_stacks(&store, name, Some(&vec![source; MAX_SOURCES]));
        let listed = list_table_files(&store, Table::Stacks, (Instant(0), Instant::now())).unwrap();
        assert!(listed.damaged.is_empty(), "{:?}", listed.damaged);
        assert_eq!(listed.counted.len(), 1);
    }

    /// Another machine merges one of two files between this one's listing and its merge.
    #[test]
    fn merge_beside_another_one_loses_no_file() {
        let directory = tempfile::tempdir().unwrap();
        let url = format!("file://{}", directory.path().display());
        let store = Arc::new(ProfileStore::open(&url).unwrap());
        let hour = "stacks/date=2026-11-21/hour=07";
        let [merged, late] = ["a", "b"]
            .map(|digit| format!("{INCOMING_FOLDER}/{hour}/{}.parquet", digit.repeat(32)));
        write_stacks(&store, &merged, None);
        write_stacks(&store, &late, None);
        let merge_listed = |found: &TableFiles| {
            let objects: Vec<_> = found.counted.iter().map(|(_, object)| object).collect();
            let (hour, _) = &found.counted[0];
            let number = found.next_numbers.get(hour).copied().unwrap_or(0);
            merge_hour(&store, Table::Stacks, hour, number, &objects).unwrap()
        };
        let list =
            || list_table_files(&store, Table::Stacks, (Instant(0), Instant::now())).unwrap();
        let listed = list();
        assert_eq!(listed.counted.len(), 2);
        write_stacks(&store, &format!("{hour}/00000.parquet"), Some(&[merged]));
        assert_eq!(merge_listed(&listed), 0);
        assert_eq!(hourly_names(&store).len(), 3);
        // The next run deletes what was merged, and merges the rest.
        let stats = compact(&store, Instant::now()).unwrap();
        assert_eq!((stats.files, stats.merged_into), (1, 1));
        let names = [0, 1].map(|number| format!("{hour}/{number:05}.parquet"));
        assert_eq!(hourly_names(&store), names);
        assert!(list().copies.is_empty());
    }
}
