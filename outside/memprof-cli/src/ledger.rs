//! `memprof ledger`: shows the resident memory by part; with `--pinned`, which objects pin nearly empty slabs.
//! `memprof purge`: gives free pages back, and compares with what a walk of the heaps promised.

mod walk;

use std::path::PathBuf;

use memprof_host::client::Client;
use memprof_leaks::{AnalysisOptions, heap_residency};
use memprof_messages::{
    Ledger, LedgerFinding, LedgerPart, PurgeEstimate, PurgeResult, ledger_text, purged_text,
    size_text,
};
use memprof_report::{Format, Options};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::exit::Outcome;
use crate::message::{self, MessageArgs, TakenDump};
use crate::reply::{Body, ParsedReply, send_request};
use crate::report::{FormatArg, LiveReport, show_live_report};
use crate::scratch::ScratchFile;
use crate::target;

#[derive(clap::Args, Debug)]
pub(crate) struct LedgerArgs {
    #[command(flatten)]
    short: MessageArgs,

    /// Show whose objects keep nearly empty slabs in use, so that their free memory cannot go back to the kernel. For
    /// jemalloc, after `activate sampler=memprof`
    #[arg(long)]
    pinned: bool,

    /// The format of the output [default: text]
    #[arg(long, value_enum, requires = "pinned", conflicts_with = "json")]
    format: Option<FormatArg>,

    /// Write it to this file, whole or not at all [default: standard output]
    #[arg(short, long, value_name = "FILE", requires = "pinned")]
    output: Option<PathBuf>,
}

/// Runs `memprof ledger`.
pub(crate) fn run(args: &LedgerArgs) -> Outcome {
    if args.pinned {
        return show_pinned(args);
    }
    let short = &args.short;
    let mut client = short.connect()?;
    let arguments = message::join_args(short.key_values());
    let mut reply = send_request(&mut client, "ledger", &arguments)?;
    edit_reply(&mut reply, |ledger: &mut Ledger| {
        walk_heaps(&mut client, ledger);
        ledger_text(ledger)
    });
    message::print_reply(&reply, short.to.json)
}

/// Runs `memprof purge`. The heaps are walked first, so that the result can be compared with the estimate.
pub(crate) fn purge(args: &MessageArgs) -> Outcome {
    let mut client = args.connect()?;
    let arguments = args.key_values();
    // An allocator= leaves out the others, but the walk does not distinguish them.
    let walked = match arguments.is_empty() {
        true => target::host_pid(&mut client).ok().and_then(|pid| {
            let walked = heap_residency(pid, AnalysisOptions::default()).ok()?;
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

/// Replaces a successful reply of a type by its edited form. `edit` returns the new text. Leaves an error as it is,
/// and a reply of another form, which a newer plugin may send.
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
        object.extend(fields);
        object.insert("text".to_owned(), text.into());
    }
}

/// Makes the rows of a ledger exact by a walk of the heaps. Where that fails, the finding that the rows are uncertain
/// says why.
fn walk_heaps(client: &mut Client, ledger: &mut Ledger) {
    let walked = target::host_pid(client)
        .map_err(|error| format!("{error:#}"))
        .and_then(|pid| {
            let walked = heap_residency(pid, AnalysisOptions::default());
            let walked = walked.map_err(|error| format!("the process {error}"))?;
            let resident = walk::ResidentMemory::read(pid).ok_or("the process has ended")?;
            Ok((walked, resident, walk::lazily_free_bytes(pid)))
        });
    match walked {
        Ok((walked, resident, lazily_free)) => {
            walk::apply_walk(ledger, &walked, resident, lazily_free)
        }
        Err(reason) => walk::note_failure(ledger, &reason),
    }
}

/// Resident bytes of a host outside of its allocators: mappings of the program's own, and shared memory. `None` if it
/// does not report them.
pub(crate) fn bytes_outside_malloc(client: &mut Client) -> Option<u64> {
    let reply = send_request(client, "ledger", "").ok()?;
    let ledger: Ledger = reply.into_typed().ok()?;
    let outside = [LedgerPart::NotTheAllocator, LedgerPart::Shared];
    let rows = ledger.rows.iter();
    let rows = rows.filter(|row| outside.iter().any(|part| row.name == *part));
    Some(rows.map(|row| row.bytes).sum())
}

/// Warning that a recorded program grew where no heap profile looks. `None` if it did not grow notably.
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

/// Takes a profile of pinned slabs, which the host does not keep, and shows it as a report.
fn show_pinned(args: &LedgerArgs) -> Outcome {
    let LedgerArgs {
        short,
        format,
        output,
        ..
    } = args;
    let kind = ["kind=pinned", "keep=off"].map(str::to_owned);
    let mut client = short.connect()?;
    let mut bytes = match message::take_dump(&mut client, &[&kind, short.key_values()].concat())? {
        TakenDump::Received(bytes) => bytes,
        TakenDump::Kept(reply) => return message::print_reply(&reply, short.to.json),
    };
    let mut profile = ScratchFile::new()?;
    profile.append(&mut bytes)?;
    let format = match short.to.json {
        true => Format::Json,
        false => format.map_or(Format::Text, Into::into),
    };
    show_live_report(&LiveReport {
        file: &profile.path(),
        name: "dump.heap",
        pid: target::host_pid(&mut client)?,
        options: Options {
            format,
            ..Options::default()
        },
        output: output.as_deref(),
    })?;
    Ok(0.into())
}
