//! Messages about the allocators' statistics: `stats`, `purge`, `background_thread`, `recent`, `ledger`.

use memprof_core::Profiler;
use memprof_messages::{PerAllocator, PurgeEstimate, ledger_text, purged_text};
use memprof_plugin_abi::{Arguments, Failure, Reply};

use crate::arguments::{take_allocator, take_number, take_switch};
use crate::reply::{reply_success, to_failure};
use crate::stats_format::StatsFormat;
use crate::text::{background_threads_text, stats_text};

/// Handles `stats`: replies with the heap totals and the printout of each allocator, or only of those of the kind
/// `allocator`. `opts` has the option letters of jemalloc's printout. Also logs the text, unless `log=off`. With
/// `format=text`, the body of the reply is the plain text instead of JSON.
pub(super) fn handle_stats(
    profiler: &Profiler,
    mut args: Arguments,
    reply: &mut Reply<'_>,
) -> Result<(), Failure> {
    let allocator = take_allocator(&mut args)?;
    let opts = args.take("opts");
    let format = args.take("format");
    let is_logged = take_switch(&mut args, "log")?.unwrap_or(true);
    args.finish()?;
    let format = StatsFormat::parse(opts.as_deref(), format.as_deref())?;
    let stats = profiler.read_stats(allocator, format.options.as_ref());
    let stats = stats.map_err(to_failure)?;
    let text: String = match format.is_json() {
        // For programs: only JSON, without the header lines of the text.
        true => stats.iter().map(|each| each.report.as_str()).collect(),
        false => stats.iter().map(stats_text).collect(),
    };
    if is_logged {
        text.lines().for_each(|line| log::info!("{line}"));
    }
    if format.is_plain {
        return reply.text(&text);
    }
    reply_success(reply, &text, PerAllocator { allocators: stats })
}

/// Handles `purge`: releases the free pages of the allocators of the kind `allocator`, or of all without that argument,
/// to the kernel. Replies with the resident memory before and after.
pub(super) fn handle_purge(
    profiler: &Profiler,
    mut args: Arguments,
    reply: &mut Reply<'_>,
) -> Result<(), Failure> {
    let allocator = take_allocator(&mut args)?;
    args.finish()?;
    let purged = profiler.purge(allocator).map_err(to_failure)?;
    let text = purged_text(&purged, PurgeEstimate::Counts);
    log::info!("{text}");
    reply_success(reply, &text, purged)
}

/// Handles `background_thread`: turns jemalloc's background threads on or off if `state` is given, and limits their
/// number if `max` is given. Replies with the threads' state, and logs it.
pub(super) fn handle_background_thread(
    profiler: &Profiler,
    mut args: Arguments,
    reply: &mut Reply<'_>,
) -> Result<(), Failure> {
    let on = take_switch(&mut args, "state")?;
    let max = take_number(&mut args, "max")?;
    args.finish()?;
    let allocators = profiler
        .set_background_threads(on, max)
        .map_err(to_failure)?;
    let text = background_threads_text(&allocators);
    log::info!("{text}");
    reply_success(reply, &text, PerAllocator { allocators })
}

/// Handles `recent`: replies with the latest sampled allocations of each jemalloc, as jemalloc reports them. If `max`
/// is given, sets the number of allocations that jemalloc records.
pub(super) fn handle_recent(
    profiler: &Profiler,
    mut args: Arguments,
    reply: &mut Reply<'_>,
) -> Result<(), Failure> {
    let max = take_number(&mut args, "max")?;
    args.finish()?;
    let recent = profiler.recent_allocations(max).map_err(to_failure)?;
    let reports: Vec<_> = recent.iter().map(|recent| recent.report.trim()).collect();
    let text = reports.join("\n");
    reply_success(reply, &text, PerAllocator { allocators: recent })
}

/// Handles `ledger`: replies with the process's resident memory by part, such as live heap, free memory of the
/// allocators and pages of files. With `smaps=on`, adds the kernel's sums over all mappings.
pub(super) fn handle_ledger(
    profiler: &Profiler,
    mut args: Arguments,
    reply: &mut Reply<'_>,
) -> Result<(), Failure> {
    let smaps = take_switch(&mut args, "smaps")?;
    args.finish()?;
    let ledger = match smaps {
        Some(true) => profiler.ledger_with_smaps(),
        Some(false) | None => profiler.ledger(),
    };
    let ledger = ledger.map_err(to_failure)?;
    reply_success(reply, &ledger_text(&ledger), ledger)
}
