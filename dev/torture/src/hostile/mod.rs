//! Suite `hostile`: hostile clients of a host, hostile processes that memprof inspects as root, and damaged files of a
//! fleet store. Each command must stay within limits of time and memory, and leave the machine unchanged.

mod attacker_process;
mod attackers;
mod clients;
mod forgery;
mod stores;
mod witness;

use anyhow::Result;

use super::SuiteLength;

/// Runs the suite `hostile`, and returns its figures in one line. Fails if one of its three parts fails.
pub(super) fn run_suite(length: SuiteLength) -> Result<String> {
    let lines = [
        clients::attack_host(length)?,
        attackers::run_attackers(length)?,
        stores::query_damaged_stores(length)?,
    ];
    Ok(lines.join("; "))
}
