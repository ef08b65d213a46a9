//! Queries, which are answered from the store's tables.

pub(crate) mod agents;
mod notes;
pub(crate) mod processes;
mod profiles;
pub(crate) mod result;
pub(crate) mod services;
mod symbolized;
mod table;
mod weights;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use memprof_output::{NO_DATA, with_exit_code, write_output};
use memprof_report::{Format, Options};

pub(crate) use notes::Notes;
pub(crate) use profiles::{Profile, newest_profiles, read_profiles, shared_machine_names};
pub(crate) use weights::Weighting;

use crate::args::{DiffArgs, FlameArgs, FlameFormat, SelectArgs, TableArgs, TimeWindow, TopArgs};
use crate::config::Config;
#[cfg(feature = "otlp")]
use crate::otlp;
use crate::store::ProfileStore;
use crate::target::Target;
use crate::time::Instant;
use result::{QueryResult, compare_builds, sum_profiles};

/// Selection of profiles in a store.
#[derive(Debug)]
pub(crate) struct ProfileQuery {
    pub(crate) store: Arc<ProfileStore>,
    pub(crate) from: Instant,
    pub(crate) to: Instant,
    pub(crate) target: Target,
    /// Receiver of notes about the result.
    pub(crate) notes: Notes,
}

impl ProfileQuery {
    /// Selects the profiles of a target in a time window. If the window has no end, it ends now. Notes are printed to
    /// stderr. Fails if the store's URL is invalid (exit code 2).
    pub(crate) fn new(
        config: &Config,
        window: &TimeWindow,
        target: &Target,
    ) -> anyhow::Result<Self> {
        let to = window.until.unwrap_or_else(Instant::now);
        Ok(Self {
            store: Arc::new(ProfileStore::open(&config.store)?),
            from: to.minus(window.length),
            to,
            target: target.clone(),
            notes: Notes::Print,
        })
    }

    /// Selects the profiles that the command line names. Fails if the configuration or the store's URL is invalid (exit
    /// code 2).
    fn from_args(args: &SelectArgs) -> anyhow::Result<Self> {
        Self::new(
            &Config::read(&args.store)?,
            &args.window,
            &args.target.target,
        )
    }

    /// Reads the selected profiles, sorted by process and time. With `build`, only those whose build id begins with it.
    /// Fails if there is none (exit code 5), or the store cannot be read.
    pub(crate) fn read_selected_profiles(
        &self,
        build: Option<&str>,
    ) -> anyhow::Result<Vec<Profile>> {
        let mut profiles = read_profiles(self)?;
        let all = profiles.len();
        profiles.retain(|profile| build.is_none_or(|build| profile.build_id.starts_with(build)));
        match (profiles.is_empty(), build) {
            (false, _) => Ok(profiles),
            (true, Some(build)) if all > 0 => {
                let message =
                    format!("no profile of {self} has a build id that begins with {build}");
                Err(with_exit_code(
                    NO_DATA,
                    format!("{message}: `memprof fleet ps` lists builds"),
                ))
            }
            _ => Err(with_exit_code(
                NO_DATA,
                format!("there is no profile of {self} in {}", self.store.url()),
            )),
        }
    }
}

/// Returns the names of the machines that have written a profile since `from`. Fails if the store cannot be read.
pub(crate) fn machines_writing_since(
    store: &Arc<ProfileStore>,
    from: Instant,
) -> anyhow::Result<BTreeSet<String>> {
    let query = ProfileQuery {
        store: Arc::clone(store),
        from,
        to: Instant::now(),
        target: Target::All,
        // The notes are dropped.
        notes: Notes::Collect(Mutex::default()),
    };
    let profiles = read_profiles(&query)?.into_iter();
    Ok(profiles.map(|profile| profile.host).collect())
}

impl std::fmt::Display for ProfileQuery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} from {} to {}",
            self.target,
            self.from.to_rfc3339(),
            self.to.to_rfc3339()
        )
    }
}

/// Runs `memprof fleet top`: prints the functions with most memory in the newest profiles. Fails if there is no profile
/// (exit code 5).
pub(crate) fn run_top(args: &TopArgs) -> anyhow::Result<ExitCode> {
    let query = ProfileQuery::from_args(&args.select)?;
    let result = sum_profiles(&query, args.build.as_deref(), Weighting::Newest)?;
    print_table(&query, &result, &args.table)
}

/// Runs `memprof fleet diff`: prints the functions in which the mean processes of two builds differ. Fails if one build
/// has no profile (exit code 5).
pub(crate) fn run_diff(args: &DiffArgs) -> anyhow::Result<ExitCode> {
    let query = ProfileQuery::from_args(&args.select)?;
    let result = compare_builds(&query, &args.build, &args.base)?;
    print_table(&query, &result, &args.table)
}

/// Runs `memprof fleet flame`: writes the sum of the processes, each as the mean of its profiles, to a file or to
/// stdout. Fails if there is no profile (exit code 5).
pub(crate) fn run_flame(args: &FlameArgs) -> anyhow::Result<ExitCode> {
    let query = ProfileQuery::from_args(&args.select)?;
    let result = sum_profiles(&query, args.build.as_deref(), Weighting::Mean)?;
    let bytes = render_flame(&query, &result, args.format)?;
    write_result(args.output.as_deref().unwrap_or(Path::new("-")), &bytes)
}

/// Renders a result in a format of `fleet flame`. In OTLP, the service's name is the selected service or, if none is
/// selected, `fleet`.
fn render_flame(
    query: &ProfileQuery,
    result: &QueryResult,
    format: FlameFormat,
) -> anyhow::Result<Vec<u8>> {
    let format = match format {
        FlameFormat::Svg => Format::Flamegraph,
        FlameFormat::Html => Format::Html,
        FlameFormat::Collapsed => Format::Collapsed,
        FlameFormat::Pprof => Format::Pprof,
        #[cfg(feature = "otlp")]
        FlameFormat::Otlp => {
            let service = query.target.service().unwrap_or("fleet");
            return Ok(otlp::encode_message(
                &result.profile,
                service,
                query.from,
                query.to,
            ));
        }
    };
    let options = Options {
        format,
        ..Options::default()
    };
    result.render(query, options)
}

/// Prints a result as a table of the largest functions, or as JSON with all functions. Returns exit code 0.
fn print_table(
    query: &ProfileQuery,
    result: &QueryResult,
    args: &TableArgs,
) -> anyhow::Result<ExitCode> {
    let options = Options {
        format: match args.json {
            true => Format::Json,
            false => Format::Text,
        },
        top: (!args.json).then_some(args.top),
        ..Options::default()
    };
    let bytes = result.render(query, options)?;
    write_result(Path::new("-"), &bytes)
}

/// Writes a result to a file, or to stdout if the path is `-`. Returns exit code 0.
fn write_result(path: &Path, bytes: &[u8]) -> anyhow::Result<ExitCode> {
    write_output(path, |out| Ok(out.write_all(bytes)?))?;
    Ok(ExitCode::SUCCESS)
}
