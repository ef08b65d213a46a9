//! One jemalloc in the process.

mod bins;
mod profile;
mod sampled;

use std::ffi::CStr;
use std::hint::black_box;

use rustix::io::Errno;

use crate::allocators::interval::SampleInterval;
use crate::allocators::mallctl::Mallctl;
use crate::allocators::printout::{PrintOptions, Printout};
use crate::allocators::stats::Readers;
use crate::allocators::unprofilable::{Unprofilable, malloc_variables};
use crate::error::{Error, ErrorKind, Result};
use crate::identity::AllocatorIdentity;
use crate::identity::FoundBy;
use memprof_messages::{AllocatorKind, HeapUsage};

pub(crate) use bins::Bin;

/// Calls memprof's sampler for each allocation. jemalloc 5.2 to 5.3, which newer ones dropped; also where profiling
/// was not compiled in.
pub(crate) const INSTALL_HOOKS: &CStr = c"experimental.hooks.install";

/// A jemalloc that serves this process.
#[derive(Clone, Debug)]
pub(crate) struct Jemalloc {
    /// Its version is for example `5.3.0-0-g54eaed1d8b56b1aa528be3bdd1877e59c56fa90c`.
    pub identity: AllocatorIdentity,
    /// `mallctl` and its relatives, under this jemalloc's prefix.
    pub mallctl: Mallctl,
    /// The environment variable that configures it; unknown for a nameless one.
    pub conf_variable: Option<String>,
    /// What its functions' names start with; empty for a nameless one.
    prefix: String,
    /// Compiled with profiling.
    pub config_prof: bool,
    /// Compiled with statistics; without, every figure stays 0.
    pub config_stats: bool,
    /// Started with `prof:true`, without which nothing can be sampled.
    pub opt_prof: bool,
    /// Why it cannot be profiled, which its start has settled.
    pub why_not: Option<Unprofilable>,
    /// It can run threads of its own that give free pages back.
    pub has_background_threads: bool,
    readers: Readers,
    /// As in [`JemallocCandidate`].
    interposed: Option<String>,
}

/// Functions that may be a jemalloc's.
#[derive(Clone, Debug)]
pub(crate) struct JemallocCandidate {
    pub mallctl: Mallctl,
    pub found_by: FoundBy,
    /// What the functions' names start with (`""`, `"_rjem_"`, `"je_"`); unknown when the host
    /// handed them over and no symbol table names them.
    pub prefix: Option<String>,
    /// Its function that another library replaces, without which `malloc_stats_print` must not be called.
    pub interposed: Option<String>,
}

/// A candidate that does not answer as jemalloc(3) says is none.
pub(crate) fn identify(candidate: JemallocCandidate, readers: Readers) -> Option<Jemalloc> {
    let JemallocCandidate {
        mallctl,
        found_by,
        prefix,
        interposed,
    } = candidate;
    let version = mallctl.read_text(c"version").ok()?;
    if !version.starts_with(|first: char| first.is_ascii_digit()) {
        return None;
    }
    let switch = |name: &CStr| mallctl.read_bool(name).unwrap_or(false);
    let identity = AllocatorIdentity {
        kind: AllocatorKind::Jemalloc,
        version,
        found_by,
        owns_malloc: owns_malloc(&mallctl),
        address: mallctl.address(),
    };
    let variable = prefix.as_ref();
    let conf_variable = variable.map(|prefix| format!("{}MALLOC_CONF", prefix.to_uppercase()));
    // ENOENT where profiling is not compiled in.
    let (config_prof, opt_prof) = (switch(c"config.prof"), switch(c"opt.prof"));
    let why_not = match (config_prof, opt_prof) {
        (true, true) => None,
        (true, false) => {
            let variable = conf_variable.clone();
            Some(Unprofilable::not_started(
                &identity,
                variable,
                malloc_variables(),
            ))
        }
        (false, _) => Some(Unprofilable::NotCompiledIn {
            allocator: identity.to_string(),
            has_hooks: mallctl.can_read(INSTALL_HOOKS),
        }),
    };
    Some(Jemalloc {
        config_prof,
        config_stats: switch(c"config.stats"),
        opt_prof,
        why_not,
        has_background_threads: mallctl.read_bool(c"background_thread").is_ok(),
        conf_variable,
        prefix: prefix.unwrap_or_default(),
        identity,
        mallctl,
        readers,
        interposed,
    })
}

