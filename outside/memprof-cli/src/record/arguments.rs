//! Arguments of `memprof record`.

use std::path::PathBuf;
use std::time::Duration;

use memprof_messages::SamplerChoice;

use super::sampling_options::SamplingOptions;
use crate::exit::{USAGE, with_exit_code};
use crate::report_form::FormArgs;
use crate::report_view::ViewArgs;
use crate::{completion, process_arg, target};

/// Sample for a time, and show who allocated the memory that is still in use at its end
///
/// With --format, the report is written to -o; without it, -o keeps the dump, and the table is printed.
///
/// Profiles are fetched meanwhile too, after 0.25 s and whenever the recording is twice as old. If the process ends,
/// executes another program or is stopped, the profile of its exit or else the last of them is shown, and the exit code
/// is 3.
#[derive(clap::Args, Debug)]
pub(crate) struct RecordArgs {
    /// The host, in place of the argument TARGET
    #[arg(short, long, value_name = "TARGET", add = completion::target_completer())]
    pub(super) target: Option<String>,

    /// The process, in place of the argument TARGET
    #[arg(long, value_name = "PID", conflicts_with = "target", value_parser = process_arg::parse_process)]
    pub(super) pid: Option<u32>,

    /// Also record its descendants, and those that it forks meanwhile; one report shows all of them together
    ///
    /// Each is recorded as one process is. One that executes another program, as uWSGI does to reload itself, is recorded
    /// again. The report says how many they are and what each holds, and names those that could not be recorded. At most 64
    /// descendants are; forked ones are looked for every quarter of a second. The dump of -o then has those of all, one after
    /// the other, for `memprof report` and --base.
    #[arg(long)]
    pub(super) tree: bool,

    /// Leave the plugin in a process that was attached to, for an hour, as `memprof attach` does
    #[arg(long)]
    pub(super) keep_attached: bool,

    /// The plugin's file [default: the one that is installed with this program]
    #[arg(long, value_name = "FILE")]
    pub(super) plugin: Option<PathBuf>,

    /// Load the plugin through Node's inspector, as `memprof attach --node-inspector` does
    #[arg(long)]
    pub(super) node_inspector: bool,

    /// Also patch malloc where it is a library's, as `memprof attach --entries` does
    #[arg(long)]
    pub(super) entries: bool,

    /// Sample for this time, for example 30s or 5m
    #[arg(long = "for", value_name = "DURATION", default_value = "30s", value_parser = process_arg::parse_duration)]
    pub(super) duration: Duration,

    /// One sample per this many allocated bytes, a power of two from 1KiB to 16MiB [default: found by the rate at which the
    /// process allocates, so that sampling takes at most 2 % of a processor]
    #[arg(long, visible_alias = "interval", value_name = "SIZE", value_parser = crate::run::parse_interval)]
    pub(super) sample_interval: Option<u8>,

    #[command(flatten)]
    pub(super) form: FormArgs,

    #[command(flatten)]
    pub(super) view: ViewArgs,

    /// The process, also one without the plugin, which is attached to, and detached from afterwards: a pid, a name,
    /// container:NAME or a socket's path; not needed while only one host runs. Then arguments of `memprof activate`:
    /// allocator=NAME, to sample and show only that allocator; sampler=memprof or sampler=allocator, to choose who samples;
    /// ages=10s; labels=KEY
    #[arg(value_names = ["TARGET", "KEY=VALUE"], num_args = 0.., add = completion::target_completer())]
    pub(super) args: Vec<String>,
}

/// Prefix of the argument that names the allocator, of `activate` and of `dump`.
const ALLOCATOR: &str = "allocator=";
/// Prefix of the argument that chooses the sampler, of `activate`.
const SAMPLER: &str = "sampler=";
/// Prefixes of the arguments that add ages and labels to samples, of `activate`.
const AGES: &str = "ages=";
const LABELS: &str = "labels=";
/// Number of age buckets in a recording for `--ages` and `--older`.
const AGE_BUCKETS: u32 = 10;

/// Process that is recorded.
pub(super) enum Subject<'a> {
    /// A running host, by its name or its socket's path; `None`: the only one.
    Host(Option<&'a str>),
    /// Any process, which is attached to if it has no plugin.
    Process(u32),
}

