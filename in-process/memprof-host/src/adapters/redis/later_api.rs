//! Functions of redismodule.h that only later versions of Redis have.

use std::ffi::{CStr, c_char, c_int, c_ulonglong, c_void};

use super::Ctx;
use crate::adapters::host_symbols::to_typed_pointer;

/// Functions of Redis 6.0 that read a section of INFO.
#[derive(Clone, Copy, Debug)]
struct InfoApi {
    get: unsafe extern "C" fn(Ctx, *const c_char) -> *mut c_void,
    field: unsafe extern "C" fn(*mut c_void, *const c_char, *mut c_int) -> c_ulonglong,
    free: unsafe extern "C" fn(Ctx, *mut c_void),
}

/// Functions of Redis 7.2 that name the categories of a command.
#[derive(Clone, Copy, Debug)]
struct CategoryApi {
    get_command: unsafe extern "C" fn(Ctx, *const c_char) -> *mut c_void,
    set: unsafe extern "C" fn(*mut c_void, *const c_char) -> c_int,
}

/// Functions of later versions, as far as this Redis has them.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaterApi {
    info: Option<InfoApi>,
    categories: Option<CategoryApi>,
}

impl LaterApi {
    /// Looks up the functions with `find`, which returns null for one that this Redis does not have. A group of
    /// functions is left out if one of them is missing.
    pub(super) fn find(find: impl Fn(&CStr) -> *mut c_void) -> Self {
        #[expect(clippy::multiple_unsafe_ops_per_block, reason = "one promise for all")]
        // SAFETY: redismodule.h declares functions of these types, since Redis 6.0.
        let info = || unsafe {
            Some(InfoApi {
                get: to_typed_pointer(find(c"RedisModule_GetServerInfo"))?,
                field: to_typed_pointer(find(c"RedisModule_ServerInfoGetFieldUnsigned"))?,
                free: to_typed_pointer(find(c"RedisModule_FreeServerInfo"))?,
            })
        };
        #[expect(clippy::multiple_unsafe_ops_per_block, reason = "one promise for both")]
        // SAFETY: redismodule.h declares functions of these types, since Redis 7.2.
        let categories = || unsafe {
            Some(CategoryApi {
                get_command: to_typed_pointer(find(c"RedisModule_GetCommand"))?,
                set: to_typed_pointer(find(c"RedisModule_SetCommandACLCategories"))?,
            })
        };
        Self {
            info: info(),
            categories: categories(),
        }
    }

    /// Returns whether clients are connected: there are none while Redis starts. False if Redis does not say.
    pub(super) fn has_clients(&self, ctx: Ctx) -> bool {
        let Some(info) = self.info else {
            return false;
        };
        // SAFETY: redismodule.h: the context of the call, and a NUL-terminated name.
        let section = unsafe { (info.get)(ctx, c"clients".as_ptr()) };
        let mut error = 0;
        // SAFETY: redismodule.h: the section of the call above; the error may be written to.
        let count = unsafe { (info.field)(section, c"connected_clients".as_ptr(), &raw mut error) };
        // SAFETY: redismodule.h: a section is freed once, with the context of the call that returned it.
        unsafe { (info.free)(ctx, section) };
        error == 0 && count > 0
    }

    /// Puts a new command into the ACL categories `admin`, `dangerous` and `read`. Before Redis 7.2, or if Redis
    /// refuses, the command stays in no category.
    pub(super) fn set_command_categories(&self, ctx: Ctx, command: &CStr) {
        let Some(categories) = self.categories else {
            return;
        };
        // SAFETY: redismodule.h: the context of `RedisModule_OnLoad`, and a NUL-terminated name.
        let command = unsafe { (categories.get_command)(ctx, command.as_ptr()) };
        if !command.is_null() {
            // SAFETY: redismodule.h: a command of this module, while it is loaded.
            unsafe { (categories.set)(command, c"admin dangerous read".as_ptr()) };
        }
    }
}
