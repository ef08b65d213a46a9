//! Our walk in one jemalloc.
#![expect(unsafe_code, reason = "the allocator calls, and the unwinder")]

use std::ffi::{CStr, c_void};
use std::mem;
use std::sync::Mutex;

use memprof_unwind::{FindObject, HOOKS, Hook, is_readable};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::mallctl::Mallctl;
use crate::objects;
use crate::profiler::lock;

pub(super) use memprof_unwind::{Counts, forget_rules, forget_stacks, rules_read};

/// `prof_backtrace_hook_t` of jemalloc 5.3, since which it is there.
const CONTROL: &CStr = c"experimental.hooks.prof_backtrace";

/// Which hook belongs to which jemalloc, by the address of its `mallctl`. For ever: a thread may
/// still be in a hook that was removed.
static OWNERS: Mutex<[Option<usize>; HOOKS.len()]> = Mutex::new([None; HOOKS.len()]);

/// Our walker, installed.
#[derive(Debug)]
pub(super) struct Ours {
    hook: &'static Hook,
    /// The walker that was there before.
    saved: usize,
}

impl Ours {
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
        let loaded = objects::loaded();
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
        // SAFETY: jemalloc's own walker, which `hook_of` gave no other allocator; prepared above.
        unsafe { hook.arm(walker, compare) };
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
        let refused = |errno| Error::mallctl("experimental.hooks.prof_backtrace", errno);
        let current = mallctl.read::<usize>(CONTROL).map_err(refused)?;
        if current == self.hook.entry() as *const () as usize {
            mallctl.write(CONTROL, self.saved).map_err(refused)?;
        }
        Ok(())
    }

    pub(super) fn counts(&self) -> Counts {
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
        return Err("this kernel does not tell which memory can be read".to_owned());
    }
    // SAFETY: getauxval(3) reads a constant of this process.
    let main_stack_top = unsafe { libc::getauxval(libc::AT_RANDOM) };
    memprof_unwind::prepare(find, main_stack_top as usize);
    Ok(())
}

fn hook_of(owner: usize) -> Option<&'static Hook> {
    let mut owners = lock(&OWNERS);
    let own = owners.iter().position(|known| *known == Some(owner));
    let index = own.or_else(|| owners.iter().position(Option::is_none))?;
    owners[index] = Some(owner);
    Some(&HOOKS[index])
}

fn find_object() -> Option<FindObject> {
    // SAFETY: dlsym(3) with a NUL-terminated name.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_dl_find_object".as_ptr()) };
    // SAFETY: dlfcn.h of glibc gives the function under this name this type.
    (!found.is_null()).then(|| unsafe { mem::transmute::<*mut c_void, FindObject>(found) })
}

/// Whether the kernel can be asked what can be read: a sandbox may answer in its place.
fn kernel_answers() -> bool {
    let local = 0_u8;
    is_readable(&raw const local as usize) && !is_readable(0) && !is_readable(usize::MAX)
}
