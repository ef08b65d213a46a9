//! What leads the program's calls of `malloc` to memprof's sampler: slots of the dynamic linker; where no slot leads to
//! the allocator, jumps at its functions, which `memprof attach` wrote, or the hooks of a jemalloc.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::SystemTime;

use memprof_messages::SlotCounts;
use memprof_sampler::{PatchedEntries, Role, SamplerError};
use rustix::io::Errno;

use super::SamplerSelection;
use super::hooked::JemallocHookInstaller;
use crate::allocators::loaded_objects::{self, ForkGuard};
use crate::error::{Error, ErrorKind, Result};
use crate::identity::AllocatorIdentity;
use crate::unwinder::prepare_walks;

/// The allocator that gave out what is sampled: [`AllocatorIdentity::address`]. 0: that of `malloc`, before it was looked for.
static SAMPLED: AtomicUsize = AtomicUsize::new(0);
/// Another one was sampled before. A thread may still be about to remember a block of that one.
static WAS_ANOTHER: AtomicBool = AtomicBool::new(false);

/// Whether all samples are certainly of that allocator.
pub(super) fn is_sampled(allocator: &AllocatorIdentity) -> bool {
    let is_it = match SAMPLED.load(Ordering::Acquire) {
        0 => allocator.owns_malloc,
        sampled => sampled == allocator.address,
    };
    is_it && !WAS_ANOTHER.load(Ordering::Acquire)
}

fn has_sampled() -> bool {
    memprof_sampler::interval() > 0 || memprof_sampler::counts().samples > 0
}

/// How allocations are seen.
#[derive(Debug)]
pub(super) enum InterceptionMethod {
    Slots(Box<memprof_sampler::GotSlots>),
    Entries(Box<PatchedEntries>),
    Hooks(JemallocHookInstaller),
}

/// What leads the program's calls to the sampler, and what is done with it.
#[derive(Debug)]
pub(super) struct Interception {
    pub(super) way: InterceptionMethod,
    pub(super) samples: SamplerSelection,
    pub(super) seen: SlotCounts,
    /// Libraries loaded and unloaded when slots were taken last.
    loaded: (u64, u64),
    /// Since when samples were taken, those that were dropped left aside.
    pub(super) since: Option<SystemTime>,
}

impl Interception {
    /// By the slots of the process; where no slot leads to the allocator, by jumps at its functions, or by the hooks of
    /// a jemalloc.
    ///
    /// # Errors
    /// `Unsupported`: why it cannot serve this process.
    pub(super) fn find(
        allocator: &AllocatorIdentity,
        hooked: impl FnOnce() -> Option<JemallocHookInstaller>,
    ) -> Result<Self> {
        let cannot = |error: Error| {
            let message = format!("memprof cannot sample {allocator}: {}", error.message);
            Error { message, ..error }
        };
        let slots = Self::find_slots().map_err(cannot)?;
        if slots.owner().is_program {
            if let Some(entries) = PatchedEntries::find(slots.owner().malloc) {
                return Ok(Self::new(InterceptionMethod::Entries(Box::new(entries))));
            }
            return hooked().map_or_else(
                || Err(cannot(statically_linked_error())),
                Self::with_jemalloc_hooks,
            );
        }
        Ok(Self::new(InterceptionMethod::Slots(Box::new(slots))))
    }

    /// # Errors
    /// `Unsupported`: why it cannot serve this process.
    pub(super) fn with_jemalloc_hooks(hooked: JemallocHookInstaller) -> Result<Self> {
        // Which tells where memprof's own code lies, too.
        Self::find_slots().map(|_| Self::new(InterceptionMethod::Hooks(hooked)))
    }

    fn new(way: InterceptionMethod) -> Self {
        Self {
            seen: SlotCounts {
                // What the parent of a forked child took.
                patched: match &way {
                    InterceptionMethod::Slots(slots) => slots.count(),
                    InterceptionMethod::Entries(entries) => entries.count(),
                    InterceptionMethod::Hooks(_) => 0,
                },
                ..SlotCounts::default()
            },
            way,
            samples: SamplerSelection::Allocator,
            loaded: (0, 0),
            // It began with the program, or the parent of a forked child began it.
            since: (memprof_sampler::interval() > 0).then(SystemTime::now),
        }
    }

    /// # Errors
    /// `Unsupported`: why nothing can be sampled in this process.
    pub(super) fn find_slots() -> Result<memprof_sampler::GotSlots> {
        let unsupported = |message: &str| Error::new(ErrorKind::Unsupported, message);
        prepare_walks().map_err(|why| unsupported(&why))?;
        let _reading = ForkGuard::acquire();
        let slots = memprof_sampler::GotSlots::find()
            .ok_or_else(|| unsupported("no object defines malloc"))?;
        if !slots.can_lock_loader() {
            return Err(unsupported("memprof's library was loaded twice"));
        }
        Ok(slots)
    }

    /// Drops what was sampled of another allocator: a profile is of one.
    pub(super) fn set_allocator(&mut self, allocator: &AllocatorIdentity) -> Result<()> {
        let is_another = match SAMPLED.load(Ordering::Acquire) {
            0 => has_sampled() && !allocator.owns_malloc,
            sampled => sampled != allocator.address,
        };
        if is_another {
            WAS_ANOTHER.store(true, Ordering::Release);
            self.drop_samples()?;
        }
        SAMPLED.store(allocator.address, Ordering::Release);
        Ok(())
    }

