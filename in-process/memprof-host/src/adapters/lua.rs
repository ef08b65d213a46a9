//! Lua 5.1 to 5.4 and `LuaJIT`: `require "memory_profile"`, found by `package.cpath`.
//!
//! `send(message)` returns a string; `call(message)` returns the reply's JSON as Lua values, mostly a table. If the
//! message fails, both return nil and the reason, like Lua's `io`. The thread waits for the reply, as for any C
//! function.
//!
//! Lua raises errors by longjmp(3) or by unwinding: while one may be raised, no frame of this module holds a value that
//! must be dropped.
#![expect(unsafe_code, reason = "the API of Lua")]

use std::arch::naked_asm;
use std::ffi::{c_char, c_int, c_void};
use std::{ptr, slice};

use memprof_plugin_abi::raw::memprof_plugin_entry_t;
use serde_json::Value;

use super::host_symbols::{CallerAddress, MissingSymbol};
use super::{catch_panic, delayed_start};

mod values;

use values::LuaValueApi;

type State = *mut c_void;
type Function = unsafe extern "C-unwind" fn(State) -> c_int;

/// Functions of lua.h and lauxlib.h. A process may contain several Luas, each with its own functions.
#[derive(Clone, Copy)]
struct Lua {
    check_string: unsafe extern "C-unwind" fn(State, c_int, *mut usize) -> *const c_char,
    set_field: unsafe extern "C-unwind" fn(State, c_int, *const c_char),
    push_function: unsafe extern "C-unwind" fn(State, Function, c_int),
    push_pointer: unsafe extern "C-unwind" fn(State, *const c_void),
    to_pointer: unsafe extern "C-unwind" fn(State, c_int) -> *const c_void,
    values: LuaValueApi,
    /// Raises an error; does not return.
    error: unsafe extern "C-unwind" fn(State) -> c_int,
    protected_call: ProtectedCall,
}

/// The function for protected calls, whose parameters differ between versions.
#[derive(Clone, Copy)]
enum ProtectedCall {
    /// `lua_pcall` of Lua 5.1 and `LuaJIT`.
    Plain(unsafe extern "C-unwind" fn(State, c_int, c_int, c_int) -> c_int),
    /// `lua_pcallk` since Lua 5.2, with a context and a continuation.
    Continued(
        unsafe extern "C-unwind" fn(State, c_int, c_int, c_int, isize, *const c_void) -> c_int,
    ),
}

impl Lua {
    /// Looks up the functions of the Lua that called, with `lua_pcall` of Lua 5.1 if there is no `lua_pcallk`. Fails
    /// with the name of a function that is missing.
    fn find(caller: CallerAddress) -> Result<Self, MissingSymbol> {
        let host = caller.open_symbols();
        #[expect(clippy::multiple_unsafe_ops_per_block, reason = "one promise for all")]
        // SAFETY: lua.h and lauxlib.h declare functions of these types, from 5.1 to 5.4.
        unsafe {
            Ok(Self {
                check_string: host.find(c"luaL_checklstring")?,
                set_field: host.find(c"lua_setfield")?,
                push_function: host.find(c"lua_pushcclosure")?,
                push_pointer: host.find(c"lua_pushlightuserdata")?,
                to_pointer: host.find(c"lua_touserdata")?,
                values: LuaValueApi::find(&host)?,
                error: host.find(c"lua_error")?,
                protected_call: match host.find(c"lua_pcallk") {
                    Ok(call) => ProtectedCall::Continued(call),
                    Err(_) => ProtectedCall::Plain(host.find(c"lua_pcall")?),
                },
            })
        }
    }
}

/// Opens the module: pushes a table with its functions. Returns the number of pushed values: 1, or 0 if a function of
/// Lua is missing, which is logged.
///
/// # Safety
/// Lua calls `luaopen_*` with `state`.
#[doc(hidden)]
pub unsafe fn open_module(
    entry: &'static memprof_plugin_entry_t,
    state: State,
    caller: CallerAddress,
) -> c_int {
    delayed_start::ensure_instance(entry);
    let Some(lua) = find_lua(caller) else {
        return 0;
    };
    #[expect(clippy::multiple_unsafe_ops_per_block, reason = "one promise for all")]
    // SAFETY: lua.h: a C function has room for 20 values; the functions are in a library that is never unloaded.
    unsafe {
        (lua.values.create_table)(state, 0, 2);
        (lua.push_function)(state, lua_send, 0);
        (lua.set_field)(state, -2, c"send".as_ptr());
        (lua.push_function)(state, lua_call, 0);
        (lua.set_field)(state, -2, c"call".as_ptr());
    }
    1
}

/// Looks up the functions of the Lua that called. `None` if a function is missing, which is logged, or if the lookup
/// panicked.
fn find_lua(caller: CallerAddress) -> Option<Lua> {
    catch_panic(None, || {
        Lua::find(caller)
            .map_err(delayed_start::log_missing_symbol)
            .ok()
    })
}

/// Implements the Lua function `send`: jumps to [`handle_call`] with `is_json` = false, and with its return address, by
/// which the Lua that called is found.
#[unsafe(naked)]
unsafe extern "C-unwind" fn lua_send(state: State) -> c_int {
    naked_asm!("mov rsi, [rsp]", "xor edx, edx", "jmp {}", sym handle_call)
}

