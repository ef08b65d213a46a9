//! Functions and variables that only some versions of glibc export.
#![expect(unsafe_code, reason = "dlopen(3) and dlsym(3)")]

use std::ffi::{CStr, c_void};
use std::path::Path;
use std::ptr::NonNull;

use crate::containing_object::find_object_containing;

/// Looks up a name in libc and in the loader, on which libc depends. A symbol of the program with that name does not
/// count. `None` if the C library is not glibc, or lacks the name.
///
/// Takes the loader's lock, because dlsym(3) does.
pub fn libc_symbol(name: &CStr) -> Option<NonNull<c_void>> {
    // SAFETY: dlsym(3) with a NUL-terminated name.
    let first = NonNull::new(unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) })?;
    if is_in_glibc(first) {
        return Some(first);
    }
    // Either an object before libc has the name, or the file of the loader has a name that `is_in_glibc` does not know.
    // The first dlopen(3) of libc creates the list that dlsym(3) then searches, and a child that is forked meanwhile
    // has half a list.
    let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
    // SAFETY: dlopen(3): the library is loaded already, and its constructors ran before all others. The handle is never
    // closed.
    let libc = NonNull::new(unsafe { libc::dlopen(c"libc.so.6".as_ptr(), flags) })?;
    // SAFETY: dlsym(3) with an open handle and a NUL-terminated name.
    NonNull::new(unsafe { libc::dlsym(libc.as_ptr(), name.as_ptr()) })
}

/// Returns whether a function or variable is in an object of glibc, by the names of the objects' files.
fn is_in_glibc(address: NonNull<c_void>) -> bool {
    let Some(object) = find_object_containing(address.addr().get()) else {
        return false;
    };
    // SAFETY: the loader's text, which it keeps as long as it has the object; dlsym(3) has found the address there.
    let path = unsafe { CStr::from_ptr(object.dli_fname) };
    let name = path
        .to_str()
        .ok()
        .and_then(|path| Path::new(path).file_name()?.to_str());
    name.is_some_and(|name| {
        let is_loader = name.starts_with("ld-") && name.contains(".so");
        is_loader || ["libc.so.6", "libpthread.so.0"].contains(&name)
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn lookup_makes_no_list_that_a_forked_child_could_find_half_made() {
        let test = "libc_symbol::tests::symbols_of_libc_and_loader_are_found";
        let mut process = Command::new(std::env::current_exe().unwrap());
        let process = process.args([test, "--exact"]).env("LD_DEBUG", "files");
        let output = process.output().unwrap();
        assert!(output.status.success());
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(log.contains("libc.so.6"), "{log}");
        let opened = log
            .lines()
            .find(|line| line.contains("opening file") && line.contains("libc.so.6"));
        assert_eq!(opened, None, "{log}");
    }

    #[test]
    fn symbols_of_libc_and_loader_are_found() {
        assert!(libc_symbol(c"getpid").is_some());
        assert!(libc_symbol(c"_rtld_global").is_some());
        assert_eq!(libc_symbol(c"memprof_plugin_entry"), None);
    }

    #[test]
    fn symbols_of_the_program_are_not_those_of_glibc() {
        let own = libc_symbol as *const ();
        assert!(!is_in_glibc(NonNull::new(own.cast_mut().cast()).unwrap()));
        assert!(is_in_glibc(libc_symbol(c"getpid").unwrap()));
    }
}
