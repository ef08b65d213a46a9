//! The boundary between the host and a [`Plugin`]: catches panics of the plugin, and rejects null pointers and
//! malformed messages.
#![expect(unsafe_code, reason = "the ABI boundary")]

use std::any::Any;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::panic::{self, AssertUnwindSafe};
use std::process;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::host_log;
use crate::plugin::Message;
use crate::raw::{
    MEMPROF_ABI_MISMATCH, MEMPROF_ABI_VERSION, MEMPROF_EXTENSION_THREADS, MEMPROF_INTERNAL,
    MEMPROF_INVALID_ARGUMENT, MEMPROF_OK, MEMPROF_PANIC, MEMPROF_UNKNOWN_MESSAGE, memprof_host_t,
    memprof_message_t, memprof_plugin_entry_t, memprof_plugin_t, memprof_reply_t, memprof_str_t,
    memprof_threads_t,
};
use crate::{Arguments, ErrorKind, Failure, Host, Plugin, Reply, Status};

/// Array of pointers to the messages of a plugin's entry, in static memory.
#[derive(Debug)]
pub struct MessagePointers<const COUNT: usize>([*const memprof_message_t; COUNT]);

// SAFETY: the pointers are to constants of the plugin's image.
unsafe impl<const COUNT: usize> Sync for MessagePointers<COUNT> {}

impl<const COUNT: usize> MessagePointers<COUNT> {
    /// Creates pointers to the first `COUNT` elements of `messages`. Panics, in a constant at compile time, if there
    /// are fewer.
    pub const fn new(messages: &'static [Message]) -> Self {
        let mut pointers = [ptr::null(); COUNT];
        let mut index = 0;
        while index < COUNT {
            pointers[index] = &raw const messages[index].0;
            index += 1;
        }
        Self(pointers)
    }
}

/// Name and version of the SDK, for the entries of plugins.
pub const BUILD_INFO: &str = concat!("memprof SDK ", env!("CARGO_PKG_VERSION"));

/// Creates the entry of plugin `P`, which its library exports to the host. It contains the name, the version, the
/// messages, and the functions of this module as callbacks.
pub const fn create_entry<P: Plugin, const COUNT: usize>(
    messages: &'static MessagePointers<COUNT>,
) -> memprof_plugin_entry_t {
    memprof_plugin_entry_t {
        struct_size: size_of::<memprof_plugin_entry_t>(),
        abi_version: MEMPROF_ABI_VERSION,
        reserved: 0,
        id: memprof_str_t::new(P::ID),
        version: memprof_str_t::new(P::VERSION),
        build_info: memprof_str_t::new(BUILD_INFO),
        messages: messages.0.as_ptr(),
        message_count: COUNT,
        create: Some(create_plugin::<P>),
        handle_message: Some(handle_message::<P>),
        destroy: Some(destroy_plugin::<P>),
        get_extension: Some(get_extension::<P>),
    }
}

impl<P: Plugin> host_log::LogTarget for P {
    const TARGET: &'static str = P::ID;
}

/// Pid of the process that has an instance, or is creating one; 0 if there is none. Compared with the current pid,
/// because a forked child inherits the value but not the claim.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Claims the library's only instance for the process with id `own`, by storing the id in `owner`. Returns false if
/// this process has already claimed the instance. A forked child may claim it although its parent has.
fn claim_instance_for_process(owner: &AtomicU32, own: u32) -> bool {
    owner.swap(own, Ordering::AcqRel) != own
}

