//! `memprof run`: a program as it is, with jemalloc and the plugin preloaded.
//!
//! Its children inherit the environment, so they are profiled too, each under its own pid.

mod environment;
mod jemalloc;
mod program;

use std::env::VarError;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use crate::args::Run;
use crate::exit::{FAILED, Outcome, USAGE, coded};
use crate::output;
use environment::{malloc_conf, preload};
use program::{Program, Provided};

/// What the preloaded plugin acts on (memprof-host, `adapters::preload`).
const MARKER: (&str, &str) = ("MEMPROF_RUN", "1");
const DUMP_DIR: &str = "MEMPROF_DUMP_DIR";
const CONFIG: &str = "MEMPROF_CONFIG";

/// Replaces this process by the program.
pub(crate) fn run(run: &Run) -> Outcome {
    let (name, args) = run.command.split_first().context("no program is given")?;
    let program = Program::find(name)?;
    let plugin = plugin(run.plugin.as_deref())?;
    let jemalloc = match program.provided() {
        Provided::Linked | Provided::OwnMalloc => None,
        Provided::Nothing | Provided::Own(_) | Provided::Unknown => Some(jemalloc::find()?),
    };
    note(&program);

    let mut command = Command::new(&program.path);
    command.arg0(name).args(args).env(MARKER.0, MARKER.1);
    let libraries = jemalloc.as_deref().into_iter().chain([plugin.as_path()]);
    let before = std::env::var_os("LD_PRELOAD");
    command.env("LD_PRELOAD", preload(before.as_deref(), libraries)?);
    for variable in program.conf_variables() {
        let before = match std::env::var(variable) {
            Err(VarError::NotUnicode(_)) => {
                return Err(coded(USAGE, format!("{variable} is not UTF-8")));
            }
            before => before.ok(),
        };
        let (value, kept) = malloc_conf(before.as_deref(), run.active, run.lg_sample);
        for option in kept {
            output::note(&format!("{variable} already sets {option}, which stays"));
        }
        command.env(variable, value);
    }
    if let Some(directory) = &run.socket_dir {
        command.env(memprof_host::socket_dir::VARIABLE, absolute(directory)?);
    }
    if let Some(directory) = &run.dump_dir {
        command.env(DUMP_DIR, absolute(directory)?);
    }
    if let Some(config) = &run.config {
        let found = config.canonicalize();
        let config = found.with_context(|| format!("no config is at {}", config.display()))?;
        command.env(CONFIG, config);
    }
    let error = command.exec();
    Err(coded(
        FAILED,
        format!("failed to start {}: {error}", program.path.display()),
    ))
}

/// The plugin that is wanted, or the one that lies beside this program.
fn plugin(wanted: Option<&Path>) -> anyhow::Result<PathBuf> {
    let path = match wanted {
        Some(path) => absolute(path)?,
        None => {
            let own = std::env::current_exe().context("failed to find this program")?;
            let directory = own.parent().unwrap_or(Path::new("/"));
            directory.join("../plugins/memory_profile.so")
        }
    };
    path.canonicalize().with_context(|| {
        format!(
            "no plugin is at {}; name it with --plugin FILE",
            path.display()
        )
    })
}

fn absolute(path: &Path) -> anyhow::Result<PathBuf> {
    std::path::absolute(path).with_context(|| path.display().to_string())
}

fn note(program: &Program) {
    let name = program.path.display();
    match program.provided() {
        Provided::Own(variable) => output::note(&format!(
            "{name} brings a jemalloc of its own, which reads {variable}; it is profiled beside \
             the preloaded one"
        )),
        Provided::OwnMalloc => output::note(&format!(
            "{name} brings its own jemalloc as malloc; it is profiled, none is preloaded"
        )),
        Provided::Unknown => output::note(&format!(
            "{name} brings a jemalloc of its own, but its symbols are stripped: what it allocates \
             there cannot be profiled (keep them: strip --strip-debug, in Cargo strip = \
             \"debuginfo\")"
        )),
        Provided::Linked | Provided::Nothing => {}
    }
}
