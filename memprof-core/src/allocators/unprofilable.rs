//! Reasons why profiling is impossible, with remedies. `activate`, `status` and `doctor` report the same texts.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::error::{Error, ErrorKind};
use crate::identity::AllocatorIdentity;

/// Options with which a jemalloc must be started to be profilable.
pub(crate) const PROFILING_CONF: &str = "prof:true,prof_active:false";

/// Remedy for a process in which the loader ignores `LD_PRELOAD`.
const NO_PRELOAD_REMEDY: &str = "this process runs in secure-execution mode (AT_SECURE), in which the loader \
     ignores LD_PRELOAD: start it without changing uid (setpriv --reuid=USER --regid=GROUP \
     --init-groups), or use /etc/ld.so.preload and /etc/malloc.conf";

/// Reason why profiling is impossible. Allocators are given by name, such as `jemalloc 5.3.0`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unprofilable {
    /// Allocators of this kind have no profiler. `None` if no allocator was found.
    NoProfiler { allocator: Option<String> },
    /// Like `NoProfiler`, but no other allocator can be preloaded, because the loader ignores the environment.
    NoPreload { allocator: Option<String> },
    /// The allocator lacks functions for profiling.
    Incomplete(Box<Error>),
    /// The allocator was built without profiling. If `has_hooks`, memprof's sampler can sample it.
    NotCompiledIn { allocator: String, has_hooks: bool },
    /// The jemalloc was started with `opt.prof` off. `variable` configures it; `None` if its prefix is unknown.
    NotStarted {
        allocator: String,
        variable: Option<String>,
    },
    /// Like `NotStarted`, but the variable `set` (name, value) enables profiling for another build of jemalloc.
    OtherVariable {
        allocator: String,
        variable: String,
        set: (String, String),
    },
    /// Like `NotStarted`, but the jemalloc ignores the environment.
    Ignored {
        allocator: String,
        variable: Option<String>,
    },
    /// The program's file contains a jemalloc whose functions no symbol names.
    StrippedJemalloc(PathBuf),
    /// An allocator that memprof does not know serves `malloc`. Contains the path of its file.
    UnknownMalloc(PathBuf),
    /// Profiling fails for `reason`, but memprof's sampler can sample the allocator after `remedy`.
    SamplerAfterRemedy { reason: Box<Self>, remedy: String },
}

impl Unprofilable {
    /// Adds the remedy of `error` as a second one. `error` is the reason why memprof's sampler cannot sample the
    /// allocator either. Changes nothing if `error` has no remedy.
    pub(crate) fn with_sampler_remedy(self, error: &Error) -> Self {
        match error.remedy.as_str() {
            "" => self,
            remedy => Self::SamplerAfterRemedy {
                reason: Box::new(self),
                remedy: remedy.to_owned(),
            },
        }
    }

    /// Reason that allocators of this kind have no profiler, or, for `None`, that the process has no allocator. In
    /// secure-execution mode, the remedy cannot be to preload another allocator, because the loader ignores the
    /// environment.
    pub(crate) fn no_profiler(allocator: Option<&AllocatorIdentity>) -> Self {
        let allocator = allocator.map(AllocatorIdentity::to_string);
        match is_secure_execution() {
            true => Self::NoPreload { allocator },
            false => Self::NoProfiler { allocator },
        }
    }

    /// Reason for a jemalloc that was started without profiling. `variable` is the environment variable that it reads;
    /// `None` if its prefix is unknown. `environment` has the process's `MALLOC_CONF` variables.
    ///
    /// The reason differs in two cases. In secure-execution mode, jemalloc ignores the environment. If a variable that
    /// this jemalloc does not read enables profiling, the reason names that variable.
    pub(crate) fn not_started(
        jemalloc: &AllocatorIdentity,
        variable: Option<String>,
        environment: Vec<(String, String)>,
    ) -> Self {
        let allocator = jemalloc.to_string();
        if is_secure_execution() {
            return Self::Ignored {
                allocator,
                variable,
            };
        }
        let enables_profiling = |value: &str| value.split(',').any(|option| option == "prof:true");
        let mut others = environment.into_iter();
        let is_other = |(name, value): &(String, String)| {
            Some(name) != variable.as_ref() && enables_profiling(value)
        };
        match (others.find(is_other), variable) {
            (Some(set), Some(variable)) => Self::OtherVariable {
                allocator,
                variable,
                set,
            },
            (_, variable) => Self::NotStarted {
                allocator,
                variable,
            },
        }
    }

