//! The funnel between the host and a [`Plugin`]: every exported function goes through
//! [`contain`], so that no panic, null pointer or malformed message passes it.
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
use crate::{Arguments, Failure, Host, Plugin, Reply, Status};

/// The array of pointers that an entry needs, in static memory.
#[derive(Debug)]
pub struct MessagePointers<const COUNT: usize>([*const memprof_message_t; COUNT]);

// SAFETY: pointers to constants of the plugin's image.
unsafe impl<const COUNT: usize> Sync for MessagePointers<COUNT> {}

impl<const COUNT: usize> MessagePointers<COUNT> {
    /// Points at each of `messages`, of which there are `COUNT`.
    pub const fn new(messages: &'static [Message]) -> Self {
        let mut pointers = [ptr::null(); COUNT];
        let mut at = 0;
        while at < COUNT {
            pointers[at] = &raw const messages[at].0;
            at += 1;
        }
        Self(pointers)
    }
}

/// The entry of plugin `P`.
pub const fn entry<P: Plugin, const COUNT: usize>(
    messages: &'static MessagePointers<COUNT>,
) -> memprof_plugin_entry_t {
    memprof_plugin_entry_t {
        struct_size: size_of::<memprof_plugin_entry_t>(),
        abi_version: MEMPROF_ABI_VERSION,
        reserved: 0,
        id: memprof_str_t::new(P::ID),
        version: memprof_str_t::new(P::VERSION),
        build_info: memprof_str_t::new(concat!("memprof SDK ", env!("CARGO_PKG_VERSION"))),
        messages: messages.0.as_ptr(),
        message_count: COUNT,
        create: Some(create::<P>),
        handle_message: Some(handle_message::<P>),
        destroy: Some(destroy::<P>),
        get_extension: Some(get_extension::<P>),
    }
}

/// The process in which there is an instance, or one is being made; 0: none. A child that was forked
/// while its parent made one has none.
static CREATED: AtomicU32 = AtomicU32::new(0);

/// True for the first that asks in this process.
fn claim_for_process(owner: &AtomicU32, own: u32) -> bool {
    owner.swap(own, Ordering::AcqRel) != own
}

unsafe extern "C" fn create<P: Plugin>(
    host: *const memprof_host_t,
    config: memprof_str_t,
    plugin: *mut *mut memprof_plugin_t,
) -> Status {
    // SAFETY: memprof.h, `create`: the host struct is valid until `destroy` returns.
    let host = match unsafe { Host::new(host) } {
        Ok(host) if !plugin.is_null() => host,
        _ => return MEMPROF_ABI_MISMATCH,
    };
    if !claim_for_process(&CREATED, process::id()) {
        host.log(
            log::Level::Error,
            P::ID,
            "this library already has an instance in the process",
        );
        return MEMPROF_INTERNAL;
    }
    crate::stay_loaded();
    // SAFETY: this thread alone has claimed the library for this process.
    unsafe { host_log::set_host(host) };
    let made = contain(|| {
        // SAFETY: memprof.h, `create`: the text is borrowed for the call.
        let config = unsafe { config.as_str() }
            .map_err(|error| Failure::new(MEMPROF_INVALID_ARGUMENT, format!("config: {error}")))?;
        P::create(host, config)
    });
    match made {
        Ok(made) => {
            // SAFETY: memprof.h, `create`: `plugin` is where the host wants the instance.
            unsafe { *plugin = Box::into_raw(Box::new(made)).cast() };
            MEMPROF_OK
        }
        Err(failure) => {
            host.log(log::Level::Error, P::ID, &failure.to_string());
            clear_instance();
            failure.status()
        }
    }
}

