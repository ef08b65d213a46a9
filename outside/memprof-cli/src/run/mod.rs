//! `memprof run`: starts a program with the plugin preloaded, and with another allocator if one is requested.
//!
//! Its children inherit the environment, so they are profiled too, each under its own pid.

mod allocator;
mod config;
mod environment;
mod program;

use std::env::VarError;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use crate::exit::{FAILED, Outcome, UNAVAILABLE, USAGE, with_exit_code};
use crate::{output, signals};
pub(crate) use allocator::AllocatorChoice;
use allocator::{BuiltinProfiler, PreloadLibrary};
use config::StartConfig;
pub(crate) use config::{parse_fine_interval, parse_interval};
use environment::malloc_conf_value;
pub(crate) use environment::preload_value;
use program::JemallocLocation;
pub(crate) use program::Program;

/// Environment variables that the preloaded plugin reads (memprof-host, `adapters::preload`).
const MARKER_VARIABLE: (&str, &str) = ("MEMPROF_RUN", "1");
const ACTIVE_VARIABLE: &str = "MEMPROF_ACTIVE";
const TALLY_VARIABLE: (&str, &str) = ("MEMPROF_TALLY", "1");
const LG_SAMPLE_VARIABLE: &str = "MEMPROF_LG_SAMPLE";
const DUMP_DIR_VARIABLE: &str = "MEMPROF_DUMP_DIR";
const CONFIG_VARIABLE: &str = "MEMPROF_CONFIG";

/// Variable of jemalloc without a prefix.
const MALLOC_CONF: &str = "MALLOC_CONF";
/// Variable with gperftools' mean bytes between samples; if unset, tcmalloc does not sample.
const TCMALLOC_SAMPLE_VARIABLE: &str = "TCMALLOC_SAMPLE_PARAMETER";
/// jemalloc's default `lg_prof_sample`: a sample interval of 512 KiB.
const DEFAULT_LG_SAMPLE: u8 = 19;

/// Paths of the plugin relative to this program's directory: as packages install it, and as `cargo xtask build`
/// places it.
const PLUGIN_PATHS: [&str; 2] = [
    "../lib/memprof/memory_profile.so",
    "../plugins/memory_profile.so",
];

#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// Sample from the start, as with `activate_at_start = true` in the configuration; else from `memprof activate` on.
    #[arg(long)]
    pub(crate) active: bool,
    /// Count every allocation, as `memprof test` does.
    #[arg(skip)]
    pub(crate) is_tallied: bool,
    /// Replace the program's allocator, by jemalloc, tcmalloc or the shared library at this path; some programs crash with
    /// another allocator [default: the program keeps its own].
    #[arg(long, value_name = "NAME|PATH")]
    pub(crate) allocator: Option<AllocatorChoice>,
    /// One sample per this many allocated bytes, a power of two from 1KiB to 16MiB [default: the configuration's, else
    /// 512KiB].
    #[arg(long, visible_alias = "interval", value_name = "SIZE", conflicts_with = "lg_sample", value_parser = config::parse_interval)]
    pub(crate) sample_interval: Option<u8>,
    /// One sample per 2^N allocated bytes, in place of --sample-interval; N is 10 to 24.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(10..=24))]
    pub(crate) lg_sample: Option<u8>,
    /// The directory of the control socket; same as `MEMPROF_SOCKET_DIR` [default: `$XDG_RUNTIME_DIR/memprof`, else for
    /// root /run/memprof, for others /tmp/memprof-UID].
    #[arg(long, value_name = "DIR")]
    pub(crate) socket_dir: Option<PathBuf>,
    /// The directory of the dumps; same as `MEMPROF_DUMP_DIR` [default: the configuration's, else
    /// `$XDG_STATE_HOME/memprof/NAME`, else for root /var/lib/memprof/NAME, for others ~/.local/state/memprof/NAME; if
    /// that cannot be written to, /tmp/memprof-UID-NAME].
    #[arg(long, value_name = "DIR")]
    pub(crate) dump_dir: Option<PathBuf>,
    /// The plugin's configuration file (watch rules, which dumps are kept); same as `MEMPROF_CONFIG` [default: none].
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The plugin's file [default: the one that is installed with this program].
    #[arg(long, value_name = "FILE")]
    pub(crate) plugin: Option<PathBuf>,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_names = ["PROGRAM", "ARGS"])]
    pub(crate) command: Vec<OsString>,
}