/// Implements `create` of memprof.h: creates `P` from its configuration, and sends the library's log to the host.
/// Refuses a null pointer, a host of another ABI, and a second instance in one process. Logs a failure or a panic, and
/// returns its status.
unsafe extern "C" fn create_plugin<P: Plugin>(
    host: *const memprof_host_t,
    config: memprof_str_t,
    plugin: *mut *mut memprof_plugin_t,
) -> Status {
    // SAFETY: memprof.h, `create`: the host struct is valid until `destroy` returns.
    let host = match unsafe { Host::new(host) } {
        Ok(host) if !plugin.is_null() => host,
        _ => return MEMPROF_ABI_MISMATCH,
    };
    if !claim_instance_for_process(&OWNER, process::id()) {
        host.log(
            log::Level::Error,
            P::ID,
            "this library already has an instance in the process; destroy it before another host creates one",
        );
        return MEMPROF_INTERNAL;
    }
    crate::stay_loaded();
    // SAFETY: `claim_instance_for_process` lets only one thread of this process get here at a time.
    unsafe { host_log::set_host::<P>(host) };
    let created = catch_panic(|| {
        // SAFETY: memprof.h, `create`: the text is borrowed for the call.
        let config = unsafe { config.as_str() }
            .map_err(|error| Failure::new(MEMPROF_INVALID_ARGUMENT, format!("config: {error}")))?;
        P::create(host, config)
    });
    match created {
        Ok(instance) => {
            // SAFETY: memprof.h, `create`: `plugin` is the address for the instance, and was checked for null.
            unsafe { *plugin = Box::into_raw(Box::new(instance)).cast() };
            MEMPROF_OK
        }
        Err(failure) => {
            host.log(log::Level::Error, P::ID, &failure.to_string());
            clear_instance();
            failure.status()
        }
    }
}

/// Implements `handle_message` of memprof.h: checks the message's name, parses its arguments and calls the plugin. A
/// failure or a panic becomes the returned status.
///
/// The failure is also the error reply if the plugin has not begun a reply. It is appended to a reply that was begun,
/// unless that is JSON.
unsafe extern "C" fn handle_message<P: Plugin>(
    plugin: *mut memprof_plugin_t,
    name: memprof_str_t,
    args: memprof_str_t,
    reply: *const memprof_reply_t,
) -> Status {
    if plugin.is_null() || reply.is_null() {
        return MEMPROF_INTERNAL;
    }
    // SAFETY: `create` made the instance from a `Box<P>`. memprof.h, `destroy`: the host makes no calls after it.
    let plugin = unsafe { &*plugin.cast::<P>() };
    // SAFETY: the pointer is not null. memprof.h, `handle_message`: the host lends the struct for the call.
    let mut reply = unsafe { Reply::new(reply) };
    // SAFETY: memprof.h, `handle_message`: the text is borrowed for the call.
    let name = unsafe { name.as_str() };
    // SAFETY: memprof.h, `handle_message`: the text is borrowed for the call.
    let args = unsafe { args.as_str() };
    let handled = catch_panic(|| {
        let shown = name.unwrap_or("what is not UTF-8");
        let message = name
            .ok()
            .and_then(|name| P::MESSAGES.iter().find(|known| known.name() == name));
        let message = message.ok_or_else(|| unknown_message_failure::<P>(shown))?;
        let args =
            args.map_err(|error| Failure::new(MEMPROF_INVALID_ARGUMENT, format!("args: {error}")))?;
        let args = Arguments::parse(args)?.with_usage(message.usage());
        plugin.handle_message(message.name(), args, &mut reply)
    });
    match handled {
        Ok(()) => MEMPROF_OK,
        Err(failure) => {
            let name = name.unwrap_or_default();
            if failure.kind == ErrorKind::Panic {
                log::error!("message {name:?} of plugin {} ended in a panic", P::ID);
            }
            // If the host does not accept the error text, the returned status still reports the failure.
            let written = match reply.has_begun() {
                // The plugin's own JSON body explains the failure, as the body of `doctor` does.
                true if reply.is_json() => Ok(()),
                true => {
                    log::error!("message {name:?} failed after a part of its reply: {failure}");
                    reply.write(format!("\nerror: {failure}\n").as_bytes())
                }
                false => reply.json(&failure.to_json()),
            };
            if let Err(error) = written {
                log::warn!("{error}");
            }
            failure.status()
        }
    }
}

