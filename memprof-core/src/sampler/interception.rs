//! Interception of the program's `malloc` calls. It uses entry patches if `memprof attach` wrote them, and GOT slots
//! otherwise; if no slot leads to the allocator, it uses the hooks of a jemalloc. Entry patches of allocators with
//! other names, such as a Rust program's own, are used in addition.

use std::time::SystemTime;

use memprof_messages::{InterceptionKind, SlotCounts};
use memprof_sampler::{MallocProvider, PatchStats, PatchedEntries, Role};

use super::SamplerSelection;
use super::entries_beside_malloc::EntriesBesideMalloc;
use super::fork::has_sampled_since_program_start;
use super::interception_error::{
    convert_sampler_error, loader_lock_error, missing_patches_error, statically_linked_error,
};
use super::jemalloc_hooks::JemallocHookInstaller;
use super::{loaded_libraries, python_objects, sampled_allocator};
use crate::allocators::loaded_objects::{self, ForkGuard};
use crate::error::{Error, ErrorKind, Result};
use crate::identity::AllocatorIdentity;
use crate::unwinder::{clear_rules_and_record_code, prepare_walks};

/// Maximum number of attempts to restore slots. An attempt fails after 200 ms if threads of the program patch the slots
/// of libraries that they load.
const RESTORE_ATTEMPTS: u32 = 10;

/// Method by which allocator calls reach the sampler.
#[derive(Debug)]
pub(super) enum InterceptionMethod {
    Slots(Box<memprof_sampler::GotSlots>),
    Entries(Box<PatchedEntries>),
    Hooks(JemallocHookInstaller),
}

/// The interception of one allocator's calls, and its state.
#[derive(Debug)]
pub(super) struct Interception {
    pub(super) method: InterceptionMethod,
    beside: EntriesBesideMalloc,
    /// Whether the allocator serves `malloc`.
    serves_malloc: bool,
    /// Object that provides `malloc`.
    provider: MallocProvider,
    pub(super) selection: SamplerSelection,
    pub(super) slots: SlotCounts,
    /// Number of libraries loaded and unloaded at the time when the slots were last patched.
    loaded: (u64, u64),
    /// Start of sampling since samples were last dropped. `None` if none were taken.
    pub(super) since: Option<SystemTime>,
    /// Bytes that the allocator had allocated at the start of sampling. `None` if unknown.
    pub(super) allocated_at_start: Option<u64>,
}

impl Interception {
    /// Finds a method to intercept the allocator's calls and those of `malloc`. `hooks`, which returns `None` for an
    /// allocator without hooks, is called only if no other method is possible.
    ///
    /// # Errors
    /// `Unsupported`: the reason why interception is impossible.
    pub(super) fn find(
        allocator: &AllocatorIdentity,
        hooks: impl FnOnce() -> Option<JemallocHookInstaller>,
    ) -> Result<Self> {
        let unsampleable_error = |error: Error| {
            let message = format!("memprof cannot sample {allocator}: {}", error.message);
            Error { message, ..error }
        };
        let slots = Self::find_got_slots().map_err(unsampleable_error)?;
        let provider = slots.provider();
        let mut beside = EntriesBesideMalloc::find();
        let entries = match provider.is_program {
            // If only some jumps are in place, activation fails with the remedy.
            true => PatchedEntries::find(provider.malloc),
            false => slots.patched_entries().cloned(),
        };
        // If the program contains malloc, but the allocator does not serve it, the calls of malloc are not needed.
        let is_beside = provider.is_program && !allocator.owns_malloc;
        let entries = entries.or_else(|| is_beside.then(|| beside.take_table())?);
        let method = match (entries, provider.is_program) {
            (Some(entries), _) => InterceptionMethod::Entries(Box::new(entries)),
            (None, false) => InterceptionMethod::Slots(Box::new(slots)),
            (None, true) => {
                return hooks().map_or_else(
                    || Err(unsampleable_error(statically_linked_error())),
                    |hooks| Self::with_jemalloc_hooks(hooks, allocator),
                );
            }
        };
        Ok(Self::new(method, beside, provider, allocator))
    }

