//! Java: an agent (`jcmd PID JVMTI.agent_load`, `-agentpath`), whose options are a message, and a class with a native
//! method, named after the library: `MemoryProfile.send(String)`.
//!
//! An agent's reply goes to standard error: `jcmd` shows only 0, or 1 if the message failed. A JVM starts whether the
//! message succeeds or not. The method throws a `RuntimeException` if the message fails. A thread that waits in it does
//! not block the garbage collector.
#![expect(unsafe_code, reason = "the Java Native Interface")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use memprof_plugin_abi::raw::memprof_plugin_entry_t;

use super::log::to_truncated_c_string;
use super::{attachment, catch_panic, delayed_start, to_camel_case};

type Object = *mut c_void;
#[doc(hidden)]
pub type Vm = *const *const Invocation;
type Env = *const *const Functions;

/// `JNI_VERSION_1_8`.
const JNI_VERSION: c_int = 0x0001_0008;
const OK: c_int = 0;

/// Prefix of the agent options with which `memprof attach` passes its argument.
const ATTACH_PREFIX: &[u8] = b"memprof_attached ";

/// `JNIInvokeInterface`: the specification numbers its functions ("The Invocation API").
#[doc(hidden)]
#[repr(C)]
#[derive(Debug)]
pub struct Invocation {
    before_6: [usize; 6],
    get_env: unsafe extern "C" fn(Vm, *mut Env, c_int) -> c_int,
}

/// `JNINativeInterface`: the specification numbers its functions ("JNI Functions").
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

/// Returns the table of JNI functions to which an environment points.
///
/// # Safety
/// The JVM passed `env` to a native function that has not returned yet.
unsafe fn jni_functions(env: Env) -> &'static Functions {
    // SAFETY: JNI: an environment points to its table's address.
    let table = unsafe { *env };
    // SAFETY: JNI: the table lives as long as the JVM, and has these functions since Java 1.2.
    unsafe { &*table }
}

/// `JNINativeMethod`.
#[repr(C)]
struct NativeMethod {
    name: *const c_char,
    signature: *const c_char,
    function: unsafe extern "C" fn(Env, Object, Object) -> Object,
}

/// Creates the plugin, and registers the native method `send` of the class with the library's name in camel case, if
/// there is such a class; an agent has none. Returns the JNI version, even on failure, because a JVM refuses the
/// library for any other result.
///
/// # Safety
/// The JVM calls `JNI_OnLoad` with `vm`.
#[doc(hidden)]
pub unsafe fn init_library(
    entry: &'static memprof_plugin_entry_t,
    name: &'static CStr,
    vm: Vm,
) -> c_int {
    catch_panic((), || {
        // SAFETY: JNI: a JVM's handle points to its table's address.
        let table = unsafe { *vm };
        // SAFETY: JNI: the table lives as long as the JVM.
        let Invocation { get_env, .. } = unsafe { &*table };
        let mut env: Env = ptr::null();
        // SAFETY: JNI: GetEnv sets the environment of this thread, or fails.
        if unsafe { get_env(vm, &raw mut env, JNI_VERSION) } != OK {
            return;
        }
        delayed_start::ensure_instance(entry);
        // SAFETY: GetEnv returned the environment of this thread, which is in JNI_OnLoad.
        let jni = unsafe { jni_functions(env) };
        let name = to_camel_case(name);
        // SAFETY: JNI: FindClass returns null, with a pending exception, if the class loader has no such class.
        let class = unsafe { (jni.find_class)(env, name.as_ptr()) };
        let method = NativeMethod {
            name: c"send".as_ptr(),
            signature: c"(Ljava/lang/String;)Ljava/lang/String;".as_ptr(),
            function: send_message,
        };
        // SAFETY: JNI: RegisterNatives copies one method, whose function is never unloaded.
        let register = || unsafe { (jni.register_natives)(env, class, &raw const method, 1) };
        if class.is_null() || register() != OK {
            // SAFETY: JNI: clears the exception, because the library works without the class.
            unsafe { (jni.exception_clear)(env) };
        }
    });
    JNI_VERSION
}

/// Runs the library as an agent of the JVM. If the options are those of `memprof attach`, attaches to the process.
/// Otherwise creates the plugin, sends the options as a message, unless they are empty, and prints the reply to
/// standard error. Returns 0, or 1 if attaching or the message failed.
///
/// # Safety
/// The JVM calls `Agent_OnLoad` or `Agent_OnAttach`: `options` is null or NUL-terminated.
#[doc(hidden)]
pub unsafe fn run_agent(entry: &'static memprof_plugin_entry_t, options: *const c_char) -> c_int {
    let options = if options.is_null() {
        c""
    } else {
        // SAFETY: not null, and the caller promises a NUL-terminated text.
        unsafe { CStr::from_ptr(options) }
    };
    if let Some(attachment) = options.to_bytes().strip_prefix(ATTACH_PREFIX) {
        // A failure is not logged: `memprof attach` gets the reason by another request.
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
        let reply = delayed_start::send_message(message);
        let (Ok(text) | Err(text)) = &reply;
        delayed_start::print_reply(text);
        c_int::from(reply.is_err())
    })
}

