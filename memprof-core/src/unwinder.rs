//! Stack walks of jemalloc's samples, either by the allocator's walker or by memprof's (`memprof-unwind`), which takes
//! a fraction of the time. memprof's walker stays installed only as long as it finds the same stacks as the
//! allocator's.

mod code_history;
#[cfg_attr(target_arch = "x86_64", path = "unwinder/installed_walker.rs")]
#[cfg_attr(not(target_arch = "x86_64"), path = "unwinder/unsupported.rs")]
mod installed_walker;
mod periodic_task;
mod process_context;
#[cfg(target_arch = "x86_64")]
mod thread_contexts;

use std::sync::Mutex;
use std::time::SystemTime;

use crate::allocators::jemalloc::Jemalloc;
use crate::lock::lock;
use memprof_messages::{Provider, UnwinderChoice, UnwinderStatus, WalkerStatus};

pub(crate) use code_history::{ChangedCode, code_history_comment_lines, update_code_history};
#[cfg(target_arch = "x86_64")]
pub(crate) use installed_walker::prepare_walks;
pub(crate) use installed_walker::{
    LabelContext, LabelSetCounts, MAX_KEYS, MAX_SETS, for_each_label_set, label_set_counts,
    set_activation_time_limited, set_alloc_time, set_labels,
};
#[cfg(not(target_arch = "x86_64"))]
pub(crate) use installed_walker::{LabelKeyRegistry, find_thread_contexts};
pub(crate) use periodic_task::{PeriodicTask, clear_rules_and_record_code};
pub(crate) use process_context::read_label_key_names;
#[cfg(target_arch = "x86_64")]
pub(crate) use thread_contexts::{LabelKeyRegistry, find_thread_contexts};

/// Thread-local variable that points to each thread's labels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThreadContext {
    /// Module ID of the library in the loader's list of modules with thread-local variables, from 1 (`dlpi_tls_modid`).
    pub(crate) module: usize,
    /// Offset of the pointer in the library's thread-local block.
    pub(crate) offset: usize,
    pub(crate) keys: LabelKeyNames,
}

/// Source of the names of label keys. Label records contain only numbers for keys.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LabelKeyNames {
    Program(LabelKeyRegistry),
    /// The process context, if the process publishes one: see [`read_label_key_names`].
    OpenTelemetry,
}

/// Walker settings from the plugin's configuration.
#[derive(Clone, Copy, Debug)]
pub struct UnwinderSettings {
    /// Walker to use unless an activation chooses another.
    pub choice: UnwinderChoice,
    /// Number of stacks per activation that both walkers walk for comparison; at least 1.
    pub compare: u64,
}

impl Default for UnwinderSettings {
    fn default() -> Self {
        Self {
            choice: UnwinderChoice::Auto,
            compare: 64,
        }
    }
}

/// The walkers of the process's jemallocs.
#[derive(Debug)]
pub(crate) struct Unwinder {
    settings: UnwinderSettings,
    state: Mutex<UnwinderState>,
}

#[derive(Debug)]
struct UnwinderState {
    setting: UnwinderChoice,
    allocators: Vec<WalkerRecord>,
    loaded: periodic_task::LoadCounts,
}

/// One jemalloc with its installed walker, or the reason why it keeps its own walker.
#[derive(Debug)]
struct WalkerRecord {
    jemalloc: Jemalloc,
    walker: Option<installed_walker::InstalledWalker>,
    /// Reason why memprof's walker is not installed. `None` while it is.
    reason: Option<String>,
    since: Option<SystemTime>,
}

/// Reason while no activation is running.
const INACTIVE: &str = "memprof's walker is installed by `activate`";

impl Unwinder {
    /// Creates an unwinder without installed walkers.
    pub(crate) fn new(settings: UnwinderSettings) -> Self {
        let state = UnwinderState {
            setting: settings.choice,
            allocators: Vec::new(),
            loaded: periodic_task::LoadCounts::default(),
        };
        Self {
            settings,
            state: Mutex::new(state),
        }
    }

    /// Installs the stack walker of `choice`, or else of the settings, in each jemalloc that can profile. Replaces
    /// walkers installed earlier. If memprof's walker was requested, returns a warning for each jemalloc that keeps its
    /// own.
    pub(crate) fn install_walkers(
        &self,
        jemallocs: &[&Jemalloc],
        choice: Option<UnwinderChoice>,
    ) -> Vec<String> {
        let mut state = lock(&self.state);
        state.uninstall_all_walkers();
        state.setting = choice.unwrap_or(self.settings.choice);
        state.loaded.clear_rules_if_changed();
        let setting = state.setting;
        let install = |jemalloc: &&Jemalloc| {
            let installed = match setting {
                UnwinderChoice::Allocator => Err("as chosen".to_owned()),
                choice => installed_walker::InstalledWalker::install(
                    &jemalloc.mallctl,
                    choice == UnwinderChoice::Memprof,
                    self.settings.compare,
                ),
            };
            WalkerRecord {
                jemalloc: (*jemalloc).clone(),
                since: installed.is_ok().then(SystemTime::now),
                reason: installed.as_ref().err().cloned(),
                walker: installed.ok(),
            }
        };
        let able = jemallocs.iter().filter(|jemalloc| jemalloc.opt_prof);
        state.allocators = able.map(install).collect();
        if setting != UnwinderChoice::Memprof {
            return Vec::new();
        }
        let warnings = state.allocators.iter().filter_map(|record| {
            let reason = record.reason.as_ref()?;
            let identity = &record.jemalloc.identity;
            Some(format!("{identity} walks its stacks itself: {reason}"))
        });
        warnings.collect()
    }

    /// Restores the previous stack walker of each jemalloc. An error is only logged.
    pub(crate) fn uninstall_walkers(&self) {
        lock(&self.state).uninstall_all_walkers();
    }