    /// Machine-readable code of the finding in `doctor`. Scripts compare it, so it stays if a variant is renamed.
    pub(crate) fn finding_code(&self) -> &'static str {
        match self {
            Self::NoProfiler { .. } => "no_jemalloc",
            Self::NoPreload { .. } | Self::Ignored { .. } => "secure_execution",
            Self::Incomplete(_) => "no_profiler",
            Self::NotCompiledIn { .. } => "not_compiled_in",
            Self::NotStarted { .. } => "not_started",
            Self::OtherVariable { .. } => "wrong_variable",
            Self::StrippedJemalloc(_) => "hidden_jemalloc",
            Self::UnknownMalloc(_) => "unknown_malloc",
            Self::SamplerAfterRemedy { reason, .. } => reason.finding_code(),
        }
    }

    /// Description of the problem, with the name of the allocator or file.
    pub(crate) fn message(&self) -> String {
        let prof_off = "was started with opt.prof=false";
        match self {
            Self::NoProfiler { allocator } | Self::NoPreload { allocator } => match allocator {
                Some(allocator) => format!("{allocator} has no profiler"),
                None => "this process has no allocator that memprof can find".to_owned(),
            },
            Self::Incomplete(error) => error.to_string(),
            Self::NotCompiledIn { allocator, .. } => {
                format!("{allocator} was built without profiling")
            }
            Self::NotStarted { allocator, .. } => format!("{allocator} {prof_off}"),
            Self::OtherVariable {
                allocator,
                variable,
                set: (set, _),
            } => format!("{allocator} {prof_off}: it reads {variable}, and {set} is set"),
            Self::Ignored {
                allocator,
                variable,
            } => format!(
                "{allocator} {prof_off}: in secure-execution mode (AT_SECURE) it ignores {}",
                conf_variable_names(variable)
            ),
            Self::StrippedJemalloc(path) => format!(
                "{} contains a jemalloc that memprof cannot control, because no symbol leads to its \
                 mallctl: its allocations are in no profile",
                path.display()
            ),
            Self::UnknownMalloc(path) => format!(
                "malloc is served by {}, which memprof does not know: its allocations are in no \
                 profile",
                path.display()
            ),
            Self::SamplerAfterRemedy { reason, .. } => reason.message(),
        }
    }

    /// Remedy that activate, status and doctor report. Empty if nothing helps.
    pub(crate) fn remedy(&self) -> String {
        match self {
            Self::NoProfiler { .. } => format!(
                "start it with `memprof run --allocator jemalloc`, or with LD_PRELOAD=libjemalloc.so.2 \
                 and MALLOC_CONF={PROFILING_CONF}; if jemalloc is linked in, do not strip the program, or \
                 export mallctl"
            ),
            Self::NoPreload { .. } => NO_PRELOAD_REMEDY.to_owned(),
            Self::Incomplete(error) => error.remedy.clone(),
            Self::NotCompiledIn { has_hooks, .. } => {
                let rebuild = "rebuild it with --enable-prof (Rust: feature \"profiling\" of tikv-jemallocator)";
                let hooks = "; not in production, `activate allocator=jemalloc sampler=memprof` samples it as it is";
                format!("{rebuild}{}", if *has_hooks { hooks } else { "" })
            }
            Self::NotStarted { variable, .. } => {
                format!("restart this program with {}={PROFILING_CONF}", conf_variable_names(variable))
            }
            Self::OtherVariable {
                variable,
                set: (_, value),
                ..
            } => format!("restart it with {variable}={value}"),
            Self::Ignored { .. } => "start it without changing uid (setpriv --reuid=USER \
                 --regid=GROUP --init-groups), or use /etc/malloc.conf"
                .to_owned(),
            Self::StrippedJemalloc(_) => "keep its symbols (Cargo: strip = \"debuginfo\"; strip \
                 --strip-debug), or link it with -Wl,--export-dynamic-symbol=mallctl (Rust: -C \
                 link-arg=-Wl,--export-dynamic-symbol=_rjem_mallctl), or pass mallctl to the plugin \
                 (the extension memprof.jemalloc/1 of memprof.h)"
                .to_owned(),
            Self::UnknownMalloc(_) => "start the program without that library".to_owned(),
            Self::SamplerAfterRemedy { reason, remedy } => format!("{}; or, as it runs, {remedy}", reason.remedy()),
        }
    }
}