/// Fails unless `argument` is one that `memprof record` passes on to the message `activate`: `allocator=`, `ages=`,
/// `labels=`, or `sampler=` with a valid value.
fn check_argument(argument: &str) -> anyhow::Result<()> {
    let expected = match argument.strip_prefix(SAMPLER) {
        Some(sampler) if sampler.parse::<SamplerChoice>().is_ok() => return Ok(()),
        Some(_) => "sampler=auto, sampler=memprof or sampler=allocator",
        None if [ALLOCATOR, AGES, LABELS]
            .iter()
            .any(|key| argument.starts_with(key)) =>
        {
            return Ok(());
        }
        None => "allocator=NAME, sampler=NAME, ages=DURATION or labels=KEY",
    };
    let text = format!("{argument:?}: expected {expected}");
    Err(with_exit_code(USAGE, text))
}

impl RecordArgs {
    /// Returns whether `--output` names the dump. With `--format`, it names the report.
    pub(super) fn output_is_dump(&self) -> bool {
        self.form.format.is_none()
    }

    /// Returns the process that the arguments name.
    ///
    /// # Errors
    /// The arguments name two processes, or none although an option such as `--tree` needs one; an argument is unknown;
    /// no process has the name, or several have it.
    pub(super) fn subject(&self) -> anyhow::Result<Subject<'_>> {
        let usage = |text: String| with_exit_code(USAGE, text);
        let (first, arguments) = process_arg::split_target(&self.args);
        for argument in arguments {
            check_argument(argument)?;
        }
        let attaches = self.tree
            || self.keep_attached
            || self.node_inspector
            || self.entries
            || self.plugin.is_some();
        match (first, self.target.as_deref(), self.pid) {
            (Some(first), None, None) if target::socket_path(first).is_some() => match self.tree {
                false => Ok(Subject::Host(Some(first))),
                true => Err(usage(format!(
                    "--tree needs a process: give its pid in place of {first}"
                ))),
            },
            (Some(first), None, None) => {
                let pid = match self.tree {
                    false => process_arg::parse_process(first),
                    true => process_arg::parse_tree_root(first),
                };
                let pid = pid.map_err(|error| usage(error.to_string()))?;
                Ok(Subject::Process(pid))
            }
            (None, None, Some(pid)) => Ok(Subject::Process(pid)),
            (Some(first), ..) => Err(usage(format!("{first} and an option name a process: give one"))),
            (None, _, None) if attaches => Err(usage(
                "--tree, --keep-attached, --plugin, --node-inspector and --entries need a process: `memprof record PID`".to_owned(),
            )),
            (None, target, _) => Ok(Subject::Host(target)),
        }
    }

    /// Returns the arguments `KEY=VALUE`, without the target in front of them.
    fn key_values(&self) -> &[String] {
        process_arg::split_target(&self.args).1
    }

    /// Returns the last argument `KEY=VALUE` with that prefix. `None` if there is none.
    fn last_argument(&self, prefix: &str) -> Option<&String> {
        let mut args = self.key_values().iter().rev();
        args.find(|arg| arg.starts_with(prefix))
    }

    /// Returns the sampling that the arguments request, with the ages and labels that the report needs.
    pub(super) fn sampling_options(&self) -> SamplingOptions {
        let sampler = self.last_argument(SAMPLER);
        let sampler = sampler.and_then(|arg| arg.strip_prefix(SAMPLER)?.parse().ok());
        let arguments = [self.ages_argument(), self.labels_argument()];
        SamplingOptions {
            duration: self.duration,
            sampler: sampler.unwrap_or_default(),
            lg_sample: self.sample_interval,
            allocator: self.last_argument(ALLOCATOR).cloned(),
            arguments: arguments.into_iter().flatten().collect(),
            hides_interval: false,
        }
    }

    /// Returns the argument `ages=` of `activate`: that of the user, else one for a report that needs ages, with
    /// buckets of a tenth of the duration and at least a second. `None` without either.
    fn ages_argument(&self) -> Option<String> {
        let is_needed = self.view.ages || self.view.older.is_some();
        let bucket = (self.duration / AGE_BUCKETS).as_secs().max(1);
        let by_view = is_needed.then(|| format!("{AGES}{bucket}s"));
        self.last_argument(AGES).cloned().or(by_view)
    }

    /// Returns the argument `labels=` of `activate`: that of the user, else one for a report that needs labels. `None`
    /// without either.
    fn labels_argument(&self) -> Option<String> {
        let keys = [
            self.view.by.as_deref(),
            self.view.label.as_ref().map(|label| label.key.as_str()),
        ];
        let mut keys: Vec<_> = keys.into_iter().flatten().collect();
        keys.dedup();
        let by_view = (!keys.is_empty()).then(|| format!("{LABELS}{}", keys.join(",")));
        self.last_argument(LABELS).cloned().or(by_view)
    }
}
