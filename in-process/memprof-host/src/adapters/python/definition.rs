//! The definition of the Python module, in the layout of Python.h for builds with a GIL.
#![expect(unsafe_code, reason = "the API of Python")]

use std::ffi::{CStr, c_char, c_int};
use std::ptr;

use super::{Object, Raise};
use crate::adapters::host_symbols::{HostSymbols, MissingSymbol};
use crate::adapters::log::to_truncated_c_string;

type Function = unsafe extern "C-unwind" fn(Object, Object) -> Object;

/// `struct PyModuleDef`.
#[repr(C)]
struct Module {
    references: isize,
    base: [usize; 4],
    name: *const c_char,
    doc: *const c_char,
    size: isize,
    methods: *const Method,
    slots: *const Slot,
    hooks: [usize; 3],
}

/// `struct PyMethodDef`.
#[repr(C)]
struct Method {
    name: *const c_char,
    function: Option<Function>,
    flags: c_int,
    doc: *const c_char,
}

/// `struct PyModuleDef_Slot`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    id: c_int,
    value: usize,
}

/// methodobject.h, `METH_O`.
const METH_O: c_int = 8;
/// End of a list of slots.
const NO_SLOTS: &[Slot] = &[Slot { id: 0, value: 0 }];
/// moduleobject.h since 3.12, `Py_mod_multiple_interpreters` with `Py_MOD_PER_INTERPRETER_GIL_SUPPORTED`: each
/// interpreter may have its own GIL. An older Python refuses unknown slots.
const MULTIPLE_INTERPRETERS: &[Slot] = &[Slot { id: 3, value: 2 }, Slot { id: 0, value: 0 }];

/// Creates the module with the functions `send` and `call`. Fails if this Python has another layout, or lacks a
/// function.
pub(super) fn create_module(
    host: &HostSymbols,
    name: &'static CStr,
    [send, call]: [Function; 2],
) -> Result<Object, String> {
    let missing = |missing: MissingSymbol| missing.to_string();
    // SAFETY: pylifecycle.h declares a function of this type.
    let version =
        unsafe { host.find::<unsafe extern "C-unwind" fn() -> *const c_char>(c"Py_GetVersion") };
    // SAFETY: pylifecycle.h: Py_GetVersion has no preconditions.
    let version = unsafe { version.map_err(missing)?() };
    // SAFETY: pylifecycle.h: a NUL-terminated static text.
    let version = unsafe { CStr::from_ptr(version) };
    let slots = slots_for_version(&version.to_string_lossy())?;
    // SAFETY: moduleobject.h declares a function of this type, since 3.5.
    let make = unsafe {
        host.find::<unsafe extern "C-unwind" fn(*mut Module) -> Object>(c"PyModuleDef_Init")
    };
    let method = |name: &'static CStr, function, doc: &'static CStr| Method {
        name: name.as_ptr(),
        function,
        flags: METH_O,
        doc: doc.as_ptr(),
    };
    let methods = [
        method(c"send", Some(send), c"send(message) -> str"),
        method(
            c"call",
            Some(call),
            c"call(message) -> the reply's JSON, as json.loads() returns it",
        ),
        Method {
            name: ptr::null(),
            function: None,
            flags: 0,
            doc: ptr::null(),
        },
    ];
    let definition = Module {
        references: 1,
        base: [0; 4],
        name: name.as_ptr(),
        doc: c"Sends messages to memprof's plugin.".as_ptr(),
        size: 0,
        methods: Box::leak(Box::new(methods)).as_ptr(),
        slots: slots.as_ptr(),
        hooks: [0; 3],
    };
    // The definition is leaked for each interpreter that imports it: Python writes to it, and there may be two Pythons.
    let definition = Box::into_raw(Box::new(definition));
    // SAFETY: moduleobject.h: the definition is leaked, so it lives as long as the module.
    Ok(unsafe { make.map_err(missing)?(definition) })
}

/// Returns the slots of the module's definition (`m_slots`) for a Python whose `Py_GetVersion` is `version`. Fails for
/// a major version other than 3, and for a build without a GIL.
fn slots_for_version(version: &str) -> Result<&'static [Slot], String> {
    let number = version.split([' ', '+']).next().unwrap_or_default();
    let mut parts = number.split('.').map(str::parse::<u32>);
    let (Some(Ok(3)), Some(Ok(minor))) = (parts.next(), parts.next()) else {
        return Err(format!("this is Python {number}, not Python 3"));
    };
    if version.contains("free-threading") {
        let reason = "Python without a GIL lays out its objects differently; use a build with one";
        return Err(reason.to_owned());
    }
    Ok(if minor < 12 {
        NO_SLOTS
    } else {
        MULTIPLE_INTERPRETERS
    })
}

/// Raises an `ImportError`, if the host can. Returns null.
pub(super) fn raise_import_error(host: &HostSymbols, name: &CStr, reason: &str) -> Object {
    // SAFETY: pyerrors.h declares a function of this type.
    let raise = unsafe { host.find::<Raise>(c"PyErr_SetString") };
    // SAFETY: pyerrors.h: a variable that contains the class.
    let class = unsafe { host.find::<*const Object>(c"PyExc_ImportError") };
    if let (Ok(raise), Ok(class)) = (raise, class) {
        let reason =
            to_truncated_c_string(&format!("{}: {reason}", name.to_string_lossy()), usize::MAX);
        // SAFETY: pyerrors.h: the variable is initialized.
        let class = unsafe { *class };
        // SAFETY: a thread of Python with the GIL calls `PyInit_*`; Python copies the text.
        unsafe { raise(class, reason.as_ptr()) };
    }
    ptr::null_mut()
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    /// Compares with moduleobject.h and methodobject.h of 3.6 to 3.13.
    #[test]
    fn layout_equals_python_h() {
        let check = |found: &[usize], expected: &[usize]| assert_eq!(found, expected);
        check(
            &[
                offset_of!(Module, name),
                offset_of!(Module, size),
                offset_of!(Module, methods),
                offset_of!(Module, slots),
                size_of::<Module>(),
            ],
            &[40, 56, 64, 72, 104],
        );
        check(&[offset_of!(Method, flags), size_of::<Method>()], &[16, 32]);
        check(&[offset_of!(Slot, value), size_of::<Slot>()], &[8, 16]);
    }

    #[test]
    fn slots_depend_on_version() {
        let check = |version: &str, expected: Result<&[Slot], &str>| {
            let actual = slots_for_version(version);
            let actual = actual
                .as_ref()
                .map_or_else(|reason| Err(reason.as_str()), |slots| Ok(*slots));
            match (actual, expected) {
                (Err(reason), Err(part)) => assert!(reason.contains(part), "{version}: {reason}"),
                (actual, expected) => assert_eq!(actual, expected, "{version}"),
            }
        };
        check("3.6.15 (default, Oct  1 2021) [GCC 10]", Ok(NO_SLOTS));
        check(
            "3.11.2 (main, Apr 28 2025, 14:11:48) [GCC 12.2.0]",
            Ok(NO_SLOTS),
        );
        check("3.11.7+ (heads/3.11) [GCC]", Ok(NO_SLOTS));
        check("3.12.0 (main)", Ok(MULTIPLE_INTERPRETERS));
        check("3.13.1 (main)", Ok(MULTIPLE_INTERPRETERS));
        check(
            "3.13.1 experimental free-threading build (main)",
            Err("without a GIL"),
        );
        check("3.14.0 free-threading build (main)", Err("without a GIL"));
        check("2.7.18 (default)", Err("this is Python 2.7.18"));
        check("", Err("not Python 3"));
    }
}
