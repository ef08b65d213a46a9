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

pub(super) fn run(length: SuiteLength) -> Result<String> {
    let lines = [
        clients::run(length)?,
        attackers::run(length)?,
        stores::run(length)?,
    ];
    Ok(lines.join("; "))
}