    /// Leads the calls of all objects that are loaded now to the sampler.
    pub(super) fn install(&mut self) -> Result<()> {
        match &mut self.way {
            InterceptionMethod::Slots(_) => self.patch_slots(),
            InterceptionMethod::Entries(entries) => {
                self.seen.patched = entries.enable().ok_or_else(no_jumps)?;
                Ok(())
            }
            InterceptionMethod::Hooks(hooked) => hooked.install(),
        }
    }

    /// What was loaded since is seen too, and its stacks are walked by its own rules.
    pub(super) fn refresh(&mut self) -> Result<()> {
        if self.loaded == loaded_objects::load_and_unload_count() {
            return Ok(());
        }
        match self.way {
            InterceptionMethod::Slots(_) => self.patch_slots(),
            InterceptionMethod::Entries(_) | InterceptionMethod::Hooks(_) => {
                self.loaded = loaded_objects::load_and_unload_count();
                memprof_unwind::clear_rules();
                Ok(())
            }
        }
    }

    /// Takes the slots of all objects that are loaded now.
    fn patch_slots(&mut self) -> Result<()> {
        self.loaded = loaded_objects::load_and_unload_count();
        memprof_unwind::clear_rules();
        let InterceptionMethod::Slots(slots) = &mut self.way else {
            return Ok(());
        };
        let _reading = ForkGuard::acquire();
        let patched = slots.patch().ok_or_else(loader_refused)?;
        if patched.patched == 0 && patched.refused > 0 {
            return Err(Error::new(
                ErrorKind::Unavailable,
                "the calls of malloc cannot be patched: mprotect(2) was refused",
            )
            .remedy("let a seccomp filter or SELinux (execmod) permit it, or start the program with `memprof run --allocator jemalloc`"));
        }
        self.seen = SlotCounts {
            patched: patched.patched,
            foreign: patched.foreign,
            unseen_objects: patched.unseen_objects,
            other_mallocs: patched.other_mallocs,
            refused: patched.refused,
        };
        Ok(())
    }

    /// Gives back what only allocations need; while nothing that was sampled lives, all. Hooks are
    /// removed: they cost as much for a free as for an allocation.
    pub(super) fn uninstall(&mut self) -> Result<()> {
        let slots = match &mut self.way {
            InterceptionMethod::Slots(slots) => slots,
            InterceptionMethod::Entries(entries) => {
                entries.disable(removable_role());
                self.seen.patched = entries.count();
                return Ok(());
            }
            InterceptionMethod::Hooks(hooked) => return hooked.remove(),
        };
        let role = removable_role();
        let _reading = ForkGuard::acquire();
        slots.restore(role).ok_or_else(loader_refused)?;
        self.seen.patched = slots.count();
        Ok(())
    }

    pub(super) fn stop(&mut self) -> Result<()> {
        memprof_sampler::stop();
        self.uninstall()
    }

    pub(super) fn drop_samples(&mut self) -> Result<()> {
        memprof_sampler::stop();
        self.since = None;
        memprof_sampler::clear().map_err(sampler_error)
    }

    /// `sample_at_once` took slots for it, or the parent of a forked child did.
    pub(super) fn has_patched(&self) -> bool {
        match &self.way {
            InterceptionMethod::Slots(slots) => slots.count() > 0,
            InterceptionMethod::Entries(entries) => entries.count() > 0,
            InterceptionMethod::Hooks(_) => false,
        }
    }

    pub(super) fn is_hooked(&self) -> bool {
        matches!(self.way, InterceptionMethod::Hooks(_))
    }
}

impl Drop for Interception {
    fn drop(&mut self) {
        let _reading = ForkGuard::acquire();
        let ended = match &mut self.way {
            InterceptionMethod::Slots(slots) if slots.count() == 0 => Ok(()),
            InterceptionMethod::Slots(slots) => {
                memprof_sampler::stop();
                slots.restore(None).ok_or_else(loader_refused).map(drop)
            }
            InterceptionMethod::Entries(entries) if entries.count() == 0 => Ok(()),
            InterceptionMethod::Entries(entries) => {
                memprof_sampler::stop();
                entries.disable(None);
                Ok(())
            }
            InterceptionMethod::Hooks(hooked) => hooked.remove(),
        };
        if let Err(error) = ended {
            log::warn!("calls of malloc go on through memprof's sampler, which is off: {error}");
        }
    }
}

/// The functions that need not lead to the sampler while it does not sample: while a sample lives, those that free lead
/// there.
fn removable_role() -> Option<Role> {
    (memprof_sampler::counts().live_samples > 0).then_some(Role::Allocates)
}

pub(super) fn statically_linked_error() -> Error {
    let message = "it is linked into the program, whose own calls lead through no slot, and it has no \
                   experimental.hooks.install, as jemalloc 5.2 to 5.3 have it";
    let remedy = format!(
        "`memprof attach {} sampler=memprof` leads the calls of its functions to memprof",
        std::process::id()
    );
    Error::new(ErrorKind::Unsupported, message).remedy(remedy)
}

fn no_jumps() -> Error {
    let message = "not all functions of the allocator begin with memprof's jumps";
    let remedy = format!("`memprof attach {}` writes them", std::process::id());
    Error::new(ErrorKind::Unavailable, message).remedy(remedy)
}

pub(super) fn loader_refused() -> Error {
    let message = "the calls of malloc cannot be patched: the loader does not let memprof";
    Error::new(ErrorKind::Unavailable, message)
}

pub(super) fn sampler_error(refused: SamplerError) -> Error {
    match refused {
        SamplerError::NoMemory => Error::io("map the sampler's tables", &Errno::NOMEM.into()),
        SamplerError::InUse => Error::new(
            ErrorKind::Busy,
            "a thread has been inside of memprof's sampler for a second",
        )
        .remedy("try again; a debugger may hold the thread"),
    }
}