    /// Clears the unwind rules if a library was loaded or unloaded, and the caches about stacks, because threads may
    /// have ended. Uninstalls memprof's stack walker from each jemalloc whose own walker found other stacks too often.
    pub(crate) fn maintain_walkers(&self) {
        let mut state = lock(&self.state);
        state.loaded.clear_rules_if_changed();
        installed_walker::clear_stack_cache();
        for record in &mut state.allocators {
            record.uninstall_if_disagreeing();
        }
    }

    /// Whether memprof's stack walker is installed in at least one jemalloc.
    pub(crate) fn has_own_walker(&self) -> bool {
        let state = lock(&self.state);
        state
            .allocators
            .iter()
            // A record has a reason if the jemalloc keeps its own walker.
            .any(|record| record.reason.is_none())
    }

    /// Names each jemalloc for which memprof's stack walker was given up, because jemalloc's walker found other stacks
    /// too often. Each text states how many of the compared stacks agreed.
    pub(crate) fn disagreement_reasons(&self) -> Vec<String> {
        let state = lock(&self.state);
        let disagreeing = state
            .allocators
            .iter()
            .filter(|record| record.hook_stats().given_up);
        disagreeing
            .map(|record| {
                format!(
                    "{}: {}",
                    record.jemalloc.identity,
                    record.disagreement_reason()
                )
            })
            .collect()
    }

    /// Chosen walker, number of rules read, and the state of each jemalloc's walker.
    pub(crate) fn status(&self) -> UnwinderStatus {
        let state = lock(&self.state);
        UnwinderStatus {
            setting: state.setting.into(),
            rules_read: installed_walker::rules_read_count(),
            walkers: state.allocators.iter().map(WalkerRecord::status).collect(),
        }
    }
}

impl Drop for Unwinder {
    fn drop(&mut self) {
        self.uninstall_walkers();
    }
}

impl UnwinderState {
    /// Restores the previous stack walker of each jemalloc, because an activation ends or another one begins.
    fn uninstall_all_walkers(&mut self) {
        for record in &mut self.allocators {
            record.uninstall_walker(INACTIVE.to_owned());
        }
    }
}

impl WalkerRecord {
    /// Restores the jemalloc's previous stack walker, and stores the reason. Does nothing if memprof's walker is not
    /// installed. If jemalloc refuses, logs an error, and memprof's walker stays.
    fn uninstall_walker(&mut self, reason: String) {
        if self.reason.is_some() {
            return;
        }
        let Some(walker) = &self.walker else { return };
        match walker.uninstall(&self.jemalloc.mallctl) {
            Ok(()) => self.reason = Some(reason),
            // memprof's walker keeps working; its code is never unloaded.
            Err(error) => log::error!("{}: {error}", self.jemalloc.identity),
        }
    }

    /// Uninstalls memprof's walker, and logs a warning, if its stacks differed from jemalloc's too often. Does nothing
    /// if the walker is not installed.
    fn uninstall_if_disagreeing(&mut self) {
        let counts = self.hook_stats();
        if self.reason.is_some() || !counts.given_up {
            return;
        }
        let reason = self.disagreement_reason();
        log::warn!(
            "{}: memprof's stack walk is given up: {reason}",
            self.jemalloc.identity
        );
        self.uninstall_walker(reason);
    }

    /// Text that states how many of the compared stacks agreed.
    fn disagreement_reason(&self) -> String {
        let installed_walker::HookStats {
            agreed, compared, ..
        } = self.hook_stats();
        format!("only {agreed} of {compared} stacks were those that the allocator found")
    }

    /// Counts of walks and fallbacks since memprof's walker was installed; 0 if it never was.
    fn hook_stats(&self) -> installed_walker::HookStats {
        self.walker.as_ref().map_or(
            installed_walker::HookStats::default(),
            installed_walker::InstalledWalker::hook_stats,
        )
    }

    /// State of this jemalloc's walker, for the message `status`.
    fn status(&self) -> WalkerStatus {
        let counts = self.hook_stats();
        WalkerStatus {
            allocator: self.jemalloc.identity.to_string(),
            walker: match &self.reason {
                Some(_) => Provider::Allocator,
                None if counts.given_up => Provider::Allocator,
                None => Provider::Memprof,
            }
            .into(),
            reason: self.reason.clone(),
            since: self
                .since
                .map(|since| humantime::format_rfc3339_seconds(since).to_string()),
            samples: counts.samples,
            fallbacks: counts.fallbacks,
            cut: counts.cut,
            compared: counts.compared,
            agreed: counts.agreed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocators::fake::Behaviour;
    use crate::allocators::jemalloc::tests::fake_jemalloc;

    /// A jemalloc before 5.3, which has no backtrace hook.
    struct HooklessFake;
    impl Behaviour for HooklessFake {}

    #[test]
    fn without_hook_allocator_walks_and_only_explicit_choice_warns() {
        let jemalloc = fake_jemalloc::<HooklessFake>(None);
        let check = |choice, reason: &str, warned: bool| {
            let unwinder = Unwinder::new(UnwinderSettings::default());
            let warnings = unwinder.install_walkers(&[&jemalloc], choice);
            assert_eq!(!warnings.is_empty(), warned, "{warnings:?}");
            assert!(!unwinder.has_own_walker());
            let status = unwinder.status();
            assert_eq!(status.walkers[0].walker, Provider::Allocator);
            let actual = status.walkers[0].reason.clone().unwrap();
            assert!(actual.contains(reason), "{actual}");
        };
        check(None, "this jemalloc has no hook for it", false);
        check(Some(UnwinderChoice::Memprof), "has no hook for it", true);
        check(Some(UnwinderChoice::Allocator), "as chosen", false);
    }
}