    /// Creates an interception through the hooks of a jemalloc. Installs nothing yet.
    ///
    /// # Errors
    /// `Unsupported`: the reason why nothing can be sampled in this process.
    pub(super) fn with_jemalloc_hooks(
        hooks: JemallocHookInstaller,
        allocator: &AllocatorIdentity,
    ) -> Result<Self> {
        // `find_got_slots` also records the address range of memprof's own code.
        let slots = Self::find_got_slots()?;
        let method = InterceptionMethod::Hooks(hooks);
        let beside = EntriesBesideMalloc::without_tables();
        Ok(Self::new(method, beside, slots.provider(), allocator))
    }

    /// Creates an interception, not installed yet. If sampling is on already, since the program's start or from before
    /// a fork, takes over its state; the present counts as the start of sampling.
    fn new(
        method: InterceptionMethod,
        beside: EntriesBesideMalloc,
        provider: MallocProvider,
        allocator: &AllocatorIdentity,
    ) -> Self {
        Self {
            beside,
            serves_malloc: allocator.owns_malloc,
            slots: SlotCounts {
                // Slots that the parent of a forked child patched.
                patched: match &method {
                    InterceptionMethod::Slots(slots) => slots.patched_count(),
                    InterceptionMethod::Entries(entries) => entries.enabled_count(),
                    InterceptionMethod::Hooks(_) => 0,
                },
                ..SlotCounts::default()
            },
            method,
            provider,
            selection: SamplerSelection::Allocator,
            loaded: (0, 0),
            // Sampling began with the program, or in the parent of a forked child.
            since: (memprof_sampler::interval() > 0).then(SystemTime::now),
            allocated_at_start: has_sampled_since_program_start().then_some(0),
        }
    }

    /// Finds the GOT slots of the process. First prepares stack walks, without which nothing can be sampled.
    ///
    /// # Errors
    /// `Unsupported`: the reason why nothing can be sampled in this process.
    pub(super) fn find_got_slots() -> Result<memprof_sampler::GotSlots> {
        let unsupported = |message: &str| Error::new(ErrorKind::Unsupported, message);
        prepare_walks().map_err(|reason| unsupported(&reason))?;
        // A child that is forked meanwhile would inherit the loader's lock locked.
        let _no_fork = ForkGuard::acquire();
        let slots = memprof_sampler::GotSlots::find()
            .ok_or_else(|| unsupported("no object defines malloc"))?;
        if !slots.can_lock_loader() {
            return Err(unsupported("memprof's library was loaded twice"));
        }
        Ok(slots)
    }

    /// Sets the allocator to sample. Drops the samples of another allocator, because a profile covers one allocator.
    /// Also records whether samples may belong to several allocators from now on.
    ///
    /// # Errors
    /// `Busy`: a thread stays inside the sampler.
    pub(super) fn set_allocator(&mut self, allocator: &AllocatorIdentity) -> Result<()> {
        let is_another = sampled_allocator::may_have_sampled_another(allocator);
        if is_another || self.samples_several_allocators() {
            sampled_allocator::mark_several_allocators();
        }
        if is_another {
            self.drop_samples()?;
        }
        sampled_allocator::set_sampled_allocator(allocator);
        Ok(())
    }

    /// Intercepts the calls of all objects that are loaded at the moment.
    ///
    /// # Errors
    /// `Unavailable`: the slots cannot be patched, or entry points are not patched. `Allocator`: jemalloc
    /// refused the hooks.
    pub(super) fn install(&mut self) -> Result<()> {
        match &mut self.method {
            InterceptionMethod::Slots(_) => self.patch_slots(),
            InterceptionMethod::Entries(entries) => {
                loaded_libraries::stop_patching_new_libraries();
                self.slots.patched = entries.enable().ok_or_else(missing_patches_error)?;
                Ok(())
            }
            InterceptionMethod::Hooks(hooks) => hooks.install_hooks(),
        }?;
        self.beside.enable_hooks().ok_or_else(missing_patches_error)
    }

