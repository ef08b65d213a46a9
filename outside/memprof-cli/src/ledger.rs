//! `memprof ledger`: shows the resident memory by part; with `--pinned`, which objects pin nearly empty slabs.
//! `memprof purge`: gives free pages back, and compares with what a walk of the heaps promised.

mod outside;
mod page;
mod parts;
mod walk;

use memprof_host::client::Client;
use memprof_leaks::{AnalysisOptions, find_mapped_parts, measure_heap_residency};
use memprof_messages::{
    Ledger, LedgerFinding, LedgerPart, PurgeEstimate, PurgeResult, ledger_text, purged_text,
    size_text,
};
use memprof_report::OutlinePage;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use self::page::build_ledger_page;
use crate::exit::{Outcome, USAGE, with_exit_code};
use crate::message::{self, MessageArgs, TakenDump};
use crate::process_names::describe_process;
use crate::reply::{Body, ParsedReply, send_request};
use crate::report_form::{FormArgs, FormatArg, LiveDump, show_live_report};
use crate::report_view::ViewArgs;
use crate::result_output::{JSON_HELP, ResultFormat, ResultOutput};
use crate::scratch::ScratchFile;
use crate::slow_step::SlowStep;
use crate::subject::{Subject, find_subject};
use crate::target::{self, ANY_PROCESS_HELP};

/// Show where the resident memory is, and what would help
///
/// The heaps are walked, for which the process is stopped for a moment. A process without the plugin is measured from
/// outside. Without --pinned, --format is text, json or html, and --lines and --top are refused.
#[derive(clap::Args, Debug)]
#[command(mut_arg("args", |args| args.help(ANY_PROCESS_HELP)))]
#[command(mut_arg("json", |json| json.help(JSON_HELP)))]
pub(crate) struct LedgerArgs {
    #[command(flatten)]
    short: MessageArgs,

    /// Show whose objects keep nearly empty pages in use, so that these cannot go back to the kernel; of a host with
    /// jemalloc, after `memprof activate sampler=memprof`
    #[arg(long)]
    pinned: bool,

    #[command(flatten)]
    form: FormArgs,
}

/// Runs `memprof ledger`: shows the resident memory of a host by part, made exact by a walk of its heaps. With
/// `--pinned`, shows the objects that keep nearly empty slabs in use. A process without the plugin is measured from
/// outside.
pub(crate) fn run(args: &LedgerArgs) -> Outcome {
    if args.pinned {
        return show_pinned_slabs(args);
    }
    let short = &args.short;
    let output = ledger_output(&args.form, short.to.json)?;
    let mut client = match find_subject(Some(&short.to), short.target())? {
        Subject::Host(client) => client,
        Subject::Process(pid) => return outside::run(pid, &output),
    };
    let arguments = message::join_args(short.key_values());
    let mut reply = send_request(&mut client, "ledger", &arguments)?;
    let mut page = OutlinePage::default();
    edit_reply(&mut reply, |ledger: &mut Ledger| {
        refine_host_ledger(&mut client, ledger);
        if output.is_page() {
            let process =
                target::host_pid(&mut client).map_or_else(|_| String::new(), describe_process);
            page = build_ledger_page(&process, ledger);
        }
        ledger_text(ledger)
    });
    match &reply.body {
        Body::Object(object) if reply.status == 0 => {
            output.write(object, reply.text().trim_end(), || page)?;
            Ok(0.into())
        }
        _ => message::print_reply(&reply, short.to.json),
    }
}

/// Returns the format and destination of a ledger. `json` is the option `--json`.
///
/// # Errors
/// The form is that of a profile's report, or both `--json` and `--format` are given.
fn ledger_output(form: &FormArgs, json: bool) -> anyhow::Result<ResultOutput<'_>> {
    let usage = |text: &str| with_exit_code(USAGE, text);
    let format = match form.format {
        Some(_) if json => return Err(usage("--json and --format: give one")),
        None => None,
        Some(FormatArg::Text) => Some(ResultFormat::Text),
        Some(FormatArg::Json) => Some(ResultFormat::Json),
        Some(FormatArg::Html) => Some(ResultFormat::Html),
        Some(_) => {
            return Err(usage(
                "a ledger has the formats text, json and html; others are for profiles, as with --pinned",
            ));
        }
    };
    if form.lines || form.top.is_some() {
        return Err(usage(
            "--lines and --top are for profiles, as with --pinned",
        ));
    }
    ResultOutput::new(format, json, form.output.as_deref(), form.open)
}

/// Runs `memprof purge`, by which the host's allocators release free pages. Without arguments, walks the heaps first,
/// which stops the process for a moment: the reply compares the result with the walk's estimate.
pub(crate) fn run_purge(args: &MessageArgs) -> Outcome {
    let mut client = args.connect()?;
    let arguments = args.key_values();
    // An allocator= leaves out the others, but the walk does not distinguish them.
    let walked = match arguments.is_empty() {
        true => target::host_pid(&mut client).ok().and_then(|pid| {
            let walked = measure_heap_residency(pid, AnalysisOptions::default()).ok()?;
            Some((walked, walk::ResidentMemory::read(pid)?))
        }),
        false => None,
    };
    let mut reply = send_request(&mut client, "purge", &message::join_args(arguments))?;
    edit_reply(&mut reply, |purged: &mut PurgeResult| {
        let Some((walked, resident)) = walked else {
            return purged_text(purged, PurgeEstimate::Counts);
        };
        // The allocator may give pages back by itself after the walk.
        let meanwhile = resident
            .anonymous
            .saturating_sub(purged.anonymous_before_bytes);
        purged.estimated_bytes = Some(walked.purgeable.saturating_sub(meanwhile));
        purged_text(purged, PurgeEstimate::Walk)
    });
    message::print_reply(&reply, args.to.json)
}

