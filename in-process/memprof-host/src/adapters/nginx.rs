//! nginx 1.10 and later: `load_module /path/memory_profile.so;` as the first line of nginx.conf.
//!
//! Each worker, including the processes of the cache, opens a control socket when it starts. The module does nothing
//! else, and nothing in the master and in `nginx -t`. The config comes from the environment: `env
//! MEMPROF_CONFIG=FILE;`.
#![expect(unsafe_code, reason = "the module's structs, which nginx writes to")]

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_void};
use std::ops::RangeInclusive;
use std::ptr;

use memprof_plugin_abi::raw::memprof_plugin_entry_t;

use super::host_symbols::find_symbol;
use super::{catch_panic, delayed_start};

/// Versions whose `ngx_module.h` declares the same structs: 1.10.0 to 1.31. For others the module's version stays 0,
/// which nginx refuses: "version 0 instead of 1032000".
const SUPPORTED_VERSIONS: RangeInclusive<usize> = 1_010_000..=1_031_999;

/// nginx.h, `NGX_CORE_MODULE`: "CORE".
const CORE_MODULE: usize = 0x4552_4F43;
/// `ngx_module.h`, `NGX_MODULE_UNSET_INDEX`.
const UNSET_INDEX: usize = usize::MAX;

/// `ngx_core.h`, `NGX_OK`; any other result ends the worker.
const OK: isize = 0;

/// The function that nginx calls with its cycle when a worker starts.
#[doc(hidden)]
pub type InitProcess = extern "C" fn(*const c_void) -> isize;

/// ngx_module.h, `ngx_core_module_t`: a core module without a config.
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
struct ModuleFields {
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

/// `ngx_module_t`, which nginx finds by its name in `ngx_module_names`.
#[doc(hidden)]
#[repr(transparent)]
#[derive(Debug)]
pub struct Module(UnsafeCell<ModuleFields>);

/// A list that nginx finds by its symbol: one element, and null.
#[doc(hidden)]
#[repr(transparent)]
#[derive(Debug)]
pub struct SymbolList<T>(pub [*const T; 2]);

// SAFETY: it contains pointers to static texts, and is never written to.
unsafe impl Sync for Context {}
// SAFETY: it is written to only while the library is loaded, by its constructor and then by nginx, on one thread.
unsafe impl Sync for Module {}
// SAFETY: it contains pointers to static data that is `Sync`, and is never written to.
unsafe impl<T> Sync for SymbolList<T> {}

impl Context {
    /// Creates the context of a module with this name.
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
    /// Creates a module that nginx refuses until [`Module::adopt_nginx_version`] has set its version.
    pub const fn new(context: &'static Context, init_process: InitProcess) -> Self {
        Self(UnsafeCell::new(ModuleFields {
            ctx_index: UNSET_INDEX,
            index: UNSET_INDEX,
            name: ptr::null(),
            spare: [0; 2],
            version: 0,
            signature: c"".as_ptr(),
            context,
            directives: &raw const NO_DIRECTIVES,
            kind: CORE_MODULE,
            init_master: 0,
            init_module: 0,
            init_process,
            others: [0; 12],
        }))
    }

    /// Sets version and signature to those of the nginx that is loading the library. Does nothing outside of nginx, or
    /// if the version is not supported.
    pub fn adopt_nginx_version(&self) {
        // SAFETY: ngx_core.h: the symbol is a struct, whose address is a pointer.
        let Some(core) = (unsafe { find_symbol::<*const ModuleFields>(c"ngx_core_module") }) else {
            return;
        };
        // SAFETY: ngx_core.h: a module, whose fields up to the signature are the same in all versions since 1.9.11.
        let core = unsafe { &*core };
        if SUPPORTED_VERSIONS.contains(&core.version) {
            // SAFETY: this runs in a constructor of the library, before nginx can find the module.
            let own = unsafe { &mut *self.0.get() };
            own.version = core.version;
            own.signature = core.signature;
        }
    }
}

/// Starts the plugin and the control socket of a worker, after a delay. Always returns `NGX_OK`.
#[doc(hidden)]
pub fn start_in_worker(entry: &'static memprof_plugin_entry_t) -> isize {
    catch_panic((), || delayed_start::start_plugin_delayed(entry));
    OK
}

#[doc(hidden)]
#[macro_export]
macro_rules! __export_nginx {
    ($how:ident, $entry:path) => {
        const _: () = {
            use $crate::adapters::nginx;

            const NAME: &::std::ffi::CStr = $crate::__library_name!();

            /// Entry point that nginx calls in each new worker.
            extern "C" fn init_process(_cycle: *const ::std::ffi::c_void) -> isize {
                nginx::start_in_worker(&$entry)
            }
            static CONTEXT: nginx::Context = nginx::Context::new(NAME);
            static MODULE: nginx::Module = nginx::Module::new(&CONTEXT, init_process);

            #[unsafe(export_name = "ngx_modules")]
            static MODULES: nginx::SymbolList<nginx::Module> =
                nginx::SymbolList([&MODULE, ::std::ptr::null()]);
            #[unsafe(export_name = "ngx_module_names")]
            static NAMES: nginx::SymbolList<::std::ffi::c_char> =
                nginx::SymbolList([NAME.as_ptr(), ::std::ptr::null()]);

            #[used]
            #[unsafe(link_section = ".init_array")]
            static LOADED: extern "C" fn() = {
                /// Constructor of the library, which the loader calls before nginx compares the versions.
                extern "C" fn on_load() {
                    MODULE.adopt_nginx_version();
                }
                on_load
            };
        };
    };
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn layout_equals_headers() {
        assert_eq!(size_of::<Context>(), 32);
        assert_eq!(size_of::<ModuleFields>(), 25 * 8);
        assert_eq!(offset_of!(ModuleFields, name), 2 * 8);
        assert_eq!(offset_of!(ModuleFields, version), 5 * 8);
        assert_eq!(offset_of!(ModuleFields, signature), 6 * 8);
        assert_eq!(offset_of!(ModuleFields, kind), 9 * 8);
        assert_eq!(offset_of!(ModuleFields, init_process), 12 * 8);
    }
}
