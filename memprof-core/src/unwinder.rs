//! Who walks the stack of a sample: the allocator itself, or our walk, which costs a fraction of
//! it (`memprof-unwind`). Ours stays only while it finds what the allocator's own finds.

#[cfg_attr(target_arch = "x86_64", path = "unwinder/installed_walker.rs")]
#[cfg_attr(not(target_arch = "x86_64"), path = "unwinder/unsupported.rs")]
mod installed_walker;
mod process_context;
#[cfg(target_arch = "x86_64")]
mod thread_contexts;
mod tick;

use std::sync::Mutex;
use std::time::SystemTime;

use crate::allocators::jemalloc::Jemalloc;
use crate::{clock::rfc3339, lock::lock};
use memprof_messages::{Provider, UnwinderChoice, UnwinderStatus, WalkerStatus};

#[cfg(target_arch = "x86_64")]
pub(crate) use installed_walker::prepare_walks;
pub(crate) use installed_walker::{
    LabelContext, LabelSetCounts, MAX_KEYS, MAX_SETS, for_each_label_set, label_set_counts,
    set_alloc_time, set_labels, set_leased,
};
#[cfg(not(target_arch = "x86_64"))]
pub(crate) use installed_walker::{LabelKeyRegistry, thread_contexts};
pub(crate) use process_context::attribute_keys;
#[cfg(target_arch = "x86_64")]
pub(crate) use thread_contexts::{LabelKeyRegistry, thread_contexts};
pub(crate) use tick::PeriodicTask;

/// Where each thread has a pointer to its labels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThreadContext {
    /// The number of the library among those with thread-local variables, from 1.
    pub(crate) module: usize,
    /// Where in its variables the pointer lies.
    pub(crate) offset: usize,
    pub(crate) keys: LabelKeyNames,
}

/// Who knows the names of the keys that records tell by number.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LabelKeyNames {
    Program(LabelKeyRegistry),
    /// The process context, where there is one: [`attribute_keys`].
    OpenTelemetry,
}

/// How the walks are made, as the plugin's configuration says.
#[derive(Clone, Copy, Debug)]
pub struct UnwinderSettings {
    /// Unless an activation says otherwise.
    pub choice: UnwinderChoice,
    /// How many stacks of each activation are walked by both and compared, at least 1.
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

/// The walkers of the process's allocators.
#[derive(Debug)]
pub(crate) struct Unwinder {
    settings: UnwinderSettings,
    state: Mutex<UnwinderState>,
}

#[derive(Debug)]
struct UnwinderState {
    setting: UnwinderChoice,
    allocators: Vec<WalkerRecord>,
    loaded: tick::LoadCounts,
}

/// What became of one allocator.
#[derive(Debug)]
struct WalkerRecord {
    jemalloc: Jemalloc,
    ours: Option<installed_walker::InstalledWalker>,
    /// Why it is not installed.
    reason: Option<String>,
    since: Option<SystemTime>,
}

const INACTIVE: &str = "ours is installed by `activate`";

impl Unwinder {
    pub(crate) fn new(settings: UnwinderSettings) -> Self {
        let state = UnwinderState {
            setting: settings.choice,
            allocators: Vec::new(),
            loaded: tick::LoadCounts::default(),
        };
        Self {
            settings,
            state: Mutex::new(state),
        }
    }

