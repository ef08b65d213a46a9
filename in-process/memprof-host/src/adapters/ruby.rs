//! Ruby: `require "memory_profile"`, found by `$LOAD_PATH`; its module is named after the library, `MemoryProfile`.
//!
//! `send_message(message)` returns a string; `call(message)` returns the parsed JSON of the reply, mostly a Hash. A
//! message that fails raises `RuntimeError`. Other threads of Ruby run while one waits for its reply.
//!
//! Exceptions are raised by longjmp(3): while one may be raised, no frame of this module holds a value that needs a
//! drop.
#![expect(unsafe_code, reason = "the API of Ruby")]

use std::ffi::{CStr, CString, c_char, c_int, c_long, c_void};

use memprof_own::LockFreeOnce;
use memprof_plugin_abi::raw::memprof_plugin_entry_t;

use super::host_symbols::{CallerAddress, MissingSymbol};
use super::{catch_panic, delayed_start, to_camel_case};

/// ruby.h, `VALUE`: an object.
type Value = usize;
/// ruby.h, `ID`.
type Id = usize;
type Raise = unsafe extern "C-unwind" fn(Value, *const c_char, ...);

/// Functions of ruby.h and ruby/thread.h.
#[derive(Clone, Copy, Debug)]
struct Ruby {
    module: unsafe extern "C-unwind" fn(*const c_char) -> Value,
    define: unsafe extern "C-unwind" fn(Value, *const c_char, Method, c_int),
    c_string: unsafe extern "C-unwind" fn(*mut Value) -> *const c_char,
    string: unsafe extern "C-unwind" fn(*const c_char, c_long) -> Value,
    require: unsafe extern "C-unwind" fn(*const c_char) -> Value,
    class: unsafe extern "C-unwind" fn(*const c_char) -> Value,
    name: unsafe extern "C-unwind" fn(*const c_char) -> Id,
    call: unsafe extern "C-unwind" fn(Value, Id, c_int, *const Value) -> Value,
    exception: unsafe extern "C-unwind" fn(Value, *const c_char, c_long) -> Value,
    runtime_error: *const Value,
    raise: unsafe extern "C-unwind" fn(Value) -> Value,
    protect: unsafe extern "C-unwind" fn(Protected, *mut PendingMessage, *mut c_int) -> Value,
    raise_again: unsafe extern "C-unwind" fn(c_int),
    without_lock: unsafe extern "C-unwind" fn(
        unsafe extern "C" fn(*mut PendingMessage) -> *mut c_void,
        *mut PendingMessage,
        *const c_void,
        *const c_void,
    ) -> *mut c_void,
}

type Method = unsafe extern "C-unwind" fn(Value, Value) -> Value;
type Protected = unsafe extern "C-unwind" fn(*mut PendingMessage) -> Value;

// SAFETY: it contains functions, and a variable that Ruby sets before it loads any library.
unsafe impl Send for Ruby {}
// SAFETY: it contains functions, and a variable that Ruby sets before it loads any library.
unsafe impl Sync for Ruby {}

static RUBY: LockFreeOnce<Ruby> = LockFreeOnce::new();

/// A message that is being sent, and its reply.
struct PendingMessage {
    message: Vec<u8>,
    is_json: bool,
    reply: Option<Result<String, String>>,
}

impl Ruby {
    /// Looks up the functions of the Ruby that called. Fails with the name of the first that is missing.
    fn find(caller: CallerAddress) -> Result<Self, MissingSymbol> {
        let host = caller.open_symbols();
        #[expect(clippy::multiple_unsafe_ops_per_block, reason = "one promise for all")]
        // SAFETY: ruby.h and ruby/thread.h declare functions of these types, since 2.2.
        unsafe {
            Ok(Self {
                module: host.find(c"rb_define_module")?,
                define: host.find(c"rb_define_module_function")?,
                c_string: host.find(c"rb_string_value_cstr")?,
                string: host.find(c"rb_utf8_str_new")?,
                require: host.find(c"rb_require")?,
                class: host.find(c"rb_path2class")?,
                name: host.find(c"rb_intern")?,
                call: host.find(c"rb_funcallv")?,
                exception: host.find(c"rb_exc_new")?,
                runtime_error: host.find(c"rb_eRuntimeError")?,
                raise: host.find(c"rb_exc_raise")?,
                protect: host.find(c"rb_protect")?,
                raise_again: host.find(c"rb_jump_tag")?,
                without_lock: host.find(c"rb_thread_call_without_gvl2")?,
            })
        }
    }
}

