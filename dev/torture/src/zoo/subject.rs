//! A program of the zoo, however it is given its work.

use std::collections::BTreeSet;

use anyhow::Result;
use testkit::{SERVERS, Server};

use super::lines::{self, Lines};
use super::odd::ODD;
use super::packaged::{PACKAGED, Packaged};
use crate::SuiteLength;
use crate::servers::install;
use xtask::packages;

/// How often a program answers before it is looked at: then it holds all that it will.
const WARM: usize = 300;

/// The kinds of odd.c that may fail a command which is begun.
const FAIL: [&str; 2] = ["exec", "limited-size"];
/// A program, and how it is given work.
pub(super) enum Subject {
    Lines(String, Lines),
    Server(&'static Server),
}

/// Those of the form; the packages of the long form are not installed by CI, but when it begins.
pub(super) fn subjects(length: SuiteLength) -> Result<Vec<Subject>> {
    let is_chosen = |is_short: bool| length == SuiteLength::Long || is_short;
    let packaged: Vec<&Packaged> = PACKAGED
        .iter()
        .filter(|each| is_chosen(each.is_short))
        .collect();
    let odd = ODD.iter().filter(|each| is_chosen(each.is_short));
    let mut subjects: Vec<Subject> = odd
        .map(|each| Subject::Lines(each.name(), each.lines()))
        .collect();
    let needed: BTreeSet<&str> = packaged.iter().map(|each| each.package).collect();
    packages::require(&Vec::from_iter(needed))?;
    subjects.extend(
        packaged
            .into_iter()
            .map(|each| Subject::Lines(each.name.to_owned(), each.lines())),
    );
    if length == SuiteLength::Long {
        install(&Vec::from_iter(SERVERS))?;
        subjects.extend(SERVERS.iter().map(Subject::Server));
    }
    Ok(subjects)
}

/// A running one.
pub(super) enum Running {
    Lines(lines::Running),
    Server(Box<testkit::RunningServer>),
}

impl Subject {
    pub(super) fn name(&self) -> String {
        match self {
            Self::Lines(name, _) => name.clone(),
            Self::Server(server) => server.name.to_owned(),
        }
    }

    /// Whether it is one of odd.c's kinds, all of whose threads are known.
    pub(super) fn is_odd(&self) -> bool {
        matches!(self, Self::Lines(name, _) if name.starts_with("odd"))
    }

    /// Whether a command may fail that is begun, as it does where the program executes itself anew, or where the dump
    /// cannot be written.
    pub(super) fn may_fail(&self) -> bool {
        let fails = |lines: &Lines| {
            lines
                .words
                .last()
                .is_some_and(|word| FAIL.contains(&&**word))
        };
        matches!(self, Self::Lines(_, lines) if fails(lines))
    }

    pub(super) fn start(&self) -> Result<Running> {
        Ok(match self {
            Self::Lines(_, lines) => Running::Lines(lines.start()?),
            Self::Server(server) => Running::Server(Box::new(server.start()?)),
        })
    }
}

impl Running {
    pub(super) fn pid(&mut self) -> Result<u32> {
        match self {
            Self::Lines(running) => Ok(running.pid()),
            Self::Server(running) => running.pid(),
        }
    }

    /// Has it do its work once.
    pub(super) fn answer(&mut self) -> Result<String> {
        match self {
            Self::Lines(running) => running.answer(),
            Self::Server(running) => {
                running.run_load()?;
                running.query()
            }
        }
    }

    pub(super) fn end(self) -> Result<String> {
        match self {
            Self::Lines(running) => running.end(),
            Self::Server(running) => Ok(format!("{:?}", running.terminate()?)),
        }
    }

    /// A server starts to serve with few connections and threads; it is warm sooner.
    pub(super) fn warm(&mut self) -> Result<String> {
        let times = match self {
            Self::Lines(_) => WARM,
            Self::Server(_) => 3,
        };
        let mut answer = String::new();
        for _ in 0..times {
            answer = self.answer()?;
        }
        Ok(answer)
    }
}
