//! `memprof fleet doctor`: checks the spool and the store.

use std::process::ExitCode;
use std::sync::Arc;

use bytes::Bytes;

use crate::compact::verify_file;
use crate::config::Config;
use crate::output::print;
use crate::scan::files;
use crate::schema::{Table, content_name};
use crate::spool::pending_bytes;
use crate::store::{CreateOutcome, ProfileStore};
use crate::time::Instant;

/// Folder of objects for a test of the store.
const PROBE_FOLDER: &str = "doctor";

/// Runs `memprof fleet doctor`: reads all files of the store and tests its conditional writes. Prints
/// the findings; the exit code is 1 if there are any.
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
    findings.extend(probe_store(&store)?);
    let mut counted = 0;
    for table in Table::ALL {
        let found = files(&store, table, (Instant(0), Instant(i64::MAX)))?;
        let foreign = found.foreign.into_iter();
        findings
            .extend(foreign.map(|name| format!("{name} is not a file of memprof's: move it away")));
        let damaged = found.damaged.into_iter();
        findings.extend(damaged.map(|(name, reason)| format!("{name} is damaged: {reason}")));
        for (_, object) in &found.counted {
            counted += 1;
            if let Err(error) = verify_file(&store, table, object) {
                findings.push(format!("{} is damaged: {error:#}", object.name));
            }
        }
    }
    print(&format!(
        "{}: {counted} files; {pending} bytes wait in {}",
        store.url(),
        config.spool.display()
    ))?;
    for finding in &findings {
        print(finding)?;
    }
    Ok(u8::from(!findings.is_empty()).into())
}

/// Tests whether the store refuses to create an object that exists: without that, profiles may count twice. Returns a
/// finding if it does not refuse; `None` if it does. Fails if a request fails.
fn probe_store(store: &ProfileStore) -> anyhow::Result<Option<String>> {
    let name = format!(
        "{PROBE_FOLDER}/{}",
        content_name(Instant::now().text().as_bytes())
    );
    let [first, second] = [Bytes::from_static(b"first"), Bytes::from_static(b"second")];
    let created = [
        store.create(&name, first.clone())?,
        store.create(&name, second)?,
    ];
    let stored = store.read(&name)?;
    store.delete(&name)?;
    let is_conditional = created == [CreateOutcome::New, CreateOutcome::Exists] && stored == first;
    Ok((!is_conditional).then(|| {
        "the store overwrites objects in spite of If-None-Match: profiles may be lost or counted twice; use one \
         that supports conditional writes"
            .to_owned()
    }))
}
