//! `memprof leaks`: finds the stacks whose memory keeps growing.
//!
//! One dump shows who holds memory, two show what changed; only growth that does not stop is a leak. If samples have
//! ages, one dump is enough: a leak's live memory is of every age in equal amounts.

mod page;

use std::collections::HashMap;
use std::io::BufReader;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use memprof_host::client::Client;
use memprof_messages::{KeptDump, ProfileKind};
use memprof_report::{
    Folded, Granularity, Input, Options, OriginRules, SampleType, Sources, SymbolizedProfile,
    find_steady_growth, format_amount,
};
use serde::Serialize;

use self::page::build_page;
use crate::exit::{NO_DATA, Outcome, with_exit_code};
use crate::output;
use crate::process_names::describe_process;
use crate::prove::{self, ProveArgs};
use crate::report_form::show_symbolizing_progress;
use crate::result_output::{JSON_HELP, ResultFormat, ResultOutput};
use crate::stack_lines::format_frames;
use crate::target::{self, TargetArgs};

/// Least number of dumps: two make a difference, three a trend.
const MIN_DUMPS: usize = 3;
/// Number of dumps that are compared by default.
const DEFAULT_DUMPS: usize = 5;

/// Show stacks that keep growing, by the ages of one dump or by comparing dumps; with --prove, list the objects
/// that nothing points to
#[derive(clap::Args, Debug)]
#[command(mut_arg("json", |json| json.help(JSON_HELP)))]
pub(crate) struct LeaksArgs {
    #[command(flatten)]
    to: TargetArgs,

    #[command(flatten)]
    prove: ProveArgs,

    /// Compare the N newest dumps, at least 3 [default: the newest dump alone if its samples have ages
    /// (`memprof activate ages=1m`), else up to 5 dumps]
    #[arg(long, value_name = "N")]
    last: Option<usize>,

    /// Show this many stacks; with --prove, this many rows
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,

    /// Split functions into source lines; not with --prove
    #[arg(long, conflicts_with = "prove")]
    lines: bool,

    /// Output format [default: text]
    #[arg(long, value_enum, value_name = "FORMAT", conflicts_with = "json")]
    format: Option<ResultFormat>,

    /// Write the output to this file, whole or not at all [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Open it as an HTML page in a browser; without a browser, print the page's path
    #[arg(long)]
    open: bool,
}

/// Stacks of a dump, root first, with their estimated bytes in use.
type Stacks = HashMap<Vec<String>, i64>;

/// Output of `memprof leaks --json`.
#[derive(Serialize)]
struct Leaks {
    schema_version: u32,
    by: LeakMethod,
    /// IDs, oldest first.
    dumps: Vec<String>,
    span_seconds: u64,
    stacks: Vec<Leak>,
}

/// Source of a ranking of leaks: the ages in one dump, or several dumps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum LeakMethod {
    Ages,
    Dumps,
}

/// A stack that keeps growing.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Leak {
    growth_bytes: i64,
    growth_bytes_per_hour: i64,
    inuse_space: i64,
    /// Functions, root first.
    stack: Vec<String>,
}

/// Runs `memprof leaks`: by a proof with `--prove`, by comparing dumps with `--last`. Otherwise by the ages in the
/// newest dump, or if it has none by comparing dumps.
pub(crate) fn run(args: &LeaksArgs) -> Outcome {
    let form = ResultOutput::new(args.format, args.to.json, args.output.as_deref(), args.open)?;
    if args.prove.prove {
        return prove::run(&args.prove, args.top, form);
    }
    if args.last.is_some_and(|last| last < MIN_DUMPS) {
        return Err(with_exit_code(
            crate::exit::USAGE,
            format!("--last must be at least {MIN_DUMPS}"),
        ));
    }
    let pid = args.prove.pid.map(|pid| pid.to_string());
    let mut client = target::connect_to_host(&args.to, pid.as_deref())?;
    // In a container, the process has another pid in its own namespace, which its dumps contain.
    let own_pid = client.host_info()?.pid;
    let kept = list_newest_dumps(&mut client, own_pid, args.last.unwrap_or(DEFAULT_DUMPS))?;
    let sources = Sources::for_process(Some(target::host_pid(&mut client)?));
    let granularity = match args.lines {
        true => Granularity::Lines,
        false => Granularity::Functions,
    };
    let by_age = match (args.last, kept.last()) {
        (None, Some(newest)) => find_leaks_by_age(&mut client, newest, &sources, granularity)?,
        _ => None,
    };
    let leaks = match by_age {
        Some(leaks) => leaks,
        None => find_leaks_by_dumps(&mut client, kept, &sources, granularity)?,
    };
    output::clear_progress();
    let process = describe_process(target::host_pid(&mut client)?);
    form.write(&leaks, &format_text(&leaks, args.top), || {
        build_page(&process, &leaks)
    })?;
    Ok(0.into())
}

