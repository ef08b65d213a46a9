//! `memprof fleet doctor`: checks the spool and the store.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::process::ExitCode;
use std::sync::Arc;

use bytes::Bytes;
use memprof_output::print;

use crate::config::Config;
use crate::read_rows::read_rows;
use crate::scan::list_table_files;
use crate::schema::{Rows, Table};
use crate::spool::pending_bytes;
use crate::store::{CreateOutcome, ProfileStore};
use crate::time::{Hour, Instant};

/// Folder of objects for a test of the store.
const PROBE_FOLDER: &str = "doctor";

/// Runs `memprof fleet doctor`: reads all files of the store, tests whether the store refuses to overwrite objects, and
/// checks whether the spool is full. Prints the findings; the exit code is 1 if there are any. Fails if a request to
/// the store fails, or the spool cannot be read.
pub(crate) fn run(config: &Config) -> anyhow::Result<ExitCode> {
    let mut findings = Vec::new();
    let pending = pending_bytes(&config.spool)?;
    if pending > config.spool_limit {
        findings.push(format!(
            "{} is full: {pending} bytes wait for the store, and no profile is taken; the agent's log says why",
            config.spool.display()
        ));
    }
    let store = Arc::new(ProfileStore::open(&config.store)?);
    findings.extend(probe_conditional_writes(&store)?);
    let mut counted = 0;
    let mut names = StackNames::default();
    for table in Table::ALL {
        let found = list_table_files(&store, table, (Instant(0), Instant(i64::MAX)))?;
        findings.extend(found.findings());
        for (hour, object) in &found.counted {
            counted += 1;
            match read_rows(&store, table, object) {
                Ok(rows) => names.add_stacks_of_file(hour, &rows),
                Err(error) => findings.push(format!("{} is damaged: {error:#}", object.name)),
            }
        }
    }
    findings.extend(names.findings());
    print(&format!(
        "{}: {counted} files; {pending} bytes wait in {}",
        store.url(),
        config.spool.display()
    ));
    for finding in &findings {
        print(finding);
    }
    Ok(u8::from(!findings.is_empty()).into())
}

/// Stacks by hour. The files of each hour must name all stacks of its samples, because a query of the hour reads the
/// names from them alone.
#[derive(Default)]
struct StackNames(BTreeMap<Hour, HourStacks>);

/// Stacks of an hour.
#[derive(Default)]
struct HourStacks {
    /// Bytes in use, by stack id.
    sampled: HashMap<i64, i64>,
    named: HashSet<i64>,
}

impl StackNames {
    /// Adds the stacks of a file of `hour`: those of its samples, with their bytes, and those that it names.
    fn add_stacks_of_file(&mut self, hour: &Hour, rows: &Rows) {
        let stacks = self.0.entry(hour.clone()).or_default();
        for (_, sample) in &rows.samples {
            let bytes = stacks.sampled.entry(sample.stack_id).or_default();
            *bytes = bytes.saturating_add(sample.inuse_bytes);
        }
        stacks
            .named
            .extend(rows.stacks.iter().map(|stack| stack.stack_id));
    }

    /// Describes each hour that has samples of stacks without names: the number of these stacks, and their bytes.
    fn findings(&self) -> impl Iterator<Item = String> {
        self.0.iter().filter_map(|(hour, HourStacks { sampled, named })| {
            let missing = sampled.iter().filter(|(id, _)| !named.contains(id));
            let missing: Vec<_> = missing.map(|(_, bytes)| *bytes).collect();
            let bytes = missing.iter().fold(0_i64, |sum, bytes| sum.saturating_add(*bytes));
            (!missing.is_empty()).then(|| {
                format!(
                    "{}: the functions of {} stacks with {bytes} bytes are missing: files were deleted, or the store \
                     was emptied while an agent ran",
                    hour.directory(),
                    missing.len()
                )
            })
        })
    }
}

/// Tests with a temporary object whether the store refuses to create an object that exists. Returns a finding if it
/// does not: profiles may then be lost or count twice. Returns `None` if it refuses. Fails if a request fails.
fn probe_conditional_writes(store: &ProfileStore) -> anyhow::Result<Option<String>> {
    let [first, second] = [Bytes::from_static(b"first"), Bytes::from_static(b"second")];
    let (created, stored) = store.with_temporary_object(PROBE_FOLDER, |name| {
        let created = [
            store.create(name, first.clone())?,
            store.create(name, second.clone())?,
        ];
        let limit = first.len().max(second.len()) as u64;
        Ok((created, store.read(name, limit)?))
    })?;
    let is_conditional = created == [CreateOutcome::New, CreateOutcome::Exists] && stored == first;
    Ok((!is_conditional).then(|| {
        "the store overwrites objects in spite of If-None-Match: profiles may be lost or counted twice; use one \
         that supports conditional writes"
            .to_owned()
    }))
}
