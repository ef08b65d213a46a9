//! Who walks the stack of a sample: the allocator itself, or our walk, which costs a fraction of
//! it (`memprof-unwind`). Ours stays only while it finds what the allocator's own finds.

#[cfg(target_arch = "x86_64")]
mod contexts;
#[cfg_attr(target_arch = "x86_64", path = "unwinder/ours.rs")]
#[cfg_attr(not(target_arch = "x86_64"), path = "unwinder/elsewhere.rs")]
mod ours;
mod process_context;
mod tick;

use std::sync::Mutex;
use std::time::SystemTime;

use crate::allocators::jemalloc::Jemalloc;
use crate::{clock::rfc3339, lock::lock};
use memprof_messages::{UnwinderChoice, UnwinderStatus, Walker, Whose};

#[cfg(target_arch = "x86_64")]
pub(crate) use contexts::{KeyNumbers, thread_contexts};
#[cfg(target_arch = "x86_64")]
pub(crate) use ours::prepare_walks;
pub(crate) use ours::{
    Context, LabelSetCounts, MOST_KEYS, MOST_SETS, each_label_set, label_set_counts, set_birth,
    set_labels, set_leased,
};
#[cfg(not(target_arch = "x86_64"))]
pub(crate) use ours::{KeyNumbers, thread_contexts};
pub(crate) use process_context::attribute_keys;
pub(crate) use tick::Tick;

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
    Program(KeyNumbers),
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
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    setting: UnwinderChoice,
    allocators: Vec<Known>,
    loaded: tick::Loaded,
}

/// What became of one allocator.
#[derive(Debug)]
struct Known {
    jemalloc: Jemalloc,
    ours: Option<ours::Ours>,
    /// Why it is not installed.
    reason: Option<String>,
    since: Option<SystemTime>,
}

const INACTIVE: &str = "ours is installed by `activate`";

impl Unwinder {
    pub(crate) fn new(settings: UnwinderSettings) -> Self {
        let state = State {
            setting: settings.choice,
            allocators: Vec::new(),
            loaded: tick::Loaded::default(),
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
        state.loaded.forget_if_changed();
        let setting = state.setting;
        let install = |jemalloc: &&Jemalloc| {
            let installed = match setting {
                UnwinderChoice::Allocator => Err("as chosen".to_owned()),
                choice => ours::Ours::install(
                    &jemalloc.mallctl,
                    choice == UnwinderChoice::Ours,
                    self.settings.compare,
                ),
            };
            Known {
                jemalloc: (*jemalloc).clone(),
                since: installed.is_ok().then(SystemTime::now),
                reason: installed.as_ref().err().cloned(),
                ours: installed.ok(),
            }
        };
        let able = jemallocs.iter().filter(|jemalloc| jemalloc.opt_prof);
        state.allocators = able.map(install).collect();
        if setting != UnwinderChoice::Ours {
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
    pub(crate) fn tend(&self) {
        let mut state = lock(&self.state);
        state.loaded.forget_if_changed();
        ours::forget_stacks();
        for known in &mut state.allocators {
            known.remove_if_given_up();
        }
    }

    /// True while ours is installed somewhere.
    pub(crate) fn is_ours(&self) -> bool {
        let state = lock(&self.state);
        state.allocators.iter().any(|known| known.reason.is_none())
    }

    /// Why ours was removed, for each allocator where its stacks were not those of the allocator.
    pub(crate) fn given_up(&self) -> Vec<String> {
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
            rules_read: ours::rules_read(),
            walkers: state.allocators.iter().map(Known::status).collect(),
        }
    }
}

impl Drop for Unwinder {
    fn drop(&mut self) {
        self.remove();
    }
}

impl State {
    fn remove_all(&mut self) {
        for known in &mut self.allocators {
            known.remove(INACTIVE.to_owned());
        }
    }
}

impl Known {
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

    fn remove_if_given_up(&mut self) {
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
        let ours::Counts {
            agreed, compared, ..
        } = self.counts();
        format!("only {agreed} of {compared} stacks were those that the allocator found")
    }

    fn counts(&self) -> ours::Counts {
        self.ours
            .as_ref()
            .map_or(ours::Counts::default(), ours::Ours::counts)
    }

    fn status(&self) -> Walker {
        let counts = self.counts();
        Walker {
            allocator: self.jemalloc.identity.to_string(),
            walker: match &self.reason {
                Some(_) => Whose::Allocator,
                None if counts.given_up => Whose::Allocator,
                None => Whose::Ours,
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
    use crate::allocators::jemalloc::tests::found;

    /// An older jemalloc, which has no hook.
    struct Old;
    impl Behaviour for Old {}

    #[test]
    fn where_there_is_no_hook_the_allocator_walks_and_only_ours_warns() {
        let jemalloc = found::<Old>(None);
        let check = |choice, reason: &str, warned: bool| {
            let unwinder = Unwinder::new(UnwinderSettings::default());
            let warnings = unwinder.install(&[&jemalloc], choice);
            assert_eq!(!warnings.is_empty(), warned, "{warnings:?}");
            assert!(!unwinder.is_ours());
            let status = unwinder.status();
            assert_eq!(status.walkers[0].walker, Whose::Allocator);
            let told = status.walkers[0].reason.clone().unwrap();
            assert!(told.contains(reason), "{told}");
        };
        check(None, "this jemalloc has no hook for it", false);
        check(Some(UnwinderChoice::Ours), "has no hook for it", true);
        check(Some(UnwinderChoice::Allocator), "as chosen", false);
    }
}
