//! `memprof`: controls processes that have loaded the plugin `memory_profile`, and reports on their memory.
//!
//! Data goes to stdout, notes to stderr. Exit codes: see [`exit`].
// Texts from hosts are printed only through memprof-output, which escapes terminal control characters.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod analysis_summary;
mod args;
mod attach;
mod browser;
mod busy_retry;
mod check;
mod command_group;
mod completion;
mod completion_script;
mod container;
mod defined_symbols;
mod detach;
mod doctor;
mod exec_fleet;
mod exit;
mod export;
mod gate;
mod help;
mod holders;
mod interrupts;
mod leaks;
mod ledger;
mod live_profile;
mod malloc_conf;
mod manual;
mod message;
mod new_plugin;
mod own_heap;
mod patched_functions;
mod plugins;
mod process_arg;
mod process_names;
mod process_plugins;
mod process_tree;
mod program_kind;
mod prove;
mod ps;
mod quantities;
mod reaper;
mod record;
mod refusal_error;
mod reply;
mod report;
mod report_form;
mod report_view;
mod result_output;
mod run;
mod scratch;
mod script;
mod serve;
mod share_progress;
mod signals;
mod slow_step;
mod stack_lines;
mod subject;
mod target;
mod temporary_attachment;

use std::process::ExitCode;

use clap::FromArgMatches;
use clap_complete::CompleteEnv;
use memprof_output as output;

use args::{Args, Command, PluginCommand};
use exit::{Outcome, USAGE, with_exit_code};

fn main() -> ExitCode {
    // If a shell's script requests completions, this prints them and exits.
    CompleteEnv::with_factory(help::build_command)
        .var(completion_script::COMPLETE_VARIABLE)
        .complete();
    let matches =
        help::build_command().try_get_matches_from(help::normalize_words(std::env::args_os()));
    let matches =
        matches.map_err(|error| help::add_argument_hint(error, std::env::args_os().nth(1)));
    match matches.and_then(|matches| Args::from_arg_matches(&matches)) {
        Ok(args) => output::finish_command(run(args.command), exit::code_of_error),
        Err(error) => match process_arg::process_name_error(&error) {
            Some(error) => {
                let error = with_exit_code(USAGE, error.to_string());
                output::finish_command(Err(error), exit::code_of_error)
            }
            None => output::print_parser_output(&error),
        },
    }
}

/// Runs a command; the outcome is the exit code of this program.
fn run(command: Command) -> Outcome {
    match command {
        Command::Run(command) => run::run(&command),
        Command::Test(args) => gate::run(&args),
        Command::Attach(args) => attach::run(&args),
        Command::Detach(args) => detach::run(&args),
        Command::Ps {
            all,
            growth_time,
            json,
        } => ps::run(all, growth_time, json),
        Command::Msg(send)
        | Command::Plugin {
            command: PluginCommand::Msg(send),
        } => message::run_msg(&send),
        Command::Activate(short) => message::run_message("activate", &short),
        Command::Deactivate(short) => message::run_message("deactivate", &short),
        Command::Stats(short) => message::run_message("stats", &short),
        Command::Status(short) => message::run_message("status", &short),
        Command::Doctor(short) => doctor::run(&short),
        Command::Ledger(args) => ledger::run(&args),
        Command::Purge(short) => ledger::run_purge(&short),
        Command::BackgroundThread(short) => message::run_message("background_thread", &short),
        Command::Reset(short) => message::run_message("reset", &short),
        Command::Gdump(short) => message::run_message("gdump", &short),
        Command::Recent(short) => message::run_message("recent", &short),
        Command::List(short) => message::run_message("list", &short),
        Command::Dump {
            short,
            output,
            open,
        } => message::run_dump(&short, output.as_deref(), open),
        Command::Serve(args) => serve::run(&args),
        Command::Agent { args } => exec_fleet::run("agent", &args),
        Command::Fleet { args } => exec_fleet::run("fleet", &args),
        Command::Record(args) => record::run(&args),
        Command::Leaks(args) => leaks::run(&args),
        Command::Holders(args) => holders::run(&args),
        Command::Reap { pid, parent } => reaper::run(pid, parent),
        Command::Report(args) => {
            report::run(&args)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Check(args)
        | Command::Plugin {
            command: PluginCommand::Check(args),
        } => check::run(&args),
        Command::Plugin {
            command: PluginCommand::New(args),
        } => new_plugin::run(&args),
        Command::Plugins { host, target, json } => plugins::run(host.or(target).as_deref(), json),
        Command::Completions { shell } => completion_script::print_completion_script(shell),
        Command::Man { directory } => manual::print_or_write_pages(directory.as_deref()),
        Command::MallocConf { program } => malloc_conf::run(program.as_deref()),
    }
}
