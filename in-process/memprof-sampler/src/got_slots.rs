//! The slots through which the objects of this process call `malloc` and its kin.
//!
//! Only what the dynamic linker fills for calls is patched (`JUMP_SLOT`, `GLOB_DAT`). Addresses of
//! `malloc` that a program keeps in its data are left alone: it may copy them, and a copy would
//! outlive the patch.
#![expect(unsafe_code, reason = "the loader's list, and slots of other objects")]

mod lock;
mod object;
mod own_calls;

use core::ffi::{CStr, c_int, c_void};
use core::mem;
use core::ops::Range;
use core::ptr;
use core::slice;
use core::sync::atomic::{
    AtomicPtr, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use libc::dl_phdr_info;

use crate::hooks::{COUNT, Hook, Role, hooks};
use crate::own_code::{own_code, set_own_code};
use crate::patched_entries::PatchedEntries;
use crate::{mapping, tally};
use lock::with_loader_locked;
use object::{ElfObject, GotSlot};
pub use own_calls::{Leads, own_calls};

/// More slots than any program has; the rest is counted as refused.
const MOST: usize = 1 << 16;

/// A slot that is ours, and what it held.
#[derive(Clone, Copy, Debug)]
struct PatchedSlot {
    at: usize,
    was: usize,
    hook: usize,
    role: Role,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PatchStats {
    /// Slots that are ours now.
    pub patched: usize,
    /// Slots that hold neither the allocator's function nor ours: somebody else put something there,
    /// or the object has another allocator.
    pub foreign: usize,
    /// Objects with addresses of the allocator's functions in their data: what they allocate through
    /// those is not seen.
    pub unseen_objects: usize,
    /// Objects that define `malloc` besides the one that is sampled and the C library.
    pub other_mallocs: usize,
    /// Slots that could not be written: mprotect(2) was refused, or there are too many.
    pub refused: usize,
}

/// The object that serves `malloc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MallocProvider {
    /// Where its `malloc` lies.
    pub malloc: usize,
    /// It is the program itself, whose own calls go through no slot.
    pub is_program: bool,
}

/// Slots, taken and given back. What is taken belongs to the process: the hooks know one allocator,
/// and a forked child gives back what its parent took. Only one thread at a time may change them.
#[derive(Debug)]
pub struct GotSlots {
    owner: MallocProvider,
    hooks: [Hook; COUNT],
    /// The object that serves `malloc`, where its own calls are left alone: all but the C library.
    spared: Range<usize>,
}

/// What is taken: a mapping for [`MOST`], and how many of them.
static TAKEN: AtomicPtr<PatchedSlot> = AtomicPtr::new(ptr::null_mut());
static COUNT_TAKEN: AtomicUsize = AtomicUsize::new(0);

/// Where the function lies that serves `malloc`: in the first object that defines it. None where no
/// object does. In a program that is not position independent, what C calls the address of `malloc`
/// is an entry of the program's own procedure linkage table.
pub fn malloc() -> Option<usize> {
    let mut found = None;
    for_each_object(&mut |object| found = found.or_else(|| object.definition(c"malloc")));
    found
}

impl GotSlots {
    /// Finds who serves `malloc`, and its functions. None where no object defines `malloc`, or the
    /// kernel has no memory.
    pub fn find() -> Option<Self> {
        let mut owner = None;
        let mut is_glibcs = false;
        let mut spared = 0..0;
        let hooks = hooks();
        let here = Self::find as *const () as usize;
        for_each_object(&mut |object| {
            if object.code.contains(&here) {
                set_own_code(&object.code);
            }
            if owner.is_some() {
                return;
            }
            let Some(malloc) = object.definition(c"malloc") else {
                return;
            };
            owner = Some(MallocProvider {
                malloc,
                is_program: object.path().is_empty(),
            });
            tally::set_usable(object.definition(c"malloc_usable_size"));
            let is_libc = is_libc(&object);
            for hook in &hooks {
                // glibc's calls its own realloc through a slot: it would be counted twice.
                let is_whole = !is_libc || hook.name != c"reallocarray";
                let real = is_whole.then(|| object.definition(hook.name)).flatten();
                hook.real.store(real.unwrap_or(0), Relaxed);
            }
            is_glibcs = is_libc;
            if !is_libc {
                spared = object.code;
            }
        });
        let owner: MallocProvider = owner?;
        if owner.is_program
            && let Some(entries) = PatchedEntries::find(owner.malloc)
        {
            entries.set_originals();
        }
        if is_glibcs && tally::is_enabled() {
            try_headers(&hooks);
        }
        if TAKEN.load(Acquire).is_null() {
            TAKEN.store(mapping::zeroed(MOST)?, Release);
        }
        Some(Self {
            owner,
            hooks,
            spared,
        })
    }

    /// Who serves `malloc`.
    pub fn owner(&self) -> MallocProvider {
        self.owner
    }

    /// How many slots are ours.
    pub fn count(&self) -> usize {
        COUNT_TAKEN.load(Acquire)
    }

    fn set_count(&mut self, count: usize) {
        COUNT_TAKEN.store(count, Release);
    }

    /// Whether the loader's lock can be had.
    pub fn can_lock_loader(&self) -> bool {
        with_loader_locked(&mut || {})
    }

    /// Takes all slots that are not ours yet; also those of objects that came since the last time.
    /// None where the loader's lock cannot be had.
    pub fn patch(&mut self) -> Option<PatchStats> {
        let mut patched = PatchStats::default();
        let is_done = with_loader_locked(&mut || {
            self.drop_unloaded();
            for_each_object(&mut |object| self.patch_object(&object, &mut patched));
        });
        patched.patched = self.count();
        is_done.then_some(patched)
    }

    /// Gives back the slots of functions with that role, or all: each holds what it held before, and
    /// its page is protected as before. What somebody else put there meanwhile stays. None where the
    /// loader's lock cannot be had.
    pub fn restore(&mut self, role: Option<Role>) -> Option<usize> {
        let is_meant = |taken: &PatchedSlot| role.is_none_or(|role| taken.role == role);
        let mut given = 0;
        let is_done = with_loader_locked(&mut || {
            for_each_object(&mut |object| {
                for taken in self.patched().iter().filter(|taken| is_meant(taken)) {
                    let is_here = object.code.contains(&taken.at);
                    if is_here && value(taken.at) == taken.hook {
                        given += usize::from(write(&object, taken.at, taken.was));
                    }
                }
            });
            self.retain(|taken| !is_meant(taken));
        });
        is_done.then_some(given)
    }

    fn patch_object(&mut self, object: &ElfObject, patched: &mut PatchStats) {
        if object.code.contains(&own_code().start) || object.code == self.spared {
            return;
        }
        if self.defines_another_malloc(object) {
            patched.other_mallocs += 1;
        }
        let mut words = object.data_words();
        let has_address = words.any(|word| {
            let hook = self.hook(word.name);
            hook.is_some_and(|hook| value(word.at) == hook.real.load(Relaxed))
        });
        patched.unseen_objects += usize::from(has_address);
        for slot in object.slots() {
            let Some(hook) = self.hook(slot.name) else {
                continue;
            };
            let was = value(slot.at);
            if was == hook.address {
                continue;
            }
            if !is_allocators(object, &slot, was, hook) {
                patched.foreign += 1;
                continue;
            }
            let taken = PatchedSlot {
                at: slot.at,
                was,
                hook: hook.address,
                role: hook.role,
            };
            if self.count() < MOST && write(object, slot.at, taken.hook) {
                self.push(taken);
            } else {
                patched.refused += 1;
            }
        }
    }

    fn defines_another_malloc(&self, object: &ElfObject) -> bool {
        let malloc = object.definition(c"malloc");
        malloc.is_some_and(|malloc| malloc != self.owner.malloc) && !is_libc(object)
    }

    fn hook(&self, name: &CStr) -> Option<&Hook> {
        let hook = self.hooks.iter().find(|hook| hook.name == name)?;
        (hook.real.load(Relaxed) != 0).then_some(hook)
    }

    /// What was taken in an object that was unloaded since, maybe with another one in its place.
    fn drop_unloaded(&mut self) {
        let mut kept = 0;
        for_each_object(&mut |object| {
            let first = kept;
            for at in first..self.count() {
                let taken = self.patched()[at];
                if object.code.contains(&taken.at) && value(taken.at) == taken.hook {
                    self.taken_mut().swap(kept, at);
                    kept += 1;
                }
            }
        });
        self.set_count(kept);
    }

    fn retain(&mut self, is_kept: impl Fn(&PatchedSlot) -> bool) {
        let mut kept = 0;
        for at in 0..self.count() {
            if is_kept(&self.patched()[at]) {
                self.taken_mut().swap(kept, at);
                kept += 1;
            }
        }
        self.set_count(kept);
    }

    fn push(&mut self, taken: PatchedSlot) {
        let count = self.count();
        self.set_count(count + 1);
        self.taken_mut()[count] = taken;
    }

    fn patched(&self) -> &[PatchedSlot] {
        // SAFETY: the mapping of `find` has room for more, and zeros or what was pushed in it; only
        // one thread at a time is here.
        unsafe { slice::from_raw_parts(TAKEN.load(Acquire), self.count()) }
    }

    fn taken_mut(&mut self) -> &mut [PatchedSlot] {
        // SAFETY: as above.
        unsafe { slice::from_raw_parts_mut(TAKEN.load(Acquire), self.count()) }
    }
}

fn try_headers(hooks: &[Hook]) {
    let real = |name: &CStr| {
        let hook = hooks.iter().find(|hook| hook.name == name)?;
        Some(hook.real.load(Relaxed)).filter(|real| *real != 0)
    };
    if let (Some(malloc), Some(free)) = (real(c"malloc"), real(c"free")) {
        // SAFETY: malloc(3), as glibc defines it.
        let malloc =
            unsafe { mem::transmute::<usize, unsafe extern "C" fn(usize) -> *mut c_void>(malloc) };
        // SAFETY: free(3), as glibc defines it.
        let free = unsafe { mem::transmute::<usize, unsafe extern "C" fn(*mut c_void)>(free) };
        // SAFETY: `find` has found both in the C library.
        unsafe { tally::probe_chunk_headers(malloc, free) };
    }
}

fn is_libc(object: &ElfObject) -> bool {
    object.definition(c"gnu_get_libc_version").is_some()
}

/// Whether a slot holds what the dynamic linker puts there.
fn is_allocators(object: &ElfObject, slot: &GotSlot<'_>, value: usize, hook: &Hook) -> bool {
    // One that defines the function itself may be bound to that (RTLD_DEEPBIND); not the C library,
    // which was there first.
    let real = hook.real.load(Relaxed);
    let is_unbound = || {
        let is_inside = slot.may_be_lazy && object.code.contains(&value);
        let own = object.definition(hook.name);
        is_inside && (own.is_none_or(|own| own == real) || is_libc(object))
    };
    value == real || is_unbound()
}

fn for_each_object(visit: &mut dyn FnMut(ElfObject)) {
    let mut visit = visit;
    // SAFETY: dl_iterate_phdr(3): calls `visit_one` synchronously with the pointer passed here.
    unsafe { libc::dl_iterate_phdr(Some(visit_object), (&raw mut visit).cast()) };
}

unsafe extern "C" fn visit_object(info: *mut dl_phdr_info, _: usize, visit: *mut c_void) -> c_int {
    // SAFETY: `each_object` passes it, and nothing else uses it meanwhile.
    let visit = unsafe { &mut *visit.cast::<&mut dyn FnMut(ElfObject)>() };
    // SAFETY: dl_iterate_phdr(3): valid during the callback.
    let info = unsafe { &*info };
    // SAFETY: as is the object.
    if let Some(object) = unsafe { ElfObject::of(info) } {
        visit(object);
    }
    0
}

fn value(slot: usize) -> usize {
    // SAFETY: a slot of a loaded object: aligned, and it can be read.
    unsafe { &*(slot as *const AtomicUsize) }.load(Acquire)
}

/// False where its page cannot be made writable.
fn write(object: &ElfObject, slot: usize, value: usize) -> bool {
    const PAGE: usize = 4096;
    let page = (slot & !(PAGE - 1)) as *mut c_void;
    let protect = |protection| {
        // SAFETY: mprotect(2): a page of slots; others may only read it, and go on reading.
        let failed = unsafe { libc::mprotect(page, PAGE, protection) };
        failed == 0
    };
    let is_protected = object.is_protected(slot);
    if is_protected && !protect(libc::PROT_READ | libc::PROT_WRITE) {
        return false;
    }
    // SAFETY: a slot of a loaded object, writable by now; threads that call through it read it whole.
    unsafe { &*(slot as *const AtomicUsize) }.store(value, Release);
    // Refused, it stays writable, which harms nobody.
    let _ = is_protected && protect(libc::PROT_READ);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_are_those_that_the_loader_finds() {
        let slots = GotSlots::find().unwrap();
        assert_eq!(slots.owner().malloc, libc::malloc as *const () as usize);
        assert!(!slots.owner().is_program);
        let check = |name: &CStr, real: usize| {
            let hook = slots.hooks.iter().find(|hook| hook.name == name).unwrap();
            assert_eq!(hook.real.load(Relaxed), real, "{name:?}");
        };
        check(c"free", libc::free as *const () as usize);
        check(
            c"posix_memalign",
            libc::posix_memalign as *const () as usize,
        );
        check(c"mallocx", 0);
        check(c"reallocarray", 0);
        check(c"_Znwm", 0);
    }

    #[test]
    fn slots_of_this_program_hold_what_they_should() {
        let slots = GotSlots::find().unwrap();
        let (mut found, mut others) = (0, 0);
        for_each_object(&mut |object| {
            for slot in object.slots() {
                let Some(hook) = slots.hook(slot.name) else {
                    continue;
                };
                if is_allocators(&object, &slot, value(slot.at), hook) {
                    found += 1;
                } else {
                    others += 1;
                }
            }
        });
        assert!(found > 10, "{found}");
        assert_eq!(others, 0);
    }
}
