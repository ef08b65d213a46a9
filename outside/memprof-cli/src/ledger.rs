//! `memprof ledger`: shows the resident memory by part; with `--pinned`, which objects pin nearly empty slabs.

use std::path::PathBuf;

use memprof_report::{Format, Options};

use crate::exit::Outcome;
use crate::message::{self, MessageArgs, TakenDump};
use crate::report::{FormatArg, LiveReport, show};
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
    match args.pinned {
        false => message::run_message("ledger", &args.short),
        true => show_pinned(args),
    }
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
    let mut client = target::connect_to(&short.to)?;
    let mut bytes = match message::take_dump(&mut client, &[&kind, &short.args[..]].concat())? {
        TakenDump::Received(bytes) => bytes,
        TakenDump::Kept(reply) => return message::show(&reply, short.to.json),
    };
    let mut profile = ScratchFile::new()?;
    profile.append(&mut bytes)?;
    let format = match short.to.json {
        true => Format::Json,
        false => format.map_or(Format::Text, Into::into),
    };
    show(&LiveReport {
        file: &profile.path(),
        name: "dump.heap",
        pid: target::pid_of(&mut client)?,
        options: Options {
            format,
            ..Options::default()
        },
        output: output.as_deref(),
    })?;
    Ok(0.into())
}
