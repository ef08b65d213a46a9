//! Python 3.6 and later: `import memory_profile`, found by `sys.path`.
//!
//! `send(message)` returns a str; `call(message)` returns the parsed JSON of the reply, mostly a dict. A message that
//! fails raises `RuntimeError`. Other threads of Python run while one waits for its reply. Builds without a GIL are
//! refused.
//!
//! When the interpreter ends, it may unwind a thread that has waited: that thread must hold no value that needs a drop.
#![expect(unsafe_code, reason = "the API of Python")]

use std::arch::naked_asm;
use std::ffi::{CStr, c_char, c_void};
use std::{ptr, slice};

use memprof_plugin_abi::raw::memprof_plugin_entry_t;

use super::host_symbols::{CallerAddress, HostSymbols, MissingSymbol};
use super::log::to_truncated_c_string;
use super::{catch_panic, delayed_start};

mod definition;

type Object = *mut c_void;
type Raise = unsafe extern "C-unwind" fn(Object, *const c_char);

/// Functions of Python.h that a message needs. A process may contain several Pythons, each with its own functions.
#[derive(Clone, Copy)]
struct Python {
    text: unsafe extern "C-unwind" fn(*const c_char, isize) -> Object,
    utf8: unsafe extern "C-unwind" fn(Object, *mut isize) -> *const c_char,
    release_gil: unsafe extern "C-unwind" fn() -> Object,
    acquire_gil: unsafe extern "C-unwind" fn(Object),
    raise: Raise,
    runtime_error: *const Object,
    import: unsafe extern "C-unwind" fn(*const c_char) -> Object,
    call: unsafe extern "C-unwind" fn(Object, *const c_char, *const c_char, ...) -> Object,
    decref: unsafe extern "C-unwind" fn(Object),
}

impl Python {
    /// Looks up Python's functions in the host. Fails with the first that is missing.
    fn find(host: &HostSymbols) -> Result<Self, MissingSymbol> {
        #[expect(clippy::multiple_unsafe_ops_per_block, reason = "one promise for all")]
        // SAFETY: Python.h declares functions of these types, since 3.3.
        unsafe {
            Ok(Self {
                text: host.find(c"PyUnicode_FromStringAndSize")?,
                utf8: host.find(c"PyUnicode_AsUTF8AndSize")?,
                release_gil: host.find(c"PyEval_SaveThread")?,
                acquire_gil: host.find(c"PyEval_RestoreThread")?,
                raise: host.find(c"PyErr_SetString")?,
                runtime_error: host.find(c"PyExc_RuntimeError")?,
                import: host.find(c"PyImport_ImportModule")?,
                call: host.find(c"PyObject_CallMethod")?,
                decref: host.find(c"Py_DecRef")?,
            })
        }
    }

    /// Converts a text to a str; if `is_json`, to its parsed JSON. Null, with an exception, if that fails.
    ///
    /// # Safety
    /// The calling thread has the GIL.
    unsafe fn create_object(&self, text: &str, is_json: bool) -> Object {
        let length = text.len().cast_signed();
        // SAFETY: unicodeobject.h: Python copies the bytes.
        let object = unsafe { (self.text)(text.as_ptr().cast(), length) };
        if !is_json || object.is_null() {
            return object;
        }
        // SAFETY: import.h: a NUL-terminated name, and the caller has the GIL.
        let json = unsafe { (self.import)(c"json".as_ptr()) };
        let parsed = if json.is_null() {
            ptr::null_mut()
        } else {
            // SAFETY: abstract.h: the format "O" stands for one object.
            let parsed = unsafe { (self.call)(json, c"loads".as_ptr(), c"O".as_ptr(), object) };
            // SAFETY: object.h: releases the reference that the import returned.
            unsafe { (self.decref)(json) };
            parsed
        };
        // SAFETY: object.h: releases the reference to the str.
        unsafe { (self.decref)(object) };
        parsed
    }
}