    /// Intercepts libraries loaded since the last call, and clears the unwind rules, which may belong to unloaded
    /// libraries. Does nothing if no library was loaded or unloaded.
    ///
    /// # Errors
    /// `Unavailable`: the slots cannot be patched.
    pub(super) fn intercept_new_libraries(&mut self) -> Result<()> {
        if self.loaded == loaded_objects::load_and_unload_counts() {
            return Ok(());
        }
        match self.method {
            InterceptionMethod::Slots(_) => self.patch_slots(),
            InterceptionMethod::Entries(_) | InterceptionMethod::Hooks(_) => {
                self.loaded = clear_rules_and_record_code();
                Ok(())
            }
        }
    }

    /// Records the loaded code, patches the GOT slots of all loaded objects, and lets those of libraries that are
    /// loaded later be patched too. Patches nothing if another method is in use.
    ///
    /// # Errors
    /// `Unavailable`: the loader cannot be locked, or the kernel refuses every slot.
    fn patch_slots(&mut self) -> Result<()> {
        self.loaded = clear_rules_and_record_code();
        let InterceptionMethod::Slots(slots) = &mut self.method else {
            return Ok(());
        };
        let no_fork = ForkGuard::acquire();
        let patched = slots.patch().ok_or_else(loader_lock_error)?;
        loaded_libraries::start_patching_new_libraries(slots, &no_fork);
        require_patched_slots(&patched)?;
        self.slots = SlotCounts {
            patched: patched.patched,
            foreign: patched.foreign,
            unseen_objects: patched.unseen_objects,
            other_mallocs: patched.other_mallocs,
            refused: patched.refused,
        };
        Ok(())
    }

    /// Uninstalls the interception of functions that only allocate, or of all functions if no sampled block is live;
    /// see [`removable_role`]. Hooks of jemalloc are removed in any case, because they cost as much for a free as for
    /// an allocation.
    ///
    /// # Errors
    /// `Unavailable`: the loader cannot be locked. `Allocator`: jemalloc refused.
    pub(super) fn uninstall(&mut self) -> Result<()> {
        self.beside.disable_hooks(removable_role());
        python_objects::uninstall_hooks(removable_role().is_some());
        let slots = match &mut self.method {
            InterceptionMethod::Slots(slots) => slots,
            InterceptionMethod::Entries(entries) => {
                entries.disable(removable_role());
                self.slots.patched = entries.enabled_count();
                return Ok(());
            }
            InterceptionMethod::Hooks(hooks) => return hooks.remove_hooks(),
        };
        let role = removable_role();
        // The guard is released between the attempts, so that the program's forks can continue.
        let mut attempts = (0..RESTORE_ATTEMPTS).map(|_| {
            let _no_fork = ForkGuard::acquire();
            slots.restore(role)
        });
        let restored = attempts.find_map(|restored| restored);
        restored.ok_or_else(loader_lock_error)?;
        self.slots.patched = slots.patched_count();
        Ok(())
    }

    /// Stops sampling and uninstalls the interception. Existing samples are kept.
    ///
    /// # Errors
    /// `Unavailable`: the loader cannot be locked. `Allocator`: jemalloc refused. Sampling is off even then.
    pub(super) fn stop_sampling(&mut self) -> Result<()> {
        memprof_sampler::stop();
        self.uninstall()
    }

    /// Stops sampling and drops all samples.
    ///
    /// # Errors
    /// `Busy`: a thread stays inside the sampler.
    pub(super) fn drop_samples(&mut self) -> Result<()> {
        memprof_sampler::stop();
        self.since = None;
        self.allocated_at_start = None;
        memprof_sampler::clear().map_err(convert_sampler_error)
    }

    /// Whether allocators beside that of `malloc` are sampled, so that samples may belong to several.
    pub(super) fn samples_several_allocators(&self) -> bool {
        self.beside.has_tables()
    }

    /// Method by which the allocator's calls are intercepted, as `status` shows it. An allocator that does not serve
    /// `malloc` is intercepted by its entry patches, even if slots intercept `malloc`.
    pub(super) fn interception_kind(&self) -> InterceptionKind {
        match self.method {
            InterceptionMethod::Slots(_) if self.serves_malloc => InterceptionKind::Slots,
            InterceptionMethod::Slots(_) | InterceptionMethod::Entries(_) => {
                InterceptionKind::Entries
            }
            InterceptionMethod::Hooks(_) => InterceptionKind::JemallocHooks,
        }
    }

