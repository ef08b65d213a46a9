//! Lua 5.1 to 5.4 and `LuaJIT`: `require "memory_profile"`, found by `package.cpath`.
//!
//! `send(message)` returns a string, `call(message)` what the reply is as JSON, mostly a table. Where the message fails
//! both return nil and the reason, as Lua's own `io` does. The thread waits for the answer, as for any function in C.
//!
//! Errors of Lua leave by longjmp(3), or unwind: where one may be raised, no frame of ours holds anything that
//! has to be dropped.
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

/// What is used of lua.h and lauxlib.h. A process may hold several Luas, each with functions of its own.
#[derive(Clone, Copy)]
struct Lua {
    check_string: unsafe extern "C-unwind" fn(State, c_int, *mut usize) -> *const c_char,
    set_field: unsafe extern "C-unwind" fn(State, c_int, *const c_char),
    push_function: unsafe extern "C-unwind" fn(State, Function, c_int),
    push_pointer: unsafe extern "C-unwind" fn(State, *const c_void),
    to_pointer: unsafe extern "C-unwind" fn(State, c_int) -> *const c_void,
    values: LuaValueApi,
    /// Does not return.
    error: unsafe extern "C-unwind" fn(State) -> c_int,
    protected_call: ProtectedCall,
}

#[derive(Clone, Copy)]
enum ProtectedCall {
    /// 5.1 and `LuaJIT`.
    Plain(unsafe extern "C-unwind" fn(State, c_int, c_int, c_int) -> c_int),
    /// Since 5.2, with a context and a continuation.
    Continued(
        unsafe extern "C-unwind" fn(State, c_int, c_int, c_int, isize, *const c_void) -> c_int,
    ),
}

impl Lua {
    fn of(caller: CallerAddress) -> Result<Self, MissingSymbol> {
        let host = caller.functions();
        #[expect(clippy::multiple_unsafe_ops_per_block, reason = "one promise for all")]
        // SAFETY: lua.h and lauxlib.h declare them so, from 5.1 to 5.4.
        unsafe {
            Ok(Self {
                check_string: host.find(c"luaL_checklstring")?,
                set_field: host.find(c"lua_setfield")?,
                push_function: host.find(c"lua_pushcclosure")?,
                push_pointer: host.find(c"lua_pushlightuserdata")?,
                to_pointer: host.find(c"lua_touserdata")?,
                values: LuaValueApi::of(&host)?,
                error: host.find(c"lua_error")?,
                protected_call: match host.find(c"lua_pcallk") {
                    Ok(call) => ProtectedCall::Continued(call),
                    Err(_) => ProtectedCall::Plain(host.find(c"lua_pcall")?),
                },
            })
        }
    }
}

/// Opens the module: a table with its functions.
///
/// # Safety
/// Lua calls `luaopen_*` with this state.
#[doc(hidden)]
pub unsafe fn open(
    entry: &'static memprof_plugin_entry_t,
    state: State,
    caller: CallerAddress,
) -> c_int {
    delayed_start::ensure_instance(entry);
    let Some(lua) = lua(caller) else {
        return 0;
    };
    #[expect(clippy::multiple_unsafe_ops_per_block, reason = "one promise for all")]
    // SAFETY: lua.h: there is room for 20 values; the functions' library is never unloaded.
    unsafe {
        (lua.values.create_table)(state, 0, 2);
        (lua.push_function)(state, send, 0);
        (lua.set_field)(state, -2, c"send".as_ptr());
        (lua.push_function)(state, call, 0);
        (lua.set_field)(state, -2, c"call".as_ptr());
    }
    1
}

fn lua(caller: CallerAddress) -> Option<Lua> {
    catch_panic(None, || Lua::of(caller).map_err(delayed_start::refuse).ok())
}

#[unsafe(naked)]
unsafe extern "C-unwind" fn send(state: State) -> c_int {
    naked_asm!("mov rsi, [rsp]", "xor edx, edx", "jmp {}", sym answer)
}

