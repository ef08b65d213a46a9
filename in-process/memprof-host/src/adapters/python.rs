//! Python 3.6 and later: `import memory_profile`, found by `sys.path`.
//!
//! `send(message)` returns a str, `call(message)` what the reply is as JSON, mostly a dict. A message that fails
//! raises `RuntimeError`. Other threads of Python run while one waits for its answer. Builds without a GIL are refused.
//!
//! A thread that waited may be ended by the interpreter's end, which unwinds it: it holds nothing that has to
//! be dropped then.
#![expect(unsafe_code, reason = "the API of Python")]

use std::arch::naked_asm;
use std::ffi::{CStr, c_char, c_void};
use std::{ptr, slice};

use memprof_plugin_abi::raw::memprof_plugin_entry_t;

use super::host_symbols::{CallerAddress, HostSymbols, MissingSymbol};
use super::log::c_text;
use super::{catch_panic, delayed_start};

mod definition;

type Object = *mut c_void;
type Raise = unsafe extern "C-unwind" fn(Object, *const c_char);

/// What a message needs of Python.h. A process may hold several Pythons, each with functions of its own.
#[derive(Clone, Copy)]
struct Python {
    text: unsafe extern "C-unwind" fn(*const c_char, isize) -> Object,
    utf8: unsafe extern "C-unwind" fn(Object, *mut isize) -> *const c_char,
    release_gil: unsafe extern "C-unwind" fn() -> Object,
    take_gil: unsafe extern "C-unwind" fn(Object),
    raise: Raise,
    runtime_error: *const Object,
    import: unsafe extern "C-unwind" fn(*const c_char) -> Object,
    call: unsafe extern "C-unwind" fn(Object, *const c_char, *const c_char, ...) -> Object,
    drop: unsafe extern "C-unwind" fn(Object),
}

impl Python {
    fn of(host: &HostSymbols) -> Result<Self, MissingSymbol> {
        #[expect(clippy::multiple_unsafe_ops_per_block, reason = "one promise for all")]
        // SAFETY: Python.h declares them so, since 3.3.
        unsafe {
            Ok(Self {
                text: host.find(c"PyUnicode_FromStringAndSize")?,
                utf8: host.find(c"PyUnicode_AsUTF8AndSize")?,
                release_gil: host.find(c"PyEval_SaveThread")?,
                take_gil: host.find(c"PyEval_RestoreThread")?,
                raise: host.find(c"PyErr_SetString")?,
                runtime_error: host.find(c"PyExc_RuntimeError")?,
                import: host.find(c"PyImport_ImportModule")?,
                call: host.find(c"PyObject_CallMethod")?,
                drop: host.find(c"Py_DecRef")?,
            })
        }
    }

    /// The text as a str, or parsed.
    unsafe fn object(&self, text: &str, is_json: bool) -> Object {
        let length = text.len().cast_signed();
        // SAFETY: unicodeobject.h: the bytes are copied.
        let object = unsafe { (self.text)(text.as_ptr().cast(), length) };
        if !is_json || object.is_null() {
            return object;
        }
        // SAFETY: import.h: a NUL-terminated name.
        let json = unsafe { (self.import)(c"json".as_ptr()) };
        let parsed = if json.is_null() {
            ptr::null_mut()
        } else {
            // SAFETY: abstract.h: "O" is one object.
            let parsed = unsafe { (self.call)(json, c"loads".as_ptr(), c"O".as_ptr(), object) };
            // SAFETY: object.h: a reference of ours.
            unsafe { (self.drop)(json) };
            parsed
        };
        // SAFETY: as above.
        unsafe { (self.drop)(object) };
        parsed
    }
}

/// Makes the module: null, with an `ImportError`, where that cannot be.
///
/// # Safety
/// Python calls `PyInit_*`.
#[doc(hidden)]
pub unsafe fn init(
    entry: &'static memprof_plugin_entry_t,
    name: &'static CStr,
    caller: CallerAddress,
) -> Object {
    catch_panic(ptr::null_mut(), || {
        let host = caller.symbols();
        let missing = |missing: MissingSymbol| missing.to_string();
        let whole = Python::of(&host).map_err(missing);
        match whole.and_then(|_| definition::module(&host, name, [send, call])) {
            Ok(module) => {
                delayed_start::ensure_instance(entry);
                module
            }
            Err(why) => definition::refuse(&host, name, &why),
        }
    })
}

#[unsafe(naked)]
unsafe extern "C-unwind" fn send(module: Object, message: Object) -> Object {
    naked_asm!("mov rdx, [rsp]", "xor ecx, ecx", "jmp {}", sym answer)
}

#[unsafe(naked)]
unsafe extern "C-unwind" fn call(module: Object, message: Object) -> Object {
    naked_asm!("mov rdx, [rsp]", "mov ecx, 1", "jmp {}", sym answer)
}

unsafe extern "C-unwind" fn answer(
    _module: Object,
    message: Object,
    caller: CallerAddress,
    is_json: bool,
) -> Object {
    let Some(python) = catch_panic(None, || Python::of(&caller.symbols()).ok()) else {
        return ptr::null_mut();
    };
    let mut length = 0;
    // SAFETY: unicodeobject.h: null, with an error, where the message is no text.
    let bytes = unsafe { (python.utf8)(message, &raw mut length) };
    if bytes.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: as above: `length` bytes, which stay as long as the message, which the caller holds.
    let bytes = unsafe { slice::from_raw_parts(bytes.cast::<u8>(), length.cast_unsigned()) };
    // SAFETY: ceval.h: this thread has the GIL.
    let thread = unsafe { (python.release_gil)() };
    let ask = if is_json {
        delayed_start::send_for_json
    } else {
        delayed_start::send
    };
    let answer = Box::into_raw(Box::new(ask(bytes)));
    // SAFETY: ceval.h: the thread that gave the GIL away.
    unsafe { (python.take_gil)(thread) };
    // SAFETY: made above.
    let answer = unsafe { Box::from_raw(answer) };
    match *answer {
        // SAFETY: this thread has the GIL.
        Ok(text) => unsafe { python.object(&text, is_json) },
        Err(why) => {
            let why = c_text(&why, usize::MAX);
            // SAFETY: pyerrors.h: the variable that holds the class.
            let class = unsafe { *python.runtime_error };
            // SAFETY: this thread has the GIL; the text is copied.
            unsafe { (python.raise)(class, why.as_ptr()) };
            ptr::null_mut()
        }
    }
}

#[doc(hidden)]
#[macro_export]
macro_rules! __export_python {
    ($how:ident, $entry:path) => {
        const _: () = {
            unsafe extern "C" fn init(
                caller: $crate::adapters::host_symbols::CallerAddress,
            ) -> *mut ::std::ffi::c_void {
                // SAFETY: called by Python only.
                unsafe {
                    $crate::adapters::python::init(&$entry, $crate::__library_name!(), caller)
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