/// Runs `memprof run`: replaces this process by the program, with the plugin preloaded. Returns only if that fails.
pub(crate) fn run(run: &RunArgs) -> Outcome {
    let mut command = preload_command(run)?;
    let error = command.exec();
    let program = command.get_program().display();
    Err(with_exit_code(
        FAILED,
        format!("failed to start {program}: {error}"),
    ))
}

/// Builds the command that runs the program with the plugin preloaded. Prints notes on the program's own jemalloc, and
/// on options of the user that are kept.
///
/// # Errors
/// The program is not found, or cannot be profiled this way.
pub(crate) fn preload_command(run: &RunArgs) -> anyhow::Result<Command> {
    let (name, args) = run.command.split_first().context("no program is given")?;
    let program = Program::find(name)?;
    let plugin = find_plugin(run.plugin.as_deref())?;
    let library = choose_preload_library(run, &program)?;
    print_jemalloc_notes(&program, library.as_ref());

    let config = config_path(run.config.as_deref())?;
    let start = config.as_deref().map(StartConfig::read).unwrap_or_default();
    let is_active = run.active || start.is_active;
    let mut lg_sample = run.lg_sample.or(run.sample_interval).or(start.lg_sample);

    let mut command = Command::new(&program.path);
    command
        .arg0(name)
        .args(args)
        .env(MARKER_VARIABLE.0, MARKER_VARIABLE.1);
    let allocator = library.iter().map(|library| library.path.as_path());
    let before = std::env::var_os("LD_PRELOAD");
    let libraries = allocator.chain([plugin.as_path()]);
    command.env("LD_PRELOAD", preload_value(before.as_deref(), libraries)?);
    let profiler = library.and_then(|library| library.profiler);
    let preloaded = (profiler == Some(BuiltinProfiler::Jemalloc)).then_some(MALLOC_CONF);
    // Only memprof's sampler counts all allocations, so jemalloc's own stays off.
    let own = program.conf_variable().filter(|_| !run.is_tallied);
    let own = own.filter(|own| preloaded != Some(own));
    for variable in preloaded.into_iter().chain(own) {
        let before = match std::env::var(variable) {
            Err(VarError::NotUnicode(_)) => {
                return Err(with_exit_code(USAGE, format!("{variable} is not UTF-8")));
            }
            before => before.ok(),
        };
        let (value, conflicting) = malloc_conf_value(before.as_deref(), is_active, lg_sample);
        for option in conflicting {
            output::note(&format!("{variable} already sets {option}, which is kept"));
            // The plugin must not use another interval than jemalloc.
            lg_sample = lg_sample.filter(|_| !option.starts_with("lg_prof_sample"));
        }
        command.env(variable, value);
    }
    if run.is_tallied {
        require_no_linked_allocator(&program)?;
        command.env(TALLY_VARIABLE.0, TALLY_VARIABLE.1);
    }
    if is_active {
        command.env(ACTIVE_VARIABLE, "on");
        if profiler == Some(BuiltinProfiler::Tcmalloc)
            && std::env::var_os(TCMALLOC_SAMPLE_VARIABLE).is_none()
        {
            let interval = 1_u64 << lg_sample.unwrap_or(DEFAULT_LG_SAMPLE);
            command.env(TCMALLOC_SAMPLE_VARIABLE, interval.to_string());
        }
    }
    if let Some(lg_sample) = lg_sample {
        command.env(LG_SAMPLE_VARIABLE, lg_sample.to_string());
    }
    if let Some(directory) = &run.socket_dir {
        command.env(
            memprof_host::socket_dir::VARIABLE,
            absolute_path(directory)?,
        );
    }
    if let Some(directory) = &run.dump_dir {
        command.env(DUMP_DIR_VARIABLE, absolute_path(directory)?);
    }
    if let Some(config) = config {
        command.env(CONFIG_VARIABLE, config);
    }
    signals::inherit_caller_signals(&mut command);
    Ok(command)
}

