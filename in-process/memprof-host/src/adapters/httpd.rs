//! Apache httpd 2.4: `LoadModule memory_profile_module /path/memory_profile.so`.
//!
//! Each child opens a control socket when it begins; the module does nothing else, and nothing in the parent and
//! in `httpd -t`. The config comes from the environment, which Debian sets in /etc/apache2/envvars.
#![expect(unsafe_code, reason = "the module's struct, which httpd writes to")]

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_int, c_ulong, c_void};
use std::ptr;

use memprof_plugin_abi::raw::memprof_plugin_entry_t;

use super::host_symbols::find;
use super::{catch_panic, delayed_start};

/// `ap_mmn.h`, `MODULE_MAGIC_NUMBER_MAJOR` of all of httpd 2.4; another httpd refuses the module.
const VERSION: c_int = 20_120_211;
/// `ap_mmn.h`, `MODULE_MAGIC_COOKIE`: "AP24".
const COOKIE: c_ulong = 0x4150_3234;
/// `apr_hooks.h`, `APR_HOOK_MIDDLE`.
const MIDDLE: c_int = 10;

/// What httpd calls with a pool when it has read its config.
#[doc(hidden)]
pub type RegisterHooks = extern "C" fn(*const c_void);
/// What httpd calls with a pool and a server when a child begins.
#[doc(hidden)]
pub type ChildInit = extern "C" fn(*const c_void, *const c_void);

type HookChildInit = unsafe extern "C" fn(ChildInit, *const c_void, *const c_void, c_int);

/// `http_config.h`, `module_struct`.
#[repr(C)]
#[derive(Debug)]
struct Fields {
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
    /// Since 2.4.47.
    flags: c_int,
}

/// `module` of `http_config.h`, which httpd finds by the name.
#[doc(hidden)]
#[repr(transparent)]
#[derive(Debug)]
pub struct Module(UnsafeCell<Fields>);

// SAFETY: written to by httpd alone, while it reads its config on one thread.
unsafe impl Sync for Module {}

impl Module {
    /// A module without directives.
    pub const fn new(name: &'static CStr, register_hooks: RegisterHooks) -> Self {
        Self(UnsafeCell::new(Fields {
            version: VERSION,
            minor_version: 0,
            module_index: -1,
            name: name.as_ptr(),
            dynamic_load_handle: ptr::null(),
            next: ptr::null(),
            magic: COOKIE,
            rewrite_args: 0,
            configs: [0; 4],
            commands: 0,
            register_hooks,
            flags: 0,
        }))
    }
}

/// Asks httpd to call `child_init` in each child.
#[doc(hidden)]
pub fn register_hooks(child_init: ChildInit) {
    // SAFETY: http_config.h declares it so.
    let hook: Option<HookChildInit> = unsafe { find(c"ap_hook_child_init") };
    if let Some(hook) = hook {
        // SAFETY: called while httpd registers hooks; the function is never unloaded.
        unsafe { hook(child_init, ptr::null(), ptr::null(), MIDDLE) };
    }
}

/// Lets the child open its socket.
#[doc(hidden)]
pub fn child_init(entry: &'static memprof_plugin_entry_t) {
    catch_panic((), || delayed_start::start_delayed(entry));
}

#[doc(hidden)]
#[macro_export]
macro_rules! __export_httpd {
    ($how:ident, $entry:path) => {
        const _: () = {
            use $crate::adapters::httpd;

            extern "C" fn child_init(
                _pool: *const ::std::ffi::c_void,
                _server: *const ::std::ffi::c_void,
            ) {
                httpd::child_init(&$entry);
            }
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
    fn layouts_are_those_of_the_header() {
        assert_eq!(offset_of!(Fields, module_index), 8);
        assert_eq!(offset_of!(Fields, name), 16);
        assert_eq!(offset_of!(Fields, magic), 40);
        assert_eq!(offset_of!(Fields, commands), 88);
        assert_eq!(offset_of!(Fields, register_hooks), 96);
        assert_eq!(offset_of!(Fields, flags), 104);
    }
}