impl From<Unprofilable> for Error {
    /// The kind is `Unavailable` for a jemalloc that was started without profiling, and `Unsupported` otherwise.
    /// `SamplerAfterRemedy` has the kind of the reason that it contains. An incomplete allocator's own error is
    /// returned unchanged.
    fn from(reason: Unprofilable) -> Self {
        let kind = match &reason {
            Unprofilable::NotStarted { .. }
            | Unprofilable::OtherVariable { .. }
            | Unprofilable::Ignored { .. } => ErrorKind::Unavailable,
            Unprofilable::NoProfiler { .. }
            | Unprofilable::NoPreload { .. }
            | Unprofilable::Incomplete(_)
            | Unprofilable::NotCompiledIn { .. }
            | Unprofilable::StrippedJemalloc(_)
            | Unprofilable::UnknownMalloc(_) => ErrorKind::Unsupported,
            Unprofilable::SamplerAfterRemedy { reason, .. } => Self::from((**reason).clone()).kind,
        };
        match reason {
            Unprofilable::Incomplete(error) => *error,
            reason => Self::new(kind, reason.message()).with_remedy(reason.remedy()),
        }
    }
}

/// Name of the variable that a jemalloc reads; `None`, for an unknown prefix, becomes the two common names.
fn conf_variable_names(variable: &Option<String>) -> &str {
    variable
        .as_deref()
        .unwrap_or("MALLOC_CONF (or _RJEM_MALLOC_CONF)")
}

/// `Unsupported` error for an allocator that keeps no record of its heap's growth.
pub(crate) fn no_growth_profile_error(allocator: &AllocatorIdentity) -> Error {
    let message = format!("{allocator} keeps no growth profile");
    Error::new(ErrorKind::Unsupported, message).with_remedy(
        "only gperftools' tcmalloc does; compare two heap profiles instead: memprof report LATER \
         --base EARLIER",
    )
}

/// `Unsupported` error for an allocator that does not report the occupancy of its pages.
pub(crate) fn no_pinned_profile_error(allocator: &AllocatorIdentity) -> Error {
    let message = format!(
        "{allocator} does not report how full its pages are, so the holders of nearly empty ones cannot be found"
    );
    Error::new(ErrorKind::Unsupported, message).with_remedy(
        "jemalloc 5.2 and newer does, if built with statistics, with memprof's sampler: start the program with \
         `memprof run --allocator jemalloc`, then `activate sampler=memprof sample_interval=64KiB`",
    )
}

/// `Unsupported` error for a request of pinned pages (nearly empty, held by few objects) while jemalloc's own sampler
/// is selected: it puts each sampled object on pages of its own, so its samples do not show the holders.
pub(crate) fn no_pinned_samples_error(jemalloc: &AllocatorIdentity) -> Error {
    let message = format!(
        "{jemalloc} puts each object that it samples itself on pages of its own, so its samples do not show who \
         holds those that are nearly empty"
    );
    Error::new(ErrorKind::Unsupported, message)
        .with_remedy("sample with memprof: `activate sampler=memprof sample_interval=64KiB`, and let the program work")
}

/// Names and values of the environment variables that some jemalloc may read: those with names that end in
/// `MALLOC_CONF`.
pub(crate) fn malloc_conf_variables() -> Vec<(String, String)> {
    let text = |os: OsString| os.to_string_lossy().into_owned();
    let all = std::env::vars_os().map(|(name, value)| (text(name), text(value)));
    all.filter(|(name, _)| name.ends_with("MALLOC_CONF"))
        .collect()
}

