//! Whether an allocator's functions belong together. Names of two allocators in one process interpose each
//! other: a function of the one may then call the other's where it means its own, with state that the other
//! does not know.

/// A function that the object which contains `address` defines and whose name is its allocator's, but which
/// it calls in another object. The object stays loaded.
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "the loader's symbols")]
pub(crate) fn interposed(address: usize, is_own_name: impl Fn(&[u8]) -> bool) -> Option<String> {
    use std::ffi::CStr;

    use memprof_sampler::CallTarget;

    use crate::allocators::loaded_objects::ForkGuard;

    /// Calls that lead outside or are not bound yet; no allocator has more.
    const MOST: usize = 128;

    // Nothing is allocated under the loader's lock: an allocator may wait for that while it holds its own.
    let mut calls = [None; MOST];
    let mut free = calls.iter_mut();
    {
        let _reading = ForkGuard::acquire();
        memprof_sampler::visit_own_calls(address, &mut |name, own, leads| {
            let is_meant = leads != CallTarget::Inside && is_own_name(name.to_bytes());
            if let Some(place) = is_meant.then(|| free.next()).flatten() {
                *place = Some((name.as_ptr(), own, leads));
            }
        });
    }
    let replaced = calls.into_iter().flatten().find_map(|(name, own, leads)| {
        // SAFETY: in the string table of the object, which the caller keeps loaded.
        let name = unsafe { CStr::from_ptr(name) };
        let is_replaced = leads == CallTarget::Elsewhere || {
            // The loader's order. An object that was opened with a scope of its own (dlopen(3)) looks there
            // after the whole process.
            // SAFETY: dlsym(3) with a NUL-terminated name.
            let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) } as usize;
            found != 0 && found != own
        };
        is_replaced.then_some(name)
    })?;
    Some(replaced.to_string_lossy().into_owned())
}

/// Not looked at where no slot can be read.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn interposed(_: usize, _: impl Fn(&[u8]) -> bool) -> Option<String> {
    None
}

#[cfg(all(test, target_arch = "x86_64"))]
#[expect(unsafe_code, reason = "dlopen(3) of small libraries")]
mod tests {
    use std::ffi::{CStr, CString};
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;
    use std::process::Command;

    use super::interposed;

    /// Loads a library that has one function called `{name}_control` and one that calls it.
    fn load(place: &Path, file: &str, name: &str, flags: &[&str], mode: i32) -> usize {
        let (code, library) = (place.join("x.c"), place.join(file));
        let text = format!(
            "int {name}_control(void) {{ return 1; }}\n\
             int {name}_print(void) {{ return {name}_control(); }}\n"
        );
        std::fs::write(&code, text).unwrap();
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-O0", "-o"])
            .args([&library, &code]);
        assert!(cc.args(flags).status().unwrap().success());
        let path = CString::new(library.as_os_str().as_bytes()).unwrap();
        // SAFETY: dlopen(3) of a library without constructors.
        let handle = unsafe { libc::dlopen(path.as_ptr(), mode) };
        assert!(!handle.is_null());
        let print = CString::new(format!("{name}_print")).unwrap();
        // SAFETY: dlsym(3) with an open handle.
        unsafe { libc::dlsym(handle, print.as_ptr()) as usize }
    }

    #[test]
    fn a_function_that_another_library_replaces_is_named() {
        const NOW: i32 = libc::RTLD_NOW;
        const LAZY: i32 = libc::RTLD_LAZY;
        const GLOBAL: i32 = libc::RTLD_GLOBAL;
        const DEEP: i32 = libc::RTLD_DEEPBIND;
        let place = tempfile::tempdir().unwrap();
        let check =
            |name: &str, first: Option<i32>, flags: &[&str], mode: i32, is_replaced: bool| {
                if let Some(first) = first {
                    load(place.path(), &format!("{name}-first.so"), name, &[], first);
                }
                let print = load(place.path(), &format!("{name}.so"), name, flags, mode);
                let control = format!("{name}_control");
                let found = interposed(print, |known| known.ends_with(b"_control"));
                assert_eq!(found, is_replaced.then_some(control), "{name}");
                assert_eq!(interposed(print, |_| false), None, "{name}");
            };
        let lazy: &[&str] = &["-Wl,-z,lazy"];
        check("alone", None, &[], NOW | GLOBAL, false);
        check("alone_lazy", None, lazy, LAZY | GLOBAL, false);
        check(
            "bound",
            Some(NOW | GLOBAL),
            &["-Wl,-z,now"],
            NOW | GLOBAL,
            true,
        );
        check("lazy", Some(NOW | GLOBAL), lazy, LAZY | GLOBAL, true);
        check("lazy_local", Some(NOW | GLOBAL), lazy, LAZY, true);
        check("first_is_local", Some(NOW), &[], NOW | GLOBAL, false);
        check(
            "symbolic",
            Some(NOW | GLOBAL),
            &["-Wl,-Bsymbolic"],
            NOW | GLOBAL,
            false,
        );
        check("deep", Some(NOW | GLOBAL), &[], NOW | DEEP, false);
        check(
            "no_plt",
            Some(NOW | GLOBAL),
            &["-fno-plt"],
            NOW | GLOBAL,
            true,
        );
        // What code outside of every object calls is nothing.
        let none = interposed(0, |name: &[u8]| CStr::from_bytes_with_nul(name).is_ok());
        assert_eq!(none, None);
    }
}
