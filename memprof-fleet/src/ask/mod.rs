//! The questions, answered from the tables.

pub(crate) mod answer;
pub(crate) mod instances;
pub(crate) mod live;
mod named;
mod notes;
mod profiles;
pub(crate) mod services;
mod table;
mod weigh;

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use anyhow::Context;
use memprof_report::{Format, Options};

pub(crate) use notes::Notes;
pub(crate) use profiles::{Profile, newest, profiles};
pub(crate) use weigh::Each;

use crate::args::{DiffArgs, Drawn, FlameArgs, Question, Shown, Which, Window};
use crate::config::Config;
#[cfg(feature = "otlp")]
use crate::otlp;
use crate::output::{NO_DATA, coded};
use crate::store::Store;
use crate::target::Target;
use crate::time::Instant;
use answer::{Answer, compared, summed};

/// Which profiles a question is about.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) store: Arc<Store>,
    pub(crate) from: Instant,
    pub(crate) to: Instant,
    pub(crate) target: Target,
    pub(crate) notes: Notes,
}

impl Asked {
    /// What the command line asks; notes are printed.
    pub(crate) fn new(config: &Config, window: &Window, target: &Target) -> anyhow::Result<Self> {
        let to = window.until.unwrap_or_else(Instant::now);
        Ok(Self {
            store: Arc::new(Store::open(&config.store)?),
            from: to.before(window.length),
            to,
            target: target.clone(),
            notes: Notes::Printed,
        })
    }

    fn of(which: &Which) -> anyhow::Result<Self> {
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
    let asked = Asked {
        store: Arc::clone(store),
        from,
        to: Instant::now(),
        target: Target::All,
        notes: Notes::Kept(Mutex::default()),
    };
    let profiles = profiles(&asked)?.into_iter();
    Ok(profiles.map(|one| one.host).collect())
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
    let asked = Asked::of(&args.which)?;
    let answer = summed(&asked, args.build.as_deref(), Each::Newest)?;
    table(&asked, &answer, &args.shown)
}

/// `memprof fleet diff`
pub(crate) fn diff(args: &DiffArgs) -> anyhow::Result<ExitCode> {
    let asked = Asked::of(&args.which)?;
    let answer = compared(&asked, &args.build, &args.base)?;
    table(&asked, &answer, &args.shown)
}

/// `memprof fleet flame`
pub(crate) fn flame(args: &FlameArgs) -> anyhow::Result<ExitCode> {
    let asked = Asked::of(&args.which)?;
    let answer = summed(&asked, args.build.as_deref(), Each::Mean)?;
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

fn drawn(asked: &Asked, answer: &Answer, format: Drawn) -> anyhow::Result<Vec<u8>> {
    let format = match format {
        Drawn::Svg => Format::Flamegraph,
        Drawn::Html => Format::Html,
        Drawn::Collapsed => Format::Collapsed,
        Drawn::Pprof => Format::Pprof,
        #[cfg(feature = "otlp")]
        Drawn::Otlp => {
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

fn table(asked: &Asked, answer: &Answer, shown: &Shown) -> anyhow::Result<ExitCode> {
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