    /// Installs what was chosen for each allocator. Returns what the operator should know.
    pub(crate) fn install(
        &self,
        jemallocs: &[&Jemalloc],
        choice: Option<UnwinderChoice>,
    ) -> Vec<String> {
        let mut state = lock(&self.state);
        state.remove_all();
        state.setting = choice.unwrap_or(self.settings.choice);
        state.loaded.clear_if_changed();
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
                ours: installed.ok(),
            }
        };
        let able = jemallocs.iter().filter(|jemalloc| jemalloc.opt_prof);
        state.allocators = able.map(install).collect();
        if setting != UnwinderChoice::Memprof {
            return Vec::new();
        }
        let refused = state.allocators.iter().filter_map(|known| {
            let reason = known.reason.as_ref()?;
            let identity = &known.jemalloc.identity;
            Some(format!("{identity} walks its stacks itself: {reason}"))
        });
        refused.collect()
    }

    /// Gives every allocator its own walker back.
    pub(crate) fn remove(&self) {
        lock(&self.state).remove_all();
    }

    /// Forgets rules of code that is gone, and removes what found too little.
    pub(crate) fn maintain(&self) {
        let mut state = lock(&self.state);
        state.loaded.clear_if_changed();
        installed_walker::clear_stack_cache();
        for known in &mut state.allocators {
            known.remove_if_disagreeing();
        }
    }

    /// True while ours is installed somewhere.
    pub(crate) fn has_own_walker(&self) -> bool {
        let state = lock(&self.state);
        state.allocators.iter().any(|known| known.reason.is_none())
    }

    /// Why ours was removed, for each allocator where its stacks were not those of the allocator.
    pub(crate) fn disagreements(&self) -> Vec<String> {
        let state = lock(&self.state);
        let given_up = state
            .allocators
            .iter()
            .filter(|known| known.counts().given_up);
        given_up
            .map(|known| format!("{}: {}", known.jemalloc.identity, known.disagreement()))
            .collect()
    }

    pub(crate) fn status(&self) -> UnwinderStatus {
        let state = lock(&self.state);
        UnwinderStatus {
            setting: state.setting.into(),
            rules_read: installed_walker::rules_read(),
            walkers: state.allocators.iter().map(WalkerRecord::status).collect(),
        }
    }
}

impl Drop for Unwinder {
    fn drop(&mut self) {
        self.remove();
    }
}

impl UnwinderState {
    fn remove_all(&mut self) {
        for known in &mut self.allocators {
            known.remove(INACTIVE.to_owned());
        }
    }
}

impl WalkerRecord {
    fn remove(&mut self, reason: String) {
        if self.reason.is_some() {
            return;
        }
        let Some(ours) = &self.ours else { return };
        match ours.remove(&self.jemalloc.mallctl) {
            Ok(()) => self.reason = Some(reason),
            // Ours goes on; nothing of it is ever unloaded.
            Err(error) => log::error!("{}: {error}", self.jemalloc.identity),
        }
    }

    fn remove_if_disagreeing(&mut self) {
        let counts = self.counts();
        if self.reason.is_some() || !counts.given_up {
            return;
        }
        let reason = self.disagreement();
        log::warn!(
            "{}: our stack walk is given up: {reason}",
            self.jemalloc.identity
        );
        self.remove(reason);
    }

    fn disagreement(&self) -> String {
        let installed_walker::HookStats {
            agreed, compared, ..
        } = self.counts();
        format!("only {agreed} of {compared} stacks were those that the allocator found")
    }

    fn counts(&self) -> installed_walker::HookStats {
        self.ours.as_ref().map_or(
            installed_walker::HookStats::default(),
            installed_walker::InstalledWalker::counts,
        )
    }

    fn status(&self) -> WalkerStatus {
        let counts = self.counts();
        WalkerStatus {
            allocator: self.jemalloc.identity.to_string(),
            walker: match &self.reason {
                Some(_) => Provider::Allocator,
                None if counts.given_up => Provider::Allocator,
                None => Provider::Memprof,
            }
            .into(),
            reason: self.reason.clone(),
            since: self.since.map(rfc3339),
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

    /// An older jemalloc, which has no hook.
    struct Old;
    impl Behaviour for Old {}

    #[test]
    fn where_there_is_no_hook_the_allocator_walks_and_only_ours_warns() {
        let jemalloc = fake_jemalloc::<Old>(None);
        let check = |choice, reason: &str, warned: bool| {
            let unwinder = Unwinder::new(UnwinderSettings::default());
            let warnings = unwinder.install(&[&jemalloc], choice);
            assert_eq!(!warnings.is_empty(), warned, "{warnings:?}");
            assert!(!unwinder.has_own_walker());
            let status = unwinder.status();
            assert_eq!(status.walkers[0].walker, Provider::Allocator);
            let told = status.walkers[0].reason.clone().unwrap();
            assert!(told.contains(reason), "{told}");
        };
        check(None, "this jemalloc has no hook for it", false);
        check(Some(UnwinderChoice::Memprof), "has no hook for it", true);
        check(Some(UnwinderChoice::Allocator), "as chosen", false);
    }
}
