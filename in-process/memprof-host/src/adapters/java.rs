//! Java: an agent (`jcmd PID JVMTI.agent_load`, `-agentpath`), whose options are a message, and a class with a
//! native method, named after the library: `MemoryProfile.send(String)`.
//!
//! An agent's reply goes to standard error: `jcmd` shows no more than 0, or 1 where the message failed. A JVM
//! starts whatever becomes of the message. The method throws a `RuntimeException` where the message fails. A
//! thread that waits in it does not keep the garbage collector waiting.
#![expect(unsafe_code, reason = "the Java Native Interface")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use memprof_plugin_abi::raw::memprof_plugin_entry_t;

use super::log::c_text;
use super::{attachment, camel_case, catch_panic, delayed_start};

type Object = *mut c_void;
#[doc(hidden)]
pub type Vm = *const *const Invocation;
type Env = *const *const Functions;

/// `JNI_VERSION_1_8`.
const VERSION: c_int = 0x0001_0008;
const OK: c_int = 0;

/// What `memprof attach` writes before the attachment.
const ATTACHED: &[u8] = b"memprof_attached ";

/// `JNIInvokeInterface`, whose functions are specified by their numbers: "The Invocation API".
#[doc(hidden)]
#[repr(C)]
#[derive(Debug)]
pub struct Invocation {
    before_6: [usize; 6],
    get_env: unsafe extern "C" fn(Vm, *mut Env, c_int) -> c_int,
}

/// `JNINativeInterface`, whose functions are specified by their numbers: "JNI Functions".
#[repr(C)]
struct Functions {
    before_6: [usize; 6],
    find_class: unsafe extern "C" fn(Env, *const c_char) -> Object,
    before_14: [usize; 7],
    throw_new: unsafe extern "C" fn(Env, Object, *const c_char) -> c_int,
    before_17: [usize; 2],
    exception_clear: unsafe extern "C" fn(Env),
    before_163: [usize; 145],
    new_string: unsafe extern "C" fn(Env, *const u16, c_int) -> Object,
    string_length: unsafe extern "C" fn(Env, Object) -> c_int,
    before_215: [usize; 50],
    register_natives: unsafe extern "C" fn(Env, Object, *const NativeMethod, c_int) -> c_int,
    before_220: [usize; 4],
    string_region: unsafe extern "C" fn(Env, Object, c_int, c_int, *mut u16),
}

/// # Safety
/// The JVM passed it to a function that still runs.
unsafe fn functions(env: Env) -> &'static Functions {
    // SAFETY: JNI: a pointer to the table.
    let table = unsafe { *env };
    // SAFETY: JNI: which stays as long as the JVM, and has these functions since Java 1.2.
    unsafe { &*table }
}

/// `JNINativeMethod`.
#[repr(C)]
struct NativeMethod {
    name: *const c_char,
    signature: *const c_char,
    function: unsafe extern "C" fn(Env, Object, Object) -> Object,
}

/// Gives the class its method, where there is one of that name: an agent has none.
///
/// # Safety
/// The JVM calls `JNI_OnLoad` with `vm`.
#[doc(hidden)]
pub unsafe fn load(entry: &'static memprof_plugin_entry_t, name: &'static CStr, vm: Vm) -> c_int {
    catch_panic((), || {
        // SAFETY: JNI: a pointer to the table.
        let table = unsafe { *vm };
        // SAFETY: JNI: the table.
        let Invocation { get_env, .. } = unsafe { &*table };
        let mut env: Env = ptr::null();
        // SAFETY: JNI: fills in the environment of this thread, or fails.
        if unsafe { get_env(vm, &raw mut env, VERSION) } != OK {
            return;
        }
        delayed_start::ensure_instance(entry);
        // SAFETY: the environment of this call.
        let jni = unsafe { functions(env) };
        let name = camel_case(name);
        // SAFETY: JNI: null, with an exception, where the class loader has none of that name.
        let class = unsafe { (jni.find_class)(env, name.as_ptr()) };
        let method = NativeMethod {
            name: c"send".as_ptr(),
            signature: c"(Ljava/lang/String;)Ljava/lang/String;".as_ptr(),
            function: send,
        };
        // SAFETY: JNI: the class, and one method, whose function is never unloaded.
        let register = || unsafe { (jni.register_natives)(env, class, &raw const method, 1) };
        if class.is_null() || register() != OK {
            // SAFETY: JNI: takes the exception back: the library serves without the class.
            unsafe { (jni.exception_clear)(env) };
        }
    });
    VERSION
}