/// Whether the loader and jemalloc ignore the environment (`AT_SECURE`), for example after a setuid start or with file
/// capabilities.
#[expect(unsafe_code, reason = "getauxval is only declared unsafe")]
pub fn is_secure_execution() -> bool {
    // SAFETY: getauxval(3) reads a constant of this process.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::identity::FoundBy;
    use memprof_messages::AllocatorKind;

    /// Returns made-up reasons for tests, at least one of each kind.
    pub(crate) fn all_reasons() -> Vec<Unprofilable> {
        let allocator = || "jemalloc 5.3.0".to_owned();
        let variable = || "_RJEM_MALLOC_CONF".to_owned();
        let incomplete =
            Error::new(ErrorKind::Unsupported, "it is minimal").with_remedy("use libtcmalloc");
        vec![
            Unprofilable::NoProfiler {
                allocator: Some(allocator()),
            },
            Unprofilable::NoProfiler { allocator: None },
            Unprofilable::NoPreload {
                allocator: Some(allocator()),
            },
            Unprofilable::Incomplete(Box::new(incomplete)),
            Unprofilable::NotCompiledIn {
                allocator: allocator(),
                has_hooks: true,
            },
            Unprofilable::NotStarted {
                allocator: allocator(),
                variable: None,
            },
            Unprofilable::OtherVariable {
                allocator: allocator(),
                variable: variable(),
                set: ("MALLOC_CONF".to_owned(), "prof:true".to_owned()),
            },
            Unprofilable::Ignored {
                allocator: allocator(),
                variable: Some(variable()),
            },
            Unprofilable::StrippedJemalloc("/bin/db".into()),
            Unprofilable::UnknownMalloc("/lib/libasan.so".into()),
        ]
    }

    #[test]
    fn not_started_reason_names_variable_of_other_build() {
        let jemalloc = AllocatorIdentity {
            kind: AllocatorKind::Jemalloc,
            version: "5.3.0-0-g54eaed1".to_owned(),
            found_by: FoundBy::Host,
            owns_malloc: true,
            address: 0,
        };
        let check = |variable: Option<&str>, set: &[(&str, &str)], message: &str, remedy: &str| {
            let set = set
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            let reason =
                Unprofilable::not_started(&jemalloc, variable.map(str::to_owned), set.collect());
            assert_eq!((&*reason.message(), &*reason.remedy()), (message, remedy));
        };
        let off = "jemalloc 5.3.0 was started with opt.prof=false";
        let rust = Some("_RJEM_MALLOC_CONF");
        let remedy = "restart this program with _RJEM_MALLOC_CONF=prof:true,prof_active:false";
        check(rust, &[], off, remedy);
        check(rust, &[("MALLOC_CONF", "narenas:1")], off, remedy);
        check(
            rust,
            &[("_RJEM_MALLOC_CONF", "prof:true,prof:false")],
            off,
            remedy,
        );
        let other = [("MALLOC_CONF", "prof:true,lg_prof_sample:14")];
        check(
            rust,
            &other,
            &format!("{off}: it reads _RJEM_MALLOC_CONF, and MALLOC_CONF is set"),
            "restart it with _RJEM_MALLOC_CONF=prof:true,lg_prof_sample:14",
        );
        let remedy = "restart this program with MALLOC_CONF (or _RJEM_MALLOC_CONF)=\
                      prof:true,prof_active:false";
        check(None, &other, off, remedy);
    }

    #[test]
    fn not_compiled_in_remedy_mentions_hooks_if_present() {
        let remedy = |has_hooks| {
            let allocator = "jemalloc 5.3.1".to_owned();
            Unprofilable::NotCompiledIn {
                allocator,
                has_hooks,
            }
            .remedy()
        };
        let rebuild =
            "rebuild it with --enable-prof (Rust: feature \"profiling\" of tikv-jemallocator)";
        assert_eq!(remedy(false), rebuild);
        let hooks = "; not in production, `activate allocator=jemalloc sampler=memprof` samples it as it is";
        assert_eq!(remedy(true), format!("{rebuild}{hooks}"));
    }

    #[test]
    fn sampler_remedy_is_added_to_reason() {
        let reason = || Unprofilable::NotStarted {
            allocator: "jemalloc 5.4.0".to_owned(),
            variable: Some("MALLOC_CONF".to_owned()),
        };
        let error = Error::new(ErrorKind::Unsupported, "no slot leads to it");
        assert_eq!(reason().with_sampler_remedy(&error), reason());
        let combined =
            reason().with_sampler_remedy(&error.with_remedy("`memprof attach 7 sampler=memprof`"));
        assert_eq!(
            (combined.finding_code(), combined.message()),
            (reason().finding_code(), reason().message())
        );
        let remedy = "restart this program with MALLOC_CONF=prof:true,prof_active:false; or, as it runs, \
                      `memprof attach 7 sampler=memprof`";
        assert_eq!(combined.remedy(), remedy);
        assert_eq!(Error::from(combined).kind, ErrorKind::Unavailable);
    }
}