/// Allocates through `malloc` and looks whether this jemalloc counted it for this thread.
#[expect(unsafe_code, reason = "the allocator calls")]
fn owns_malloc(mallctl: &Mallctl) -> bool {
    const PROBE: usize = 12_345;
    let allocated = || mallctl.read::<u64>(c"thread.allocated");
    let Ok(before) = allocated() else {
        return false;
    };
    // SAFETY: malloc(3); `black_box` keeps the pair from being optimized away.
    let block = black_box(unsafe { libc::malloc(PROBE) });
    let after = allocated();
    // SAFETY: the block that malloc gave, or null.
    unsafe { libc::free(block) };
    after.is_ok_and(|after| after.wrapping_sub(before) >= PROBE as u64)
}

impl Jemalloc {
    pub(crate) fn require_profiling(&self) -> Result<()> {
        self.why_not.clone().map_or(Ok(()), |why| Err(why.into()))
    }

    pub(crate) fn is_active(&self) -> bool {
        // `prof.active` without `opt.prof` answers 0 and means nothing.
        self.opt_prof && self.mallctl.read_bool(c"prof.active").unwrap_or(false)
    }

    pub(crate) fn sample_interval(&self) -> Option<u64> {
        let lg_sample = self.lg_sample().filter(|_| self.opt_prof)?;
        1u64.checked_shl(lg_sample as u32)
    }

    pub(crate) fn activate(&self, interval: Option<SampleInterval>) -> Result<Vec<String>> {
        self.require_profiling()?;
        let mut warnings = Vec::new();
        let is_new = |interval: &SampleInterval| self.sample_interval() != Some(interval.bytes());
        if let Some(interval) = interval.filter(is_new) {
            self.reset(Some(interval))?;
            warnings.push("setting the sample interval dropped the samples so far".to_owned());
        }
        self.set_active(true)?;
        Ok(warnings)
    }

    pub(crate) fn deactivate(&self) -> Result<()> {
        if !self.opt_prof {
            return Ok(());
        }
        self.set_active(false)
    }

    pub(crate) fn reset(&self, interval: Option<SampleInterval>) -> Result<()> {
        self.require_profiling()?;
        let lg_sample = match interval {
            Some(interval) => Some(u64::from(interval.bytes().ilog2())),
            None => self.lg_sample(),
        };
        let Some(lg_sample) = lg_sample else {
            let message = format!("{} does not report its sample interval", self.identity);
            return Err(Error::allocator(message));
        };
        self.mallctl
            .write(c"prof.reset", lg_sample as usize)
            .map_err(|errno| Error::mallctl("prof.reset", errno))
    }

    /// jemalloc keeps its samples in the internal memory of its arenas, and their text takes about
    /// as much: 0.94 bytes for each of 64,000 stacks of 33 frames; 1.3 if all had 128 frames, each
    /// of 8 bytes there and 15 characters in a profile.
    pub(crate) fn profile_bytes(&self) -> Option<u64> {
        // 4096 stands for all arenas (jemalloc.3, MALLCTL_ARENAS_ALL).
        const INTERNAL: &CStr = c"stats.arenas.4096.internal";
        if !self.config_stats {
            return None;
        }
        self.mallctl.write(c"epoch", 1_u64).ok()?;
        Some(self.mallctl.read::<usize>(INTERNAL).ok()? as u64)
    }

    pub(crate) fn totals(&self) -> Result<Option<HeapUsage>> {
        if !self.config_stats {
            return Ok(None);
        }
        let figures = (self.readers.figures)(&self.mallctl)?;
        Ok(Some(HeapUsage::Detailed(figures)))
    }

    pub(crate) fn report(&self, options: Option<&PrintOptions>) -> Result<Printout> {
        if self.mallctl.stats_print().is_none() {
            return Err(self.cannot_print());
        }
        match options {
            None => (self.readers.report)(&self.mallctl),
            Some(options) => Ok(Printout::of(&self.mallctl, options)),
        }
    }

    pub(crate) fn purge(&self) -> Result<()> {
        // 4096 stands for all arenas (jemalloc.3, MALLCTL_ARENAS_ALL).
        const PURGE: &CStr = c"arena.4096.purge";
        self.mallctl
            .call(PURGE)
            .map_err(|errno| Error::mallctl("arena.4096.purge", errno))
    }
}

impl Jemalloc {
    fn cannot_print(&self) -> Error {
        if let Some(name) = &self.interposed {
            return self.calls_another(name);
        }
        let function = format!("{}malloc_stats_print", self.prefix);
        Error::new(
            ErrorKind::Unsupported,
            format!(
                "{} has no printout of its own here: the linker left {function} out of the program",
                self.identity
            ),
        )
        .remedy(format!(
            "link the program with -Wl,-u,{function} (Rust: -C link-arg=-Wl,-u,{function}); the \
             totals need nothing"
        ))
    }

