//! The questions, answered from the tables.

pub(crate) mod instances;
pub(crate) mod live;
mod named;
mod profiles;
mod weigh;

use std::io::{self, Write};
use std::sync::Arc;

use anyhow::Context;
use memprof_report::{Format, Options, Subject, render};

pub(crate) use profiles::{Profile, profiles};

use crate::args::{DiffArgs, Drawn, FlameArgs, Question, Shown, Window};
use crate::config::Config;
use crate::output::{NO_DATA, coded, note};
use crate::store::Store;
use crate::target::Target;
use crate::time::Instant;
use named::named;
use weigh::{Weights, sums};

use std::process::ExitCode;

/// Which profiles a question is about.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) store: Arc<Store>,
    pub(crate) from: Instant,
    pub(crate) to: Instant,
    pub(crate) target: Target,
}

impl Asked {
    pub(crate) fn new(config: &Config, window: &Window, target: &Target) -> anyhow::Result<Self> {
        let to = window.until.unwrap_or_else(Instant::now);
        Ok(Self {
            store: Arc::new(Store::open(&config.store)?),
            from: to.before(window.length),
            to,
            target: target.clone(),
        })
    }

    /// Its profiles, of which there must be one.
    fn profiles(&self, build: Option<&str>) -> anyhow::Result<Vec<Profile>> {
        let mut profiles = profiles(self)?;
        let all = profiles.len();
        profiles.retain(|one| build.is_none_or(|build| one.build_id.starts_with(build)));
        match (profiles.is_empty(), build) {
            (false, _) => Ok(profiles),
            (true, Some(build)) if all > 0 => {
                let message = format!("no profile of {self} is of a build {build}");
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

impl std::fmt::Display for Asked {
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
pub(crate) fn top(args: &Question) -> anyhow::Result<ExitCode> {
    let asked = Asked::new(&Config::read(&args.at)?, &args.window, &args.target)?;
    let profiles = asked.profiles(args.build.as_deref())?;
    let weights = Weights::newest(&profiles);
    let named = named(&asked, &sums(&asked, &profiles, &weights)?)?;
    let subject = Subject {
        name: asked.to_string(),
        profile: &named,
        base_name: None,
        base: None,
    };
    note_counts(&profiles, &weights);
    table(&subject, &args.shown)
}

/// `memprof fleet diff`
pub(crate) fn diff(args: &DiffArgs) -> anyhow::Result<ExitCode> {
    let asked = Asked::new(&Config::read(&args.at)?, &args.window, &args.target)?;
    let build = |build: &str| {
        let profiles = asked.profiles(Some(build))?;
        let weights = Weights::mean_process(&profiles);
        note_counts(&profiles, &weights);
        named(&asked, &sums(&asked, &profiles, &weights)?)
    };
    let (profile, base) = (build(&args.build)?, build(&args.base)?);
    let subject = Subject {
        name: format!("a process of build {}", args.build),
        profile: &profile,
        base_name: Some(format!("{}, each the mean of its processes", args.base)),
        base: Some(&base),
    };
    table(&subject, &args.shown)
}

/// `memprof fleet flame`
pub(crate) fn flame(args: &FlameArgs) -> anyhow::Result<ExitCode> {
    let asked = Asked::new(&Config::read(&args.at)?, &args.window, &args.target)?;
    let profiles = asked.profiles(args.build.as_deref())?;
    let weights = Weights::mean(&profiles);
    let named = named(&asked, &sums(&asked, &profiles, &weights)?)?;
    note_counts(&profiles, &weights);
    let subject = Subject {
        name: asked.to_string(),
        profile: &named,
        base_name: None,
        base: None,
    };
    let options = Options {
        format: match args.format {
            Drawn::Svg => Format::Flamegraph,
            Drawn::Html => Format::Html,
            Drawn::Collapsed => Format::Collapsed,
            Drawn::Pprof => Format::Pprof,
        },
        time_nanos: asked.to.0.saturating_mul(1_000_000),
        ..Options::default()
    };
    let mut bytes = Vec::new();
    render(&subject, &options, &mut bytes)?;
    match &args.output {
        Some(path) => {
            std::fs::write(path, &bytes)
                .with_context(|| format!("failed to write {}", path.display()))?;
        }
        None => io::stdout().lock().write_all(&bytes)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn table(subject: &Subject<'_>, shown: &Shown) -> anyhow::Result<ExitCode> {
    let options = Options {
        format: if shown.json {
            Format::Json
        } else {
            Format::Text
        },
        top: (!shown.json).then_some(shown.top),
        ..Options::default()
    };
    let mut bytes = Vec::new();
    render(subject, &options, &mut bytes)?;
    io::stdout().lock().write_all(&bytes)?;
    Ok(ExitCode::SUCCESS)
}

fn note_counts(profiles: &[Profile], weights: &Weights) {
    let (processes, dumps) = (weights.processes(), weights.profiles());
    let mut builds: Vec<_> = profiles.iter().map(|one| one.build()).collect();
    builds.sort_unstable();
    builds.dedup();
    note(&format!(
        "{dumps} profiles of {processes} processes, builds {}",
        builds.join(", ")
    ));
}
