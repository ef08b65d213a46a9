//! Others that break every rule: clients of a host, processes that memprof looks at as root, and files of a store. Each has
//! a bound of time and memory, and leaves the machine as it was.

mod attackers;
mod clients;
mod forged;
mod stores;
mod visit;
mod witness;

use anyhow::Result;

use super::SuiteLength;

pub(super) fn run(form: SuiteLength) -> Result<String> {
    let lines = [
        clients::run(form)?,
        attackers::run(form)?,
        stores::run(form)?,
    ];
    Ok(lines.join("; "))
}
