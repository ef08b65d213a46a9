//! The `memprof` program: it parses arguments, calls, and chooses an exit code.

mod report;

use std::error::Error as _;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "memprof", version, about = "Live heap profiling")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Report(report::ReportArgs),
}

fn main() -> ExitCode {
    let Command::Report(args) = Cli::parse().command;
    let Err(error) = report::run(&args) else {
        return ExitCode::SUCCESS;
    };
    if is_broken_pipe(&error) {
        return ExitCode::SUCCESS;
    }
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        message.push_str(&format!(": {error}"));
        cause = error.source();
    }
    eprintln!("memprof: {message}");
    ExitCode::from(report::exit_code(&error))
}

/// The reader of the output has seen enough.
fn is_broken_pipe(error: &memprof_report::Error) -> bool {
    matches!(error, memprof_report::Error::Io { source, .. } if source.kind() == std::io::ErrorKind::BrokenPipe)
}
