//! Ruby: `require "memory_profile"`, found by `$LOAD_PATH`; its module is named after the library, `MemoryProfile`.
//!
//! `send_message(message)` returns a string, `call(message)` what the reply is as JSON, mostly a Hash; a message that
//! fails raises `RuntimeError`. Other threads of Ruby run while one waits for its answer.
//!
//! Exceptions leave by longjmp(3): where one may be raised, no frame of ours holds anything that has to be dropped.
#![expect(unsafe_code, reason = "the API of Ruby")]

use std::ffi::{CStr, CString, c_char, c_int, c_long, c_void};

use memprof_own::LockFreeOnce;
use memprof_plugin_abi::raw::memprof_plugin_entry_t;

use super::host_symbols::{CallerAddress, MissingSymbol};
use super::{camel_case, catch_panic, delayed_start};

/// An object of Ruby's.
type Value = usize;
/// ruby.h, `ID`.
type Name = usize;
type Raise = unsafe extern "C-unwind" fn(Value, *const c_char, ...);

/// What is used of ruby.h and ruby/thread.h.
#[derive(Clone, Copy, Debug)]
struct Ruby {
    module: unsafe extern "C-unwind" fn(*const c_char) -> Value,
    define: unsafe extern "C-unwind" fn(Value, *const c_char, Method, c_int),
    c_string: unsafe extern "C-unwind" fn(*mut Value) -> *const c_char,
    string: unsafe extern "C-unwind" fn(*const c_char, c_long) -> Value,
    require: unsafe extern "C-unwind" fn(*const c_char) -> Value,
    class: unsafe extern "C-unwind" fn(*const c_char) -> Value,
    name: unsafe extern "C-unwind" fn(*const c_char) -> Name,
    call: unsafe extern "C-unwind" fn(Value, Name, c_int, *const Value) -> Value,
    exception: unsafe extern "C-unwind" fn(Value, *const c_char, c_long) -> Value,
    runtime_error: *const Value,
    raise: unsafe extern "C-unwind" fn(Value) -> Value,
    protect: unsafe extern "C-unwind" fn(Protected, *mut Ask, *mut c_int) -> Value,
    raise_again: unsafe extern "C-unwind" fn(c_int),
    without_lock: unsafe extern "C-unwind" fn(
        unsafe extern "C" fn(*mut Ask) -> *mut c_void,
        *mut Ask,
        *const c_void,
        *const c_void,
    ) -> *mut c_void,
}

type Method = unsafe extern "C-unwind" fn(Value, Value) -> Value;
type Protected = unsafe extern "C-unwind" fn(*mut Ask) -> Value;

// SAFETY: functions, and a variable that is set once, before any library is loaded.
unsafe impl Send for Ruby {}
// SAFETY: as above.
unsafe impl Sync for Ruby {}

static RUBY: LockFreeOnce<Ruby> = LockFreeOnce::new();

/// A message and its answer.
struct Ask {
    message: Vec<u8>,
    is_json: bool,
    answer: Option<Result<String, String>>,
}

