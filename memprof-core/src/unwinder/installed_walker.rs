//! memprof's walker, installed in one jemalloc.
#![expect(unsafe_code, reason = "the allocator calls, and the unwinder")]

use std::ffi::{CStr, c_void};
use std::mem;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use memprof_own::ProcessOnce;
use memprof_unwind::{BacktraceHook, FindObject, HOOKS, is_readable};
use rustix::io::Errno;

use crate::allocators::loaded_objects;
use crate::allocators::mallctl::{Mallctl, MallctlFn};
use crate::error::{Error, Result};

pub(super) use memprof_unwind::{
    HookStats, clear_rules, clear_stack_cache, rules_read_count, set_code_generation,
    walked_every_stack, without_code_generation,
};
pub(crate) use memprof_unwind::{
    LabelContext, LabelSetCounts, MAX_KEYS, MAX_SETS, for_each_label_set, label_set_counts,
    set_alloc_time, set_labels,
};

/// Mallctl of `prof_backtrace_hook_t`, since jemalloc 5.3.
const BACKTRACE_HOOK: &CStr = c"experimental.hooks.prof_backtrace";

/// Owner of each hook: the address of its jemalloc's `mallctl`; 0 if the hook is free. Never reset, because a thread
/// may still be running a hook that was removed.
static OWNERS: [AtomicUsize; HOOKS.len()] = [const { AtomicUsize::new(0) }; HOOKS.len()];

/// For the fork handler: the jemalloc's `mallctl`, and the walker that it had before memprof's.
static INSTALLED: [SavedWalker; HOOKS.len()] = [const { SavedWalker::new() }; HOOKS.len()];

/// Set if a thread will end the activation when its time is over. A forked child lacks that thread.
static IS_LEASED: AtomicBool = AtomicBool::new(false);

struct SavedWalker {
    /// Address of `mallctl`; 0 while memprof's walker is not installed.
    mallctl: AtomicUsize,
    saved: AtomicUsize,
}

impl SavedWalker {
    const fn new() -> Self {
        Self {
            mallctl: AtomicUsize::new(0),
            saved: AtomicUsize::new(0),
        }
    }
}

/// Sets whether the activation has a time limit. If it has one, the fork handler stops sampling in a forked child.
pub(crate) fn set_activation_time_limited(is_leased: bool) {
    IS_LEASED.store(is_leased, Ordering::Release);
}

/// Fork handler: restores the previous walker of each jemalloc in the child, and stops its sampling if the activation
/// has a time limit. The child lacks the thread that maintains memprof's walker, and the one that ends the activation.
/// Allocates nothing and takes none of memprof's locks. jemalloc's own fork handler was registered earlier, so it has
/// already run.
extern "C" fn restore_walkers_in_child() {
    clear_stack_cache();
    let is_leased = IS_LEASED.swap(false, Ordering::AcqRel);
    for installed in &INSTALLED {
        let address = installed.mallctl.swap(0, Ordering::AcqRel);
        if address == 0 {
            continue;
        }
        // SAFETY: `install` stored the address of a jemalloc's `mallctl`, which is never unloaded.
        let mallctl = unsafe {
            mem::transmute::<*const c_void, MallctlFn>(ptr::with_exposed_provenance(address))
        };
        let mut saved = installed.saved.load(Ordering::Acquire);
        let write = |name: &CStr, value: *mut c_void, size: usize| {
            // SAFETY: jemalloc(3): a NUL-terminated name, and a value of the mallctl's size. An error is ignored,
            // because nothing in the child could report it.
            unsafe { mallctl(name.as_ptr(), ptr::null_mut(), ptr::null_mut(), value, size) };
        };
        write(BACKTRACE_HOOK, (&raw mut saved).cast(), size_of::<usize>());
        if is_leased {
            let mut is_active = false;
            write(c"prof.active", (&raw mut is_active).cast(), 1);
        }
    }
}

