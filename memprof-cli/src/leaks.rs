//! `memprof leaks`: the stacks that grew from each kept dump of a process to the next.
//!
//! One dump shows who holds memory, two show what changed; only growth that does not stop is a
//! leak.

use std::collections::HashMap;
use std::io::BufReader;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use memprof_host::client::Client;
use memprof_messages::{Kept, ProfileKind};
use memprof_report::{Blame, Folded, Granularity, Input, Options, SampleType, Sources, amount};
use serde::Serialize;

use crate::exit::{NO_DATA, Outcome, coded};
use crate::output;
use crate::report::progress;
use crate::target::{self, To};

/// Two dumps make a difference, three a trend.
const FEWEST: usize = 3;
/// The frames of a stack that the text shows, from the leaf.
const FRAMES: usize = 8;

/// Show the stacks that grew in every one of a process's last dumps
#[derive(clap::Args, Debug)]
pub(crate) struct LeaksArgs {
    #[command(flatten)]
    to: To,

    /// How many of the newest dumps to compare, at least 3
    #[arg(long, value_name = "N", default_value_t = 5)]
    last: usize,

    /// Show this many stacks
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,
}

/// A dump's stacks, root first and joined by `;`, with their estimated bytes in use.
type Stacks = HashMap<String, i64>;

