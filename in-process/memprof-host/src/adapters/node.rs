//! Node 18 and later, and others with Node-API: `require("./memory_profile.node")`, or `process.dlopen`.
//!
//! `send(message)` returns a string; `call(message)` returns the parsed JSON of the reply, mostly an object. A message
//! that fails throws an `Error`. JavaScript waits meanwhile; `sendAsync(message)` and `callAsync(message)` instead
//! return promises and wait on a thread of Node's pool, for example for `dump`. Each worker has its own environment.
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

/// Property of `exports` with which `memprof attach` passes its argument.
const ATTACH_PROPERTY: &CStr = c"memprof_attached";

/// Functions of the module: name, whether the reply is parsed, whether it returns a promise.
static FUNCTIONS: [(&CStr, bool, bool); 4] = [
    (c"send", false, false),
    (c"call", true, false),
    (c"sendAsync", false, true),
    (c"callAsync", true, true),
];

/// A message that a thread of Node's pool sends.
struct Job {
    message: Vec<u8>,
    is_json: bool,
    reply: Result<String, String>,
    promise: *mut c_void,
    work: *mut c_void,
}

/// Adds the module's functions to `exports`, and creates the plugin. Attaches to the process instead if `exports` has
/// the property of `memprof attach`. Throws an error if Node lacks a function or attaching fails. Returns `exports` in
/// any case.
///
/// # Safety
/// Node calls `napi_register_module_v1` with these arguments.
#[doc(hidden)]
pub unsafe fn register_module(
    entry: &'static memprof_plugin_entry_t,
    env: Env,
    exports: Value,
    caller: CallerAddress,
) -> Value {
    catch_panic(exports, || {
        let host = caller.open_symbols();
        let node = match Node::find(&host) {
            Ok(node) => NODE.get_or_set(node),
            Err(missing) => {
                api::throw_missing_symbol(&host, env, missing);
                return exports;
            }
        };
        if let Some(attachment) = node.copy_string_property(env, exports, ATTACH_PROPERTY) {
            if let Err(reason) = attachment::attach_on_new_thread(entry, &attachment) {
                // SAFETY: node_api.h: an error of this environment, on its thread.
                unsafe { (node.throw)(env, node.create_error(env, &reason)) };
            }
            return exports;
        }
        delayed_start::ensure_instance(entry);
        for (index, (name, ..)) in FUNCTIONS.iter().enumerate() {
            let mut function = ptr::null_mut();
            let create_function = node.function;
            // SAFETY: node_api.h: a function of a library that is never unloaded, and a number as its data.
            if unsafe {
                create_function(
                    env,
                    name.as_ptr(),
                    // js_native_api.h, `NAPI_AUTO_LENGTH`: the name ends with NUL.
                    usize::MAX,
                    handle_call,
                    index as *mut c_void,
                    &raw mut function,
                )
            } == OK
            {
                // SAFETY: node_api.h: Node copies the name.
                unsafe { (node.set_property)(env, exports, name.as_ptr(), function) };
            }
        }
        exports
    })
}

/// Handles a call of one of the module's functions. Returns the reply or its promise. If the call fails, returns null,
/// and throws an exception unless the code panicked or Node could not create the promise.
unsafe extern "C" fn handle_call(env: Env, info: *mut c_void) -> Value {
    let handle = || {
        let node = NODE.get()?;
        let (mut count, mut argument, mut index) = (1, ptr::null_mut(), ptr::null_mut());
        // SAFETY: node_api.h: writes at most one argument, which is `undefined` if there is none.
        unsafe {
            (node.callback_info)(
                env,
                info,
                &raw mut count,
                &raw mut argument,
                ptr::null_mut(),
                &raw mut index,
            )
        };
        let (_, is_json, is_async) = FUNCTIONS[index as usize];
        let Some(message) = node.copy_string(env, argument) else {
            // SAFETY: node_api.h: Node copies the texts.
            unsafe {
                (node.throw_type_error)(env, ptr::null(), c"the message must be a string".as_ptr())
            };
            return None;
        };
        if is_async {
            return queue_message(node, env, message, is_json);
        }
        match send_message(&message, is_json)
            .and_then(|text| node.create_value(env, &text, is_json))
        {
            Ok(value) => Some(value),
            Err(reason) => {
                // SAFETY: node_api.h: an error of this environment, on its thread.
                unsafe { (node.throw)(env, node.create_error(env, &reason)) };
                None
            }
        }
    };
    catch_panic(None, handle).unwrap_or(ptr::null_mut())
}