unsafe extern "C" fn handle_message<P: Plugin>(
    plugin: *mut memprof_plugin_t,
    name: memprof_str_t,
    args: memprof_str_t,
    reply: *const memprof_reply_t,
) -> Status {
    if plugin.is_null() || reply.is_null() {
        return MEMPROF_INTERNAL;
    }
    // SAFETY: `create` made it from a `Box<P>`, and the host promises to call no more after
    // `destroy`.
    let plugin = unsafe { &*plugin.cast::<P>() };
    // SAFETY: not null, and lent by the host for the call.
    let mut reply = unsafe { Reply::new(reply) };
    // SAFETY: both texts are borrowed for the call (memprof.h, `handle_message`).
    let name = unsafe { name.as_str() };
    // SAFETY: as above.
    let args = unsafe { args.as_str() };
    let handled = contain(|| {
        let shown = name.unwrap_or("what is not UTF-8");
        let name = name
            .ok()
            .filter(|name| P::MESSAGES.iter().any(|known| known.name() == *name));
        let name = name.ok_or_else(|| unknown_message::<P>(shown))?;
        let args =
            args.map_err(|error| Failure::new(MEMPROF_INVALID_ARGUMENT, format!("args: {error}")))?;
        plugin.handle_message(name, Arguments::parse(args)?, &mut reply)
    });
    match handled {
        Ok(()) => MEMPROF_OK,
        Err(failure) => {
            if !reply.has_begun() {
                // The status says that the call failed even when its explanation is not taken.
                if let Err(refused) = reply.json(&failure.to_json()) {
                    log::warn!("{refused}");
                }
            }
            failure.status()
        }
    }
}

unsafe extern "C" fn destroy<P: Plugin>(plugin: *mut memprof_plugin_t) {
    if plugin.is_null() {
        return;
    }
    // SAFETY: `create` made it from a `Box<P>`; the host calls this once, with no call running.
    let plugin = unsafe { Box::from_raw(plugin.cast::<P>()) };
    if let Err(failure) = contain(|| {
        drop(plugin);
        Ok(())
    }) {
        log::error!("{failure}");
    }
    clear_instance();
}

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

struct ThreadsExtension<P>(PhantomData<P>);

impl<P: Plugin> ThreadsExtension<P> {
    const EXTENSION: memprof_threads_t = memprof_threads_t {
        struct_size: size_of::<memprof_threads_t>(),
        enter: Some(enter_thread::<P>),
    };
}

unsafe extern "C" fn enter_thread<P: Plugin>(plugin: *mut memprof_plugin_t) {
    // SAFETY: memprof.h, `memprof_threads_t`: null, or an instance between `create` and `destroy`,
    // which `create` made from a `Box<P>`.
    let Some(plugin) = (unsafe { plugin.cast::<P>().as_ref() }) else {
        return;
    };
    let entered = panic::catch_unwind(AssertUnwindSafe(|| plugin.enter_thread()));
    if let Err(payload) = entered {
        // Dropping a payload runs foreign code, which may panic again.
        std::mem::forget(payload);
    }
}

fn clear_instance() {
    host_log::clear_host();
    CREATED.store(0, Ordering::Release);
}

/// How much of a name that is none is repeated: a reply and a line of the log stay short.
const SHOWN: usize = 64;

fn unknown_message<P: Plugin>(name: &str) -> Failure {
    let mut shown: String = name.escape_debug().take(SHOWN).collect();
    if name.escape_debug().nth(SHOWN).is_some() {
        shown.push('…');
    }

    let names: Vec<_> = P::MESSAGES.iter().map(Message::name).collect();
    Failure::new(
        MEMPROF_UNKNOWN_MESSAGE,
        format!("{} has no message \"{shown}\"", P::ID),
    )
    .remedy(format!("valid messages: {}", names.join(", ")))
}

/// Runs a plugin's code; a panic becomes a [`Failure`].
fn contain<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|payload: Box<dyn Any + Send>| {
        let message = payload
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("no message");
        let failure = Failure::new(MEMPROF_PANIC, format!("the plugin panicked: {message}"))
            .remedy("the host's log names the place; please report it");
        // Dropping a payload runs foreign code, which may panic again.
        std::mem::forget(payload);
        Err(failure)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_makes_its_own_instance_when_it_was_forked_while_its_parent_made_one() {
        let owner = AtomicU32::new(0);
        let claims = [1, 1, 2, 2].map(|process| claim_for_process(&owner, process));
        assert_eq!(claims, [true, false, true, false]);
    }
}
