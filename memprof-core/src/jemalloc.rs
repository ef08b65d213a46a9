//! One jemalloc in the process, and what memprof asks of it.

use std::ffi::CStr;
use std::hint::black_box;

use rustix::io::Errno;

use crate::discover::{Candidate, FoundBy, candidates};
use crate::error::{Error, ErrorKind, Result};
use crate::mallctl::Mallctl;

/// The log2 of a sample interval that [`Jemalloc::reset`] accepts: 1 KiB to 16 MiB. A finer one
/// records nearly everything, and a huge value blinds existing threads for good.
pub const LG_SAMPLE: std::ops::RangeInclusive<u64> = 10..=24;

/// A jemalloc that serves this process.
#[derive(Clone, Debug)]
pub struct Jemalloc {
    /// Its functions.
    pub mallctl: Mallctl,
    /// For example `5.3.0-0-g54eaed1d8b56b1aa528be3bdd1877e59c56fa90c`.
    pub version: String,
    /// How it was found.
    pub found_by: FoundBy,
    /// The environment variable that configures it; unknown for a nameless one.
    pub conf_variable: Option<String>,
    /// Compiled with profiling.
    pub config_prof: bool,
    /// Compiled with statistics; without, every figure stays 0.
    pub config_stats: bool,
    /// Started with `prof:true`, without which nothing can be sampled.
    pub opt_prof: bool,
    /// It serves this process's `malloc`.
    pub owns_malloc: bool,
}

/// Every jemalloc in the process except one in the image that holds `own_image`.
pub fn discover(host: Option<Mallctl>, own_image: usize) -> Vec<Jemalloc> {
    candidates(host, own_image)
        .into_iter()
        .filter_map(identify)
        .collect()
}