impl Ruby {
    fn of(caller: CallerAddress) -> Result<Self, MissingSymbol> {
        let host = caller.symbols();
        #[expect(clippy::multiple_unsafe_ops_per_block, reason = "one promise for all")]
        // SAFETY: ruby.h and ruby/thread.h declare them so, since 2.2.
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
    /// What a string is as JSON.
    ///
    /// # Safety
    /// `string` is one, and `rb_protect` takes an exception.
    unsafe fn parsed(&self, string: Value) -> Value {
        // SAFETY: ruby.h.
        unsafe { (self.require)(c"json".as_ptr()) };
        // SAFETY: ruby.h.
        let json = unsafe { (self.class)(c"JSON".as_ptr()) };
        // SAFETY: ruby.h.
        let parse = unsafe { (self.name)(c"parse".as_ptr()) };
        // SAFETY: ruby.h: one argument, which its collector finds on this stack.
        unsafe { (self.call)(json, parse, 1, &raw const string) }
    }
}

/// Defines the module, or raises `LoadError`.
///
/// # Safety
/// Ruby calls `Init_*`.
#[doc(hidden)]
pub unsafe fn init(
    entry: &'static memprof_plugin_entry_t,
    name: &'static CStr,
    caller: CallerAddress,
) {
    static NAME: LockFreeOnce<CString> = LockFreeOnce::new();
    let name = NAME.get_or_set(camel_case(name));
    let ruby = match catch_panic(Err(MissingSymbol(c"working plugin")), || Ruby::of(caller)) {
        Ok(ruby) => RUBY.get_or_set(ruby),
        Err(missing) => return refuse(caller, missing),
    };
    delayed_start::ensure_instance(entry);
    // SAFETY: ruby.h; the name stays.
    let module = unsafe { (ruby.module)(name.as_ptr()) };
    // SAFETY: ruby.h: a function with one argument, whose library is never unloaded.
    unsafe { (ruby.define)(module, c"send_message".as_ptr(), send_message, 1) };
    // SAFETY: as above.
    unsafe { (ruby.define)(module, c"call".as_ptr(), call, 1) };
}

fn refuse(caller: CallerAddress, missing: MissingSymbol) {
    let raise = catch_panic(None, || {
        let host = caller.symbols();
        // SAFETY: ruby.h declares it so.
        let raise = unsafe { host.find::<Raise>(c"rb_raise") }.ok()?;
        // SAFETY: ruby.h: a variable that holds the class.
        let class = unsafe { host.find::<*const Value>(c"rb_eLoadError") }.ok()?;
        // SAFETY: as above.
        Some((raise, unsafe { *class }))
    });
    if let Some((raise, class)) = raise {
        let why = c"memprof: this program has no %s";
        // SAFETY: ruby.h: a format with one text.
        unsafe { raise(class, why.as_ptr(), missing.0.as_ptr()) };
    }
}

unsafe extern "C-unwind" fn send_message(_module: Value, message: Value) -> Value {
    // SAFETY: called by Ruby.
    unsafe { reply(message, false) }
}

unsafe extern "C-unwind" fn call(_module: Value, message: Value) -> Value {
    // SAFETY: called by Ruby.
    unsafe { reply(message, true) }
}

/// # Safety
/// Ruby calls, with an object; nothing on the stack up to its own frames needs to be dropped.
unsafe fn reply(mut message: Value, is_json: bool) -> Value {
    let Some(ruby) = RUBY.get() else {
        return message;
    };
    // SAFETY: ruby.h: raises an exception unless it is a string without NUL.
    let text = unsafe { (ruby.c_string)(&raw mut message) };
    // SAFETY: as above; copied, because other threads may change it.
    let message = unsafe { CStr::from_ptr(text) }.to_bytes().to_vec();
    let ask = Box::into_raw(Box::new(Ask {
        message,
        is_json,
        answer: None,
    }));
    // SAFETY: ruby/thread.h: does not call where an exception waits, and raises none.
    unsafe { (ruby.without_lock)(answer_ask, ask, std::ptr::null(), std::ptr::null()) };
    // SAFETY: made above; does nothing where there is an answer.
    unsafe { answer_ask(ask) };
    let mut raised = 0;
    // SAFETY: ruby.h: exceptions come back as a number.
    let object = unsafe { (ruby.protect)(object_of, ask, &raw mut raised) };
    // SAFETY: made above.
    let is_done = unsafe { Box::from_raw(ask) }
        .answer
        .is_some_and(|answer| answer.is_ok());
    match (raised, is_done) {
        (0, true) => object,
        // SAFETY: ruby.h: an exception; nothing is held any more.
        (0, false) => unsafe { (ruby.raise)(object) },
        _ => {
            // SAFETY: ruby.h: the number is rb_protect's; nothing is held any more.
            unsafe { (ruby.raise_again)(raised) };
            object
        }
    }
}

unsafe extern "C" fn answer_ask(ask: *mut Ask) -> *mut c_void {
    // SAFETY: `reply` passes its own.
    let ask = unsafe { &mut *ask };
    let message = &ask.message;
    ask.answer.get_or_insert_with(|| {
        if ask.is_json {
            delayed_start::send_for_json(message)
        } else {
            delayed_start::send(message)
        }
    });
    std::ptr::null_mut()
}

/// The string, or what it is as JSON, or the exception.
unsafe extern "C-unwind" fn object_of(ask: *mut Ask) -> Value {
    // SAFETY: `reply` passes its own.
    let ask = unsafe { &*ask };
    let (Some(ruby), Some(answer)) = (RUBY.get(), &ask.answer) else {
        return 0;
    };
    let (Ok(text) | Err(text)) = answer;
    let (bytes, length) = (text.as_ptr().cast(), text.len() as c_long);
    if answer.is_ok() {
        // SAFETY: ruby.h: the bytes are copied.
        let string = unsafe { (ruby.string)(bytes, length) };
        if !ask.is_json {
            return string;
        }
        // SAFETY: called by `rb_protect`.
        return unsafe { ruby.parsed(string) };
    }
    // SAFETY: ruby.h: the variable that holds the class.
    let class = unsafe { *ruby.runtime_error };
    // SAFETY: ruby.h: the bytes are copied.
    unsafe { (ruby.exception)(class, bytes, length) }
}

#[doc(hidden)]
#[macro_export]
macro_rules! __export_ruby {
    ($how:ident, $entry:path) => {
        const _: () = {
            unsafe extern "C-unwind" fn init(
                caller: $crate::adapters::host_symbols::CallerAddress,
            ) {
                // SAFETY: called by Ruby only.
                unsafe { $crate::adapters::ruby::init(&$entry, $crate::__library_name!(), caller) }
            }
            $crate::__export_with_caller!(concat!("Init_", env!("CARGO_CRATE_NAME")), "rdi", init);
        };
    };
}
