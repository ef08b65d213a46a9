//! Patches and restores the GOT slots through which the process's objects call `malloc` and related functions.
//!
//! Two kinds of relocations are patched: those for calls (`JUMP_SLOT`, `GLOB_DAT`), and those for addresses in an
//! object's data (`64`), such as `void (*xmlFree)(void *) = free`. All of them change together, so a program that
//! compares two such addresses gets the same result as before. A pointer that the program copies from a patched word
//! keeps calling the hook, which stays until the process ends. A pointer that it copied earlier bypasses the hook.
#![expect(unsafe_code, reason = "the loader's list, and slots of other objects")]

mod loader_list;
mod lock;
mod object;
mod own_calls;
mod patch_stats;
mod patched_slot;
mod word;

use core::ffi::{CStr, c_void};
use core::mem;
use core::ops::Range;
use core::ptr;
use core::slice;
use core::sync::atomic::{
    AtomicPtr, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::hooks::{HOOK_COUNT, Hook, Role, hooks};
use crate::own_code::{own_code, set_own_code};
use crate::patched_entries::PatchedEntries;
use crate::patching_guard::PatchingGuard;
use crate::{countdown, loader_calls, mapping, tally};
use loader_list::for_each_object;
use lock::with_loader_locked;
use object::{ElfObject, GotSlot};
pub use own_calls::{CallTarget, visit_own_calls};
pub use patch_stats::PatchStats;
use patched_slot::PatchedSlot;
use word::{exchange_word, slot_value};

/// Maximum number of patched slots, more than any program has. Further slots count as refused.
const MAX_SLOTS: usize = 1 << 16;

/// Object that provides the process's `malloc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MallocProvider {
    /// Address of its `malloc`.
    pub malloc: usize,
    /// Whether it is the executable. Calls inside the executable use no slot.
    pub is_program: bool,
}

/// Patches and restores the process's GOT slots. All copies of this value share one global list of patched slots,
/// because hooks serve one allocator, and because a forked child restores the slots that its parent patched. Only one
/// thread at a time may patch or restore.
#[derive(Clone, Debug)]
pub struct GotSlots {
    provider: MallocProvider,
    hooks: [Hook; HOOK_COUNT],
    loader_hooks: [Hook; loader_calls::HOOK_COUNT],
    /// Address range of the object that provides `malloc`. Its own slots are not patched. Empty if that object is the C
    /// library.
    provider_code: Range<usize>,
    entries: Option<PatchedEntries>,
}

/// List of patched slots: a mapping of [`MAX_SLOTS`] elements, null before the first [`GotSlots::find`].
static SLOTS: AtomicPtr<PatchedSlot> = AtomicPtr::new(ptr::null_mut());
/// Number of patched slots in the mapping.
static SLOT_COUNT: AtomicUsize = AtomicUsize::new(0);

/// Returns the address of the `malloc` that serves the process: the one of the first loaded object that defines
/// `malloc`. `None` if no object does. `&malloc` in C may differ: in an executable that is not position independent, it
/// is the address of an entry of the procedure linkage table.
pub fn malloc_address() -> Option<usize> {
    let mut found = None;
    for_each_object(&mut |object| found = found.or_else(|| object.definition(c"malloc")));
    // SAFETY: the object is the C library, or comes before it in the loader's list. So the loader relocated it before
    // the program began, and never unloads it.
    unsafe { found?.resolve_function() }
}