/// Loads the plugin as an agent, and answers the options: 0, or 1 where the message failed.
///
/// # Safety
/// The JVM calls `Agent_OnLoad` or `Agent_OnAttach`: `options` is null or NUL-terminated.
#[doc(hidden)]
pub unsafe fn agent(entry: &'static memprof_plugin_entry_t, options: *const c_char) -> c_int {
    let options = if options.is_null() {
        c""
    } else {
        // SAFETY: promised by the caller.
        unsafe { CStr::from_ptr(options) }
    };
    if let Some(attachment) = options.to_bytes().strip_prefix(ATTACHED) {
        // Without a word: `memprof attach` asks another way why not.
        return catch_panic(1, || {
            c_int::from(attachment::attach_on_new_thread(entry, attachment).is_err())
        });
    }
    delayed_start::ensure_instance(entry);
    catch_panic(1, || {
        let message = options.to_bytes();
        if message.is_empty() {
            return OK;
        }
        let answer = delayed_start::send(message);
        let (Ok(text) | Err(text)) = &answer;
        delayed_start::print_reply(text);
        c_int::from(answer.is_err())
    })
}

unsafe extern "C" fn send(env: Env, _class: Object, message: Object) -> Object {
    catch_panic(ptr::null_mut(), || {
        // SAFETY: the environment of this call.
        let jni = unsafe { functions(env) };
        let answer = if message.is_null() {
            Err("the message is null".to_owned())
        } else {
            // SAFETY: a string of Java's.
            let message = unsafe { text(jni, env, message) };
            delayed_start::send(message.as_bytes())
        };
        match answer {
            Ok(reply) => {
                let reply: Vec<u16> = reply.encode_utf16().collect();
                let length = c_int::try_from(reply.len()).unwrap_or(c_int::MAX);
                // SAFETY: JNI: the text is copied; null, with an exception, where memory is missing.
                unsafe { (jni.new_string)(env, reply.as_ptr(), length) }
            }
            Err(why) => {
                // SAFETY: JNI: a class that every JVM has, or null, with another exception.
                let class =
                    unsafe { (jni.find_class)(env, c"java/lang/RuntimeException".as_ptr()) };
                // What is above differs in JNI's UTF-8.
                let why = c_text(&why.replace(|letter| letter > '\u{ffff}', "?"), usize::MAX);
                if !class.is_null() {
                    // SAFETY: JNI: the text is copied.
                    unsafe { (jni.throw_new)(env, class, why.as_ptr()) };
                }
                ptr::null_mut()
            }
        }
    })
}

unsafe fn text(jni: &Functions, env: Env, string: Object) -> String {
    // SAFETY: JNI: the number of its UTF-16 units.
    let length = unsafe { (jni.string_length)(env, string) };
    let mut units = vec![0_u16; usize::try_from(length).unwrap_or(0)];
    // SAFETY: JNI: copies so many units.
    unsafe { (jni.string_region)(env, string, 0, length, units.as_mut_ptr()) };
    String::from_utf16_lossy(&units)
}

#[doc(hidden)]
#[macro_export]
macro_rules! __export_java {
    ($how:ident, $entry:path) => {
        /// What a JVM calls when a class has loaded this library.
        ///
        /// # Safety
        /// Only a JVM calls it, as the Java Native Interface says.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        pub unsafe extern "C" fn JNI_OnLoad(
            vm: $crate::adapters::java::Vm,
            _reserved: *mut ::std::ffi::c_void,
        ) -> ::std::ffi::c_int {
            let name = $crate::__library_name!();
            // SAFETY: the argument of the JVM, unchanged.
            unsafe { $crate::adapters::java::load(&$entry, name, vm) }
        }

        /// What a JVM calls at its start with this library as an agent. Another result than 0 would end it.
        ///
        /// # Safety
        /// Only a JVM calls it, as the JVM Tool Interface says.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        pub unsafe extern "C" fn Agent_OnLoad(
            _vm: *mut ::std::ffi::c_void,
            options: *const ::std::ffi::c_char,
            _reserved: *mut ::std::ffi::c_void,
        ) -> ::std::ffi::c_int {
            // SAFETY: the argument of the JVM, unchanged.
            unsafe { $crate::adapters::java::agent(&$entry, options) };
            0
        }

        /// What a running JVM calls that was told to load this library as an agent.
        ///
        /// # Safety
        /// Only a JVM calls it, as the JVM Tool Interface says.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        pub unsafe extern "C" fn Agent_OnAttach(
            _vm: *mut ::std::ffi::c_void,
            options: *const ::std::ffi::c_char,
            _reserved: *mut ::std::ffi::c_void,
        ) -> ::std::ffi::c_int {
            // SAFETY: the argument of the JVM, unchanged.
            unsafe { $crate::adapters::java::agent(&$entry, options) }
        }
    };
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    /// The numbers of "JNI Functions" and of "The Invocation API".
    #[test]
    fn functions_have_the_numbers_of_the_specification() {
        let check = |offset: usize, number: usize| assert_eq!(offset, number * size_of::<usize>());
        check(offset_of!(Invocation, get_env), 6);
        check(offset_of!(Functions, find_class), 6);
        check(offset_of!(Functions, throw_new), 14);
        check(offset_of!(Functions, exception_clear), 17);
        check(offset_of!(Functions, new_string), 163);
        check(offset_of!(Functions, string_length), 164);
        check(offset_of!(Functions, register_natives), 215);
        check(offset_of!(Functions, string_region), 220);
    }
}