/// Implements `destroy` of memprof.h: drops the instance, so that `create` may be called again. Logs a panic. Ignores a
/// null pointer.
unsafe extern "C" fn destroy_plugin<P: Plugin>(plugin: *mut memprof_plugin_t) {
    if plugin.is_null() {
        return;
    }
    // SAFETY: `create` made the instance from a `Box<P>`. memprof.h, `destroy`: the host calls it once, while no other
    // call is running.
    let plugin = unsafe { Box::from_raw(plugin.cast::<P>()) };
    if let Err(failure) = catch_panic(|| {
        drop(plugin);
        Ok(())
    }) {
        log::error!("{failure}");
    }
    clear_instance();
}

/// Implements `get_extension` of memprof.h: returns the `memprof_threads_t` for its id, and null for other ids.
unsafe extern "C" fn get_extension<P: Plugin>(
    _: *mut memprof_plugin_t,
    id: memprof_str_t,
) -> *const c_void {
    // SAFETY: memprof.h, `get_extension`: the text is borrowed for the call.
    match unsafe { id.as_str() } {
        Ok(MEMPROF_EXTENSION_THREADS) => ptr::from_ref(&ThreadsExtension::<P>::EXTENSION).cast(),
        _ => ptr::null(),
    }
}

/// Provides the extension `memprof.threads/1` of plugin `P`.
struct ThreadsExtension<P>(PhantomData<P>);

impl<P: Plugin> ThreadsExtension<P> {
    const EXTENSION: memprof_threads_t = memprof_threads_t {
        struct_size: size_of::<memprof_threads_t>(),
        enter: Some(enter_thread::<P>),
    };
}

/// Implements `enter` of `memprof_threads_t`: lets the plugin prepare the calling thread. Ignores a null pointer, and a
/// panic of the plugin.
unsafe extern "C" fn enter_thread<P: Plugin>(plugin: *mut memprof_plugin_t) {
    // SAFETY: memprof.h, `memprof_threads_t`: the pointer is null, or an instance between `create` and `destroy`.
    // `create` made it from a `Box<P>`.
    let Some(plugin) = (unsafe { plugin.cast::<P>().as_ref() }) else {
        return;
    };
    let entered = panic::catch_unwind(AssertUnwindSafe(|| plugin.enter_thread()));
    if let Err(payload) = entered {
        // The payload is leaked, because dropping it runs foreign code, which may panic again.
        std::mem::forget(payload);
    }
}

/// Clears the host, and blocks until all log calls into it have returned. Then allows this process to create an
/// instance again.
fn clear_instance() {
    host_log::clear_host();
    OWNER.store(0, Ordering::Release);
}

/// Maximum number of characters of an unknown message name to repeat in replies and log lines.
const MAX_SHOWN: usize = 64;

/// Creates the failure for an unknown message, with the valid names as the remedy. Escapes `name`, and cuts it after
/// [`MAX_SHOWN`] characters.
fn unknown_message_failure<P: Plugin>(name: &str) -> Failure {
    let mut shown: String = name.escape_debug().take(MAX_SHOWN).collect();
    if name.escape_debug().nth(MAX_SHOWN).is_some() {
        shown.push('…');
    }

    let names: Vec<_> = P::MESSAGES.iter().map(Message::name).collect();
    Failure::new(
        MEMPROF_UNKNOWN_MESSAGE,
        format!("{} has no message \"{shown}\"", P::ID),
    )
    .remedy(format!("valid messages: {}", names.join(", ")))
}

/// Runs `work` of the plugin. A panic becomes a [`Failure`] of kind `Panic`, with the panic's text.
fn catch_panic<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|payload: Box<dyn Any + Send>| {
        let message = host_log::panic_text(&*payload);
        let failure = Failure::new(MEMPROF_PANIC, format!("the plugin panicked: {message}"))
            .remedy("the host's log names the place; the plugin's author needs that line");
        // The payload is leaked, because dropping it runs foreign code, which may panic again.
        std::mem::forget(payload);
        Err(failure)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn child_forked_during_create_claims_own_instance() {
        let owner = AtomicU32::new(0);
        let claims = [1, 1, 2, 2].map(|process| claim_instance_for_process(&owner, process));
        assert_eq!(claims, [true, false, true, false]);
    }
}
