//! What a person reads of a reply.

use memprof_core::{
    Activation, Background, DumpReport, Finding, GdumpStatus, Gdumping, Kept, Ledger, Purged,
    Severity, Stats, Status,
};

pub(crate) fn activation_text(activation: &Activation) -> String {
    joined(profiling_text(&activation.status), &activation.warnings)
}

pub(crate) fn dump_text(report: &DumpReport) -> String {
    let dump = &report.largest;
    let text = format!(
        "dumped {} stacks, about {} in use, to {}",
        dump.stacks,
        bytes(dump.estimated_inuse_bytes),
        dump.path.display()
    );
    joined(text, &report.warnings)
}

pub(crate) fn kept_text(kept: &[Kept]) -> String {
    if kept.is_empty() {
        return "no dumps are kept".to_owned();
    }
    let line = |dump: &Kept| {
        let line = format!("{}  {}", dump.id, bytes(dump.bytes));
        match (dump.trigger, dump.rss_bytes) {
            (Some(trigger), Some(rss)) => format!("{line}  {trigger}, RSS {}", bytes(rss)),
            _ => line,
        }
    };
    kept.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn profiling_text(status: &Status) -> String {
    let mut text = format!("profiling is {}", status.profiling);
    if let (Some(since), Some(interval)) = (&status.active_since, status.sample_interval) {
        text += &format!(" since {since}, one sample per {interval} bytes");
    }
    if let Some(until) = &status.active_until {
        text += &format!(", until {until}");
    }
    if status.active_since.is_some() {
        let walkers = status.unwinder.walkers.iter();
        text.extend(walkers.map(|each| match (each.walker, &each.reason) {
            ("ours", _) => ", stacks walked by memprof".to_owned(),
            (_, Some(reason)) => format!(", stacks walked by the allocator ({reason})"),
            (_, None) => ", stacks walked by the allocator".to_owned(),
        }));
    }
    joined(text, status.reason.iter().chain(&status.remedy))
}

pub(crate) fn status_text(status: &Status) -> String {
    let mut text = profiling_text(status);
    if let Some(gdump) = &status.gdump {
        text += &format!("; {}", gdump_progress(gdump));
    }
    for rule in &status.watch {
        let never = || "never".to_owned();
        let last = rule.last_fired.clone().unwrap_or_else(never);
        text += &format!(
            "\nwatch {}: fired {} times, last {last}",
            rule.rule, rule.fired
        );
        if let Some(next) = &rule.next {
            text += &format!(", next not before {next}");
        }
    }
    text
}

pub(crate) fn gdump_text(is_on: bool, gdumping: &Gdumping) -> String {
    let progress = gdumping.gdump.as_ref().map(gdump_progress);
    let text = match (is_on, progress) {
        (true, Some(progress)) => {
            format!("{progress}; safe dumps of memprof's at high water, not jemalloc's prof.gdump")
        }
        (true, None) | (false, None) => "gdump is off".to_owned(),
        (false, Some(progress)) => format!("gdump is off; before, {progress}"),
    };
    joined(text, &gdumping.warnings)
}

fn gdump_progress(gdump: &GdumpStatus) -> String {
    let GdumpStatus {
        taken,
        files,
        until,
        ..
    } = gdump;
    format!("gdump took {taken} of {files} dumps, until {until}")
}

pub(crate) fn findings_text(findings: &[Finding]) -> String {
    if findings.is_empty() {
        return "healthy: nothing stands in the way of a heap profile".to_owned();
    }
    let line = |finding: &Finding| {
        let severity = match finding.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        format!("{severity}: {}\n  {}", finding.message, finding.remedy)
    };
    findings.iter().map(line).collect::<Vec<_>>().join("\n")
}

pub(crate) fn purged_text(purged: &Purged) -> String {
    let (before, after) = (purged.anonymous_before_bytes, purged.anonymous_after_bytes);
    let released = bytes(purged.released_bytes);
    format!(
        "gave back {released}: {} resident before, {} after",
        bytes(before),
        bytes(after)
    )
}

pub(crate) fn background_text(switched: &[Background]) -> String {
    let line = |background: &Background| {
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
    switched.iter().map(line).collect::<Vec<_>>().join("\n")
}

pub(crate) fn ledger_text(ledger: &Ledger) -> String {
    let share = |part: u64| part as f64 * 100.0 / ledger.rss_bytes.max(1) as f64;
    let line = |name: &str, part: u64| {
        format!(
            "{name:<18} {part:>16}  {:>10}  {:>5.1} %\n",
            bytes(part),
            share(part)
        )
    };
    let rows: String = ledger
        .rows
        .iter()
        .map(|row| line(row.name, row.bytes))
        .collect();
    let mut text = rows + &line("rss", ledger.rss_bytes);
    if let Some(cgroup) = ledger.cgroup {
        let limit = cgroup.limit_bytes.map_or("none".to_owned(), bytes);
        text += &format!(
            "cgroup: {} used, limit {limit}\n",
            bytes(cgroup.usage_bytes)
        );
    }
    if let Some(smaps) = &ledger.smaps {
        text += &format!(
            "mappings: {} proportional, {} private dirty, {} lazily free, {} in huge pages, {} \
             swapped\n",
            bytes(smaps.pss_bytes),
            bytes(smaps.private_dirty_bytes),
            bytes(smaps.lazy_free_bytes),
            bytes(smaps.anon_huge_pages_bytes),
            bytes(smaps.swap_bytes)
        );
    }
    for verdict in &ledger.verdicts {
        text += &format!("{}: {}; {}\n", verdict.kind, verdict.why, verdict.remedy);
    }
    text
}

pub(crate) fn stats_text(stats: &Stats) -> String {
    let head = format!("{} {}\n", stats.kind, stats.version);
    let Some(figures) = &stats.figures else {
        return head + "no figures: this jemalloc was built without statistics\n" + &stats.report;
    };
    let lines = [
        ("allocated", figures.allocated),
        ("active", figures.active),
        ("metadata", figures.metadata),
        ("resident", figures.resident),
        ("mapped", figures.mapped),
        ("retained", figures.retained),
    ]
    .map(|(name, value)| format!("{name:<10} {value:>16}  {}\n", bytes(value)));
    head + &lines.concat() + &stats.report
}

fn joined<'a>(text: String, more: impl IntoIterator<Item = &'a String>) -> String {
    more.into_iter()
        .fold(text, |text, part| format!("{text}; {part}"))
}

/// `12.3 MiB`.
fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{count} B")
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn sizes_have_units() {
        let check = |count, expected: &str| assert_eq!(bytes(count), expected);
        check(0, "0 B");
        check(1023, "1023 B");
        check(1536, "1.5 KiB");
        check(3 << 40, "3.0 TiB");
        check(u64::MAX, "16777216.0 TiB");
    }
}