#[derive(Serialize)]
struct Leaks {
    schema_version: u32,
    /// Ids, oldest first.
    dumps: Vec<String>,
    span_seconds: u64,
    stacks: Vec<Leak>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Leak {
    growth_bytes: i64,
    growth_bytes_per_hour: i64,
    inuse_space: i64,
    /// Root first.
    stack: Vec<String>,
}

pub(crate) fn run(args: &LeaksArgs) -> Outcome {
    if args.last < FEWEST {
        return Err(coded(
            crate::exit::USAGE,
            format!("--last must be at least {FEWEST}"),
        ));
    }
    let mut client = target::connect_to(&args.to)?;
    // In a container it calls itself, in its dumps too, by another number than it has here.
    let own_pid = client.host()?.pid;
    let kept = newest(&mut client, own_pid, args.last)?;
    let sources = Sources::of_process(Some(target::pid_of(&mut client)?));
    let dumps = kept.iter().map(|dump| read(&mut client, dump, &sources));
    let dumps: Vec<Stacks> = dumps.collect::<anyhow::Result<_>>()?;
    output::clear();
    let span = match (kept.first(), kept.last()) {
        // No time has passed where the clock was set back: then there is no rate.
        (Some(first), Some(last)) => last.taken.duration_since(first.taken).unwrap_or_default(),
        _ => Duration::ZERO,
    };
    let leaks = Leaks {
        schema_version: 1,
        dumps: kept.into_iter().map(|dump| dump.id).collect(),
        span_seconds: span.as_secs(),
        stacks: grown(&dumps, span),
    };
    if args.to.json {
        output::print(&serde_json::to_string(&leaks)?)?;
    } else {
        output::print(&text(&leaks, args.top))?;
    }
    Ok(0.into())
}

struct Comparable {
    id: String,
    taken: SystemTime,
}

/// The newest dumps of the running process, oldest first.
fn newest(client: &mut Client, pid: u32, count: usize) -> anyhow::Result<Vec<Comparable>> {
    let mut kept = Vec::new();
    // A profile of growth tells of the past, not of what lives.
    let is_comparable = |dump: &Kept| dump.pid == pid && dump.kind == ProfileKind::Heap;
    for dump in client.list()?.into_iter().filter(is_comparable).take(count) {
        let taken = humantime::parse_rfc3339(&dump.taken).context("a dump's time")?;
        kept.push(Comparable { id: dump.id, taken });
    }
    if kept.len() < FEWEST {
        let dumps = match kept.len() {
            1 => "1 dump of this process is kept".to_owned(),
            count => format!("{count} dumps of this process are kept"),
        };
        let message = format!(
            "{dumps}, and it takes {FEWEST} to see what keeps growing: send `memprof dump`, some \
             minutes apart"
        );
        return Err(coded(NO_DATA, message));
    }
    kept.reverse();
    Ok(kept)
}

fn read(client: &mut Client, dump: &Comparable, sources: &Sources) -> anyhow::Result<Stacks> {
    let file = client.fetch(&dump.id)?;
    let input = Input {
        name: &dump.id,
        bytes: &mut BufReader::new(file),
    };
    let named = memprof_report::read(input, Some(sources), &Options::default(), &progress)?;
    let of = (SampleType::InuseSpace, Granularity::Functions);
    let folded = Folded::new(&named, None, of.0, of.1, &Blame::default()).told();
    let stack = |functions: &[memprof_report::StringId]| {
        functions
            .iter()
            .map(|id| folded.functions.get(*id))
            .collect::<Vec<_>>()
            .join(";")
    };
    Ok(folded
        .stacks
        .iter()
        .map(|each| (stack(&each.functions), each.values.value()))
        .collect())
}

/// The stacks that grew at every step, the largest growth first.
fn grown(dumps: &[Stacks], span: Duration) -> Vec<Leak> {
    let (Some(first), Some(last)) = (dumps.first(), dumps.last()) else {
        return Vec::new();
    };
    let bytes = |dump: &Stacks, stack: &str| dump.get(stack).copied().unwrap_or(0);
    let grew = |stack: &str| {
        dumps
            .windows(2)
            .all(|pair| bytes(&pair[1], stack) > bytes(&pair[0], stack))
    };
    let hours = span.as_secs_f64() / 3600.0;
    let mut leaks: Vec<Leak> = last
        .iter()
        .filter(|(stack, _)| grew(stack))
        .map(|(stack, inuse)| {
            let growth = inuse - bytes(first, stack);
            Leak {
                growth_bytes: growth,
                growth_bytes_per_hour: if hours > 0.0 {
                    (growth as f64 / hours) as i64
                } else {
                    0
                },
                inuse_space: *inuse,
                stack: stack.split(';').map(str::to_owned).collect(),
            }
        })
        .collect();
    leaks.sort_by(|a, b| (b.growth_bytes, &a.stack).cmp(&(a.growth_bytes, &b.stack)));
    leaks
}

fn text(leaks: &Leaks, top: usize) -> String {
    let span = humantime::format_duration(Duration::from_secs(leaks.span_seconds));
    let (dumps, count) = (leaks.dumps.len(), leaks.stacks.len());
    if count == 0 {
        return format!("no stack grew in each of the last {dumps} dumps ({span})");
    }
    let mut lines = vec![format!(
        "stacks that grew in each of the last {dumps} dumps ({span}), estimated: {count}"
    )];
    let size = |bytes: i64| amount(bytes, SampleType::InuseSpace);
    for leak in leaks.stacks.iter().take(top) {
        let (hourly, growth) = (size(leak.growth_bytes_per_hour), size(leak.growth_bytes));
        lines.push(format!(
            "\n{hourly}/h  +{growth}, now {}",
            size(leak.inuse_space)
        ));
        lines.extend(
            leak.stack
                .iter()
                .rev()
                .take(FRAMES)
                .map(|frame| format!("    {frame}")),
        );
        if leak.stack.len() > FRAMES {
            lines.push(format!("    ... {} callers", leak.stack.len() - FRAMES));
        }
    }
    if count > top {
        lines.push(format!("\n({} more stacks, --top shows them)", count - top));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_growth_that_does_not_stop_is_a_leak() {
        let dump = |values: &[(&str, i64)]| -> Stacks {
            values
                .iter()
                .map(|(stack, bytes)| ((*stack).to_owned(), *bytes))
                .collect()
        };
        let dumps = [
            dump(&[("main;leak", 10), ("main;pause", 10), ("main;falls", 9)]),
            dump(&[
                ("main;leak", 20),
                ("main;pause", 20),
                ("main;falls", 5),
                ("main;new", 1),
            ]),
            dump(&[
                ("main;leak", 40),
                ("main;pause", 20),
                ("main;falls", 90),
                ("main;new", 2),
            ]),
        ];
        let found = grown(&dumps, Duration::from_secs(1800));
        let leak = |growth, now, stack: &[&str]| Leak {
            growth_bytes: growth,
            growth_bytes_per_hour: growth * 2,
            inuse_space: now,
            stack: stack.iter().map(ToString::to_string).collect(),
        };
        assert_eq!(
            found,
            [
                leak(30, 40, &["main", "leak"]),
                leak(2, 2, &["main", "new"])
            ]
        );
    }

    #[test]
    fn dumps_of_one_second_have_no_rate() {
        let dump = |bytes| Stacks::from([("main".to_owned(), bytes)]);
        let found = grown(&[dump(1), dump(2), dump(3)], Duration::ZERO);
        assert_eq!(found[0].growth_bytes_per_hour, 0);
    }
}