/// Finds leaks by the allocation ages in one dump: stacks with live memory of every age. `None` if the dump's samples
/// have no ages, or too few different ones.
fn find_leaks_by_age(
    client: &mut Client,
    dump: &ComparedDump,
    sources: &Sources,
    granularity: Granularity,
) -> anyhow::Result<Option<Leaks>> {
    let profile = fetch_symbolized(client, dump, sources)?;
    let Ok(growth) = find_steady_growth(&profile, &fold_inuse_bytes(&profile, granularity)) else {
        return Ok(None);
    };
    let leaks = growth.stacks.into_iter().map(|stack| Leak {
        growth_bytes: stack.bytes,
        growth_bytes_per_hour: bytes_per_hour(stack.bytes, growth.span),
        inuse_space: stack.inuse,
        stack: stack.stack,
    });
    Ok(Some(Leaks {
        schema_version: 1,
        by: LeakMethod::Ages,
        dumps: vec![dump.id.clone()],
        span_seconds: growth.span.as_secs(),
        stacks: sort_by_growth(leaks.collect()),
    }))
}

/// Finds leaks by comparing the dumps in `kept`, the oldest first. Fails if they are fewer than [`MIN_DUMPS`].
fn find_leaks_by_dumps(
    client: &mut Client,
    kept: Vec<ComparedDump>,
    sources: &Sources,
    granularity: Granularity,
) -> anyhow::Result<Leaks> {
    if kept.len() < MIN_DUMPS {
        let dumps = match kept.len() {
            1 => "1 dump of this process is kept".to_owned(),
            count => format!("{count} dumps of this process are kept"),
        };
        let ages = match client.status()?.ages_s {
            None => "with `memprof activate ages=10s`, one dump after some minutes is enough",
            Some(_) => {
                "the ages in the newest one do not show yet what keeps growing, take one some minutes later"
            }
        };
        let message = format!(
            "{dumps}, and {MIN_DUMPS} are needed to see what keeps growing: run `memprof dump` again, some minutes \
             apart; {ages}"
        );
        return Err(with_exit_code(NO_DATA, message));
    }
    let dumps = kept.iter().map(|dump| {
        let profile = fetch_symbolized(client, dump, sources)?;
        Ok(bytes_by_stack(&fold_inuse_bytes(&profile, granularity)))
    });
    let dumps: Vec<Stacks> = dumps.collect::<anyhow::Result<_>>()?;
    let span = match (kept.first(), kept.last()) {
        // The clock may have been set back; then no time has passed, and there is no rate.
        (Some(first), Some(last)) => last.taken.duration_since(first.taken).unwrap_or_default(),
        _ => Duration::ZERO,
    };
    Ok(Leaks {
        schema_version: 1,
        by: LeakMethod::Dumps,
        dumps: kept.into_iter().map(|dump| dump.id).collect(),
        span_seconds: span.as_secs(),
        stacks: growing_stacks(&dumps, span),
    })
}

/// A kept dump to compare.
struct ComparedDump {
    id: String,
    taken: SystemTime,
}

/// Lists the newest kept heap dumps of a running process, at most `count`, the oldest of them first. Profiles of
/// another kind are left out. `pid` is that in the process's own namespace.
fn list_newest_dumps(
    client: &mut Client,
    pid: u32,
    count: usize,
) -> anyhow::Result<Vec<ComparedDump>> {
    let mut kept = Vec::new();
    // A profile of growth contains past allocations, not only live memory.
    let is_comparable = |dump: &KeptDump| dump.pid == pid && dump.kind == ProfileKind::Heap;
    for dump in client
        .list_dumps()?
        .into_iter()
        .filter(is_comparable)
        .take(count)
    {
        let taken = humantime::parse_rfc3339(&dump.taken).context("a dump's time")?;
        kept.push(ComparedDump { id: dump.id, taken });
    }
    // The host lists the newest first.
    kept.reverse();
    Ok(kept)
}

/// Fetches a dump from the host, and symbolizes it with a progress line.
fn fetch_symbolized(
    client: &mut Client,
    dump: &ComparedDump,
    sources: &Sources,
) -> anyhow::Result<SymbolizedProfile> {
    let file = client.fetch_dump(&dump.id)?;
    let input = Input {
        name: &dump.id,
        bytes: &mut BufReader::new(file),
    };
    let profile = memprof_report::read_profile(
        input,
        Some(sources),
        &Options::default(),
        &show_symbolizing_progress,
    )?;
    Ok(profile)
}

/// Merges the stacks of a profile that have the same functions of the program, and sums their bytes in use.
fn fold_inuse_bytes(profile: &SymbolizedProfile, granularity: Granularity) -> Folded<'static> {
    let sample_type = SampleType::InuseSpace;
    Folded::new(
        profile,
        None,
        sample_type,
        granularity,
        &OriginRules::default(),
    )
    .into_origin_filtered()
}