impl GotSlots {
    /// Finds the provider of `malloc`, and stores the addresses of its functions in the hooks. Also finds the loader's
    /// functions to hook, and memprof's own code. If the tally is enabled, checks whether glibc's chunk headers give
    /// block sizes. `None` if no object defines `malloc`, if the first that does defines a variable of that name, or if
    /// the kernel has no memory for the list of slots.
    pub fn find() -> Option<Self> {
        let mut found = None;
        let own_function = Self::find as *const () as usize;
        for_each_object(&mut |object| {
            if object.code.contains(&own_function) {
                set_own_code(&object.code);
            }
            loader_calls::store_original_functions(|name| {
                let definition = object.definition(name)?;
                Some(definition.direct_function())
            });
            if found.is_none() && object.definition(c"malloc").is_some() {
                found = Some(object);
            }
        });
        let object = found?;
        // Not during the visit: resolvers of indirect functions are foreign code, and must not run under the lock of
        // the loader's list.
        let function = |name: &CStr| {
            let definition = object.definition(name)?;
            // SAFETY: as in `malloc_address`.
            unsafe { definition.resolve_function() }
        };
        let provider = MallocProvider {
            malloc: function(c"malloc")?,
            is_program: object.path().is_empty(),
        };
        tally::set_usable_size_function(function(c"malloc_usable_size"));
        let mut hooks = hooks();
        let is_libc = object.is_libc();
        let entries = find_complete_entries(hooks.iter().filter_map(|hook| function(hook.name)));
        for hook in &mut hooks {
            // glibc's reallocarray calls glibc's realloc through a slot. With both hooked, a call would count
            // twice. Hooks of patched entry points avoid this: the outer one pauses the count.
            let is_hookable = !is_libc || entries.is_some() || hook.name != c"reallocarray";
            let definition = is_hookable.then(|| function(hook.name)).flatten();
            hook.definition = definition.unwrap_or(0);
            // Stored once, because other threads may be calling the hook. If it stored `definition` first, a
            // patched function would jump to its hook, and the hook back to the function.
            let original = match &entries {
                Some(entries) if hook.definition != 0 => entries.call_address(hook.definition),
                _ => hook.definition,
            };
            hook.original.store(original, Relaxed);
        }
        if is_libc && tally::is_enabled() {
            probe_chunk_headers(&hooks);
        }
        if SLOTS.load(Acquire).is_null() {
            SLOTS.store(mapping::map_zeros(MAX_SLOTS)?, Release);
        }
        Some(Self {
            provider,
            hooks,
            loader_hooks: loader_calls::hooks(),
            provider_code: if is_libc { 0..0 } else { object.code },
            entries,
        })
    }

    /// Returns the patched entry points of the object that provides `malloc`. `None` if some or all of them are
    /// unpatched; the GOT slots must then be patched instead.
    pub fn patched_entries(&self) -> Option<&PatchedEntries> {
        self.entries.as_ref()
    }

    /// Returns the address of the `malloc` that serves the process, and whether the executable defines it.
    pub fn provider(&self) -> MallocProvider {
        self.provider
    }

    /// Returns the number of slots of the process that hold the address of a hook.
    pub fn patched_count(&self) -> usize {
        SLOT_COUNT.load(Acquire)
    }

    /// Returns whether code can run under the loader's lock, by running an empty job. Waits for the lock. False if
    /// another thread patches slots for longer than 200 ms, or if the job did not run, for example because two copies
    /// of this library are loaded.
    pub fn can_lock_loader(&self) -> bool {
        let guard = PatchingGuard::acquire();
        guard.is_some() && with_loader_locked(&mut || {})
    }

    /// Patches all slots that are not patched yet, including those of objects loaded since the last call. First drops
    /// slots of unloaded objects from the list. Returns the total number of patched slots, and counts of the other
    /// slots and objects found by this call. `None`, with nothing changed, if the loader's lock is not available or
    /// another thread is patching.
    pub fn patch(&mut self) -> Option<PatchStats> {
        let _guard = PatchingGuard::acquire()?;
        let mut patched = PatchStats::default();
        let is_done = with_loader_locked(&mut || {
            self.drop_stale_slots();
            for_each_object(&mut |object| self.patch_object(&object, &mut patched));
        });
        patched.patched = self.patched_count();
        is_done.then_some(patched)
    }

