//! nginx 1.10 and later: `load_module /path/memory_profile.so;` as the first line of nginx.conf.
//!
//! Each worker, the cache's processes too, opens a control socket when it begins; the module does nothing else,
//! and nothing in the master and in `nginx -t`. The config comes from the environment: `env MEMPROF_CONFIG=FILE;`.
#![expect(unsafe_code, reason = "the module's structs, which nginx writes to")]

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_void};
use std::ops::RangeInclusive;
use std::ptr;

use memprof_plugin_abi::raw::memprof_plugin_entry_t;

use super::host_symbols::find_symbol;
use super::{catch_panic, delayed_start};

/// 1.10.0 to 1.31, in which `ngx_module.h` declares the same structs. For another one the module's version stays 0,
/// which nginx refuses: "version 0 instead of 1032000".
const KNOWN: RangeInclusive<usize> = 1_010_000..=1_031_999;

/// nginx.h, `NGX_CORE_MODULE`: "CORE".
const CORE: usize = 0x4552_4F43;
/// `ngx_module.h`, `NGX_MODULE_UNSET_INDEX`.
const UNSET: usize = usize::MAX;

/// `ngx_core.h`, `NGX_OK`; anything else ends the worker.
const OK: isize = 0;

/// What nginx calls with its cycle when a worker begins.
#[doc(hidden)]
pub type InitProcess = extern "C" fn(*const c_void) -> isize;

/// ngx_module.h, `ngx_core_module_t`: a module of the core without a config.
#[doc(hidden)]
#[repr(C)]
#[derive(Debug)]
pub struct Context {
    name_length: usize,
    name: *const c_char,
    create_conf: usize,
    init_conf: usize,
}

/// `ngx_conf_file.h`, `ngx_null_command`, which ends a list of directives.
#[repr(C)]
#[derive(Debug)]
struct NullCommand([usize; 7]);

static NO_DIRECTIVES: NullCommand = NullCommand([0; 7]);

/// `ngx_module.h`, `ngx_module_t`.
#[repr(C)]
#[derive(Debug)]
struct Fields {
    ctx_index: usize,
    index: usize,
    name: *const c_char,
    spare: [usize; 2],
    version: usize,
    signature: *const c_char,
    context: *const Context,
    directives: *const NullCommand,
    kind: usize,
    init_master: usize,
    init_module: usize,
    init_process: InitProcess,
    others: [usize; 12],
}

/// `ngx_module_t`, which nginx finds by the name.
#[doc(hidden)]
#[repr(transparent)]
#[derive(Debug)]
pub struct Module(UnsafeCell<Fields>);

/// A list that nginx finds by its name: an element, and null.
#[doc(hidden)]
#[repr(transparent)]
#[derive(Debug)]
pub struct List<T>(pub [*const T; 2]);

// SAFETY: texts of the library's, never written to.
unsafe impl Sync for Context {}
// SAFETY: written to while the loader, and then nginx, load the library; both do so on one thread.
unsafe impl Sync for Module {}
// SAFETY: pointers to what is static and `Sync`.
unsafe impl<T> Sync for List<T> {}

impl Context {
    /// That of a module of this name.
    pub const fn new(name: &'static CStr) -> Self {
        Self {
            name_length: name.count_bytes(),
            name: name.as_ptr(),
            create_conf: 0,
            init_conf: 0,
        }
    }
}

impl Module {
    /// A module for no version of nginx.
    pub const fn new(context: &'static Context, init_process: InitProcess) -> Self {
        Self(UnsafeCell::new(Fields {
            ctx_index: UNSET,
            index: UNSET,
            name: ptr::null(),
            spare: [0; 2],
            version: 0,
            signature: c"".as_ptr(),
            context,
            directives: &raw const NO_DIRECTIVES,
            kind: CORE,
            init_master: 0,
            init_module: 0,
            init_process,
            others: [0; 12],
        }))
    }

    /// Makes it one for the nginx that loads the library, where one does.
    pub fn adopt_nginx_version(&self) {
        // SAFETY: a pointer to data.
        let Some(core) = (unsafe { find_symbol::<*const Fields>(c"ngx_core_module") }) else {
            return;
        };
        // SAFETY: ngx_core.h: a module, up to its signature the same in all versions since 1.9.11.
        let core = unsafe { &*core };
        if KNOWN.contains(&core.version) {
            // SAFETY: the loader runs this before it lets anybody else know of the module.
            let own = unsafe { &mut *self.0.get() };
            own.version = core.version;
            own.signature = core.signature;
        }
    }
}

/// Lets the worker open its socket.
#[doc(hidden)]
pub fn init_process(entry: &'static memprof_plugin_entry_t) -> isize {
    catch_panic((), || delayed_start::start_delayed(entry));
    OK
}

#[doc(hidden)]
#[macro_export]
macro_rules! __export_nginx {
    ($how:ident, $entry:path) => {
        const _: () = {
            use $crate::adapters::nginx;

            const NAME: &::std::ffi::CStr = $crate::__library_name!();

            extern "C" fn init_process(_cycle: *const ::std::ffi::c_void) -> isize {
                nginx::init_process(&$entry)
            }
            static CONTEXT: nginx::Context = nginx::Context::new(NAME);
            static MODULE: nginx::Module = nginx::Module::new(&CONTEXT, init_process);

            #[unsafe(export_name = "ngx_modules")]
            static MODULES: nginx::List<nginx::Module> = nginx::List([&MODULE, ::std::ptr::null()]);
            #[unsafe(export_name = "ngx_module_names")]
            static NAMES: nginx::List<::std::ffi::c_char> =
                nginx::List([NAME.as_ptr(), ::std::ptr::null()]);

            #[used]
            #[unsafe(link_section = ".init_array")]
            static LOADED: extern "C" fn() = {
                extern "C" fn loaded() {
                    MODULE.adopt_nginx_version();
                }
                loaded
            };
        };
    };
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn layouts_are_those_of_the_headers() {
        assert_eq!(size_of::<Context>(), 32);
        assert_eq!(size_of::<Fields>(), 25 * 8);
        assert_eq!(offset_of!(Fields, name), 2 * 8);
        assert_eq!(offset_of!(Fields, version), 5 * 8);
        assert_eq!(offset_of!(Fields, signature), 6 * 8);
        assert_eq!(offset_of!(Fields, kind), 9 * 8);
        assert_eq!(offset_of!(Fields, init_process), 12 * 8);
    }
}