/// Sends a message to the plugin. Returns its reply as JSON if `is_json`, otherwise as text for people. If the message
/// failed, the error is the text of the reply.
fn send_message(message: &[u8], is_json: bool) -> Result<String, String> {
    if is_json {
        delayed_start::send_message_for_json(message)
    } else {
        delayed_start::send_message(message)
    }
}

/// Queues a message for a thread of Node's pool. Returns the promise of its reply: parsed JSON if `is_json`, otherwise
/// a text. If Node cannot queue the message, the promise is rejected at once. `None` if Node cannot create a promise.
fn queue_message(node: &Node, env: Env, message: Vec<u8>, is_json: bool) -> Option<Value> {
    let mut value = ptr::null_mut();
    let mut promise = ptr::null_mut();
    // SAFETY: node_api.h: writes both values, or fails.
    if unsafe { (node.promise)(env, &raw mut promise, &raw mut value) } != OK {
        return None;
    }
    // The job's reply if Node cancels it before a thread runs it.
    let reply = Err("Node did not ask the plugin".to_owned());
    let job = Job {
        message,
        is_json,
        reply,
        promise,
        work: ptr::null_mut(),
    };
    let job = Box::into_raw(Box::new(job));
    let name = node.create_string(env, "memprof");
    let mut work = ptr::null_mut();
    let resource = ptr::null_mut();
    // SAFETY: node_api.h: Node passes the job to `send_job_message` on another thread, and then to `settle_promise` on this one.
    let mut status = unsafe {
        (node.work)(
            env,
            resource,
            name,
            send_job_message,
            settle_promise,
            job,
            &raw mut work,
        )
    };
    if status == OK {
        // SAFETY: the job was leaked above, and is not queued yet.
        unsafe { (*job).work = work };
        // SAFETY: node_api.h: work of this environment that is not queued yet.
        status = unsafe { (node.queue)(env, work) };
    }
    if status != OK {
        // SAFETY: the job is not queued, so only this function has it.
        unsafe { settle_promise(env, status, job) };
    }
    Some(value)
}

/// Sends the message of a job. Node calls it on a thread of its pool.
unsafe extern "C" fn send_job_message(_env: Env, job: *mut Job) {
    // SAFETY: `queue_message` leaked the job, and Node calls `settle_promise` only afterwards.
    let job = unsafe { &mut *job };
    job.reply = send_message(&job.message, job.is_json);
}

/// Settles the promise of a job: resolves it with the reply, or rejects it with the error. Frees the job and Node's
/// work object. Node calls it on the JavaScript thread, after [`send_job_message`] or without it if the work was
/// cancelled. [`queue_message`] calls it if Node refuses the work.
unsafe extern "C" fn settle_promise(env: Env, _status: c_int, job: *mut Job) {
    catch_panic((), || {
        // SAFETY: `queue_message` leaked the job, and this is the last call with it.
        let job = unsafe { Box::from_raw(job) };
        let Some(node) = NODE.get() else { return };
        let value = job
            .reply
            .and_then(|text| node.create_value(env, &text, job.is_json));
        match value {
            // SAFETY: node_api.h: the promise of `queue_message`, which is settled once.
            Ok(value) => unsafe { (node.resolve)(env, job.promise, value) },
            // SAFETY: node_api.h: the promise of `queue_message`, which is settled once.
            Err(reason) => unsafe {
                (node.reject)(env, job.promise, node.create_error(env, &reason))
            },
        };
        if !job.work.is_null() {
            // SAFETY: node_api.h: work may be deleted in its `settle_promise`, or if it was never queued.
            unsafe { (node.delete)(env, job.work) };
        }
    });
}

#[doc(hidden)]
#[macro_export]
macro_rules! __export_node {
    ($how:ident, $entry:path) => {
        const _: () = {
            /// Target of `napi_register_module_v1`, which passes its return address as `caller`.
            unsafe extern "C" fn register(
                env: *mut ::std::ffi::c_void,
                exports: *mut ::std::ffi::c_void,
                caller: $crate::adapters::host_symbols::CallerAddress,
            ) -> *mut ::std::ffi::c_void {
                // SAFETY: the arguments of Node, unchanged.
                unsafe { $crate::adapters::node::register_module(&$entry, env, exports, caller) }
            }
            $crate::__export_with_caller!("napi_register_module_v1", "rdx", register);
        };
    };
}
