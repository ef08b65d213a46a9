//! Ledger of a process without the plugin.

use memprof_leaks::find_mapped_parts;
use memprof_messages::{Ledger, LedgerPart, LedgerRow, ledger_text};
use memprof_ptrace::examine_process_for_load;
use serde::Serialize;

use super::page::build_ledger_page;
use super::{parts, refine_process_ledger, walk};
use crate::doctor::suggested_command;
use crate::exit::{FAILED, Outcome, UNREACHABLE, with_exit_code};
use crate::process_names::describe_process;
use crate::refusal_error::refusal_error;
use crate::result_output::ResultOutput;

/// Output of `memprof ledger --json` on a process without the plugin.
#[derive(Serialize)]
struct OutsideLedger {
    status: &'static str,
    text: String,
    pid: u32,
    #[serde(flatten)]
    ledger: Ledger,
    /// Command to type next.
    next: String,
}

/// Runs `memprof ledger` on a process without the plugin.
pub(super) fn run(pid: u32, form: &ResultOutput<'_>) -> Outcome {
    let ledger = build_ledger(pid)?;
    let next = suggested_command(pid, examine_process_for_load(pid).is_ok());
    let text = format!("{}next: {next}", ledger_text(&ledger));
    let output = OutsideLedger {
        status: "ok",
        text,
        pid,
        ledger,
        next,
    };
    form.write(&output, &output.text, || {
        build_ledger_page(&describe_process(pid), &output.ledger)
    })?;
    Ok(0.into())
}

/// Builds the ledger from the process's mappings, and from a walk of its heaps where that is possible.
///
/// # Errors
/// The process has ended, or its mappings may not be read.
fn build_ledger(pid: u32) -> anyhow::Result<Ledger> {
    let mut ledger = Ledger {
        rss_bytes: 0,
        rows: Vec::new(),
        allocators: Vec::new(),
        cgroup: None,
        verdicts: Vec::new(),
        smaps: None,
        walk: None,
        parts: Vec::new(),
    };
    let Err(reason) = refine_process_ledger(pid, &mut ledger) else {
        return Ok(ledger);
    };
    let found =
        find_mapped_parts(pid, None).map_err(|error| match examine_process_for_load(pid) {
            Err(refusal) => refusal_error(pid, &refusal.into()),
            Ok(_) => with_exit_code(FAILED, format!("{pid}: {error}")),
        })?;
    let ended = || with_exit_code(UNREACHABLE, format!("{pid} has ended"));
    let resident = walk::ResidentMemory::read(pid).ok_or_else(ended)?;
    let (rows, found) = parts::rows_without_walk(resident.anonymous, &found);
    let others = [
        (LedgerPart::File, resident.file),
        (LedgerPart::Shared, resident.shared),
    ];
    let others = others.map(|(part, bytes)| LedgerRow {
        name: part.into(),
        bytes,
    });
    ledger.rss_bytes = resident.anonymous + resident.file + resident.shared;
    ledger.rows = [rows, others.into()].concat();
    ledger.parts = found;
    // The row `not_the_allocator`, the second of `rows_without_walk`.
    let outside = ledger.rows[1].bytes;
    let found = walk::outside_malloc_finding(outside, 0, ledger.rss_bytes);
    ledger.verdicts.extend(found);
    parts::name_parts_in_finding(&mut ledger, pid);
    ledger
        .verdicts
        .push(parts::heaps_not_walked_finding(&reason));
    Ok(ledger)
}
