//! Detects allocators whose functions are interposed. If two allocators in one process define the same names, a
//! function of one may call the other's function, which does not know the state of the first.

/// Finds a function whose calls are interposed: the object that contains `address` defines it and `is_own_name` accepts
/// its name, but the object's own calls go to another object. `None` if there is none. The caller keeps the object
/// loaded.
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "the loader's symbols")]
pub(crate) fn find_interposed_function(
    address: usize,
    is_own_name: impl Fn(&[u8]) -> bool,
) -> Option<String> {
    use std::ffi::CStr;

    use memprof_sampler::CallTarget;

    use crate::allocators::loaded_objects::ForkGuard;

    /// Maximum number of recorded calls: those that go to another object or are not bound yet. No allocator has more.
    const MAX_CALLS: usize = 128;

    // Nothing may be allocated under the loader's lock: a thread in an allocator may hold the allocator's lock and wait
    // for the loader's.
    let mut calls = [None; MAX_CALLS];
    let mut free_slots = calls.iter_mut();
    {
        // A child that is forked meanwhile would inherit the loader's lock locked.
        let _no_fork = ForkGuard::acquire();
        memprof_sampler::visit_own_calls(address, &mut |name, own, target| {
            let is_candidate = target != CallTarget::Inside && is_own_name(name.to_bytes());
            if let Some(slot) = is_candidate.then(|| free_slots.next()).flatten() {
                *slot = Some((name.as_ptr(), own, target));
            }
        });
    }
    let replaced = calls
        .into_iter()
        .flatten()
        .find_map(|(name, own, target)| {
            // SAFETY: the name is in the string table of the object, which the caller keeps loaded.
            let name = unsafe { CStr::from_ptr(name) };
            let is_replaced = target == CallTarget::Elsewhere || {
                // Not bound yet: find the function to which the loader will bind it. RTLD_DEFAULT searches in the
                // loader's order; an object opened with its own scope (dlopen(3)) searches that scope after the whole
                // process.
                // SAFETY: dlsym(3) gets a NUL-terminated name.
                let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) } as usize;
                found != 0 && found != own
            };
            is_replaced.then_some(name)
        })?;
    Some(replaced.to_string_lossy().into_owned())
}

/// Always `None`: GOT slots cannot be read on this architecture.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn find_interposed_function(_: usize, _: impl Fn(&[u8]) -> bool) -> Option<String> {
    None
}

#[cfg(all(test, target_arch = "x86_64"))]
#[expect(unsafe_code, reason = "dlopen(3) of small libraries")]
mod tests {
    use std::ffi::{CStr, CString};
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;
    use std::process::Command;

    use super::find_interposed_function;

    /// Loads a library with a function `{name}_control` and one that calls it. Returns the caller's address.
    fn load(directory: &Path, file: &str, name: &str, flags: &[&str], mode: i32) -> usize {
        let (code, library) = (directory.join("x.c"), directory.join(file));
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
        // SAFETY: dlopen(3) gets a path; the library has no constructors.
        let handle = unsafe { libc::dlopen(path.as_ptr(), mode) };
        assert!(!handle.is_null());
        let print = CString::new(format!("{name}_print")).unwrap();
        // SAFETY: dlsym(3) gets an open handle and a NUL-terminated name.
        unsafe { libc::dlsym(handle, print.as_ptr()) as usize }
    }

    #[test]
    fn find_interposed_names_replaced_function() {
        const NOW: i32 = libc::RTLD_NOW;
        const LAZY: i32 = libc::RTLD_LAZY;
        const GLOBAL: i32 = libc::RTLD_GLOBAL;
        const DEEP: i32 = libc::RTLD_DEEPBIND;
        let directory = tempfile::tempdir().unwrap();
        let check =
            |name: &str, first: Option<i32>, flags: &[&str], mode: i32, is_replaced: bool| {
                if let Some(first) = first {
                    load(
                        directory.path(),
                        &format!("{name}-first.so"),
                        name,
                        &[],
                        first,
                    );
                }
                let print = load(directory.path(), &format!("{name}.so"), name, flags, mode);
                let control = format!("{name}_control");
                let found = find_interposed_function(print, |known| known.ends_with(b"_control"));
                assert_eq!(found, is_replaced.then_some(control), "{name}");
                assert_eq!(find_interposed_function(print, |_| false), None, "{name}");
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
        // An address outside of every object has no calls.
        let none =
            find_interposed_function(0, |name: &[u8]| CStr::from_bytes_with_nul(name).is_ok());
        assert_eq!(none, None);
    }
}