    /// Whether GOT slots or entry points are patched, possibly by `sample_from_start` or in the parent of a forked
    /// child.
    pub(super) fn has_patches(&self) -> bool {
        let is_patched = match &self.method {
            InterceptionMethod::Slots(slots) => slots.patched_count() > 0,
            InterceptionMethod::Entries(entries) => entries.enabled_count() > 0,
            InterceptionMethod::Hooks(_) => false,
        };
        is_patched || self.beside.has_enabled_hooks()
    }

    /// Whether there are live samples whose frees may have been missed, because `memprof attach` wrote or restored
    /// entry patches (jumps at functions' starts) after they were taken.
    pub(super) fn has_unwatched_samples(&self) -> bool {
        !self.uses_jemalloc_hooks()
            && !self.has_patches()
            && memprof_sampler::counts().live_samples > 0
    }

    /// Whether another method is possible now, because `memprof attach` wrote or restored entry patches since the
    /// search. False while sampling is on, because replacing the method would stop it.
    pub(super) fn is_outdated(&self) -> bool {
        let MallocProvider { malloc, is_program } = self.provider;
        let is_patched = || PatchedEntries::find(malloc).is_some_and(|each| each.is_complete());
        let is_method_outdated = || match &self.method {
            InterceptionMethod::Slots(_) => is_patched(),
            // Without complete entry patches, slots are possible unless the program itself contains malloc.
            InterceptionMethod::Entries(entries) => !is_program && !entries.is_complete(),
            InterceptionMethod::Hooks(_) => {
                self.serves_malloc && PatchedEntries::find(malloc).is_some()
            }
        };
        memprof_sampler::interval() == 0 && (is_method_outdated() || self.beside.is_outdated())
    }

    /// Whether the calls are intercepted through jemalloc's hooks.
    pub(super) fn uses_jemalloc_hooks(&self) -> bool {
        matches!(self.method, InterceptionMethod::Hooks(_))
    }
}

impl Drop for Interception {
    /// Stops sampling by slots or entries, and removes the interception. A failure is only logged.
    fn drop(&mut self) {
        if self.has_patches() {
            memprof_sampler::stop();
            self.beside.disable_hooks(None);
        }
        python_objects::uninstall_hooks(false);
        let _no_fork = ForkGuard::acquire();
        let uninstalled = match &mut self.method {
            InterceptionMethod::Slots(slots) if slots.patched_count() == 0 => Ok(()),
            InterceptionMethod::Slots(slots) => {
                memprof_sampler::stop();
                slots.restore(None).ok_or_else(loader_lock_error).map(drop)
            }
            InterceptionMethod::Entries(entries) if entries.enabled_count() == 0 => Ok(()),
            InterceptionMethod::Entries(entries) => {
                memprof_sampler::stop();
                entries.disable(None);
                Ok(())
            }
            InterceptionMethod::Hooks(hooks) => hooks.remove_hooks(),
        };
        if let Err(error) = uninstalled {
            log::warn!("calls of malloc go on through memprof's sampler, which is off: {error}");
        }
    }
}

/// Fails if the kernel refused every slot.
///
/// # Errors
/// `Unavailable`: no slot is patched.
pub(super) fn require_patched_slots(stats: &PatchStats) -> Result<()> {
    if stats.patched > 0 || stats.refused == 0 {
        return Ok(());
    }
    let message = "the calls of malloc cannot be patched: mprotect(2) was refused";
    Err(Error::new(ErrorKind::Unavailable, message).with_remedy(
        "let a seccomp filter or SELinux (execmod) permit it, or start the program with \
         `memprof run --allocator jemalloc`",
    ))
}

/// Returns the role of the functions whose interception can be removed while sampling is off. While a sampled block is
/// live, these are only functions that allocate, because the block's free must be recorded. Otherwise `None`, which
/// stands for all functions.
fn removable_role() -> Option<Role> {
    (memprof_sampler::counts().live_samples > 0).then_some(Role::Allocates)
}
