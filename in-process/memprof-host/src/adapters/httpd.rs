//! Apache httpd 2.4: `LoadModule memory_profile_module /path/memory_profile.so`.
//!
//! Each child opens a control socket when it starts. The module does nothing else, and nothing in the parent and in
//! `httpd -t`. The config comes from the environment, which Debian sets in /etc/apache2/envvars.
#![expect(unsafe_code, reason = "the module's struct, which httpd writes to")]

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_int, c_ulong, c_void};
use std::ptr;

use memprof_plugin_abi::raw::memprof_plugin_entry_t;

use super::host_symbols::find_symbol;
use super::{catch_panic, delayed_start};

/// `ap_mmn.h`, `MODULE_MAGIC_NUMBER_MAJOR` of every httpd 2.4. An httpd with another number refuses the module.
const MODULE_MAGIC_NUMBER: c_int = 20_120_211;
/// `ap_mmn.h`, `MODULE_MAGIC_COOKIE`: "AP24".
const MODULE_MAGIC_COOKIE: c_ulong = 0x4150_3234;
/// `apr_hooks.h`, `APR_HOOK_MIDDLE`.
const HOOK_MIDDLE: c_int = 10;

/// The function that httpd calls with a pool after it has read its config.
#[doc(hidden)]
pub type RegisterHooks = extern "C" fn(*const c_void);
/// The function that httpd calls with a pool and a server when a child starts.
#[doc(hidden)]
pub type ChildInit = extern "C" fn(*const c_void, *const c_void);

type HookChildInit = unsafe extern "C" fn(ChildInit, *const c_void, *const c_void, c_int);

/// The fields of `module_struct` in `http_config.h`.
#[repr(C)]
#[derive(Debug)]
struct ModuleFields {
    version: c_int,
    minor_version: c_int,
    module_index: c_int,
    name: *const c_char,
    dynamic_load_handle: *const c_void,
    next: *const c_void,
    magic: c_ulong,
    rewrite_args: usize,
    configs: [usize; 4],
    commands: usize,
    register_hooks: RegisterHooks,
    /// Present since httpd 2.4.47.
    flags: c_int,
}

/// `module` of `http_config.h`, which httpd finds by its symbol.
#[doc(hidden)]
#[repr(transparent)]
#[derive(Debug)]
pub struct Module(UnsafeCell<ModuleFields>);

// SAFETY: only httpd writes to it, on one thread while it reads its config.
unsafe impl Sync for Module {}

impl Module {
    /// Creates a module without directives. httpd calls `register_hooks` when it loads the module.
    pub const fn new(name: &'static CStr, register_hooks: RegisterHooks) -> Self {
        Self(UnsafeCell::new(ModuleFields {
            version: MODULE_MAGIC_NUMBER,
            minor_version: 0,
            // httpd assigns the index.
            module_index: -1,
            name: name.as_ptr(),
            dynamic_load_handle: ptr::null(),
            next: ptr::null(),
            magic: MODULE_MAGIC_COOKIE,
            rewrite_args: 0,
            configs: [0; 4],
            commands: 0,
            register_hooks,
            flags: 0,
        }))
    }
}

/// Makes httpd call `child_init` in each child. Does nothing in a program that has no `ap_hook_child_init`.
#[doc(hidden)]
pub fn register_hooks(child_init: ChildInit) {
    // SAFETY: http_config.h declares a function of this type.
    let hook: Option<HookChildInit> = unsafe { find_symbol(c"ap_hook_child_init") };
    if let Some(hook) = hook {
        // SAFETY: httpd is registering hooks; the function is in a library that is never unloaded.
        unsafe { hook(child_init, ptr::null(), ptr::null(), HOOK_MIDDLE) };
    }
}

/// Starts the plugin and the control socket of a child, after a delay.
#[doc(hidden)]
pub fn start_in_child(entry: &'static memprof_plugin_entry_t) {
    catch_panic((), || delayed_start::start_plugin_delayed(entry));
}

#[doc(hidden)]
#[macro_export]
macro_rules! __export_httpd {
    ($how:ident, $entry:path) => {
        const _: () = {
            use $crate::adapters::httpd;

            /// Entry point that httpd calls in each new child.
            extern "C" fn child_init(
                _pool: *const ::std::ffi::c_void,
                _server: *const ::std::ffi::c_void,
            ) {
                httpd::start_in_child(&$entry);
            }
            /// Entry point that httpd calls when it loads the module.
            extern "C" fn register_hooks(_pool: *const ::std::ffi::c_void) {
                httpd::register_hooks(child_init);
            }

            #[unsafe(export_name = concat!(env!("CARGO_CRATE_NAME"), "_module"))]
            static MODULE: httpd::Module =
                httpd::Module::new($crate::__library_name!("mod_", ".c"), register_hooks);
        };
    };
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn layout_equals_header() {
        assert_eq!(offset_of!(ModuleFields, module_index), 8);
        assert_eq!(offset_of!(ModuleFields, name), 16);
        assert_eq!(offset_of!(ModuleFields, magic), 40);
        assert_eq!(offset_of!(ModuleFields, commands), 88);
        assert_eq!(offset_of!(ModuleFields, register_hooks), 96);
        assert_eq!(offset_of!(ModuleFields, flags), 104);
    }
}
