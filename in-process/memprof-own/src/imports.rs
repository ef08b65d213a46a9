//! Rebinds the libc functions that a plugin's library calls to libc's own definitions.
//!
//! The loader binds a name to the first object that defines it, and the program is the first: a program with a
//! `mkdir` of its own would be called in place of libc's. `-Bsymbolic` is about names that the library defines
//! itself, and glibc accepts an unversioned definition for any version (dl-lookup.c, `check_match`). So the library
//! looks up its imports again, in the tables of glibc's objects alone, before any other function of it runs.
//!
//! Until then it can call no import, so it reads memory by `read_volatile` only: a compiler may turn other loops
//! into calls of strlen or memcmp. Where it finds no glibc, the loader's bindings stay.
#![expect(
    unsafe_code,
    reason = "entered by the loader, whose structures it reads"
)]

mod link_map;
mod object;
mod relro;

use std::ffi::CStr;

use link_map::LinkMap;
use object::{Import, Object, is_string_at};
use relro::WritableRelro;

const LOADER: &CStr = c"ld-linux-x86-64.so.2";
/// Objects that have the functions of libc. Since glibc 2.34 only the first two do.
const GLIBC: [&CStr; 5] = [
    c"libc.so.6",
    LOADER,
    c"libpthread.so.0",
    c"libdl.so.2",
    c"librt.so.1",
];

/// Functions that stay as the loader bound them: memory goes from the program to the library and back, so both must
/// have one allocator; and a program that replaces `pthread_create`, as jemalloc does for its lazy locks and
/// sanitizers for their registers of threads, must know of every thread.
const INTERPOSABLE: [&CStr; 11] = [
    c"aligned_alloc",
    c"calloc",
    c"free",
    c"malloc",
    c"malloc_usable_size",
    c"memalign",
    c"posix_memalign",
    c"pthread_create",
    c"pthread_detach",
    c"pthread_join",
    c"realloc",
];

/// Binds the imports of a library from glibc to glibc's own definitions, instead of those that the program may have put
/// before them. Runs from its `.init_array`, before its other entries. `caller` is the return address in the loader;
/// `header` and `dynamic` are the library's `__ehdr_start` and `_DYNAMIC`. Does nothing if the caller is not glibc's
/// loader.
///
/// # Safety
/// Called once, by the loader, with addresses of the library that this is linked into.
#[doc(hidden)]
pub unsafe extern "C" fn bind_imports(caller: usize, header: usize, dynamic: usize) {
    // SAFETY: `caller` is in the code of an object that is loaded, and its header is mapped below its code.
    let loader = unsafe { Object::containing(caller) };
    let Some(debug) = loader
        .filter(|loader| loader.is_named(LOADER))
        .and_then(|loader| loader.find_in_any_version(c"_r_debug"))
    else {
        return;
    };
    // SAFETY: `debug` is the loader's list, which does not change while the loader calls this.
    let Some(objects) = (unsafe { LinkMap::find_namespace(dynamic, debug.address) }) else {
        return;
    };
    // SAFETY: `header` and `dynamic` are those of the library that is running, as the caller promises.
    let library = unsafe { Object::new(header, dynamic) };
    let mut relro = WritableRelro::for_library(header);
    for import in library.imports() {
        if needs_rebinding(&import)
            && let Some(function) = find_definition(objects, &import)
        {
            // SAFETY: the slot is an address cell of this library, whose other code has not run yet.
            unsafe { relro.write_word(import.slot, function) };
        }
    }
}

/// Whether an import is of glibc and not interposable.
fn needs_rebinding(import: &Import) -> bool {
    let is_any = |text, names: &[&CStr]| names.iter().any(|name| is_string_at(text, name));
    is_any(import.version.file, &GLIBC) && !is_any(import.name, &INTERPOSABLE)
}

/// Returns the address of glibc's definition of an import. Prefers the object that the library was linked to: before
/// glibc 2.34 libc has some of libpthread's names, too. `None` if no object of glibc defines it.
fn find_definition(objects: LinkMap, import: &Import) -> Option<usize> {
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