    fn calls_another(&self, name: &str) -> Error {
        Error::new(
            ErrorKind::Unsupported,
            format!(
                "{} has no printout of its own here: its {name} is replaced by another library's, which \
                 would be asked for the figures and may end the program",
                self.identity
            ),
        )
        .remedy("load one jemalloc only (see LD_PRELOAD and the program's libraries); the totals need nothing")
    }

    /// Whether threads that start from now on are sampled.
    pub(crate) fn samples_new_threads(&self) -> bool {
        const INIT: &CStr = c"prof.thread_active_init";
        self.opt_prof && self.mallctl.read_bool(INIT).unwrap_or(false)
    }

    /// log2 of the sample interval in bytes.
    pub(crate) fn lg_sample(&self) -> Option<u64> {
        self.mallctl
            .read::<usize>(c"prof.lg_sample")
            .ok()
            .map(|lg| lg as u64)
    }

    /// Switches sampling, and reads the switch back: jemalloc 5.2.1 answers 0 without `opt.prof`
    /// and does nothing.
    fn set_active(&self, active: bool) -> Result<()> {
        self.mallctl
            .write_bool(c"prof.active", active)
            .map_err(|errno| Error::mallctl("prof.active", errno))?;
        if self.is_active() != active {
            let message = format!("{} accepted prof.active and ignored it", self.identity);
            return Err(Error::allocator(message));
        }
        Ok(())
    }

    /// Switches jemalloc's own dumps at high water off; tells whether they were on.
    ///
    /// # Errors
    /// jemalloc refused.
    pub(crate) fn stop_builtin_gdump(&self) -> Result<bool> {
        let was_on = self.opt_prof && self.mallctl.read_bool(c"prof.gdump").unwrap_or(false);
        if was_on {
            self.mallctl
                .write_bool(c"prof.gdump", false)
                .map_err(|errno| Error::mallctl("prof.gdump", errno))?;
        }
        Ok(was_on)
    }

    /// Leaves the calling thread out of the profile: a thread of ours is nothing of the host's.
    pub(crate) fn exclude_this_thread(&self) {
        if !self.opt_prof {
            return;
        }
        match self.mallctl.write_bool(c"thread.prof.active", false) {
            // ENOENT: no profiling, so there is nothing to be left out of.
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => log::debug!("{}", Error::mallctl("thread.prof.active", errno)),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::allocators::fake::{Behaviour, READERS, fake};
    use crate::identity::FoundBy;

    pub(crate) fn found<B: Behaviour + 'static>(prefix: Option<&str>) -> Jemalloc {
        let prefix = prefix.map(str::to_owned);
        let candidate = JemallocCandidate {
            mallctl: fake::<B>(),
            found_by: FoundBy::Host,
            prefix,
            interposed: None,
        };
        identify(candidate, READERS).unwrap()
    }

    struct Deaf;
    impl Behaviour for Deaf {}

    struct Refusing;
    impl Behaviour for Refusing {
        const ACTIVATION: i32 = libc::EPERM;
    }

    struct Off;
    impl Behaviour for Off {
        const OPT_PROF: bool = false;
    }

    #[test]
    fn activation_that_is_accepted_and_ignored_is_an_error() {
        let error = found::<Deaf>(None).activate(None).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Allocator);
        assert_eq!(
            error.message,
            "jemalloc 5.2.1 accepted prof.active and ignored it"
        );
    }

    #[test]
    fn activation_that_is_refused_names_the_errno() {
        let error = found::<Refusing>(None).activate(None).unwrap_err();
        let message = "jemalloc refused prof.active: Operation not permitted (EPERM)";
        assert_eq!(error.to_string(), message);
    }

    #[test]
    fn the_remedy_names_the_variable_that_this_build_reads() {
        let check = |prefix: Option<&str>, expected: &str| {
            let error = found::<Off>(prefix).activate(None).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Unavailable);
            let expected =
                format!("restart this program with {expected}=prof:true,prof_active:false");
            assert_eq!(error.remedy, expected);
        };
        check(Some(""), "MALLOC_CONF");
        check(Some("_rjem_"), "_RJEM_MALLOC_CONF");
        check(None, "MALLOC_CONF (or _RJEM_MALLOC_CONF)");
    }

    #[test]
    fn deactivation_without_profiling_is_no_error() {
        assert_eq!(found::<Off>(None).deactivate(), Ok(()));
    }
}