/// Creates the module and the plugin. Returns the module; null, with an `ImportError`, if the module cannot be created;
/// null alone after a panic.
///
/// # Safety
/// Call this only from the function `PyInit_*` of the module, while Python, which holds its lock, calls that.
#[doc(hidden)]
pub unsafe fn init_module(
    entry: &'static memprof_plugin_entry_t,
    name: &'static CStr,
    caller: CallerAddress,
) -> Object {
    catch_panic(ptr::null_mut(), || {
        let host = caller.open_symbols();
        let missing = |missing: MissingSymbol| missing.to_string();
        let python = Python::find(&host).map_err(missing);
        match python
            .and_then(|_| definition::create_module(&host, name, [python_send, python_call]))
        {
            Ok(module) => {
                delayed_start::ensure_instance(entry);
                module
            }
            Err(reason) => definition::raise_import_error(&host, name, &reason),
        }
    })
}

/// Implements the Python function `send`: jumps to [`handle_call`] with `is_json` = false, and with its return address,
/// by which the Python that called is found.
#[unsafe(naked)]
unsafe extern "C-unwind" fn python_send(module: Object, message: Object) -> Object {
    naked_asm!("mov rdx, [rsp]", "xor ecx, ecx", "jmp {}", sym handle_call)
}

/// Implements the Python function `call`: jumps to [`handle_call`] with `is_json` = true, and with its return address,
/// by which the Python that called is found.
#[unsafe(naked)]
unsafe extern "C-unwind" fn python_call(module: Object, message: Object) -> Object {
    naked_asm!("mov rdx, [rsp]", "mov ecx, 1", "jmp {}", sym handle_call)
}

/// Sends a message, and releases the GIL while it waits for the reply. Returns the reply: parsed JSON if `is_json`,
/// otherwise a str. Null if the call fails, with an exception unless a function of Python is missing.
unsafe extern "C-unwind" fn handle_call(
    _module: Object,
    message: Object,
    caller: CallerAddress,
    is_json: bool,
) -> Object {
    let Some(python) = catch_panic(None, || Python::find(&caller.open_symbols()).ok()) else {
        return ptr::null_mut();
    };
    let mut length = 0;
    // SAFETY: unicodeobject.h: returns null, with an exception, if the message is no str.
    let bytes = unsafe { (python.utf8)(message, &raw mut length) };
    if bytes.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: unicodeobject.h: `length` bytes, which live as long as the message, to which Python holds a reference.
    let bytes = unsafe { slice::from_raw_parts(bytes.cast::<u8>(), length.cast_unsigned()) };
    // SAFETY: ceval.h: the calling thread has the GIL.
    let thread = unsafe { (python.release_gil)() };
    let send_message = if is_json {
        delayed_start::send_message_for_json
    } else {
        delayed_start::send_message
    };
    let reply = Box::into_raw(Box::new(send_message(bytes)));
    // SAFETY: ceval.h: the thread state of this thread, which released the GIL.
    unsafe { (python.acquire_gil)(thread) };
    // SAFETY: a box that was leaked above. It was leaked because acquiring the GIL may unwind.
    let reply = unsafe { Box::from_raw(reply) };
    match *reply {
        // SAFETY: the thread has the GIL.
        Ok(text) => unsafe { python.create_object(&text, is_json) },
        Err(reason) => {
            let reason = to_truncated_c_string(&reason, usize::MAX);
            // SAFETY: pyerrors.h: a variable that contains the class.
            let class = unsafe { *python.runtime_error };
            // SAFETY: the thread has the GIL; Python copies the text.
            unsafe { (python.raise)(class, reason.as_ptr()) };
            ptr::null_mut()
        }
    }
}

#[doc(hidden)]
#[macro_export]
macro_rules! __export_python {
    ($how:ident, $entry:path) => {
        const _: () = {
            /// Target of `PyInit_*`, which passes its return address as `caller`.
            unsafe extern "C" fn init(
                caller: $crate::adapters::host_symbols::CallerAddress,
            ) -> *mut ::std::ffi::c_void {
                // SAFETY: only Python calls `PyInit_*`.
                unsafe {
                    $crate::adapters::python::init_module(
                        &$entry,
                        $crate::__library_name!(),
                        caller,
                    )
                }
            }
            $crate::__export_with_caller!(
                concat!("PyInit_", env!("CARGO_CRATE_NAME")),
                "rdi",
                init
            );
        };
    };
}