/// Returns the bytes in use of each stack.
fn bytes_by_stack(folded: &Folded<'_>) -> Stacks {
    let mut bytes = Stacks::default();
    folded.stacks.for_each(|each| {
        let functions = each.functions.iter();
        let stack = functions.map(|id| folded.functions.get(*id).to_owned());
        bytes.insert(stack.collect(), each.values.value());
    });
    bytes
}

/// Returns the stacks that grew from each dump to the next, the largest growth first. `span` is the time from the first
/// dump to the last.
fn growing_stacks(dumps: &[Stacks], span: Duration) -> Vec<Leak> {
    let (Some(first), Some(last)) = (dumps.first(), dumps.last()) else {
        return Vec::new();
    };
    let bytes = |dump: &Stacks, stack: &[String]| dump.get(stack).copied().unwrap_or(0);
    let grew = |stack: &[String]| {
        dumps
            .windows(2)
            .all(|pair| bytes(&pair[1], stack) > bytes(&pair[0], stack))
    };
    let leaks = last
        .iter()
        .filter(|(stack, _)| grew(stack))
        .map(|(stack, inuse)| {
            let growth = inuse - bytes(first, stack);
            Leak {
                growth_bytes: growth,
                growth_bytes_per_hour: bytes_per_hour(growth, span),
                inuse_space: *inuse,
                stack: stack.clone(),
            }
        })
        .collect();
    sort_by_growth(leaks)
}

/// Sorts leaks by growth, the largest first; leaks of equal growth by stack.
fn sort_by_growth(mut leaks: Vec<Leak>) -> Vec<Leak> {
    leaks.sort_by(|a, b| (b.growth_bytes, &a.stack).cmp(&(a.growth_bytes, &b.stack)));
    leaks
}

/// Returns the growth rate in bytes per hour; 0 if no time has passed.
fn bytes_per_hour(bytes: i64, span: Duration) -> i64 {
    match span.is_zero() {
        true => 0,
        false => (bytes as f64 * 3600.0 / span.as_secs_f64()) as i64,
    }
}

/// Formats at most `top` leaks for people.
fn format_text(leaks: &Leaks, top: usize) -> String {
    let span = humantime::format_duration(Duration::from_secs(leaks.span_seconds));
    let (dumps, count) = (leaks.dumps.len(), leaks.stacks.len());
    let grew = match leaks.by {
        LeakMethod::Ages => format!("with memory of every age ({span})"),
        LeakMethod::Dumps => format!("that grew in each of the last {dumps} dumps ({span})"),
    };
    if count == 0 {
        return format!("no stack {grew}");
    }
    let mut lines = vec![format!("stacks {grew}: {count}; sizes are estimates")];
    let size = |bytes: i64| format_amount(bytes, SampleType::InuseSpace);
    for leak in leaks.stacks.iter().take(top) {
        let (hourly, growth) = (size(leak.growth_bytes_per_hour), size(leak.growth_bytes));
        lines.push(format!(
            "\n{hourly}/h  +{growth}, now {}",
            size(leak.inuse_space)
        ));
        let stack = leak.stack.iter().rev();
        lines.extend(format_frames(&stack.collect::<Vec<_>>()));
    }
    if count > top {
        lines.push(format!("\n({} more stacks, --top shows them)", count - top));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(functions: &[&str]) -> Vec<String> {
        functions.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn only_steady_growth_is_a_leak() {
        // Stacks of `main` and a function.
        let dump = |values: &[(&str, i64)]| -> Stacks {
            let stacks = values.iter();
            stacks
                .map(|(function, bytes)| (stack(&["main", function]), *bytes))
                .collect()
        };
        let dumps = [
            dump(&[("leak", 10), ("pause", 10), ("falls", 9)]),
            dump(&[("leak", 20), ("pause", 20), ("falls", 5), ("new", 1)]),
            dump(&[("leak", 40), ("pause", 20), ("falls", 90), ("new", 2)]),
        ];
        let found = growing_stacks(&dumps, Duration::from_secs(1800));
        let leak = |growth, now, function| Leak {
            growth_bytes: growth,
            growth_bytes_per_hour: growth * 2,
            inuse_space: now,
            stack: stack(&["main", function]),
        };
        assert_eq!(found, [leak(30, 40, "leak"), leak(2, 2, "new")]);
    }

    #[test]
    fn function_with_semicolon_in_its_name_is_one_function() {
        let functions = stack(&["main", "<[u8; 16] as app::Read>::read"]);
        let dumps = [1, 2, 3].map(|bytes| Stacks::from([(functions.clone(), bytes)]));
        let found = growing_stacks(&dumps, Duration::from_secs(1));
        assert_eq!(found[0].stack, functions);
    }

    #[test]
    fn dumps_of_the_same_second_have_no_rate() {
        let dumps = [1, 2, 3].map(|bytes| Stacks::from([(stack(&["main"]), bytes)]));
        let found = growing_stacks(&dumps, Duration::ZERO);
        assert_eq!(found[0].growth_bytes_per_hour, 0);
    }
}
