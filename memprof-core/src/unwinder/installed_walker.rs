//! Our walk in one jemalloc.
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

pub(super) use memprof_unwind::{HookStats, clear_rules, clear_stack_cache, rules_read};
pub(crate) use memprof_unwind::{
    LabelContext, LabelSetCounts, MAX_KEYS, MAX_SETS, for_each_label_set, label_set_counts,
    set_alloc_time, set_labels,
};

/// `prof_backtrace_hook_t` of jemalloc 5.3, since which it is there.
const CONTROL: &CStr = c"experimental.hooks.prof_backtrace";

/// Which hook belongs to which jemalloc, by the address of its `mallctl`. For ever: a thread may
/// still be in a hook that was removed.
static OWNERS: [AtomicUsize; HOOKS.len()] = [const { AtomicUsize::new(0) }; HOOKS.len()];

/// Where our walker is installed, for a forked child: the jemalloc's `mallctl`, and the walker that was
/// there before.
static INSTALLED: [SavedWalker; HOOKS.len()] = [const { SavedWalker::new() }; HOOKS.len()];

/// The activation ends by itself, by a thread that a forked child does not have.
static IS_LEASED: AtomicBool = AtomicBool::new(false);

struct SavedWalker {
    /// 0 where it is not.
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

/// Tells whether the activation ends by itself.
pub(crate) fn set_leased(is_leased: bool) {
    IS_LEASED.store(is_leased, Ordering::Release);
}

/// In a forked child nobody tends our walk, and nobody ends an activation in time: the allocator's
/// own walker is put back, and sampling ends where it had an end. Allocates nothing and takes no lock
/// of ours; jemalloc has made its own ready before, because its handler was there first.
extern "C" fn in_child() {
    clear_stack_cache();
    let is_leased = IS_LEASED.swap(false, Ordering::AcqRel);
    for installed in &INSTALLED {
        let address = installed.mallctl.swap(0, Ordering::AcqRel);
        if address == 0 {
            continue;
        }
        // SAFETY: `install` stored a jemalloc's, which stays loaded.
        let mallctl = unsafe {
            mem::transmute::<*const c_void, MallctlFn>(ptr::with_exposed_provenance(address))
        };
        let mut saved = installed.saved.load(Ordering::Acquire);
        let write = |name: &CStr, value: *mut c_void, size: usize| {
            // SAFETY: jemalloc(3): a NUL-terminated name, and a value of the control's own size.
            // Refused, it stays as it is: nobody is there to be told.
            unsafe { mallctl(name.as_ptr(), ptr::null_mut(), ptr::null_mut(), value, size) };
        };
        write(CONTROL, (&raw mut saved).cast(), size_of::<usize>());
        if is_leased {
            let mut is_active = false;
            write(c"prof.active", (&raw mut is_active).cast(), 1);
        }
    }
}

fn watch_forks() {
    static WATCHED: ProcessOnce = ProcessOnce::new();
    WATCHED.call(|| {
        // SAFETY: pthread_atfork(3): a function of this library, which is never unloaded.
        if unsafe { libc::pthread_atfork(None, None, Some(in_child)) } != 0 {
            log::warn!("forked children keep memprof's stack walk: pthread_atfork refused");
        }
    });
}

/// Our walker, installed.
#[derive(Debug)]
pub(super) struct InstalledWalker {
    hook: &'static BacktraceHook,
    /// The walker that was there before.
    saved: usize,
}

impl InstalledWalker {
    /// Installs it, in place of a walker of the program's own too if `also_foreign`.
    ///
    /// # Errors
    /// Why the allocator's own is better here.
    pub(super) fn install(
        mallctl: &Mallctl,
        also_foreign: bool,
        compare: u64,
    ) -> std::result::Result<Self, String> {
        prepare_walks()?;
        let saved = mallctl
            .read::<usize>(CONTROL)
            .map_err(|errno| match errno {
                Errno::NOENT => {
                    "this jemalloc has no hook for it (5.3 and newer have it)".to_owned()
                }
                errno => Error::mallctl("experimental.hooks.prof_backtrace", errno).message,
            })?;
        let loaded = loaded_objects::list();
        let owner = loaded.iter().find(|object| object.is_code(saved));
        match owner {
            Some(owner) if owner.contains(mallctl.address()) || also_foreign => {}
            _ => return Err("another walker is installed already".to_owned()),
        }
        let hook = hook_of(mallctl.address())
            .ok_or_else(|| format!("there are more than {} jemallocs", HOOKS.len()))?;
        // SAFETY: executable code that jemalloc itself calls with this signature.
        let walker = unsafe {
            mem::transmute::<*const c_void, memprof_unwind::Walker>(saved as *const c_void)
        };
        watch_forks();
        // SAFETY: jemalloc's own walker, which `hook_of` gave no other allocator; prepared above.
        unsafe { hook.arm(walker, compare) };
        let installed = installed(hook);
        installed.saved.store(saved, Ordering::Release);
        installed
            .mallctl
            .store(mallctl.address(), Ordering::Release);
        mallctl
            .write(CONTROL, hook.entry() as *const () as usize)
            .map_err(|errno| Error::mallctl("experimental.hooks.prof_backtrace", errno).message)?;
        Ok(Self { hook, saved })
    }

