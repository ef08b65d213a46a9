//! One jemalloc in the process: identification, sampling, statistics and purging.

mod bins;
mod profile;
mod sampled;
mod sampling;
mod totals;

use std::ffi::CStr;
use std::hint::black_box;

use rustix::io::Errno;

use crate::allocators::mallctl::Mallctl;
use crate::allocators::printout::JemallocReaders;
use crate::allocators::printout::{PrintOptions, Printout};
use crate::allocators::unprofilable::{Unprofilable, malloc_conf_variables};
use crate::error::{Error, ErrorKind, Result};
use crate::identity::AllocatorIdentity;
use crate::identity::FoundBy;
use memprof_messages::AllocatorKind;

pub(crate) use bins::Bin;

/// Mallctl that makes jemalloc call memprof's sampler for each allocation. jemalloc 5.2 to 5.3 have it, even without
/// profiling.
pub(crate) const INSTALL_HOOKS: &CStr = c"experimental.hooks.install";

#[derive(Clone, Debug)]
pub(crate) struct Jemalloc {
    /// Kind and version; the version is, for example, `5.3.0-0-g54eaed1d8b56b1aa528be3bdd1877e59c56fa90c`.
    pub identity: AllocatorIdentity,
    /// `mallctl` and `malloc_stats_print` of this jemalloc.
    pub mallctl: Mallctl,
    /// Environment variable that configures this jemalloc. `None` if its prefix is unknown.
    pub conf_variable: Option<String>,
    /// Prefix of its function names; empty if unknown.
    prefix: String,
    /// Whether it was compiled with profiling.
    pub config_prof: bool,
    /// Whether it was compiled with statistics. If not, all statistics are 0.
    pub config_stats: bool,
    /// Whether it was started with `prof:true`. If not, it cannot sample.
    pub opt_prof: bool,
    /// Reason why it cannot be profiled. Fixed at its start.
    pub unprofilable: Option<Unprofilable>,
    /// Whether it supports threads that purge free pages in the background.
    pub has_background_threads: bool,
    readers: JemallocReaders,
    /// Name of an interposed function, as in [`JemallocCandidate`].
    interposed: Option<String>,
}

/// Functions that may belong to a jemalloc; [`identify_jemalloc`] decides.
#[derive(Clone, Debug)]
pub(crate) struct JemallocCandidate {
    pub mallctl: Mallctl,
    pub found_by: FoundBy,
    /// Prefix of the function names (`""`, `"_rjem_"`, `"je_"`). `None` if the host passed the functions and they are
    /// in no symbol table.
    pub prefix: Option<String>,
    /// Name of a function of this jemalloc that another library interposes, if any. If so, `malloc_stats_print` must
    /// not be called.
    pub interposed: Option<String>,
}

/// Identifies a jemalloc and reads its build options. `None` if `mallctl` returns no `version`, or one that does not
/// begin with a digit.
pub(crate) fn identify_jemalloc(
    candidate: JemallocCandidate,
    readers: JemallocReaders,
) -> Option<Jemalloc> {
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
    let read_flag = |name: &CStr| mallctl.read_bool(name).unwrap_or(false);
    let identity = AllocatorIdentity {
        kind: AllocatorKind::Jemalloc,
        version,
        found_by,
        owns_malloc: owns_malloc(&mallctl),
        address: mallctl.address(),
    };
    let conf_prefix = prefix.as_ref();
    let conf_variable = conf_prefix.map(|prefix| format!("{}MALLOC_CONF", prefix.to_uppercase()));
    // Without compiled-in profiling, `config.prof` is false and reading `opt.prof` fails with ENOENT.
    let (config_prof, opt_prof) = (read_flag(c"config.prof"), read_flag(c"opt.prof"));
    let unprofilable = match (config_prof, opt_prof) {
        (true, true) => None,
        (true, false) => {
            let variable = conf_variable.clone();
            Some(Unprofilable::not_started(
                &identity,
                variable,
                malloc_conf_variables(),
            ))
        }
        (false, _) => Some(Unprofilable::NotCompiledIn {
            allocator: identity.to_string(),
            has_hooks: mallctl.has_mallctl(INSTALL_HOOKS),
        }),
    };
    Some(Jemalloc {
        config_prof,
        config_stats: read_flag(c"config.stats"),
        opt_prof,
        unprofilable,
        has_background_threads: mallctl.read_bool(c"background_thread").is_ok(),
        conf_variable,
        prefix: prefix.unwrap_or_default(),
        identity,
        mallctl,
        readers,
        interposed,
    })
}