/// Registers the fork handler that restores jemalloc's own walkers in a child. Does so once. If the C library refuses,
/// only logs a warning.
fn register_fork_handler() {
    static REGISTERED: ProcessOnce = ProcessOnce::new();
    REGISTERED.call(|| {
        // SAFETY: pthread_atfork(3): the handler is a function of this library, which is never unloaded.
        if unsafe { libc::pthread_atfork(None, None, Some(restore_walkers_in_child)) } != 0 {
            log::warn!("forked children keep memprof's stack walk: pthread_atfork refused");
        }
    });
}

/// memprof's walker in one jemalloc.
#[derive(Debug)]
pub(super) struct InstalledWalker {
    hook: &'static BacktraceHook,
    /// Walker that the jemalloc had before.
    saved: usize,
}

impl InstalledWalker {
    /// Installs memprof's stack walker in the jemalloc of `mallctl`. If `also_foreign`, it may replace a walker that
    /// the program installed. The previous walker also walks the first `compare` stacks and some later ones, for
    /// comparison.
    ///
    /// # Errors
    /// Reason why the jemalloc keeps its walker, as text.
    pub(super) fn install(
        mallctl: &Mallctl,
        also_foreign: bool,
        compare: u64,
    ) -> std::result::Result<Self, String> {
        prepare_walks()?;
        let saved = mallctl
            .read::<usize>(BACKTRACE_HOOK)
            .map_err(|errno| match errno {
                Errno::NOENT => {
                    "this jemalloc has no hook for it (5.3 and newer have it)".to_owned()
                }
                errno => Error::refused_mallctl("experimental.hooks.prof_backtrace", errno).message,
            })?;
        let loaded = loaded_objects::list_loaded_objects();
        // jemalloc's own walker is in the same object as its `mallctl`.
        let owner = loaded.iter().find(|object| object.contains_code_at(saved));
        match owner {
            Some(owner) if owner.contains(mallctl.address()) || also_foreign => {}
            _ => return Err("another walker is installed already".to_owned()),
        }
        let hook = claim_hook(mallctl.address())
            .ok_or_else(|| format!("there are more than {} jemallocs", HOOKS.len()))?;
        // SAFETY: jemalloc itself calls this executable code with this signature.
        let walker = unsafe {
            mem::transmute::<*const c_void, memprof_unwind::Walker>(saved as *const c_void)
        };
        register_fork_handler();
        // SAFETY: `saved` is the walker of this jemalloc, and `claim_hook` gave the hook to this jemalloc alone.
        // `prepare_walks` has run.
        unsafe { hook.arm(walker, compare) };
        let installed = saved_walker(hook);
        installed.saved.store(saved, Ordering::Release);
        // Before the write, so that each child that is forked with memprof's walker restores the previous one.
        installed
            .mallctl
            .store(mallctl.address(), Ordering::Release);
        mallctl
            .write(BACKTRACE_HOOK, hook.entry_function() as *const () as usize)
            .map_err(|errno| {
                installed.mallctl.store(0, Ordering::Release);
                Error::refused_mallctl("experimental.hooks.prof_backtrace", errno).message
            })?;
        Ok(Self { hook, saved })
    }

    /// Restores the previous walker, unless the program has replaced memprof's since. `mallctl` must be that of the
    /// jemalloc with the walker.
    ///
    /// # Errors
    /// `Allocator`: jemalloc refused. memprof's walker stays, and a forked child still restores the previous one.
    pub(super) fn uninstall(&self, mallctl: &Mallctl) -> Result<()> {
        let refused = |errno| Error::refused_mallctl("experimental.hooks.prof_backtrace", errno);
        let current = mallctl.read::<usize>(BACKTRACE_HOOK).map_err(refused)?;
        if current == self.hook.entry_function() as *const () as usize {
            mallctl.write(BACKTRACE_HOOK, self.saved).map_err(refused)?;
        }
        // Last: a child that is forked meanwhile restores the walker a second time, which changes nothing.
        saved_walker(self.hook).mallctl.store(0, Ordering::Release);
        Ok(())
    }

