//! The questions, answered from the tables.

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
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use anyhow::Context;
use memprof_report::{Format, Options};

pub(crate) use notes::Notes;
pub(crate) use profiles::{Profile, newest, profiles};
pub(crate) use weights::Weighting;

use crate::args::{DiffArgs, FlameArgs, FlameFormat, SelectArgs, TableArgs, TimeWindow, TopArgs};
use crate::config::Config;
#[cfg(feature = "otlp")]
use crate::otlp;
use crate::output::{NO_DATA, coded};
use crate::store::Store;
use crate::target::Target;
use crate::time::Instant;
use result::{QueryResult, compare_builds, sum_profiles};

/// Which profiles a question is about.
#[derive(Debug)]
pub(crate) struct ProfileQuery {
    pub(crate) store: Arc<Store>,
    pub(crate) from: Instant,
    pub(crate) to: Instant,
    pub(crate) target: Target,
    pub(crate) notes: Notes,
}

impl ProfileQuery {
    /// What the command line asks; notes are printed.
    pub(crate) fn new(
        config: &Config,
        window: &TimeWindow,
        target: &Target,
    ) -> anyhow::Result<Self> {
        let to = window.until.unwrap_or_else(Instant::now);
        Ok(Self {
            store: Arc::new(Store::open(&config.store)?),
            from: to.before(window.length),
            to,
            target: target.clone(),
            notes: Notes::Print,
        })
    }

    fn of(which: &SelectArgs) -> anyhow::Result<Self> {
        Self::new(&Config::read(&which.at)?, &which.window, &which.target)
    }

    /// Its profiles, of which there must be one.
    pub(crate) fn profiles(&self, build: Option<&str>) -> anyhow::Result<Vec<Profile>> {
        let mut profiles = profiles(self)?;
        let all = profiles.len();
        profiles.retain(|one| build.is_none_or(|build| one.build_id.starts_with(build)));
        match (profiles.is_empty(), build) {
            (false, _) => Ok(profiles),
            (true, Some(build)) if all > 0 => {
                let message =
                    format!("no profile of {self} has a build id that begins with {build}");
                Err(coded(
                    NO_DATA,
                    format!("{message}: `memprof fleet ps` lists builds"),
                ))
            }
            _ => Err(coded(
                NO_DATA,
                format!("there is no profile of {self} in {}", self.store.url()),
            )),
        }
    }
}

/// The machines that wrote a profile since then.
pub(crate) fn writing_since(store: &Arc<Store>, from: Instant) -> anyhow::Result<BTreeSet<String>> {
    let asked = ProfileQuery {
        store: Arc::clone(store),
        from,
        to: Instant::now(),
        target: Target::All,
        notes: Notes::Collect(Mutex::default()),
    };
    let profiles = profiles(&asked)?.into_iter();
    Ok(profiles.map(|one| one.host).collect())
}

impl std::fmt::Display for ProfileQuery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} from {} to {}",
            self.target,
            self.from.text(),
            self.to.text()
        )
    }
}

/// `memprof fleet top`
pub(crate) fn top(args: &TopArgs) -> anyhow::Result<ExitCode> {
    let asked = ProfileQuery::of(&args.which)?;
    let answer = sum_profiles(&asked, args.build.as_deref(), Weighting::Newest)?;
    table(&asked, &answer, &args.shown)
}

/// `memprof fleet diff`
pub(crate) fn diff(args: &DiffArgs) -> anyhow::Result<ExitCode> {
    let asked = ProfileQuery::of(&args.which)?;
    let answer = compare_builds(&asked, &args.build, &args.base)?;
    table(&asked, &answer, &args.shown)
}

/// `memprof fleet flame`
pub(crate) fn flame(args: &FlameArgs) -> anyhow::Result<ExitCode> {
    let asked = ProfileQuery::of(&args.which)?;
    let answer = sum_profiles(&asked, args.build.as_deref(), Weighting::Mean)?;
    let bytes = drawn(&asked, &answer, args.format)?;
    match &args.output {
        Some(path) => {
            std::fs::write(path, &bytes)
                .with_context(|| format!("failed to write {}", path.display()))?;
        }
        None => io::stdout().lock().write_all(&bytes)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn drawn(
    asked: &ProfileQuery,
    answer: &QueryResult,
    format: FlameFormat,
) -> anyhow::Result<Vec<u8>> {
    let format = match format {
        FlameFormat::Svg => Format::Flamegraph,
        FlameFormat::Html => Format::Html,
        FlameFormat::Collapsed => Format::Collapsed,
        FlameFormat::Pprof => Format::Pprof,
        #[cfg(feature = "otlp")]
        FlameFormat::Otlp => {
            let service = asked.target.service().unwrap_or("fleet");
            return Ok(otlp::encode(&answer.profile, service, asked.from, asked.to));
        }
    };
    let options = Options {
        format,
        ..Options::default()
    };
    answer.render(asked, options)
}

fn table(
    asked: &ProfileQuery,
    answer: &QueryResult,
    shown: &TableArgs,
) -> anyhow::Result<ExitCode> {
    let options = Options {
        format: match shown.json {
            true => Format::Json,
            false => Format::Text,
        },
        top: (!shown.json).then_some(shown.top),
        ..Options::default()
    };
    let bytes = answer.render(asked, options)?;
    io::stdout().lock().write_all(&bytes)?;
    Ok(ExitCode::SUCCESS)
}
