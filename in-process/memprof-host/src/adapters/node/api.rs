//! Functions of `node_api.h` that the adapter uses.
#![expect(unsafe_code, reason = "Node-API")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use super::Job;
use crate::adapters::host_symbols::{HostSymbols, MissingSymbol};
use crate::adapters::log::to_truncated_c_string;

pub(super) type Env = *mut c_void;
pub(super) type Value = *mut c_void;
type Status = c_int;
type Callback = unsafe extern "C" fn(Env, *mut c_void) -> Value;
type Execute = unsafe extern "C" fn(Env, *mut Job);
type Complete = unsafe extern "C" fn(Env, Status, *mut Job);
type Throw = unsafe extern "C" fn(Env, *const c_char, *const c_char) -> Status;

pub(super) const OK: Status = 0;

/// Functions of Node-API, the same for all environments.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    pub(super) callback_info: unsafe extern "C" fn(
        Env,
        *mut c_void,
        *mut usize,
        *mut Value,
        *mut Value,
        *mut *mut c_void,
    ) -> Status,
    text: unsafe extern "C" fn(Env, Value, *mut c_char, usize, *mut usize) -> Status,
    string: unsafe extern "C" fn(Env, *const c_char, usize, *mut Value) -> Status,
    error: unsafe extern "C" fn(Env, Value, Value, *mut Value) -> Status,
    pub(super) throw: unsafe extern "C" fn(Env, Value) -> Status,
    pub(super) throw_type_error: Throw,
    pub(super) function: unsafe extern "C" fn(
        Env,
        *const c_char,
        usize,
        Callback,
        *mut c_void,
        *mut Value,
    ) -> Status,
    global: unsafe extern "C" fn(Env, *mut Value) -> Status,
    property: unsafe extern "C" fn(Env, Value, *const c_char, *mut Value) -> Status,
    pub(super) set_property: unsafe extern "C" fn(Env, Value, *const c_char, Value) -> Status,
    call: unsafe extern "C" fn(Env, Value, Value, usize, *const Value, *mut Value) -> Status,
    pub(super) promise: unsafe extern "C" fn(Env, *mut *mut c_void, *mut Value) -> Status,
    pub(super) resolve: unsafe extern "C" fn(Env, *mut c_void, Value) -> Status,
    pub(super) reject: unsafe extern "C" fn(Env, *mut c_void, Value) -> Status,
    pub(super) work: unsafe extern "C" fn(
        Env,
        Value,
        Value,
        Execute,
        Complete,
        *mut Job,
        *mut *mut c_void,
    ) -> Status,
    pub(super) queue: unsafe extern "C" fn(Env, *mut c_void) -> Status,
    pub(super) delete: unsafe extern "C" fn(Env, *mut c_void) -> Status,
}

impl Node {
    /// Looks up Node-API's functions in the host. Fails with the first that is missing.
    pub(super) fn find(host: &HostSymbols) -> Result<Self, MissingSymbol> {
        #[expect(clippy::multiple_unsafe_ops_per_block, reason = "one promise for all")]
        // SAFETY: node_api.h and js_native_api.h declare functions of these types, since Node-API 1.
        unsafe {
            Ok(Self {
                callback_info: host.find(c"napi_get_cb_info")?,
                text: host.find(c"napi_get_value_string_utf8")?,
                string: host.find(c"napi_create_string_utf8")?,
                error: host.find(c"napi_create_error")?,
                throw: host.find(c"napi_throw")?,
                throw_type_error: host.find(c"napi_throw_type_error")?,
                function: host.find(c"napi_create_function")?,
                global: host.find(c"napi_get_global")?,
                property: host.find(c"napi_get_named_property")?,
                set_property: host.find(c"napi_set_named_property")?,
                call: host.find(c"napi_call_function")?,
                promise: host.find(c"napi_create_promise")?,
                resolve: host.find(c"napi_resolve_deferred")?,
                reject: host.find(c"napi_reject_deferred")?,
                work: host.find(c"napi_create_async_work")?,
                queue: host.find(c"napi_queue_async_work")?,
                delete: host.find(c"napi_delete_async_work")?,
            })
        }
    }

