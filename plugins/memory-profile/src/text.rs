//! Texts of replies for people.

mod arenas;

use memprof_core::START_ACTIVE_HINT;
use memprof_messages::{
    ActivationResult, AllocatorStatus, BackgroundThreads, DumpReport, GdumpResult, GdumpStatus,
    HeapTotals, HeapUsage, KeptDump, LabelSetStats, OnOff, ProfileKind, ProfilerStatus, Provider,
    Stats, size_text,
};

use arenas::arenas_text;

/// Formats the state of profiling with its warnings. If the message has started sampling, also says how much memory the
/// new profile lacks because it was allocated before, or that this amount is unknown.
pub(crate) fn activation_text(activation: &ActivationResult) -> String {
    let text = append_missing_parts(profiling_text(&activation.status), &activation.warnings);
    if !activation.begun {
        return text;
    }
    let unseen = match activation.unseen_bytes {
        Some(unseen) => format!("{} that were allocated before", size_text(unseen)),
        None => "objects that were allocated before".to_owned(),
    };
    format!("{text}; {unseen} are not in its profile, {START_ACTIVE_HINT}")
}

/// Formats one line about the largest dump of the report (its stacks, amount and path), followed by the warnings.
pub(crate) fn dump_report_text(report: &DumpReport) -> String {
    let dump = &report.largest;
    let amount = size_text(dump.estimated_inuse_bytes);
    let amount = match dump.kind.known() {
        Some(ProfileKind::Growth) => format!("{amount} of growth"),
        Some(ProfileKind::Pinned) => format!("{amount} that are free beside live objects"),
        Some(ProfileKind::Heap) | None => format!("about {amount} in use"),
    };
    let path = dump.path.display();
    let stacks = match dump.stacks {
        1 => "1 stack".to_owned(),
        stacks => format!("{stacks} stacks"),
    };
    let text = format!("dumped {stacks}, {amount}, to {path}");
    append_missing_parts(text, &report.warnings)
}