impl Ruby {
    /// Parses a string by `JSON.parse` of Ruby's library `json`. Raises an exception if the library is missing or the
    /// text is invalid.
    ///
    /// # Safety
    /// `string` is a Ruby string, and `rb_protect` is calling, which catches exceptions.
    unsafe fn parse_json(&self, string: Value) -> Value {
        // SAFETY: ruby.h: a NUL-terminated name; the caller promises that exceptions are caught.
        unsafe { (self.require)(c"json".as_ptr()) };
        // SAFETY: ruby.h: a NUL-terminated name; the caller promises that exceptions are caught.
        let json = unsafe { (self.class)(c"JSON".as_ptr()) };
        // SAFETY: ruby.h: a NUL-terminated name.
        let parse = unsafe { (self.name)(c"parse".as_ptr()) };
        // SAFETY: ruby.h: one argument, which the garbage collector finds on this stack.
        unsafe { (self.call)(json, parse, 1, &raw const string) }
    }
}

/// Creates the plugin, and defines the module with the functions `send_message` and `call`. Raises `LoadError` instead
/// if a function of Ruby is missing.
///
/// # Safety
/// Ruby calls `Init_*`.
#[doc(hidden)]
pub unsafe fn define_module(
    entry: &'static memprof_plugin_entry_t,
    name: &'static CStr,
    caller: CallerAddress,
) {
    static NAME: LockFreeOnce<CString> = LockFreeOnce::new();
    let name = NAME.get_or_set(to_camel_case(name));
    // After a panic the error says: "this program has no working plugin".
    let ruby = match catch_panic(Err(MissingSymbol(c"working plugin")), || Ruby::find(caller)) {
        Ok(ruby) => RUBY.get_or_set(ruby),
        Err(missing) => return raise_load_error(caller, missing),
    };
    delayed_start::ensure_instance(entry);
    // SAFETY: ruby.h: on a thread of Ruby's; the name is never freed.
    let module = unsafe { (ruby.module)(name.as_ptr()) };
    // SAFETY: ruby.h: a function with one argument, in a library that is never unloaded.
    unsafe { (ruby.define)(module, c"send_message".as_ptr(), ruby_send_message, 1) };
    // SAFETY: ruby.h: a function with one argument, in a library that is never unloaded.
    unsafe { (ruby.define)(module, c"call".as_ptr(), ruby_call, 1) };
}

/// Raises a `LoadError` that names a missing function, if the host can.
fn raise_load_error(caller: CallerAddress, missing: MissingSymbol) {
    let raise = catch_panic(None, || {
        let host = caller.open_symbols();
        // SAFETY: ruby.h declares a function of this type.
        let raise = unsafe { host.find::<Raise>(c"rb_raise") }.ok()?;
        // SAFETY: ruby.h: a variable that contains the class.
        let class = unsafe { host.find::<*const Value>(c"rb_eLoadError") }.ok()?;
        // SAFETY: ruby.h: the variable is initialized.
        Some((raise, unsafe { *class }))
    });
    if let Some((raise, class)) = raise {
        let format = c"memprof: this program has no %s";
        // SAFETY: ruby.h: a format with one text; no value of this frame needs a drop.
        unsafe { raise(class, format.as_ptr(), missing.0.as_ptr()) };
    }
}

/// Implements the Ruby function `send_message`, whose result is the reply as a string.
unsafe extern "C-unwind" fn ruby_send_message(_module: Value, message: Value) -> Value {
    // SAFETY: Ruby calls it with an object.
    unsafe { handle_call(message, false) }
}

/// Implements the Ruby function `call`, whose result is the reply as parsed JSON.
unsafe extern "C-unwind" fn ruby_call(_module: Value, message: Value) -> Value {
    // SAFETY: Ruby calls it with an object.
    unsafe { handle_call(message, true) }
}