    /// Copies the bytes of a string. `None` if the value is no string.
    pub(super) fn copy_string(&self, env: Env, value: Value) -> Option<Vec<u8>> {
        let mut length = 0;
        // SAFETY: js_native_api.h: without a buffer, writes only the number of bytes.
        if unsafe { (self.text)(env, value, ptr::null_mut(), 0, &raw mut length) } != OK {
            return None;
        }
        // One more byte for the NUL that Node appends.
        let mut text = vec![0; length + 1];
        let bytes = text.as_mut_ptr().cast();
        // SAFETY: js_native_api.h: writes at most as many bytes as the buffer has.
        unsafe { (self.text)(env, value, bytes, text.len(), &raw mut length) };
        text.truncate(length);
        Some(text)
    }

    /// Copies the bytes of a property. `None` if the object has no such property, or if the property is no string.
    pub(super) fn copy_string_property(
        &self,
        env: Env,
        object: Value,
        name: &CStr,
    ) -> Option<Vec<u8>> {
        let mut value = ptr::null_mut();
        // SAFETY: js_native_api.h: writes a value, `undefined` if there is no such property, or fails.
        let status = unsafe { (self.property)(env, object, name.as_ptr(), &raw mut value) };
        (status == OK)
            .then(|| self.copy_string(env, value))
            .flatten()
    }

    /// Creates a JavaScript string; null if Node fails to.
    pub(super) fn create_string(&self, env: Env, text: &str) -> Value {
        let mut string = ptr::null_mut();
        // SAFETY: js_native_api.h: Node copies the bytes.
        unsafe { (self.string)(env, text.as_ptr().cast(), text.len(), &raw mut string) };
        string
    }

    /// Creates a JavaScript `Error`; null if Node fails to.
    pub(super) fn create_error(&self, env: Env, reason: &str) -> Value {
        let mut error = ptr::null_mut();
        let reason = self.create_string(env, reason);
        // SAFETY: js_native_api.h: the message is a string; there is no code.
        unsafe { (self.error)(env, ptr::null_mut(), reason, &raw mut error) };
        error
    }

    /// Converts a text to a JavaScript string; if `is_json`, to the result of `JSON.parse`. Fails if that function
    /// fails, because the program has replaced `JSON`.
    pub(super) fn create_value(
        &self,
        env: Env,
        text: &str,
        is_json: bool,
    ) -> Result<Value, String> {
        let string = self.create_string(env, text);
        if !is_json {
            return Ok(string);
        }
        let [mut global, mut json, mut parse, mut parsed] = [ptr::null_mut(); 4];
        #[expect(clippy::multiple_unsafe_ops_per_block, reason = "one promise for all")]
        // SAFETY: js_native_api.h: each call writes a value, or fails, also for a null argument.
        let status = unsafe {
            (self.global)(env, &raw mut global);
            (self.property)(env, global, c"JSON".as_ptr(), &raw mut json);
            (self.property)(env, json, c"parse".as_ptr(), &raw mut parse);
            (self.call)(env, json, parse, 1, &raw const string, &raw mut parsed)
        };
        if status == OK {
            Ok(parsed)
        } else {
            Err("JSON.parse failed".to_owned())
        }
    }
}

/// Throws an error that names a missing function, if the host can.
pub(super) fn throw_missing_symbol(host: &HostSymbols, env: Env, missing: MissingSymbol) {
    // SAFETY: js_native_api.h declares a function of this type.
    if let Ok(throw) = unsafe { host.find::<Throw>(c"napi_throw_error") } {
        let reason = to_truncated_c_string(&missing.to_string(), usize::MAX);
        // SAFETY: js_native_api.h: there is no code; Node copies the text.
        unsafe { throw(env, ptr::null(), reason.as_ptr()) };
    }
}