/// Formats one line per kept dump: its id and size, and its trigger and RSS if both are known. If there are none, says
/// so.
pub(crate) fn kept_dumps_text(kept: &[KeptDump]) -> String {
    if kept.is_empty() {
        return "no dumps are kept".to_owned();
    }
    let line = |dump: &KeptDump| {
        let line = format!("{}  {}", dump.id, size_text(dump.bytes));
        match (&dump.trigger, dump.rss_bytes) {
            (Some(trigger), Some(rss)) => format!("{line}  {trigger}, RSS {}", size_text(rss)),
            _ => line,
        }
    };
    kept.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Formats the state of profiling in one line: start, interval, time limit, stack walkers, ages, labels, lost samples,
/// unseen frees and the stall of a dump, as far as they apply. The reason and the remedy come last.
fn profiling_text(status: &ProfilerStatus) -> String {
    let mut text = format!("profiling is {}", status.profiling);
    if let (Some(since), Some(interval)) = (&status.active_since, status.sample_interval) {
        text += &format!(" since {since}, one sample per {interval} bytes");
    }
    if let Some(until) = &status.active_until {
        text += &format!(", until {until}");
    }
    if status.active_since.is_some() {
        let walkers = status.unwinder.walkers.iter();
        let walker_texts =
            walkers.map(
                |each| match (each.walker == Provider::Memprof, &each.reason) {
                    (true, _) => ", stacks walked by memprof".to_owned(),
                    (_, Some(reason)) => format!(", stacks walked by the allocator ({reason})"),
                    (_, None) => ", stacks walked by the allocator".to_owned(),
                },
            );
        // Each jemalloc has its own walker; equal texts are written once.
        for walker_text in walker_texts {
            if !text.contains(&walker_text) {
                text += &walker_text;
            }
        }
    }
    if let Some(width) = status.ages_s {
        text += &format!(", ages in buckets of {width} s");
    }
    if !status.labels.is_empty() {
        text += &format!(", labels {}", status.labels.join(", "));
        text += &status.label_sets.map_or_else(String::new, label_sets_text);
    }
    let samplers = status
        .allocators
        .iter()
        .filter_map(|each| each.sampled.as_ref());
    for sampler in samplers {
        if sampler.lost > 0 {
            text += &format!(
                ", {} of {} samples lost (tables full)",
                sampler.lost, sampler.samples
            );
        }
        if sampler.unseen_frees > 0 {
            text += &format!(
                ", {} sampled blocks freed unseen and given out again",
                sampler.unseen_frees
            );
        }
    }
    let stalls = status
        .allocators
        .iter()
        .filter_map(|each| each.dump_stall_ms);
    if let Some(stall) = stalls.max().filter(|stall| *stall > 0) {
        text += &format!(
            ", a dump stalls threads that allocate for up to {stall} ms (as the last one)"
        );
    }
    append_missing_parts(text, status.reason.iter().chain(&status.remedy))
}

/// Formats the counts of label sets, such as ` (1000 of at most 1000 sets, in 400.0 KiB; 12 samples of others)`.
fn label_sets_text(sets: LabelSetStats) -> String {
    let LabelSetStats {
        seen,
        most,
        others,
        bytes: taken,
    } = sets;
    let others = match others {
        0 => String::new(),
        1 => "; 1 sample of others".to_owned(),
        count => format!("; {count} samples of others"),
    };
    format!(
        " ({seen} of at most {most} sets, in {}{others})",
        size_text(taken)
    )
}

/// Formats one line per allocator, with the messages that it supports. Then one for a `malloc` that memprof does not
/// know, and one for a stripped jemalloc, if there are such. Each line begins with a newline, because the text follows
/// another one.
pub(crate) fn supported_messages_text(status: &ProfilerStatus) -> String {
    let line = |allocator: &AllocatorStatus| {
        let name = allocator.to_string();
        let owner = if allocator.owns_malloc { "malloc" } else { "" };
        format!("\n  {name:<18} {owner:<6}  {}", allocator.can.join(", "))
    };
    let unknown = status.unknown_malloc.iter();
    let unknown = unknown.map(|path| format!("\n  {path:<18} malloc  (unknown to memprof)"));
    let stripped = status.stripped_jemalloc.iter();
    let stripped =
        stripped.map(|path| format!("\n  jemalloc in {path} (memprof cannot control it)"));
    let lines = status.allocators.iter().map(line);
    lines.chain(unknown).chain(stripped).collect()
}

/// Formats the state of profiling and of `gdump` in one line, then one line per watch rule.
pub(crate) fn status_text(status: &ProfilerStatus) -> String {
    let mut text = profiling_text(status);
    if let Some(gdump) = &status.gdump {
        text += &format!("; {}", gdump_progress(gdump));
    }
    for rule in &status.watch {
        let never = || "never".to_owned();
        let last = rule.last_fired.clone().unwrap_or_else(never);
        text += &format!(
            "\nwatch {}: fired {}, last {last}",
            rule.rule,
            times_text(rule.fired)
        );
        if let Some(next) = &rule.next {
            text += &format!(", next not before {next}");
        }
    }
    text
}

/// Formats a number of times: `once`, or `3 times`.
fn times_text(count: u64) -> String {
    match count {
        1 => "once".to_owned(),
        count => format!("{count} times"),
    }
}

/// Formats the state of `gdump`, its progress, and the warnings.
pub(crate) fn gdump_text(result: &GdumpResult) -> String {
    let progress = result.gdump.as_ref().map(gdump_progress);
    let text = match (result.state == OnOff::On, progress) {
        (true, Some(progress)) => {
            format!("{progress}; safe dumps of memprof's at high water, not jemalloc's prof.gdump")
        }
        (true, None) | (false, None) => "gdump is off".to_owned(),
        (false, Some(progress)) => format!("gdump is off; before, {progress}"),
    };
    append_missing_parts(text, &result.warnings)
}

/// Formats the progress of `gdump`: number of dumps taken, limit, and end time.
fn gdump_progress(gdump: &GdumpStatus) -> String {
    let GdumpStatus {
        taken,
        files,
        until,
        ..
    } = gdump;
    format!("gdump took {taken} of {files} dumps, until {until}")
}

/// Formats one line per jemalloc: whether its background threads are on, and their maximum number.
pub(crate) fn background_threads_text(states: &[BackgroundThreads]) -> String {
    let line = |background: &BackgroundThreads| {
        let state = if background.background_thread {
            "on"
        } else {
            "off"
        };
        format!(
            "background threads of {} {} are {state}, at most {}",
            background.kind, background.version, background.max_background_threads
        )
    };
    states.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Formats the header, totals and printout of one allocator. A summary of the arenas replaces glibc's printout, which
/// is XML. In place of missing totals, the text has the error, or says that the allocator was built without statistics.
pub(crate) fn stats_text(stats: &Stats) -> String {
    let head = format!("{} {}\n", stats.kind, stats.version);
    let totals = match (&stats.totals, &stats.error) {
        (Some(HeapUsage::Detailed(totals)), _) => totals_text(totals),
        (Some(HeapUsage::CommittedOnly { committed }), _) => size_line("committed", *committed),
        (None, Some(error)) => format!("no figures: {error}\n"),
        (None, None) => format!(
            "no figures: this {} was built without statistics\n",
            stats.kind
        ),
    };
    match arenas_text(&stats.report) {
        Some(arenas) => head + &totals + &arenas,
        None => head + &totals + &stats.report,
    }
}

/// Formats one line per total, in bytes and with a unit.
fn totals_text(totals: &HeapTotals) -> String {
    let lines = [
        ("allocated", totals.allocated),
        ("active", totals.active),
        ("metadata", totals.metadata),
        ("resident", totals.resident),
        ("mapped", totals.mapped),
        ("retained", totals.retained),
    ]
    .map(|(name, value)| size_line(name, value));
    lines.concat()
}

/// Formats a line with `name`, `value` in bytes, and the value with a unit, in columns.
fn size_line(name: &str, value: u64) -> String {
    format!("{name:<10} {value:>16}  {}\n", size_text(value))
}

/// Appends each part of `more` that the text does not contain yet, after a semicolon. A reason may repeat a warning.
fn append_missing_parts<'a>(text: String, more: impl IntoIterator<Item = &'a String>) -> String {
    more.into_iter().fold(text, |text, part| {
        if text.contains(part) {
            text
        } else {
            format!("{text}; {part}")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::append_missing_parts;

    #[test]
    fn equal_parts_are_appended_once() {
        let check = |parts: &[&str], expected: &str| {
            let parts: Vec<String> = parts.iter().map(ToString::to_string).collect();
            assert_eq!(append_missing_parts("a".to_owned(), &parts), expected);
        };
        check(
            &["no profiler", "do x", "no profiler; do x"],
            "a; no profiler; do x",
        );
        check(&["b c", "b c"], "a; b c");
        check(&[], "a");
    }
}