    /// Patches the slots of objects loaded since the last call; runs in the program's thread that has just loaded them.
    /// Does nothing if another thread is patching, sampling was stopped, or the loader's lock is not available. Keeps
    /// the slots of unloaded objects in the list: a child may be forked in the meantime, and needs a consistent list.
    pub fn patch_new_objects(&mut self) {
        let Some(_guard) = PatchingGuard::try_acquire() else {
            return;
        };
        // The thread that stops sampling sets the interval to 0 first, and then restores the slots under this guard.
        if countdown::interval() == 0 {
            return;
        }
        let mut patched = PatchStats::default();
        with_loader_locked(&mut || {
            for_each_object(&mut |object| self.patch_object(&object, &mut patched));
        });
    }

    /// Restores the slots of functions with `role`, or all slots if it is `None`: each slot gets its original value,
    /// and its page the original protection. Slots that other code has changed since stay unchanged. Drops all these
    /// slots from the list. Returns the number of restored slots. `None`, with nothing changed, if the loader's lock is
    /// not available or another thread is patching.
    pub fn restore(&mut self, role: Option<Role>) -> Option<usize> {
        let _guard = PatchingGuard::acquire()?;
        let is_selected = |slot: &PatchedSlot| role.is_none_or(|role| slot.role == role);
        let mut restored = 0;
        let is_done = with_loader_locked(&mut || {
            for_each_object(&mut |object| {
                for slot in self.patched_slots().iter().filter(|slot| is_selected(slot)) {
                    let is_inside = object.code.contains(&slot.address);
                    if is_inside && exchange_word(&object, slot.address, slot.hook, slot.original) {
                        restored += 1;
                    }
                }
            });
            self.retain_slots(|slot| !is_selected(slot));
        });
        is_done.then_some(restored)
    }

    /// Patches one object's slots and the words of its data that hold an allocator function's address, and counts them
    /// in `patched`. Skips memprof, the provider of `malloc`, and slots that lead to another object's function.
    fn patch_object(&mut self, object: &ElfObject, patched: &mut PatchStats) {
        if object.code.contains(&own_code().start) || object.code == self.provider_code {
            return;
        }
        if self.defines_another_malloc(object) {
            patched.other_mallocs += 1;
        }
        let mut has_unpatched = false;
        for word in object.data_words() {
            if let Some(hook) = self.find_hook(word.name) {
                // The program may have changed its data: only words with the function's address are patched.
                let original = hook.definition;
                let is_held =
                    object.can_exchange(word.address) && slot_value(word.address) == original;
                let new = PatchedSlot::new(word.address, original, hook);
                has_unpatched |= is_held && !self.patch_slot(object, new);
            }
        }
        patched.unseen_objects += usize::from(has_unpatched);
        for slot in object.call_slots() {
            let Some(hook) = self.find_hook(slot.name) else {
                continue;
            };
            let original = slot_value(slot.address);
            // An earlier call patched this slot.
            if original == hook.address {
                continue;
            }
            if !holds_allocator_function(object, &slot, original, hook) {
                // Slots of the loader's functions are not counted.
                patched.foreign +=
                    usize::from(self.hooks.iter().any(|each| each.name == hook.name));
                continue;
            }
            let new = PatchedSlot::new(slot.address, original, hook);
            patched.refused += usize::from(!self.patch_slot(object, new));
        }
    }

    /// Patches one slot and appends it to the list. Returns false, with nothing changed, if the list is full, the
    /// kernel refuses, or other code has changed the slot in the meantime.
    fn patch_slot(&mut self, object: &ElfObject, slot: PatchedSlot) -> bool {
        let has_room = self.patched_count() < MAX_SLOTS;
        let is_patched = has_room && exchange_word(object, slot.address, slot.original, slot.hook);
        is_patched.then(|| self.push_slot(slot)).is_some()
    }

    /// Returns whether an object other than the C library defines a `malloc` different from the sampled one.
    fn defines_another_malloc(&self, object: &ElfObject) -> bool {
        let malloc = object.definition(c"malloc");
        malloc.is_some_and(|malloc| malloc.address != self.provider.malloc) && !object.is_libc()
    }

    /// Finds the hook of a function by name: of one of the allocator's or of the loader's. `None` if memprof does not
    /// hook functions with that name, or if the function's address is unknown because no definition was found.
    fn find_hook(&self, name: &CStr) -> Option<&Hook> {
        let mut hooks = self.hooks.iter().chain(&self.loader_hooks);
        let hook = hooks.find(|hook| hook.name == name)?;
        (hook.definition != 0).then_some(hook)
    }

