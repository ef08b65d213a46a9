//! One allocator of the process, and what memprof asks of it.

use std::fmt;

use serde::Serialize;

use crate::allocators::discover::FoundBy;
use crate::allocators::interval::SampleInterval;
use crate::allocators::jemalloc::{Jemalloc, Sampled, is_secure_execution};
use crate::allocators::printout::{PrintOptions, Printout};
use crate::allocators::stats::Totals;
use crate::dumps::heap::Summary;
use crate::dumps::scratch::Scratch;
use crate::error::{Error, ErrorKind, Result};
use crate::sampler::WithSampler;

/// The allocators that memprof knows. The names are those of the argument `allocator`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Of any prefix.
    Jemalloc,
    /// Of gperftools.
    Tcmalloc,
    /// Microsoft's.
    Mimalloc,
    /// The C library's own.
    Glibc,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Jemalloc, Self::Tcmalloc, Self::Mimalloc, Self::Glibc];

    /// The kind of that name.
    ///
    /// # Errors
    /// `Invalid`: names the kinds there are.
    pub fn parse(name: &str) -> Result<Self> {
        let known = Self::ALL.into_iter().find(|kind| kind.to_string() == name);
        known.ok_or_else(|| {
            let message = format!("allocator={name:?} is no allocator that memprof knows");
            let names = Self::ALL.map(|kind| kind.to_string()).join(", ");
            Error::new(ErrorKind::Invalid, message).remedy(format!("valid allocators: {names}"))
        })
    }

    /// Whether some build of it has a profiler.
    pub(crate) fn has_profiler(self) -> bool {
        matches!(self, Self::Jemalloc | Self::Tcmalloc)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Jemalloc => "jemalloc",
            Self::Tcmalloc => "tcmalloc",
            Self::Mimalloc => "mimalloc",
            Self::Glibc => "glibc",
        })
    }
}

/// What an allocator is known by. Prints as `jemalloc 5.3.0`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub kind: Kind,
    /// In its own words.
    pub version: String,
    pub found_by: FoundBy,
    /// It serves this process's `malloc`.
    pub owns_malloc: bool,
    /// Where the function lies that it was found by: tells it from others of its kind.
    pub address: usize,
}

impl Identity {
    /// The version without the commit that a jemalloc was built from, which stands behind a dash.
    pub(crate) fn release(&self) -> &str {
        match self.version.split_once('-') {
            Some((release, _)) if !release.is_empty() => release,
            _ => &self.version,
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.release())
    }
}

/// What a profile tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ProfileKind {
    /// Which stacks hold live memory, by samples.
    #[default]
    Heap,
    /// Which stacks made the heap grow, since the start.
    Growth,
}

impl fmt::Display for ProfileKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Heap => "heap",
            Self::Growth => "growth",
        })
    }
}

impl ProfileKind {
    /// `heap` or `growth`.
    ///
    /// # Errors
    /// `Invalid`.
    pub fn parse(name: &str) -> Result<Self> {
        match name {
            "heap" => Ok(Self::Heap),
            "growth" => Ok(Self::Growth),
            other => {
                let message = format!("kind={other:?} is no kind of profile");
                Err(Error::new(ErrorKind::Invalid, message).remedy("valid kinds: heap, growth"))
            }
        }
    }
}

/// An allocator, driven. What one cannot do it refuses, with the reason and the remedy.
pub(crate) trait Backend: fmt::Debug + Send + Sync {
    fn identity(&self) -> &Identity;

    /// Whether it can be profiled in this process.
    ///
    /// # Errors
    /// `Unsupported` when it never can, `Unavailable` when this process was started without it.
    fn require_profiling(&self) -> Result<()> {
        let message = format!("{} has no profiler", self.identity());
        Err(Error::new(ErrorKind::Unsupported, message).remedy(use_jemalloc()))
    }

    /// Whether it can take a profile of that kind.
    ///
    /// # Errors
    /// As [`require_profiling`](Self::require_profiling).
    fn require_profile(&self, kind: ProfileKind) -> Result<()> {
        match kind {
            ProfileKind::Heap => self.require_profiling(),
            ProfileKind::Growth => {
                let message = format!("{} keeps no growth profile", self.identity());
                Err(Error::new(ErrorKind::Unsupported, message).remedy(
                    "only gperftools' tcmalloc does; compare two heap profiles instead: memprof \
                     report LATER --base EARLIER",
                ))
            }
        }
    }

    /// It samples now.
    fn is_active(&self) -> bool {
        false
    }

    /// Mean bytes between samples, where it can be profiled.
    fn sample_interval(&self) -> Option<u64> {
        None
    }

    /// Starts sampling, at `interval` where one is given. Returns what the operator should know.
    ///
    /// # Errors
    /// As [`require_profiling`](Self::require_profiling); the allocator refused.
    fn activate(&self, _interval: Option<SampleInterval>) -> Result<Vec<String>> {
        self.require_profiling().map(|()| Vec::new())
    }

    /// The same with memprof's sampler before it, where there is one.
    fn with_sampler(&self) -> Option<&WithSampler> {
        None
    }

    /// Stops sampling. What was sampled stays.
    ///
    /// # Errors
    /// The allocator refused.
    fn deactivate(&self) -> Result<()> {
        Ok(())
    }

    /// Drops all samples, and sets the interval where one is given.
    ///
    /// # Errors
    /// As [`require_profiling`](Self::require_profiling); the allocator refused.
    fn reset(&self, _interval: Option<SampleInterval>) -> Result<()> {
        self.require_profiling()
    }

    /// About the memory that a profile takes while it is written, where its figures tell.
    fn profile_bytes(&self, _kind: ProfileKind) -> Option<u64> {
        None
    }

    /// Writes a profile into `scratch` and checks it. Runs on the dumper's thread.
    ///
    /// # Errors
    /// The allocator refused, or what it wrote is damaged; the kernel refused.
    fn write_profile(&self, kind: ProfileKind, _scratch: &Scratch) -> Result<Summary> {
        self.require_profile(kind).map(|()| Summary::default())
    }

    /// What it says that it holds; none where it keeps no count.
    ///
    /// # Errors
    /// The allocator refused.
    fn totals(&self) -> Result<Option<Totals>>;

    /// The objects that it laid out on pages of their own because they were sampled, where it can
    /// tell. `totals` were just read.
    fn sampled(&self, _totals: &Totals) -> Option<Sampled> {
        None
    }

    /// What it prints of itself. Only jemalloc has options.
    ///
    /// # Errors
    /// The allocator refused.
    fn report(&self, options: Option<&PrintOptions>) -> Result<Printout>;

    /// Gives its free pages back to the kernel.
    ///
    /// # Errors
    /// The allocator refused.
    fn purge(&self) -> Result<()>;

    /// Its symbols that memprof looked for in vain.
    fn missing(&self) -> &[&'static str] {
        &[]
    }

    /// For what only jemalloc has: options, background threads.
    fn jemalloc(&self) -> Option<&Jemalloc> {
        None
    }
}

/// What helps a process that has no allocator with a profiler.
pub(crate) fn use_jemalloc() -> &'static str {
    if is_secure_execution() {
        return "this process runs in secure-execution mode (AT_SECURE), in which the loader \
                ignores LD_PRELOAD: start it without changing uid, or use /etc/ld.so.preload and \
                /etc/malloc.conf";
    }
    "start it with `memprof run`, or with LD_PRELOAD=libjemalloc.so.2 and \
     MALLOC_CONF=prof:true,prof_active:false; if jemalloc is linked in, do not strip the program, \
     or export mallctl"
}
