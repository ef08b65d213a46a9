//! Rebinds the libc functions that a plugin's library calls to libc's own definitions.
//!
//! The loader binds a name to the first object that defines it, and the program comes first: if the program has its own
//! `mkdir`, the library would call that instead of libc's. `-Bsymbolic` affects only names that the library itself
//! defines, and glibc accepts an unversioned definition for any version (dl-lookup.c, `check_match`). So before any
//! other function of the library runs, it looks up its imports again, only in the tables of glibc's objects.
//!
//! Until then it cannot call any import. Therefore it reads memory only with `read_volatile`: the compiler could turn
//! other loops into calls of strlen or memcmp. If it finds no glibc, the loader's bindings stay.
#![expect(
    unsafe_code,
    reason = "entered by the loader, whose structures it reads"
)]

mod link_map;
mod object;
mod relro;

use std::ffi::CStr;

use link_map::LinkMap;
pub(crate) use object::Object;
use object::{Import, is_string_at, read_memory};
use relro::WritableRelro;

const LOADER: &CStr = c"ld-linux-x86-64.so.2";
/// Objects that contain the functions of libc. Since glibc 2.34, the first two contain them all.
const GLIBC: [&CStr; 5] = [
    c"libc.so.6",
    LOADER,
    c"libpthread.so.0",
    c"libdl.so.2",
    c"librt.so.1",
];

/// Functions of the allocator. A block of one goes to another, so all must be of one object: the one whose `malloc`
/// serves the program, because memory goes from the program to the library and back.
const ALLOCATION: [&CStr; 8] = [
    c"aligned_alloc",
    c"calloc",
    c"free",
    c"malloc",
    c"malloc_usable_size",
    c"memalign",
    c"posix_memalign",
    c"realloc",
];
/// Functions that an allocator replaces to know of every thread: jemalloc for its lazy locks, sanitizers for their
/// registers of threads. Another object's `pthread_create` is the program's own affair.
const THREADS: [&CStr; 3] = [CREATE, c"pthread_detach", c"pthread_join"];
const CREATE: &CStr = c"pthread_create";

/// Binds a library's imports from glibc to glibc's own definitions, even if the program has definitions that come
/// first. Runs from the library's `.init_array`, before its other entries. `caller` is the return address in the
/// loader. `header` and `dynamic` are the library's `__ehdr_start` and `_DYNAMIC`. Does nothing if the caller is not
/// glibc's loader.
///
/// # Safety
/// Called once, by the loader, with addresses of the library that contains this function.
#[doc(hidden)]
pub unsafe extern "C" fn bind_imports(caller: usize, header: usize, dynamic: usize) {
    // SAFETY: `caller` is in the code of a loaded object, which has its header mapped below its code.
    let loader = unsafe { Object::containing(caller) };
    let Some(debug) = loader
        .filter(|loader| loader.is_named(LOADER))
        .and_then(|loader| loader.find_definition_in_any_version(c"_r_debug"))
    else {
        return;
    };
    // SAFETY: `debug` is the loader's list, which does not change while the loader calls this.
    let Some(objects) = (unsafe { LinkMap::find_namespace(dynamic, debug.address) }) else {
        return;
    };
    // SAFETY: the caller promises that `header` and `dynamic` are those of the library that is running.
    let library = unsafe { Object::new(header, dynamic) };
    let mut relro = WritableRelro::for_library(header);
    let allocator = find_allocator(objects, &library);
    for import in library.imports() {
        if let Some(function) = function_to_bind(objects, allocator, &import) {
            // SAFETY: the slot is an address cell of this library, whose other code has not run yet.
            unsafe { relro.write_word(import.slot, function) };
        }
    }
}

/// Returns the object whose `malloc` the library calls: the one that defines the function in the import's slot,
/// otherwise the first that defines a `malloc`. `None` if the library does not import `malloc`, if no object defines
/// it, or if an object before the first that does cannot be searched.
fn find_allocator(objects: LinkMap, library: &Object) -> Option<Object> {
    let malloc = library
        .imports()
        .find(|import| is_string_at(import.name, c"malloc"))?;
    let bound: usize = read_memory(malloc.slot);
    let defines = |object: &Object| object.find_definition_in_any_version(c"malloc").is_some();
    let is_bound = |object: &Object| {
        object
            .find_definition_in_any_version(c"malloc")
            .is_some_and(|definition| definition.address == bound)
    };
    let all = || objects.iter().map(LinkMap::object);
    all().find(is_bound).or_else(|| {
        // The slot may hold the address of an entry of the program's PLT, or of the function that an indirect function
        // chose. If an object cannot be searched, `malloc` may be its own. The search ends there, because the `free` of
        // a later object could not free its blocks.
        all().take_while(Object::has_gnu_hash).find(defines)
    })
}

/// Returns the address of the function to which to bind an import. `None` if the import stays as the loader bound it,
/// as all imports do that are not from glibc.
///
/// `allocator` is the object that serves `malloc`. It also serves the functions for allocation, and those for threads
/// if it defines `pthread_create`. If it is unknown (`None`), imports of both kinds stay as they are.
fn function_to_bind(objects: LinkMap, allocator: Option<Object>, import: &Import) -> Option<usize> {
    let is_any = |text, names: &[&CStr]| names.iter().any(|name| is_string_at(text, name));
    if !is_any(import.version.file, &GLIBC) {
        return None;
    }
    if is_any(import.name, &ALLOCATION) {
        return allocator?.find_function_in_any_version(import);
    }
    if is_any(import.name, &THREADS) {
        let allocator = allocator?;
        if allocator.find_definition_in_any_version(CREATE).is_some()
            && let Some(function) = allocator.find_function_in_any_version(import)
        {
            return Some(function);
        }
    }
    find_glibc_definition(objects, import)
}

/// Returns the address of glibc's definition of an import. Prefers the object to which the library was linked, because
/// before glibc 2.34 libc also has some of libpthread's names. `None` if no object of glibc defines it.
fn find_glibc_definition(objects: LinkMap, import: &Import) -> Option<usize> {
    let find = |object: Object| object.find_function(import);
    let linked = objects
        .iter()
        .map(LinkMap::object)
        .filter(|object| object.has_soname_at(import.version.file))
        .find_map(find);
    linked.or_else(|| {
        let glibc = |object: &Object| GLIBC.iter().any(|name| object.is_named(name));
        objects
            .iter()
            .map(LinkMap::object)
            .filter(glibc)
            .find_map(find)
    })
}