/// Implements the native method `send(String)`: sends a message to the plugin and returns the reply as a Java string.
/// Returns null, with an exception, if the message is null or fails. Returns null without one if the code panicked.
unsafe extern "C" fn send_message(env: Env, _class: Object, message: Object) -> Object {
    catch_panic(ptr::null_mut(), || {
        // SAFETY: the JVM passed the environment to this native method.
        let jni = unsafe { jni_functions(env) };
        let reply = if message.is_null() {
            Err("the message is null".to_owned())
        } else {
            // SAFETY: JNI: `message` is a string that is not null.
            let message = unsafe { copy_java_string(jni, env, message) };
            delayed_start::send_message(message.as_bytes())
        };
        match reply {
            Ok(reply) => {
                let reply: Vec<u16> = reply.encode_utf16().collect();
                // A longer reply is cut off.
                let length = c_int::try_from(reply.len()).unwrap_or(c_int::MAX);
                // SAFETY: JNI: NewString copies the text; it returns null, with a pending exception, if there is no
                // memory.
                unsafe { (jni.new_string)(env, reply.as_ptr(), length) }
            }
            Err(reason) => {
                // SAFETY: JNI: FindClass of a class that every JVM has, or null, with another exception.
                let class =
                    unsafe { (jni.find_class)(env, c"java/lang/RuntimeException".as_ptr()) };
                // Characters above U+FFFF have another encoding in JNI's modified UTF-8.
                let reason = to_truncated_c_string(
                    &reason.replace(|letter| letter > '\u{ffff}', "?"),
                    usize::MAX,
                );
                if !class.is_null() {
                    // SAFETY: JNI: ThrowNew copies the text.
                    unsafe { (jni.throw_new)(env, class, reason.as_ptr()) };
                }
                ptr::null_mut()
            }
        }
    })
}

/// Copies a Java string as UTF-8. Replaces unpaired surrogates.
///
/// # Safety
/// `env` and `string` are arguments of a native method that has not returned yet.
unsafe fn copy_java_string(jni: &Functions, env: Env, string: Object) -> String {
    // SAFETY: JNI: GetStringLength returns the number of UTF-16 units.
    let length = unsafe { (jni.string_length)(env, string) };
    let mut units = vec![0_u16; usize::try_from(length).unwrap_or(0)];
    // SAFETY: JNI: GetStringRegion copies `length` units, for which there is room.
    unsafe { (jni.string_region)(env, string, 0, length, units.as_mut_ptr()) };
    String::from_utf16_lossy(&units)
}

#[doc(hidden)]
#[macro_export]
macro_rules! __export_java {
    ($how:ident, $entry:path) => {
        /// Entry point that a JVM calls when a class has loaded this library.
        ///
        /// # Safety
        /// Only a JVM calls it, according to the Java Native Interface.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        pub unsafe extern "C" fn JNI_OnLoad(
            vm: $crate::adapters::java::Vm,
            _reserved: *mut ::std::ffi::c_void,
        ) -> ::std::ffi::c_int {
            let name = $crate::__library_name!();
            // SAFETY: the argument of the JVM, unchanged.
            unsafe { $crate::adapters::java::init_library(&$entry, name, vm) }
        }

        /// Entry point that a JVM calls at its start with this library as an agent. Any result but 0 would end the JVM.
        ///
        /// # Safety
        /// Only a JVM calls it, according to the JVM Tool Interface.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        pub unsafe extern "C" fn Agent_OnLoad(
            _vm: *mut ::std::ffi::c_void,
            options: *const ::std::ffi::c_char,
            _reserved: *mut ::std::ffi::c_void,
        ) -> ::std::ffi::c_int {
            // SAFETY: the argument of the JVM, unchanged.
            unsafe { $crate::adapters::java::run_agent(&$entry, options) };
            0
        }

        /// Entry point that a running JVM calls when it loads this library as an agent.
        ///
        /// # Safety
        /// Only a JVM calls it, according to the JVM Tool Interface.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        pub unsafe extern "C" fn Agent_OnAttach(
            _vm: *mut ::std::ffi::c_void,
            options: *const ::std::ffi::c_char,
            _reserved: *mut ::std::ffi::c_void,
        ) -> ::std::ffi::c_int {
            // SAFETY: the argument of the JVM, unchanged.
            unsafe { $crate::adapters::java::run_agent(&$entry, options) }
        }
    };
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    /// Compares with the numbers in "JNI Functions" and "The Invocation API".
    #[test]
    fn functions_have_specified_numbers() {
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
