//! Node 18 and later, and others with Node-API: `require("./memory_profile.node")`, or `process.dlopen`.
//!
//! `send(message)` returns a string, `call(message)` what the reply is as JSON, mostly an object; a message that
//! fails throws an `Error`. JavaScript waits meanwhile: for `dump`, `sendAsync(message)` and `callAsync(message)`
//! return promises, and wait on a thread of Node's pool. Each worker has an environment of its own.
#![expect(unsafe_code, reason = "Node-API")]

use std::ffi::{CStr, c_int, c_void};
use std::ptr;

use memprof_own::LockFreeOnce;
use memprof_plugin_abi::raw::memprof_plugin_entry_t;

use super::host_symbols::CallerAddress;
use super::{attachment, catch_panic, delayed_start};

mod api;

use api::{Env, Node, OK, Value};

static NODE: LockFreeOnce<Node> = LockFreeOnce::new();

/// The property of `exports` in which `memprof attach` hands over the attachment.
const ATTACHED: &CStr = c"memprof_attached";

/// The functions of the module: name, whether the reply is parsed, whether JavaScript goes on meanwhile.
static FUNCTIONS: [(&CStr, bool, bool); 4] = [
    (c"send", false, false),
    (c"call", true, false),
    (c"sendAsync", false, true),
    (c"callAsync", true, true),
];

/// A message on its way through the pool.
struct Job {
    message: Vec<u8>,
    is_json: bool,
    answer: Result<String, String>,
    promise: *mut c_void,
    work: *mut c_void,
}

/// Fills in `exports`, or throws an error.
///
/// # Safety
/// Node calls `napi_register_module_v1` with these arguments.
#[doc(hidden)]
pub unsafe fn register(
    entry: &'static memprof_plugin_entry_t,
    env: Env,
    exports: Value,
    caller: CallerAddress,
) -> Value {
    catch_panic(exports, || {
        let host = caller.symbols();
        let node = match Node::of(&host) {
            Ok(node) => NODE.get_or_set(node),
            Err(missing) => {
                api::refuse(&host, env, missing);
                return exports;
            }
        };
        if let Some(attachment) = node.text_property(env, exports, ATTACHED) {
            if let Err(why) = attachment::attach_on_new_thread(entry, &attachment) {
                // SAFETY: node_api.h: an error of this environment.
                unsafe { (node.throw)(env, node.error(env, &why)) };
            }
            return exports;
        }
        delayed_start::ensure_instance(entry);
        for (at, (name, ..)) in FUNCTIONS.iter().enumerate() {
            let mut function = ptr::null_mut();
            let made = node.function;
            // SAFETY: node_api.h: a function, whose library is never unloaded, and a number for it.
            if unsafe {
                made(
                    env,
                    name.as_ptr(),
                    usize::MAX,
                    called,
                    at as *mut c_void,
                    &raw mut function,
                )
            } == OK
            {
                // SAFETY: node_api.h: the name is copied.
                unsafe { (node.set_property)(env, exports, name.as_ptr(), function) };
            }
        }
        exports
    })
}

unsafe extern "C" fn called(env: Env, info: *mut c_void) -> Value {
    let answer = || {
        let node = NODE.get()?;
        let (mut count, mut argument, mut at) = (1, ptr::null_mut(), ptr::null_mut());
        // SAFETY: node_api.h: fills in at most one argument, `undefined` where there is none.
        unsafe {
            (node.callback_info)(
                env,
                info,
                &raw mut count,
                &raw mut argument,
                ptr::null_mut(),
                &raw mut at,
            )
        };
        let (_, is_json, is_async) = FUNCTIONS[at as usize];
        let Some(message) = node.text(env, argument) else {
            // SAFETY: node_api.h: the texts are copied.
            unsafe {
                (node.throw_type_error)(env, ptr::null(), c"the message must be a string".as_ptr())
            };
            return None;
        };
        if is_async {
            return queue(node, env, message, is_json);
        }
        match reply(&message, is_json).and_then(|text| node.value(env, &text, is_json)) {
            Ok(value) => Some(value),
            Err(why) => {
                // SAFETY: node_api.h: an error of this environment.
                unsafe { (node.throw)(env, node.error(env, &why)) };
                None
            }
        }
    };
    catch_panic(None, answer).unwrap_or(ptr::null_mut())
}

fn reply(message: &[u8], is_json: bool) -> Result<String, String> {
    if is_json {
        delayed_start::send_for_json(message)
    } else {
        delayed_start::send(message)
    }
}

/// The promise of an answer.
fn queue(node: &Node, env: Env, message: Vec<u8>, is_json: bool) -> Option<Value> {
    let mut value = ptr::null_mut();
    let mut promise = ptr::null_mut();
    // SAFETY: node_api.h: fills in both, or fails.
    if unsafe { (node.promise)(env, &raw mut promise, &raw mut value) } != OK {
        return None;
    }
    let answer = Err("Node did not ask the plugin".to_owned());
    let job = Job {
        message,
        is_json,
        answer,
        promise,
        work: ptr::null_mut(),
    };
    let job = Box::into_raw(Box::new(job));
    let name = node.string(env, "memprof");
    let mut work = ptr::null_mut();
    let resource = ptr::null_mut();
    // SAFETY: node_api.h: `execute` gets the job on another thread, and then `complete` on this one.
    let mut status =
        unsafe { (node.work)(env, resource, name, execute, complete, job, &raw mut work) };
    if status == OK {
        // SAFETY: made above, and not queued yet.
        unsafe { (*job).work = work };
        // SAFETY: as above.
        status = unsafe { (node.queue)(env, work) };
    }
    if status != OK {
        // SAFETY: nobody else has it.
        unsafe { complete(env, status, job) };
    }
    Some(value)
}

unsafe extern "C" fn execute(_env: Env, job: *mut Job) {
    // SAFETY: `queue` made it, and `complete` comes later.
    let job = unsafe { &mut *job };
    job.answer = reply(&job.message, job.is_json);
}

unsafe extern "C" fn complete(env: Env, _status: c_int, job: *mut Job) {
    catch_panic((), || {
        // SAFETY: `queue` made it; this is the last call that has it.
        let job = unsafe { Box::from_raw(job) };
        let Some(node) = NODE.get() else { return };
        let value = job
            .answer
            .and_then(|text| node.value(env, &text, job.is_json));
        match value {
            // SAFETY: node_api.h: the promise of `queue`, once.
            Ok(value) => unsafe { (node.resolve)(env, job.promise, value) },
            // SAFETY: as above.
            Err(why) => unsafe { (node.reject)(env, job.promise, node.error(env, &why)) },
        };
        if !job.work.is_null() {
            // SAFETY: node_api.h: in its `complete`, or never queued.
            unsafe { (node.delete)(env, job.work) };
        }
    });
}

#[doc(hidden)]
#[macro_export]
macro_rules! __export_node {
    ($how:ident, $entry:path) => {
        const _: () = {
            unsafe extern "C" fn register(
                env: *mut ::std::ffi::c_void,
                exports: *mut ::std::ffi::c_void,
                caller: $crate::adapters::host_symbols::CallerAddress,
            ) -> *mut ::std::ffi::c_void {
                // SAFETY: the arguments of Node, unchanged.
                unsafe { $crate::adapters::node::register(&$entry, env, exports, caller) }
            }
            $crate::__export_with_caller!("napi_register_module_v1", "rdx", register);
        };
    };
}