/// Implements the Lua function `call`: jumps to [`handle_call`] with `is_json` = true, and with its return address, by
/// which the Lua that called is found.
#[unsafe(naked)]
unsafe extern "C-unwind" fn lua_call(state: State) -> c_int {
    naked_asm!("mov rsi, [rsp]", "mov edx, 1", "jmp {}", sym handle_call)
}

/// Sends the first argument as a message, and pushes the reply: parsed JSON if `is_json`, otherwise a text. Returns the
/// number of results on the stack: 1 for the reply, 2 for nil and the reason for a failure, 0 if a function of Lua is
/// missing. Raises a Lua error if the argument is no string.
unsafe extern "C-unwind" fn handle_call(
    state: State,
    caller: CallerAddress,
    is_json: bool,
) -> c_int {
    let Some(lua) = find_lua(caller) else {
        return 0;
    };
    let mut length = 0;
    // SAFETY: lauxlib.h: luaL_checklstring raises an error unless the first argument is a string.
    let message = unsafe { (lua.check_string)(state, 1, &raw mut length) };
    // SAFETY: lua.h: lua_pushcclosure may raise an error; nothing must be dropped yet.
    unsafe { (lua.push_function)(state, push_reply, 0) };
    // SAFETY: lua.h: `length` bytes, which are valid while the argument is on the stack.
    let message = unsafe { slice::from_raw_parts(message.cast::<u8>(), length) };
    let reply = send_message(message, is_json);
    let count = if reply.is_ok() { 1 } else { 2 };
    let reply = Box::into_raw(Box::new(reply));
    // SAFETY: lua.h: lua_pushlightuserdata raises no error.
    unsafe { (lua.push_pointer)(state, reply.cast()) };
    // A protected call returns errors as a status, so that the reply is always dropped.
    let status = match lua.protected_call {
        // SAFETY: lua.h: a function and its one argument are at the top of the stack.
        ProtectedCall::Plain(call) => unsafe { call(state, 1, count, 0) },
        // SAFETY: lua.h: a function and its one argument are at the top of the stack.
        ProtectedCall::Continued(call) => unsafe { call(state, 1, count, 0, 0, ptr::null()) },
    };
    // SAFETY: a box that was leaked above, and that the protected call only reads.
    drop(unsafe { Box::from_raw(reply) });
    if status != 0 {
        // SAFETY: lua.h: lua_error raises the value at the top; no value of this frame must be dropped any more.
        unsafe { (lua.error)(state) };
    }
    count
}

/// Sends a message to the plugin. Returns its reply: parsed JSON if `is_json`, otherwise a text. If the message failed,
/// the error is the text of the reply.
fn send_message(message: &[u8], is_json: bool) -> Result<Value, String> {
    if is_json {
        let json = delayed_start::send_message_for_json(message)?;
        serde_json::from_str(&json).map_err(|error| error.to_string())
    } else {
        delayed_start::send_message(message).map(Value::String)
    }
}

/// Implements the Lua function that `handle_call` runs as a protected call: jumps to [`push_reply_for_caller`] with its
/// return address, by which the Lua that called is found.
#[unsafe(naked)]
unsafe extern "C-unwind" fn push_reply(state: State) -> c_int {
    naked_asm!("mov rsi, [rsp]", "jmp {}", sym push_reply_for_caller)
}

/// Pushes the reply, to which the one argument points, as a Lua value; pushes nil and the reason if the message failed.
/// Returns the number of values; 0 if a function of Lua is missing.
unsafe extern "C-unwind" fn push_reply_for_caller(state: State, caller: CallerAddress) -> c_int {
    let Some(lua) = find_lua(caller) else {
        return 0;
    };
    // SAFETY: lua.h: the one argument is the pointer that `handle_call` pushed.
    let reply = unsafe { (lua.to_pointer)(state, 1) };
    // SAFETY: `handle_call` drops the reply only after this call.
    match unsafe { &*reply.cast::<Result<Value, String>>() } {
        Ok(value) => {
            // SAFETY: this is a protected call, and the state is that of these functions.
            unsafe { lua.values.push_value(state, value) };
            1
        }
        Err(reason) => {
            // SAFETY: lua.h: a C function has room for 20 values.
            unsafe { (lua.values.push_nil)(state) };
            // SAFETY: this is a protected call, and the state is that of these functions.
            unsafe { lua.values.push_text(state, reason) };
            2
        }
    }
}

#[doc(hidden)]
#[macro_export]
macro_rules! __export_lua {
    ($how:ident, $entry:path) => {
        const _: () = {
            /// Target of `luaopen_*`, which passes its return address as `caller`.
            unsafe extern "C-unwind" fn open(
                state: *mut ::std::ffi::c_void,
                caller: $crate::adapters::host_symbols::CallerAddress,
            ) -> ::std::ffi::c_int {
                // SAFETY: Lua's argument, unchanged.
                unsafe { $crate::adapters::lua::open_module(&$entry, state, caller) }
            }
            $crate::__export_with_caller!(
                concat!("luaopen_", env!("CARGO_CRATE_NAME")),
                "rsi",
                open
            );
        };
    };
}
