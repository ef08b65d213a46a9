//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Parser, Subcommand};
use clap_complete::Shell;

use crate::attach::AttachArgs;
use crate::completion;
use crate::detach::DetachArgs;
use crate::gate::TestArgs;
use crate::leaks::LeaksArgs;
use crate::record::RecordArgs;
use crate::report::ReportArgs;
use crate::run::Wanted;
use crate::serve::ServeArgs;
use crate::target::To;

/// Heap profiles of running processes that loaded the memory_profile plugin.
#[derive(Debug, Parser)]
#[command(name = "memprof", version, max_term_width = 100)]
#[command(
    after_help = "Exit codes: 0 ok, 1 failed, 2 usage, 3 host unreachable, \
                        4 profiling not available, 5 no data, 6 mismatch (ABI, build id), \
                        7 over budget."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a program with the plugin preloaded; it keeps its own allocator.
    Run(Run),
    Test(TestArgs),
    Attach(AttachArgs),
    Detach(DetachArgs),
    /// List the hosts that are running.
    Ps {
        /// Also list the processes that could be attached to, by resident memory, and why others cannot
        /// be; none of them is stopped.
        #[arg(short, long)]
        all: bool,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Send any message to any plugin of a host.
    Msg(Send),
    /// `plugin msg`: the spelling of traffic_ctl.
    #[command(hide = true)]
    Plugin {
        #[command(subcommand)]
        command: PluginCommand,
    },
    Activate(Short),
    Deactivate(Short),
    Dump {
        #[command(flatten)]
        short: Short,
        /// Also write the dump to this file (`-`: stdout); the bytes come over the socket.
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
        /// Open a report of it in a browser, or print where the report lies.
        #[arg(long)]
        open: bool,
    },
    Stats(Short),
    Status(Short),
    Doctor(Short),
    Ledger(Short),
    Purge(Short),
    #[command(name = "background_thread")]
    BackgroundThread(Short),
    Reset(Short),
    Gdump(Short),
    Recent(Short),
    List(Short),
    Record(RecordArgs),
    Leaks(LeaksArgs),
    Report(ReportArgs),
    Serve(ServeArgs),
    /// Take heap profiles of this machine's hosts by a policy, for `memprof fleet`.
    #[command(disable_help_flag = true)]
    Agent {
        /// Those of `memprof-fleet agent`, which this runs; --help lists them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// Ask the profiles of many machines: ps, dump, top, growth, diff, flame, views, compact, prune, doctor.
    #[command(disable_help_flag = true)]
    Fleet {
        /// Those of `memprof-fleet fleet`, which this runs; --help lists them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// Check a plugin's file as a host would, in a process of its own.
    Check {
        /// The plugin's file.
        #[arg(value_name = "PLUGIN.so")]
        plugin: PathBuf,
        /// Load it here.
        #[arg(long, hide = true)]
        in_child: bool,
    },
    /// Print what a shell needs to complete memprof's commands.
    Completions {
        /// Which: put the output where it looks, for bash in `/etc/bash_completion.d/memprof`.
        shell: Shell,
    },
    /// Print the manual page, or write the pages of all commands to a directory.
    Man {
        /// Where memprof.1, memprof-dump.1 and the others go.
        #[arg(long, value_name = "DIR")]
        directory: Option<PathBuf>,
    },
    /// Print the environment that switches profiling on in a program.
    MallocConf {
        /// A program's file, or the pid of a running one; without, what suits libjemalloc.so.2.
        #[arg(value_name = "BINARY|PID")]
        program: Option<String>,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct Run {
    /// Sample from the start; else `memprof activate` starts it.
    #[arg(long)]
    pub(crate) active: bool,
    /// Count every allocation, as `memprof test` does.
    #[arg(skip)]
    pub(crate) is_tallied: bool,
    /// Replace the program's allocator: jemalloc, tcmalloc, or the path of a shared library. Some
    /// programs do not survive that.
    #[arg(long, value_name = "NAME|PATH")]
    pub(crate) allocator: Option<Wanted>,
    /// One sample per 2^N allocated bytes.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(10..=24))]
    pub(crate) lg_sample: Option<u8>,
    /// Where the control sockets go; `MEMPROF_SOCKET_DIR` must name it for other commands.
    #[arg(long, value_name = "DIR")]
    pub(crate) socket_dir: Option<PathBuf>,
    /// Where the dumps go, as `MEMPROF_DUMP_DIR` says too [default: `$XDG_STATE_HOME/memprof/NAME`,
    /// for root /var/lib/memprof/NAME, for others ~/.local/state/memprof/NAME; where that cannot be
    /// written to, /tmp/memprof-UID-NAME].
    #[arg(long, value_name = "DIR")]
    pub(crate) dump_dir: Option<PathBuf>,
    /// The plugin's keys, in a file: watch rules, what is kept; as `MEMPROF_CONFIG` says too.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The plugin's file; by default the one that is installed with this program.
    #[arg(long, value_name = "FILE")]
    pub(crate) plugin: Option<PathBuf>,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_names = ["PROGRAM", "ARGS"])]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PluginCommand {
    /// Send a message to a plugin.
    Msg(Send),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Send {
    #[command(flatten)]
    pub(crate) to: To,
    /// The plugin's name.
    #[arg(add = completion::plugins())]
    pub(crate) plugin: String,
    /// The message's name.
    #[arg(add = completion::messages())]
    pub(crate) message: String,
    /// The message's arguments.
    #[arg(value_name = "KEY=VALUE")]
    pub(crate) args: Vec<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Short {
    #[command(flatten)]
    pub(crate) to: To,
    /// The message's arguments, below where it has any.
    #[arg(value_name = "KEY=VALUE")]
    pub(crate) args: Vec<String>,
}