    /// Puts the saved walker back, unless somebody put another one in place of ours.
    ///
    /// # Errors
    /// jemalloc refused.
    pub(super) fn remove(&self, mallctl: &Mallctl) -> Result<()> {
        installed(self.hook).mallctl.store(0, Ordering::Release);
        let refused = |errno| Error::mallctl("experimental.hooks.prof_backtrace", errno);
        let current = mallctl.read::<usize>(CONTROL).map_err(refused)?;
        if current == self.hook.entry() as *const () as usize {
            mallctl.write(CONTROL, self.saved).map_err(refused)?;
        }
        Ok(())
    }

    pub(super) fn counts(&self) -> HookStats {
        self.hook.counts()
    }
}

/// Makes ready what all walks share.
///
/// # Errors
/// Why stacks cannot be walked here.
pub(crate) fn prepare_walks() -> std::result::Result<(), String> {
    let find = find_object()
        .ok_or("this C library has no _dl_find_object (glibc 2.35 and newer have it)")?;
    if !kernel_answers() {
        return Err("this kernel cannot say which memory can be read".to_owned());
    }
    // SAFETY: getauxval(3) reads a constant of this process.
    let main_stack_top = unsafe { libc::getauxval(libc::AT_RANDOM) };
    memprof_unwind::prepare(find, main_stack_top as usize);
    Ok(())
}

fn installed(hook: &BacktraceHook) -> &'static SavedWalker {
    let index = HOOKS.iter().position(|each| ptr::eq(each, hook));
    &INSTALLED[index.expect("a hook of the list")]
}

fn hook_of(owner: usize) -> Option<&'static BacktraceHook> {
    let is_its = |known: &AtomicUsize| {
        let taken = known.compare_exchange(0, owner, Ordering::AcqRel, Ordering::Acquire);
        taken.is_ok() || taken == Err(owner)
    };
    let index = OWNERS.iter().position(is_its)?;
    Some(&HOOKS[index])
}

fn find_object() -> Option<FindObject> {
    let found = memprof_own::libc_symbol(c"_dl_find_object")?;
    // SAFETY: dlfcn.h of glibc gives the function under this name this type.
    Some(unsafe { mem::transmute::<NonNull<c_void>, FindObject>(found) })
}

/// Whether the kernel can be asked what can be read: a sandbox may answer in its place.
fn kernel_answers() -> bool {
    let local = 0_u8;
    is_readable(&raw const local as usize) && !is_readable(0) && !is_readable(usize::MAX)
}
