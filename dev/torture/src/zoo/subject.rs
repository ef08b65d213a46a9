//! A program of the zoo: one that replies to lines, or a server.

use std::collections::BTreeSet;

use anyhow::Result;
use testkit::{SERVERS, Server};

use super::lines::{self, Lines};
use super::odd::ODD;
use super::packaged::{PACKAGED, Packaged};
use crate::SuiteLength;
use crate::servers::install;
use xtask::packages;

/// Replies of a program before its resources are read; then it has all that it will use.
const WARM_UP_REPLIES: usize = 300;

/// Kinds of odd.c on which commands may fail.
const MAY_FAIL: [&str; 2] = ["exec", "limited-size"];
/// A program to start.
pub(super) enum Subject {
    Lines(String, Lines),
    Server(&'static Server),
}

/// Installs the missing Debian packages of the programs for a suite length, and returns these programs. Only the long
/// suite has servers.
pub(super) fn install_subjects(length: SuiteLength) -> Result<Vec<Subject>> {
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
    packages::ensure_installed(&Vec::from_iter(needed))?;
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

    /// Whether the program is a variant of odd.c, all of whose threads are known.
    pub(super) fn is_odd(&self) -> bool {
        matches!(self, Self::Lines(name, _) if name.starts_with("odd"))
    }

    /// Whether commands may fail, because the program executes itself again or the dump cannot be written.
    pub(super) fn may_fail(&self) -> bool {
        let fails = |lines: &Lines| {
            lines
                .words
                .last()
                .is_some_and(|word| MAY_FAIL.contains(&&**word))
        };
        matches!(self, Self::Lines(_, lines) if fails(lines))
    }

    /// Starts the program, or the server, and waits until a server replies.
    pub(super) fn start(&self) -> Result<Running> {
        Ok(match self {
            Self::Lines(_, lines) => Running::Lines(lines.start()?),
            Self::Server(server) => Running::Server(Box::new(server.start()?)),
        })
    }
}

impl Running {
    /// Process id of the program, or of the server's process that tests profile.
    pub(super) fn pid(&mut self) -> Result<u32> {
        match self {
            Self::Lines(running) => Ok(running.pid()),
            Self::Server(running) => running.pid(),
        }
    }

    /// Sends the program its line, or a server its load and then a query. Returns the reply.
    pub(super) fn run_work(&mut self) -> Result<String> {
        match self {
            Self::Lines(running) => running.send_line(),
            Self::Server(running) => {
                running.run_load()?;
                running.query()
            }
        }
    }

    /// Ends the program, and returns its exit as text, after the remaining output if it is no server.
    pub(super) fn end(self) -> Result<String> {
        match self {
            Self::Lines(running) => running.end(),
            Self::Server(running) => Ok(format!("{:?}", running.terminate()?)),
        }
    }

    /// Lets the program work until its resources no longer grow, and returns its last reply. A server needs fewer
    /// replies, each after a whole load.
    pub(super) fn warm_up(&mut self) -> Result<String> {
        let times = match self {
            Self::Lines(_) => WARM_UP_REPLIES,
            Self::Server(_) => 3,
        };
        let mut answer = String::new();
        for _ in 0..times {
            answer = self.run_work()?;
        }
        Ok(answer)
    }
}