/// A candidate that does not answer as jemalloc(3) says is none.
pub(crate) fn identify(candidate: Candidate) -> Option<Jemalloc> {
    let Candidate {
        mallctl,
        found_by,
        prefix,
    } = candidate;
    let version = mallctl.read_text(c"version").ok()?;
    let switch = |name: &CStr| mallctl.read_bool(name).unwrap_or(false);
    Some(Jemalloc {
        config_prof: switch(c"config.prof"),
        config_stats: switch(c"config.stats"),
        // ENOENT where profiling is not compiled in.
        opt_prof: switch(c"opt.prof"),
        owns_malloc: owns_malloc(&mallctl),
        conf_variable: prefix.map(|prefix| format!("{}MALLOC_CONF", prefix.to_uppercase())),
        mallctl,
        version,
        found_by,
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
    /// Whether it samples now.
    pub fn prof_active(&self) -> bool {
        // `prof.active` without `opt.prof` answers 0 and means nothing.
        self.opt_prof && self.mallctl.read_bool(c"prof.active").unwrap_or(false)
    }

    /// Whether it writes a dump of its own at every new peak of mapped memory.
    pub fn prof_gdump(&self) -> bool {
        self.opt_prof && self.mallctl.read_bool(c"prof.gdump").unwrap_or(false)
    }

    /// Whether it samples in threads that start from now on.
    pub fn prof_thread_active_init(&self) -> bool {
        const INIT: &CStr = c"prof.thread_active_init";
        self.opt_prof && self.mallctl.read_bool(INIT).unwrap_or(false)
    }

    /// Switches the dumps at every new peak.
    ///
    /// # Errors
    /// `Unavailable` when profiling cannot be on in this process, `Allocator` otherwise.
    pub(crate) fn set_gdump(&self, on: bool) -> Result<()> {
        self.require_profiling()?;
        self.mallctl
            .write_bool(c"prof.gdump", on)
            .map_err(|errno| Error::mallctl("prof.gdump", errno))
    }

    /// log2 of the sample interval in bytes.
    pub fn lg_sample(&self) -> Option<u64> {
        self.mallctl
            .read::<usize>(c"prof.lg_sample")
            .ok()
            .map(|lg| lg as u64)
    }

    /// Switches sampling, and reads the switch back: jemalloc 5.2.1 answers 0 without `opt.prof`
    /// and does nothing.
    ///
    /// # Errors
    /// `Unavailable` when profiling cannot be on in this process, `Allocator` otherwise.
    pub fn set_active(&self, active: bool) -> Result<()> {
        if active {
            self.require_profiling()?;
        } else if !self.opt_prof {
            return Ok(());
        }
        self.mallctl
            .write_bool(c"prof.active", active)
            .map_err(|errno| Error::mallctl("prof.active", errno))?;
        if self.prof_active() != active {
            let message = format!(
                "jemalloc {} accepted prof.active and ignored it",
                self.version
            );
            return Err(Error::new(ErrorKind::Allocator, message));
        }
        Ok(())
    }

    /// Sets the sample interval to `2^lg_sample` bytes. Drops all live samples.
    ///
    /// # Errors
    /// `Invalid` outside of [`LG_SAMPLE`], `Unavailable` without profiling.
    pub fn reset(&self, lg_sample: u64) -> Result<()> {
        if !LG_SAMPLE.contains(&lg_sample) {
            let (low, high) = (LG_SAMPLE.start(), LG_SAMPLE.end());
            let message = format!("lg_sample={lg_sample} is out of range {low}..={high}");
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        self.require_profiling()?;
        self.mallctl
            .write(c"prof.reset", lg_sample as usize)
            .map_err(|errno| Error::mallctl("prof.reset", errno))
    }

    /// Gives all free pages of all arenas back to the kernel.
    ///
    /// # Errors
    /// jemalloc refused.
    pub(crate) fn purge(&self) -> Result<()> {
        // 4096 stands for all arenas (jemalloc.3, MALLCTL_ARENAS_ALL).
        const PURGE: &CStr = c"arena.4096.purge";
        self.mallctl
            .act(PURGE)
            .map_err(|errno| Error::mallctl("arena.4096.purge", errno))
    }

    /// Leaves the calling thread out of the profile: a thread of ours is nothing of the host's.
    pub(crate) fn leave_this_thread_out(&self) {
        match self.mallctl.write_bool(c"thread.prof.active", false) {
            // ENOENT: no profiling, so there is nothing to be left out of.
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => log::debug!("{}", Error::mallctl("thread.prof.active", errno)),
        }
    }

    /// An error that says why profiling cannot be on here, and what would mend it.
    ///
    /// # Errors
    /// `Unsupported` when not compiled in, `Unavailable` when not switched on at the start.
    pub fn require_profiling(&self) -> Result<()> {
        if !self.config_prof {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("jemalloc {} was built without profiling", self.version),
            )
            .remedy(
                "rebuild it with --enable-prof (Rust: feature \"profiling\" of tikv-jemallocator), \
                 or use Debian's libjemalloc2",
            ));
        }
        if !self.opt_prof {
            return Err(Error::new(
                ErrorKind::Unavailable,
                format!("jemalloc {} was started with opt.prof=false", self.version),
            )
            .remedy(self.restart_remedy()));
        }
        Ok(())
    }

    fn restart_remedy(&self) -> String {
        let variable = self
            .conf_variable
            .as_deref()
            .unwrap_or("MALLOC_CONF (or _RJEM_MALLOC_CONF)");
        if is_secure_execution() {
            return format!(
                "this process runs in secure-execution mode (AT_SECURE), which ignores {variable}: \
                 start it without changing uid, or use /etc/malloc.conf"
            );
        }
        format!("restart this program with {variable}=prof:true,prof_active:false")
    }
}

/// Whether the loader and jemalloc ignore the environment: a setuid start, file capabilities.
#[expect(unsafe_code, reason = "getauxval is only declared unsafe")]
pub fn is_secure_execution() -> bool {
    // SAFETY: getauxval(3) reads a constant of this process.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{Behaviour, fake};

    fn found<B: Behaviour + 'static>(prefix: Option<&str>) -> Jemalloc {
        let prefix = prefix.map(str::to_owned);
        identify(Candidate {
            mallctl: fake::<B>(),
            found_by: FoundBy::Host,
            prefix,
        })
        .unwrap()
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
        let error = found::<Deaf>(None).set_active(true).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Allocator);
        assert_eq!(
            error.message,
            "jemalloc 5.2.1-fake accepted prof.active and ignored it"
        );
    }

    #[test]
    fn activation_that_is_refused_names_the_errno() {
        let error = found::<Refusing>(None).set_active(true).unwrap_err();
        let message = "jemalloc refused prof.active: Operation not permitted (EPERM)";
        assert_eq!(error.message, message);
    }

    #[test]
    fn the_remedy_names_the_variable_that_this_build_reads() {
        let check = |prefix: Option<&str>, expected: &str| {
            let error = found::<Off>(prefix).set_active(true).unwrap_err();
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
        assert_eq!(found::<Off>(None).set_active(false), Ok(()));
    }

    #[test]
    fn intervals_that_blind_threads_are_refused() {
        for lg_sample in [0, 9, 25, u64::MAX] {
            let error = found::<Deaf>(None).reset(lg_sample).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Invalid, "{lg_sample}");
        }
    }
}