    /// Drops from the list the slots that other code has changed, and those of unloaded objects, even if another object
    /// is at their addresses now.
    fn drop_stale_slots(&mut self) {
        let mut kept = 0;
        for_each_object(&mut |object| {
            let first = kept;
            for index in first..self.patched_count() {
                let slot = self.patched_slots()[index];
                if object.code.contains(&slot.address) && slot_value(slot.address) == slot.hook {
                    self.patched_slots_mut().swap(kept, index);
                    kept += 1;
                }
            }
        });
        SLOT_COUNT.store(kept, Release);
    }

    /// Keeps only the slots in the list for which `is_kept` is true. Does not restore the others.
    fn retain_slots(&mut self, is_kept: impl Fn(&PatchedSlot) -> bool) {
        let mut kept = 0;
        for index in 0..self.patched_count() {
            if is_kept(&self.patched_slots()[index]) {
                self.patched_slots_mut().swap(kept, index);
                kept += 1;
            }
        }
        SLOT_COUNT.store(kept, Release);
    }

    /// Appends a patched slot to the list, which must have room. Writes the slot before the count, so that a child
    /// forked in between sees only complete slots.
    fn push_slot(&mut self, slot: PatchedSlot) {
        let count = self.patched_count();
        let free = SLOTS.load(Acquire).wrapping_add(count);
        // SAFETY: `find` mapped `MAX_SLOTS` slots, and the caller checked that there is room.
        unsafe { free.write(slot) };
        SLOT_COUNT.store(count + 1, Release);
    }

    /// Returns the list of patched slots of the process.
    fn patched_slots(&self) -> &[PatchedSlot] {
        // SAFETY: `find` mapped `MAX_SLOTS` slots, of which `push_slot` wrote the first `count`. The caller of
        // `GotSlots` lets only one thread patch at a time.
        unsafe { slice::from_raw_parts(SLOTS.load(Acquire), self.patched_count()) }
    }

    /// Returns the list of patched slots of the process for changes. Changing the list does not change the slots.
    fn patched_slots_mut(&mut self) -> &mut [PatchedSlot] {
        // SAFETY: `find` mapped `MAX_SLOTS` slots, of which `push_slot` wrote the first `count`. `&mut self`
        // excludes other references, and the caller of `GotSlots` other threads.
        unsafe { slice::from_raw_parts_mut(SLOTS.load(Acquire), self.patched_count()) }
    }
}

/// Finds the patched entry points among an object's `functions`. `None` if none is patched, or if only some are,
/// because memprof-attach was killed. If only some are, disables their hooks: memprof then patches GOT slots, whose
/// hooks call these functions, and each call would count twice.
fn find_complete_entries(mut functions: impl Iterator<Item = usize>) -> Option<PatchedEntries> {
    let entries = functions.find_map(PatchedEntries::find)?;
    let is_complete = entries.is_complete();
    if !is_complete {
        entries.disable(None);
    }
    is_complete.then_some(entries)
}

/// Makes the tally (the exact count of all allocations) check whether glibc's chunk headers give block sizes. Does
/// nothing if a hook's original `malloc` or `free` is unknown.
fn probe_chunk_headers(hooks: &[Hook]) {
    let original = |name: &CStr| {
        let hook = hooks.iter().find(|hook| hook.name == name)?;
        Some(hook.original.load(Relaxed)).filter(|original| *original != 0)
    };
    if let (Some(malloc), Some(free)) = (original(c"malloc"), original(c"free")) {
        // SAFETY: malloc(3), as glibc defines it.
        let malloc =
            unsafe { mem::transmute::<usize, unsafe extern "C" fn(usize) -> *mut c_void>(malloc) };
        // SAFETY: free(3), as glibc defines it.
        let free = unsafe { mem::transmute::<usize, unsafe extern "C" fn(*mut c_void)>(free) };
        // SAFETY: `find` has found both functions in the C library.
        unsafe { tally::probe_chunk_headers(malloc, free) };
    }
}