#[unsafe(naked)]
unsafe extern "C-unwind" fn call(state: State) -> c_int {
    naked_asm!("mov rsi, [rsp]", "mov edx, 1", "jmp {}", sym answer)
}

unsafe extern "C-unwind" fn answer(state: State, caller: CallerAddress, is_json: bool) -> c_int {
    let Some(lua) = lua(caller) else {
        return 0;
    };
    let mut length = 0;
    // SAFETY: lauxlib.h: raises an error unless the first argument is a string.
    let message = unsafe { (lua.check_string)(state, 1, &raw mut length) };
    // SAFETY: lua.h. It may raise an error: before there is an answer.
    unsafe { (lua.push_function)(state, push_answer, 0) };
    // SAFETY: lua.h: `length` bytes, which stay while the argument is on the stack.
    let message = unsafe { slice::from_raw_parts(message.cast::<u8>(), length) };
    let answer = send_message(message, is_json);
    let count = if answer.is_ok() { 1 } else { 2 };
    let answer = Box::into_raw(Box::new(answer));
    // SAFETY: lua.h: raises no error.
    unsafe { (lua.push_pointer)(state, answer.cast()) };
    // Errors come back as a status, so that the answer is always dropped.
    let status = match lua.protected_call {
        // SAFETY: lua.h: a function and its one argument are on the top.
        ProtectedCall::Plain(call) => unsafe { call(state, 1, count, 0) },
        // SAFETY: as above.
        ProtectedCall::Continued(call) => unsafe { call(state, 1, count, 0, 0, ptr::null()) },
    };
    // SAFETY: made above.
    drop(unsafe { Box::from_raw(answer) });
    if status != 0 {
        // SAFETY: lua.h: raises what is on the top. Nothing is held any more.
        unsafe { (lua.error)(state) };
    }
    count
}

fn send_message(message: &[u8], is_json: bool) -> Result<Value, String> {
    if is_json {
        let json = delayed_start::call(message)?;
        serde_json::from_str(&json).map_err(|error| error.to_string())
    } else {
        delayed_start::send(message).map(Value::String)
    }
}

#[unsafe(naked)]
unsafe extern "C-unwind" fn push_answer(state: State) -> c_int {
    naked_asm!("mov rsi, [rsp]", "jmp {}", sym push_answer_from)
}

unsafe extern "C-unwind" fn push_answer_from(state: State, caller: CallerAddress) -> c_int {
    let Some(lua) = lua(caller) else {
        return 0;
    };
    // SAFETY: lua.h: the one argument is the pointer that `answer` pushed.
    let answer = unsafe { (lua.to_pointer)(state, 1) };
    // SAFETY: `answer` drops it after this call.
    match unsafe { &*answer.cast::<Result<Value, String>>() } {
        Ok(value) => {
            // SAFETY: in a protected call.
            unsafe { lua.values.push(state, value) };
            1
        }
        Err(why) => {
            // SAFETY: lua.h: there is room for 20 values.
            unsafe { (lua.values.push_nil)(state) };
            // SAFETY: as above.
            unsafe { lua.values.push_text(state, why) };
            2
        }
    }
}

#[doc(hidden)]
#[macro_export]
macro_rules! __export_lua {
    ($how:ident, $entry:path) => {
        const _: () = {
            unsafe extern "C-unwind" fn open(
                state: *mut ::std::ffi::c_void,
                caller: $crate::adapters::host_symbols::CallerAddress,
            ) -> ::std::ffi::c_int {
                // SAFETY: the argument of Lua, unchanged.
                unsafe { $crate::adapters::lua::open(&$entry, state, caller) }
            }
            $crate::__export_with_caller!(
                concat!("luaopen_", env!("CARGO_CRATE_NAME")),
                "rsi",
                open
            );
        };
    };
}
