//! Converts JSON to Lua values: objects and arrays become tables. Null becomes nil, so a table does not contain it.
#![expect(unsafe_code, reason = "the API of Lua")]

use std::ffi::{c_char, c_int};

use serde_json::Value;

use super::State;
use crate::adapters::host_symbols::{HostSymbols, MissingSymbol};

/// Functions of lua.h and lauxlib.h. `lua_Integer` has 64 bits in all versions; the index of `lua_rawseti` has 32 bits
/// up to 5.2, in the same register.
#[derive(Clone, Copy)]
pub(super) struct LuaValueApi {
    pub(super) create_table: unsafe extern "C-unwind" fn(State, c_int, c_int),
    pub(super) push_nil: unsafe extern "C-unwind" fn(State),
    push_string: unsafe extern "C-unwind" fn(State, *const c_char, usize),
    push_boolean: unsafe extern "C-unwind" fn(State, c_int),
    push_integer: unsafe extern "C-unwind" fn(State, i64),
    push_number: unsafe extern "C-unwind" fn(State, f64),
    set: unsafe extern "C-unwind" fn(State, c_int),
    set_index: unsafe extern "C-unwind" fn(State, c_int, i64),
    check_stack: unsafe extern "C-unwind" fn(State, c_int, *const c_char),
}

impl LuaValueApi {
    /// Looks up Lua's functions in the host. Fails with the first that is missing.
    pub(super) fn find(host: &HostSymbols) -> Result<Self, MissingSymbol> {
        #[expect(clippy::multiple_unsafe_ops_per_block, reason = "one promise for all")]
        // SAFETY: lua.h and lauxlib.h declare functions of these types, from 5.1 to 5.4. The result of lua_pushlstring,
        // which 5.1 does not have, is ignored.
        unsafe {
            Ok(Self {
                create_table: host.find(c"lua_createtable")?,
                push_nil: host.find(c"lua_pushnil")?,
                push_string: host.find(c"lua_pushlstring")?,
                push_boolean: host.find(c"lua_pushboolean")?,
                push_integer: host.find(c"lua_pushinteger")?,
                push_number: host.find(c"lua_pushnumber")?,
                set: host.find(c"lua_rawset")?,
                set_index: host.find(c"lua_rawseti")?,
                check_stack: host.find(c"luaL_checkstack")?,
            })
        }
    }

    /// Pushes a JSON value onto the stack: arrays and objects as tables, null as nil, and numbers that are no integers
    /// of 64 bits as floats.
    ///
    /// # Safety
    /// `state` is a Lua of these functions, in a protected call: Lua's errors unwind through these frames, which hold
    /// no value that must be dropped.
    #[expect(clippy::multiple_unsafe_ops_per_block, reason = "one promise for all")]
    pub(super) unsafe fn push_value(&self, state: State, value: &Value) {
        // SAFETY: lua.h: each function pops and pushes the documented values, and copies texts. `check_stack` ensures
        // room for a table, a key and a value.
        unsafe {
            (self.check_stack)(state, 3, c"the reply is too deep".as_ptr());
            match value {
                Value::Null => (self.push_nil)(state),
                Value::Bool(boolean) => (self.push_boolean)(state, (*boolean).into()),
                Value::Number(number) => match number.as_i64() {
                    Some(integer) => (self.push_integer)(state, integer),
                    None => (self.push_number)(state, number.as_f64().unwrap_or(f64::NAN)),
                },
                Value::String(text) => self.push_text(state, text),
                Value::Array(items) => {
                    (self.create_table)(state, 0, 0);
                    for (item, index) in items.iter().zip(1..) {
                        self.push_value(state, item);
                        (self.set_index)(state, -2, index);
                    }
                }
                Value::Object(members) => {
                    (self.create_table)(state, 0, 0);
                    for (name, member) in members {
                        self.push_text(state, name);
                        self.push_value(state, member);
                        (self.set)(state, -3);
                    }
                }
            }
        }
    }

    /// Pushes a text onto the stack; Lua copies it.
    ///
    /// # Safety
    /// `state` is a Lua of these functions, in a protected call, because Lua may raise an error.
    pub(super) unsafe fn push_text(&self, state: State, text: &str) {
        // SAFETY: the caller promises a protected call in `state`; lua_pushlstring copies the text.
        unsafe { (self.push_string)(state, text.as_ptr().cast(), text.len()) };
    }
}