/// Returns whether a slot's `value` still comes from the dynamic linker, and leads to the allocator's function. It is
/// the address of this function, or of code in the object itself that looks the function up at the first call.
fn holds_allocator_function(
    object: &ElfObject,
    slot: &GotSlot<'_>,
    value: usize,
    hook: &Hook,
) -> bool {
    // An object that defines the function itself may be bound to its own definition (RTLD_DEEPBIND). The C library is
    // an exception, because it is loaded at startup.
    let original = hook.definition;
    let is_unbound = || {
        let is_inside = slot.may_be_lazy && object.code.contains(&value);
        let own = object.definition(hook.name);
        is_inside && (own.is_none_or(|own| own.address == original) || object.is_libc())
    };
    value == original || is_unbound()
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::process::Command;
    use std::string::String;
    use std::{env, format, fs, process};

    use super::*;

    /// Library whose `malloc` is an indirect function (IFUNC).
    const INDIRECT_MALLOC: &str = "
        #include <stddef.h>
        void *__libc_malloc(size_t);
        void __libc_free(void *);
        static void *chosen(size_t size) { return __libc_malloc(size); }
        static void *(*choose(void))(size_t) { return chosen; }
        void *malloc(size_t size) __attribute__((ifunc(\"choose\")));
        void free(void *block) { __libc_free(block); }
    ";

    #[test]
    fn indirect_malloc_is_the_function_that_its_resolver_chooses() {
        const IS_PRELOADED: &str = "INDIRECT_MALLOC_IS_PRELOADED";
        const TEST: &str =
            "got_slots::tests::indirect_malloc_is_the_function_that_its_resolver_chooses";
        if env::var_os(IS_PRELOADED).is_some() {
            let slots = GotSlots::find().unwrap();
            // SAFETY: dlsym(3) with a NUL-terminated name.
            let malloc = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"malloc".as_ptr()) } as usize;
            assert_eq!(slots.provider().malloc, malloc);
            assert_eq!(malloc_address(), Some(malloc));
            let hook = slots.find_hook(c"malloc").unwrap();
            assert_eq!(hook.definition, malloc);
            assert_eq!(hook.original.load(Relaxed), malloc);
            assert!(slots.provider_code.contains(&malloc));
            return;
        }
        let directory = env::temp_dir().join(format!("memprof-sampler-{}", process::id()));
        fs::create_dir_all(&directory).unwrap();
        let (code, library) = (directory.join("x.c"), directory.join("x.so"));
        fs::write(&code, INDIRECT_MALLOC).unwrap();
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-o"]).args([&library, &code]);
        let compiled = cc.status();
        let mut test = Command::new(env::current_exe().unwrap());
        test.args([TEST, "--exact"]).env(IS_PRELOADED, "1");
        let output = test.env("LD_PRELOAD", &library).output();
        fs::remove_dir_all(&directory).unwrap();
        assert!(compiled.unwrap().success());
        let output = output.unwrap();
        let lines = String::from_utf8_lossy(&output.stdout);
        assert!(lines.contains("1 passed"), "{lines}");
    }

    #[test]
    fn find_returns_definitions_that_the_loader_uses() {
        let slots = GotSlots::find().unwrap();
        assert_eq!(slots.provider().malloc, libc::malloc as *const () as usize);
        assert!(!slots.provider().is_program);
        let check = |name: &CStr, original: usize| {
            let hook = slots.hooks.iter().find(|hook| hook.name == name).unwrap();
            assert_eq!(hook.original.load(Relaxed), original, "{name:?}");
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
    fn slots_of_unpatched_program_hold_allocator_functions() {
        let slots = GotSlots::find().unwrap();
        let (mut found, mut others) = (0, 0);
        for_each_object(&mut |object| {
            for slot in object.call_slots() {
                let Some(hook) = slots.find_hook(slot.name) else {
                    continue;
                };
                if holds_allocator_function(&object, &slot, slot_value(slot.address), hook) {
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