/// Whether this jemalloc serves `malloc`: makes an allocation, and checks whether this jemalloc counted it for this
/// thread. False if `thread.allocated` cannot be read.
#[expect(unsafe_code, reason = "the allocator calls")]
fn owns_malloc(mallctl: &Mallctl) -> bool {
    // Bytes to allocate. The count must grow by at least as many.
    const PROBE: usize = 12_345;
    let allocated = || mallctl.read::<u64>(c"thread.allocated");
    let Ok(before) = allocated() else {
        return false;
    };
    // SAFETY: malloc(3) takes any size; `black_box` keeps the compiler from removing the pair.
    let block = black_box(unsafe { libc::malloc(PROBE) });
    let after = allocated();
    // SAFETY: free(3) gets the block that malloc(3) returned, or null.
    unsafe { libc::free(block) };
    after.is_ok_and(|after| after.wrapping_sub(before) >= PROBE as u64)
}

impl Jemalloc {
    /// Fails unless this jemalloc was built and started with profiling.
    pub(crate) fn require_profiling(&self) -> Result<()> {
        self.unprofilable
            .clone()
            .map_or(Ok(()), |reason| Err(reason.into()))
    }

    /// Estimated memory for writing a profile, in bytes: the internal memory of the arenas, where jemalloc keeps its
    /// samples. `None` if jemalloc was built without statistics, or fails to report them. The profile's text has 0.94
    /// times this size for 64,000 stacks of 33 frames, and 1.3 times if each stack has 128 frames, because a frame
    /// takes 8 bytes in memory and 15 characters in a profile.
    pub(crate) fn profile_memory_estimate(&self) -> Option<u64> {
        // 4096 stands for all arenas (jemalloc(3), MALLCTL_ARENAS_ALL).
        const INTERNAL: &CStr = c"stats.arenas.4096.internal";
        if !self.config_stats {
            return None;
        }
        // Makes jemalloc refresh its statistics.
        self.mallctl.write(c"epoch", 1_u64).ok()?;
        Some(self.mallctl.read::<usize>(INTERNAL).ok()? as u64)
    }

    /// Output of `malloc_stats_print`. Without `options`, the plugin's default options apply. Fails if that function is
    /// missing, or if its call would reach another library.
    pub(crate) fn printout(&self, options: Option<&PrintOptions>) -> Result<Printout> {
        if self.mallctl.stats_print_function().is_none() {
            return Err(self.no_printout_error());
        }
        match options {
            None => (self.readers.printout)(&self.mallctl),
            Some(options) => Ok(Printout::from_jemalloc(&self.mallctl, options)),
        }
    }

    /// Releases the unused dirty pages of all arenas to the kernel (`arena.<i>.purge`). Fails if jemalloc refuses.
    pub(crate) fn purge_free_pages(&self) -> Result<()> {
        // 4096 stands for all arenas (jemalloc(3), MALLCTL_ARENAS_ALL).
        const PURGE: &CStr = c"arena.4096.purge";
        self.mallctl
            .call(PURGE)
            .map_err(|errno| Error::refused_mallctl("arena.4096.purge", errno))
    }
}

impl Jemalloc {
    /// `Unsupported` error for a jemalloc whose `malloc_stats_print` is missing or must not be called.
    fn no_printout_error(&self) -> Error {
        if let Some(name) = &self.interposed {
            return self.interposed_printout_error(name);
        }
        let function = format!("{}malloc_stats_print", self.prefix);
        Error::new(
            ErrorKind::Unsupported,
            format!(
                "{} has no printout of its own here: the linker left {function} out of the program",
                self.identity
            ),
        )
        .with_remedy(format!(
            "link the program with -Wl,-u,{function} (Rust: -C link-arg=-Wl,-u,{function}); the \
             totals need nothing"
        ))
    }