/// Parses a successful reply as a `T`, which `edit` changes, and stores the changed fields and the text that `edit`
/// returns. Leaves an error unchanged, and a reply of another form, which a newer plugin may send.
fn edit_reply<T: Serialize + DeserializeOwned>(
    reply: &mut ParsedReply,
    edit: impl FnOnce(&mut T) -> String,
) {
    let (0, Body::Object(object)) = (reply.status, &mut reply.body) else {
        return;
    };
    let Ok(mut typed) = serde_json::from_value::<T>(object.clone()) else {
        return;
    };
    let text = edit(&mut typed);
    if let (Some(object), Ok(Value::Object(fields))) =
        (object.as_object_mut(), serde_json::to_value(typed))
    {
        // Fields that this version does not know are kept.
        object.extend(fields);
        object.insert("text".to_owned(), text.into());
    }
}

/// Makes the rows of a host's ledger exact by a walk of its heaps. If that fails, a finding says that the rows are
/// uncertain, and why.
fn refine_host_ledger(client: &mut Client, ledger: &mut Ledger) {
    let walked = target::host_pid(client)
        .map_err(|error| format!("{error:#}"))
        .and_then(|pid| refine_process_ledger(pid, ledger));
    if let Err(reason) = walked {
        walk::note_walk_failure(ledger, &reason);
    }
}

/// Makes the rows of a process's ledger exact by a walk of its heaps, which stops the process for a moment. Also adds
/// the parts of its memory outside of the heaps.
///
/// # Errors
/// The reason why the heaps were not walked; the ledger is as it was.
fn refine_process_ledger(pid: u32, ledger: &mut Ledger) -> Result<(), String> {
    let _step = SlowStep::begin(format!("{pid}: walking the heap"));
    let walked = measure_heap_residency(pid, AnalysisOptions::default());
    let walked = walked.map_err(|error| format!("the process {error}"))?;
    let now = walk::ResidentMemory::read(pid).ok_or("the process has ended")?;
    let resident = now.without_growth_beyond(walked.anonymous);
    walk::apply_walk(ledger, &walked, resident, walk::lazily_free_bytes(pid));
    let grown = now.anonymous - resident.anonymous;
    ledger
        .verdicts
        .extend(walk::later_growth_finding(grown, now.total()));
    // If the parts cannot be found, the ledger keeps the one row that sums them.
    if let Ok(found) = find_mapped_parts(pid, Some(&walked)) {
        parts::apply_parts(ledger, &found, pid);
    }
    Ok(())
}

/// Requests the ledger of a host. Returns its resident bytes outside of its allocators: mappings of the program's own,
/// and shared memory. `None` if the host does not report them, or if an allocator keeps no count, because the bytes may
/// then be its heap.
pub(crate) fn request_bytes_outside_malloc(client: &mut Client) -> Option<u64> {
    let reply = send_request(client, "ledger", "").ok()?;
    let ledger: Ledger = reply.into_typed().ok()?;
    if ledger.allocators.iter().any(|each| each.totals.is_none()) {
        return None;
    }
    let outside = [LedgerPart::NotTheAllocator, LedgerPart::Shared];
    let rows = ledger.rows.iter();
    let rows = rows.filter(|row| outside.iter().any(|part| row.name == *part));
    Some(rows.map(|row| row.bytes).sum())
}

/// Returns the warning that the memory of a recorded program grew outside of malloc, where no heap profile shows it.
/// `before` and `after` are its resident bytes outside of malloc. `None` if the growth is not notable.
pub(crate) fn growth_outside_malloc_warning(pid: u32, before: u64, after: u64) -> Option<String> {
    let grown = after.saturating_sub(before);
    (grown >= LedgerFinding::MIN_BYTES).then(|| {
        format!(
            "RSS grew by {} outside of malloc, which is in no heap profile: `memprof ledger {pid}` shows the parts of \
             its memory",
            size_text(grown)
        )
    })
}

/// Requests a profile of the objects that keep nearly empty slabs in use, and shows it as a report. The host keeps no
/// copy of the profile.
fn show_pinned_slabs(args: &LedgerArgs) -> Outcome {
    let short = &args.short;
    let kind = ["kind=pinned", "keep=off"].map(str::to_owned);
    let mut client = short.connect()?;
    let mut bytes = match message::take_dump(&mut client, &[&kind, short.key_values()].concat())? {
        TakenDump::Received(bytes) => bytes,
        TakenDump::Kept(reply) => return message::print_reply(&reply, short.to.json),
    };
    let mut profile = ScratchFile::new()?;
    profile.append(&mut bytes)?;
    let pid = target::host_pid(&mut client)?;
    let form = match (short.to.json, args.form.format) {
        (true, Some(_)) => return Err(with_exit_code(USAGE, "--json and --format: give one")),
        (true, None) => FormArgs {
            format: Some(FormatArg::Json),
            ..args.form.clone()
        },
        (false, _) => args.form.clone(),
    };
    let dump = LiveDump {
        files: &[profile.path()],
        name: &describe_process(pid),
        pids: &[pid],
        notes: &[],
    };
    show_live_report(dump, &form, &ViewArgs::default(), None)?;
    Ok(0.into())
}