/// Finds the plugin's file: the given one, or if that is `None` the one that is installed with this program. Returns
/// its path with links resolved; fails if there is none.
pub(crate) fn find_plugin(given: Option<&Path>) -> anyhow::Result<PathBuf> {
    let path = match given {
        Some(path) => absolute_path(path)?,
        None => {
            let own = std::env::current_exe().context("failed to find this program")?;
            let directory = own.parent().unwrap_or(Path::new("/"));
            let mut paths = PLUGIN_PATHS.map(|path| directory.join(path)).into_iter();
            let found = paths.find(|path| path.exists());
            // If there is none, the error names the path where packages install it.
            found.unwrap_or_else(|| directory.join(PLUGIN_PATHS[0]))
        }
    };
    path.canonicalize().with_context(|| {
        format!(
            "no plugin is at {}; name it with --plugin FILE",
            path.display()
        )
    })
}

/// Returns the path of the plugin's config file: the given one, or that of the environment. `None` without either.
///
/// # Errors
/// There is no file at the given path.
fn config_path(given: Option<&Path>) -> anyhow::Result<Option<PathBuf>> {
    match given {
        Some(config) => {
            let path = config.canonicalize();
            let path = path.with_context(|| format!("no config file at {}", config.display()))?;
            Ok(Some(path))
        }
        None => Ok(std::env::var_os(CONFIG_VARIABLE)
            .filter(|path| !path.is_empty())
            .map(PathBuf::from)),
    }
}

/// Makes a path absolute without resolving links.
fn absolute_path(path: &Path) -> anyhow::Result<PathBuf> {
    std::path::absolute(path).with_context(|| path.display().to_string())
}

/// Chooses the allocator to preload. `None` if none is requested, or if it is jemalloc and the program uses one
/// already: as its own malloc, or as a library that can profile.
fn choose_preload_library(
    run: &RunArgs,
    program: &Program,
) -> anyhow::Result<Option<PreloadLibrary>> {
    let own_jemalloc = program.own_jemalloc();
    let has_jemalloc = match own_jemalloc.location {
        JemallocLocation::Linked => own_jemalloc.can_profile,
        JemallocLocation::Malloc => true,
        JemallocLocation::Nowhere | JemallocLocation::Beside(_) | JemallocLocation::Unknown => {
            false
        }
    };
    match &run.allocator {
        None => Ok(None),
        Some(AllocatorChoice::Jemalloc) if has_jemalloc => Ok(None),
        Some(choice) => choice.find_library().map(Some),
    }
}

/// Fails if an allocator is linked into the program: no GOT slot holds its functions, so its calls cannot be counted.
fn require_no_linked_allocator(program: &Program) -> anyhow::Result<()> {
    if !program.has_linked_allocator()? {
        return Ok(());
    }
    let message = format!(
        "{} brings an allocator of its own, whose calls cannot be counted; test a build that \
         uses the system's",
        program.path.display()
    );
    Err(with_exit_code(UNAVAILABLE, message))
}

/// Prints notes on the program's own jemalloc, if it has one: whether it is profiled, and whether the allocator to
/// preload, `library`, serves only the program's libraries. `library` is `None` if the program keeps its own.
fn print_jemalloc_notes(program: &Program, library: Option<&PreloadLibrary>) {
    let name = program.path.display();
    let own_jemalloc = program.own_jemalloc();
    match &own_jemalloc.location {
        JemallocLocation::Beside(variable) if own_jemalloc.can_profile => output::note(&format!(
            "{name} brings a jemalloc of its own, which reads {variable}; it is profiled"
        )),
        JemallocLocation::Malloc if own_jemalloc.can_profile => output::note(&format!(
            "{name} brings its own jemalloc as malloc; it is profiled"
        )),
        JemallocLocation::Beside(_) | JemallocLocation::Malloc => output::note(&format!(
            "{name} brings a jemalloc of its own, which was built without profiling"
        )),
        JemallocLocation::Unknown => output::note(&format!(
            "{name} brings a jemalloc of its own, but its symbols are stripped: what it allocates \
             there cannot be profiled (keep them: strip --strip-debug, in Cargo strip = \
             \"debuginfo\")"
        )),
        JemallocLocation::Linked | JemallocLocation::Nowhere => {}
    }
    if let (JemallocLocation::Malloc, Some(library)) = (&own_jemalloc.location, library) {
        output::note(&format!(
            "{name} has a malloc of its own, so {} serves only its libraries",
            library.path.display()
        ));
    }
}