    /// Counts of samples, fallbacks and compared stacks since the walker was installed.
    pub(super) fn hook_stats(&self) -> HookStats {
        self.hook.counts()
    }
}

/// Prepares the data that all stack walks share. Idempotent.
///
/// # Errors
/// Reason why stacks cannot be walked in this process, as text.
pub(crate) fn prepare_walks() -> std::result::Result<(), String> {
    let find = find_object_function()
        .ok_or("this C library has no _dl_find_object (glibc 2.35 and newer have it)")?;
    if !can_test_readability() {
        return Err("this kernel cannot say which memory can be read".to_owned());
    }
    // The kernel puts the random bytes of AT_RANDOM in the topmost page of the main thread's stack.
    // SAFETY: getauxval(3) reads a constant of this process.
    let main_stack_top = unsafe { libc::getauxval(libc::AT_RANDOM) };
    memprof_unwind::prepare_walks(find, main_stack_top as usize);
    Ok(())
}

/// Returns the hook's element of [`INSTALLED`], which stores the walker that its jemalloc had before.
fn saved_walker(hook: &BacktraceHook) -> &'static SavedWalker {
    let index = HOOKS.iter().position(|each| ptr::eq(each, hook));
    &INSTALLED[index.expect("a hook of the list")]
}

/// Returns the hook of a jemalloc; `owner` is the address of the jemalloc's `mallctl`. Claims a free hook at the first
/// call. `None` if all hooks belong to other jemallocs.
fn claim_hook(owner: usize) -> Option<&'static BacktraceHook> {
    let is_owned = |hook_owner: &AtomicUsize| {
        let claimed = hook_owner.compare_exchange(0, owner, Ordering::AcqRel, Ordering::Acquire);
        claimed.is_ok() || claimed == Err(owner)
    };
    let index = OWNERS.iter().position(is_owned)?;
    Some(&HOOKS[index])
}

/// Looks up glibc's function `_dl_find_object` (2.35 and newer). `None` in another C library.
fn find_object_function() -> Option<FindObject> {
    let found = memprof_own::libc_symbol(c"_dl_find_object")?;
    // SAFETY: dlfcn.h of glibc declares the function of this name with this type.
    Some(unsafe { mem::transmute::<NonNull<c_void>, FindObject>(found) })
}

/// Whether memprof's test for readable memory works here. It relies on certain error numbers of the kernel, and a
/// sandbox may return others.
fn can_test_readability() -> bool {
    let local = 0_u8;
    is_readable(&raw const local as usize) && !is_readable(0) && !is_readable(usize::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicI32;

    use super::*;
    use crate::allocators::fake::{Behaviour, fake_mallctl};

    /// A jemalloc that refuses its hook on request.
    struct RefusingFake;
    static REFUSAL: AtomicI32 = AtomicI32::new(0);
    impl Behaviour for RefusingFake {
        fn backtrace_hook_status() -> Option<i32> {
            Some(REFUSAL.load(Ordering::Relaxed))
        }
    }

    #[test]
    fn fork_handler_knows_jemalloc_while_it_has_the_walker() {
        let mallctl = fake_mallctl::<RefusingFake>();
        let is_known = || {
            let mut known = INSTALLED.iter();
            known.any(|each| each.mallctl.load(Ordering::Acquire) == mallctl.address())
        };
        let refuse = |status: i32| REFUSAL.store(status, Ordering::Relaxed);
        let install = || InstalledWalker::install(&mallctl, false, 1);
        refuse(libc::EINVAL);
        let refused = install().unwrap_err();
        assert!(refused.contains("prof_backtrace"), "{refused}");
        assert!(!is_known(), "refused installation");
        refuse(0);
        let walker = install().unwrap();
        assert!(is_known());
        refuse(libc::EINVAL);
        walker.uninstall(&mallctl).unwrap_err();
        assert!(is_known(), "refused removal");
        refuse(0);
        walker.uninstall(&mallctl).unwrap();
        assert!(!is_known());
    }
}