/// Sends a message, and releases Ruby's global lock while it waits for the reply. Returns the reply: parsed JSON if
/// `is_json`, otherwise a string. Raises an exception if `message` is no string, or if the message fails.
///
/// # Safety
/// Ruby calls, with an object; no value on the stack up to its frames needs a drop.
unsafe fn handle_call(mut message: Value, is_json: bool) -> Value {
    let Some(ruby) = RUBY.get() else {
        // Never happens: `define_module` sets `RUBY` before it defines the functions.
        return message;
    };
    // SAFETY: ruby.h: raises an exception unless the message is a string without NUL.
    let text = unsafe { (ruby.c_string)(&raw mut message) };
    // SAFETY: ruby.h: NUL-terminated. It is copied because other threads may change it.
    let message = unsafe { CStr::from_ptr(text) }.to_bytes().to_vec();
    let pending = Box::into_raw(Box::new(PendingMessage {
        message,
        is_json,
        reply: None,
    }));
    // SAFETY: ruby/thread.h: calls the function, except if an exception is pending, and raises none.
    unsafe { (ruby.without_lock)(send_pending, pending, std::ptr::null(), std::ptr::null()) };
    // Sends the message with the lock if Ruby did not call the function above; otherwise there is a reply already.
    // SAFETY: the box was leaked above, and no other code uses it.
    unsafe { send_pending(pending) };
    let mut raised = 0;
    // SAFETY: ruby.h: rb_protect catches exceptions and returns them as a number.
    let object = unsafe { (ruby.protect)(reply_to_object, pending, &raw mut raised) };
    // SAFETY: a box that was leaked above, and that no other code has any more.
    let is_success = unsafe { Box::from_raw(pending) }
        .reply
        .is_some_and(|reply| reply.is_ok());
    match (raised, is_success) {
        (0, true) => object,
        // SAFETY: ruby.h: an exception object; no value of this frame needs a drop any more.
        (0, false) => unsafe { (ruby.raise)(object) },
        _ => {
            // SAFETY: ruby.h: the number is rb_protect's; no value of this frame needs a drop any more.
            unsafe { (ruby.raise_again)(raised) };
            object
        }
    }
}

/// Sends the message and stores its reply, unless there is one already. Ruby calls this function without its global
/// lock; [`handle_call`] calls it with the lock. Returns null, which has no meaning.
unsafe extern "C" fn send_pending(pending: *mut PendingMessage) -> *mut c_void {
    // SAFETY: `handle_call` passes its box, to which no other code has access meanwhile.
    let pending = unsafe { &mut *pending };
    let message = &pending.message;
    pending.reply.get_or_insert_with(|| {
        if pending.is_json {
            delayed_start::send_message_for_json(message)
        } else {
            delayed_start::send_message(message)
        }
    });
    std::ptr::null_mut()
}

/// Converts the reply to a Ruby string or to its parsed JSON; the error of a failed message to a `RuntimeError` object.
/// Runs in `rb_protect`, which catches the exceptions of the conversion.
unsafe extern "C-unwind" fn reply_to_object(pending: *mut PendingMessage) -> Value {
    // SAFETY: `handle_call` passes its box.
    let pending = unsafe { &*pending };
    let (Some(ruby), Some(reply)) = (RUBY.get(), &pending.reply) else {
        // Never: `define_module` has set `RUBY`, and `handle_call` the reply.
        return 0;
    };
    let (Ok(text) | Err(text)) = reply;
    let (bytes, length) = (text.as_ptr().cast(), text.len() as c_long);
    if reply.is_ok() {
        // SAFETY: ruby.h: Ruby copies the bytes.
        let string = unsafe { (ruby.string)(bytes, length) };
        if !pending.is_json {
            return string;
        }
        // SAFETY: `rb_protect` is calling, and the value is a string.
        return unsafe { ruby.parse_json(string) };
    }
    // SAFETY: ruby.h: a variable that contains the class.
    let class = unsafe { *ruby.runtime_error };
    // SAFETY: ruby.h: Ruby copies the bytes.
    unsafe { (ruby.exception)(class, bytes, length) }
}

#[doc(hidden)]
#[macro_export]
macro_rules! __export_ruby {
    ($how:ident, $entry:path) => {
        const _: () = {
            /// Target of `Init_*`, which passes its return address as `caller`.
            unsafe extern "C-unwind" fn init(
                caller: $crate::adapters::host_symbols::CallerAddress,
            ) {
                // SAFETY: only Ruby calls `Init_*`.
                unsafe {
                    $crate::adapters::ruby::define_module(
                        &$entry,
                        $crate::__library_name!(),
                        caller,
                    )
                }
            }
            $crate::__export_with_caller!(concat!("Init_", env!("CARGO_CRATE_NAME")), "rdi", init);
        };
    };
}
