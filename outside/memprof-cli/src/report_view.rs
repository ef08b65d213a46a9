//! Part of a profile that a report shows, in every command that shows one.

use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use memprof_report::{Error, Filter, Label, Options, compile_pattern};

// No doc comment: clap would add it to the help of each command with these options.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct ViewArgs {
    /// Compare with this earlier profile; every value is the change since then
    #[arg(long, value_name = "FILE")]
    pub(crate) base: Option<PathBuf>,

    /// Scale the base to the same total, to see what changed in proportion
    #[arg(long, requires = "base")]
    normalize: bool,

    /// Only stacks with a function that matches this regular expression; for peek, the functions to show
    #[arg(long, value_name = "RE")]
    focus: Option<String>,

    /// Only stacks without a function that matches this regular expression
    #[arg(long, value_name = "RE")]
    ignore: Option<String>,

    /// Sort by cumulative values: a function with all it calls
    #[arg(long)]
    cum: bool,

    /// Show how old each function's memory is; a dump has that after `memprof activate ages=1m`
    #[arg(long)]
    pub(crate) ages: bool,

    /// Only memory that was allocated at least this long before the dump, for example 10m or 1h
    #[arg(long, value_name = "DURATION", value_parser = crate::process_arg::parse_duration)]
    pub(crate) older: Option<Duration>,

    /// Show who holds how much by the values of this label; a dump has it after `memprof activate labels=KEY`
    #[arg(long, value_name = "KEY")]
    pub(crate) by: Option<String>,

    /// Only what was allocated under this label; a VALUE `[none]` is for what had none
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) label: Option<Label>,
}

impl ViewArgs {
    /// Adds these options to those of a report, with the modification time of the base.
    ///
    /// # Errors
    /// A regular expression is invalid.
    pub(crate) fn add_to_options(&self, options: Options) -> Result<Options, Error> {
        Ok(Options {
            filter: Filter {
                focus: self.focus.as_deref().map(compile_pattern).transpose()?,
                ignore: self.ignore.as_deref().map(compile_pattern).transpose()?,
            },
            ages: self.ages,
            older: self.older,
            label: self.label.clone(),
            by: self.by.clone(),
            by_cum: self.cum,
            normalize: self.normalize,
            base_time_nanos: self.base.as_deref().map_or(0, modification_time),
            ..options
        })
    }
}

/// Returns the modification time of a file in nanoseconds since 1970: the best guess for a dump without a time. 0,
/// which means unknown in pprof, if there is none.
pub(crate) fn modification_time(path: &Path) -> i64 {
    let modified = std::fs::metadata(path)
        .and_then(|metadata| metadata.modified())
        .ok();
    let since = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    since
        .and_then(|since| i64::try_from(since.as_nanos()).ok())
        .unwrap_or(0)
}