    /// `Unsupported` error for a jemalloc whose function `name` is interposed: a printout may abort the process.
    fn interposed_printout_error(&self, name: &str) -> Error {
        Error::new(
            ErrorKind::Unsupported,
            format!(
                "{} has no printout of its own here: its {name} is replaced by another library's, which \
                 would be asked for the figures and may end the program",
                self.identity
            ),
        )
        .with_remedy("load one jemalloc only (see LD_PRELOAD and the program's libraries); the totals need nothing")
    }

    /// log2 of the sample interval in bytes. `None` if jemalloc does not report it, as without compiled-in profiling.
    pub(crate) fn lg_sample(&self) -> Option<u64> {
        self.mallctl
            .read::<usize>(c"prof.lg_sample")
            .ok()
            .map(|lg| lg as u64)
    }

    /// Disables jemalloc's built-in dumps at new peaks (`prof.gdump`) if they are enabled. Returns whether they were;
    /// false also if jemalloc does not report it.
    ///
    /// # Errors
    /// `Allocator`: jemalloc refused.
    pub(crate) fn stop_builtin_gdump(&self) -> Result<bool> {
        let was_on = self.opt_prof && self.mallctl.read_bool(c"prof.gdump").unwrap_or(false);
        if was_on {
            self.mallctl
                .write_bool(c"prof.gdump", false)
                .map_err(|errno| Error::refused_mallctl("prof.gdump", errno))?;
        }
        Ok(was_on)
    }

    /// Excludes the calling thread, one of memprof's, from the profile, because its allocations are not the host's. An
    /// error is only logged.
    pub(crate) fn exclude_this_thread(&self) {
        if !self.opt_prof {
            return;
        }
        match self.mallctl.write_bool(c"thread.prof.active", false) {
            // ENOENT: no profiling, so there is nothing to exclude the thread from.
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => log::debug!("{}", Error::refused_mallctl("thread.prof.active", errno)),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::allocators::fake::{Behaviour, READERS, fake_mallctl};
    use crate::identity::FoundBy;

    pub(crate) fn fake_jemalloc<B: Behaviour + 'static>(prefix: Option<&str>) -> Jemalloc {
        let prefix = prefix.map(str::to_owned);
        let candidate = JemallocCandidate {
            mallctl: fake_mallctl::<B>(),
            found_by: FoundBy::Host,
            prefix,
            interposed: None,
        };
        identify_jemalloc(candidate, READERS).unwrap()
    }

    struct IgnoringFake;
    impl Behaviour for IgnoringFake {}

    struct RefusingFake;
    impl Behaviour for RefusingFake {
        const ACTIVATION_STATUS: i32 = libc::EPERM;
    }

    struct ProfOffFake;
    impl Behaviour for ProfOffFake {
        const OPT_PROF: bool = false;
    }

    #[test]
    fn ignored_activation_is_an_error() {
        let error = fake_jemalloc::<IgnoringFake>(None)
            .start_sampling(None)
            .unwrap_err();
        assert_eq!(error.kind, ErrorKind::Allocator);
        assert_eq!(
            error.message,
            "jemalloc 5.2.1 accepted prof.active and ignored it"
        );
    }

    #[test]
    fn refused_activation_names_errno() {
        let error = fake_jemalloc::<RefusingFake>(None)
            .start_sampling(None)
            .unwrap_err();
        let message = "jemalloc refused prof.active: Operation not permitted (EPERM)";
        assert_eq!(error.to_string(), message);
    }

    #[test]
    fn remedy_names_variable_of_build() {
        let check = |prefix: Option<&str>, expected: &str| {
            let error = fake_jemalloc::<ProfOffFake>(prefix)
                .start_sampling(None)
                .unwrap_err();
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
    fn deactivation_without_profiling_succeeds() {
        assert_eq!(fake_jemalloc::<ProfOffFake>(None).stop_sampling(), Ok(()));
    }
}
