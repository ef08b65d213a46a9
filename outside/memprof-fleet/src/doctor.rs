//! `memprof fleet doctor`: what is wrong with the spool and the store.

use std::process::ExitCode;
use std::sync::Arc;

use bytes::Bytes;

use crate::compact::verify_file;
use crate::config::Config;
use crate::output::print;
use crate::scan::files;
use crate::schema::{Table, content_name};
use crate::spool::pending_bytes;
use crate::store::{CreateOutcome, Store};
use crate::time::Instant;

/// Where it is tried out whether the store does what is needed.
const PROBE: &str = "doctor";

pub(crate) fn run(config: &Config) -> anyhow::Result<ExitCode> {
    let mut findings = Vec::new();
    let waiting = pending_bytes(&config.spool)?;
    if waiting > config.spool_limit {
        findings.push(format!(
            "{} is full: {waiting} bytes wait for the store, and no profile is taken; the agent's log says why",
            config.spool.display()
        ));
    }
    let store = Arc::new(Store::open(&config.store)?);
    findings.extend(probe_store(&store)?);
    let mut counted = 0;
    for table in Table::ALL {
        let found = files(&store, table, (Instant(0), Instant(i64::MAX)))?;
        let foreign = found.foreign.into_iter();
        findings
            .extend(foreign.map(|name| format!("{name} is not a file of memprof's: move it away")));
        let damaged = found.damaged.into_iter();
        findings.extend(damaged.map(|(name, why)| format!("{name} is damaged: {why}")));
        for (_, object) in &found.counted {
            counted += 1;
            if let Err(error) = verify_file(&store, table, object) {
                findings.push(format!("{} is damaged: {error:#}", object.name));
            }
        }
    }
    print(&format!(
        "{}: {counted} files; {waiting} bytes wait in {}",
        store.url(),
        config.spool.display()
    ))?;
    for finding in &findings {
        print(finding)?;
    }
    Ok(u8::from(!findings.is_empty()).into())
}

/// Whether an object that exists is left as it is, which all counting once depends on.
fn probe_store(store: &Store) -> anyhow::Result<Option<String>> {
    let name = format!("{PROBE}/{}", content_name(Instant::now().text().as_bytes()));
    let [first, second] = [Bytes::from_static(b"first"), Bytes::from_static(b"second")];
    let created = [
        store.create(&name, first.clone())?,
        store.create(&name, second)?,
    ];
    let left = store.read(&name)?;
    store.delete(&name)?;
    let holds = created == [CreateOutcome::New, CreateOutcome::Exists] && left == first;
    Ok((!holds).then(|| {
        "the store overwrites objects in spite of If-None-Match: profiles may be lost or counted twice; use one \
         that supports conditional writes"
            .to_owned()
    }))
}
