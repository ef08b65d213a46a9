//! Entry points that a plugin's library exports, so that other programs can load it. Each adapter's file has a macro
//! for its entry points; the macros here select among them.

/// Makes a plugin's library loadable by other programs. `$entry` is the plugin's `memprof_plugin_entry`. The adapters
/// are listed after a colon; by default they are those whose feature of this crate is on. To list one whose feature is
/// off is an error. Call it once, in the cdylib, beside `export_plugin!`.
///
/// ```text
/// memprof_plugin_abi::export_plugin!(Greeter);
/// memprof_host::export_adapters!(memprof_plugin_entry: redis, preload);
/// ```
#[macro_export]
macro_rules! export_adapters {
    ($entry:path) => {
        $crate::__export_instance!();
        $crate::__export_attached!(optional, $entry);
        $crate::__export_ffi!(optional, $entry);
        $crate::__export_java!(optional, $entry);
        $crate::__export_lua!(optional, $entry);
        $crate::__export_node!(optional, $entry);
        $crate::__export_preload!(optional, $entry);
        $crate::__export_python!(optional, $entry);
        $crate::__export_redis!(optional, $entry);
        $crate::__export_ruby!(optional, $entry);
        $crate::__export_httpd!(optional, $entry);
        $crate::__export_mariadb!(optional, $entry);
        $crate::__export_nginx!(optional, $entry);
        $crate::__export_postgres!(optional, $entry);
        $crate::__export_mosquitto!(optional, $entry);
        $crate::__export_traffic_server!(optional, $entry);
    };
    ($entry:path: $($adapter:ident),+ $(,)?) => {
        $crate::__export_instance!();
        $($crate::__export_adapter!($adapter, $entry);)+
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __export_adapter {
    (attached, $entry:path) => {
        $crate::__export_attached!(named, $entry);
    };
    (ffi, $entry:path) => {
        $crate::__export_ffi!(named, $entry);
    };
    (java, $entry:path) => {
        $crate::__export_java!(named, $entry);
    };
    (lua, $entry:path) => {
        $crate::__export_lua!(named, $entry);
    };
    (node, $entry:path) => {
        $crate::__export_node!(named, $entry);
    };
    (preload, $entry:path) => {
        $crate::__export_preload!(named, $entry);
    };
    (python, $entry:path) => {
        $crate::__export_python!(named, $entry);
    };
    (redis, $entry:path) => {
        $crate::__export_redis!(named, $entry);
    };
    (ruby, $entry:path) => {
        $crate::__export_ruby!(named, $entry);
    };
    (httpd, $entry:path) => {
        $crate::__export_httpd!(named, $entry);
    };
    (mariadb, $entry:path) => {
        $crate::__export_mariadb!(named, $entry);
    };
    (nginx, $entry:path) => {
        $crate::__export_nginx!(named, $entry);
    };
    (postgres, $entry:path) => {
        $crate::__export_postgres!(named, $entry);
    };
    (mosquitto, $entry:path) => {
        $crate::__export_mosquitto!(named, $entry);
    };
    (traffic_server, $entry:path) => {
        $crate::__export_traffic_server!(named, $entry);
    };
}

/// Defines the macro of an adapter whose feature is off.
macro_rules! stub_adapter {
    ($macro:ident, $feature:literal) => {
        #[cfg(not(feature = $feature))]
        #[doc(hidden)]
        #[macro_export]
        macro_rules! $macro {
            (optional, $entry:path) => {};
            (named, $entry:path) => {
                compile_error!(concat!(
                    "memprof-host needs the feature ",
                    $feature,
                    " for this adapter"
                ));
            };
        }
    };
}

stub_adapter!(__export_attached, "adapter-attached");
stub_adapter!(__export_ffi, "adapter-ffi");
stub_adapter!(__export_java, "adapter-java");
stub_adapter!(__export_lua, "adapter-lua");
stub_adapter!(__export_node, "adapter-node");
stub_adapter!(__export_preload, "adapter-preload");
stub_adapter!(__export_python, "adapter-python");
stub_adapter!(__export_redis, "adapter-redis");
stub_adapter!(__export_ruby, "adapter-ruby");
stub_adapter!(__export_httpd, "adapter-httpd");
stub_adapter!(__export_mariadb, "adapter-mariadb");
stub_adapter!(__export_nginx, "adapter-nginx");
stub_adapter!(__export_postgres, "adapter-postgres");
stub_adapter!(__export_mosquitto, "adapter-mosquitto");
stub_adapter!(__export_traffic_server, "adapter-traffic-server");

#[doc(hidden)]
#[macro_export]
macro_rules! __export_instance {
    () => {
        /// Runs before all other code of this library, including other entries of `.init_array`.
        #[used]
        #[unsafe(link_section = ".init_array.00000")]
        static MEMPROF_BIND_IMPORTS: unsafe extern "C" fn() = {
            /// Passes the loader's return address and the library's headers to [`memprof_own::bind_imports`].
            #[unsafe(naked)]
            unsafe extern "C" fn bind_imports() {
                ::std::arch::naked_asm!(
                    "mov rdi, [rsp]",
                    "lea rsi, [rip + __ehdr_start]",
                    "lea rdx, [rip + _DYNAMIC]",
                    "jmp {}",
                    sym $crate::adapters::bind_imports
                )
            }
            bind_imports
        };

        /// Returns the plugin for another copy of this library in the same process. Null if there is none.
        #[unsafe(no_mangle)]
        pub extern "C" fn memprof_adapter_instance() -> *mut ::std::ffi::c_void {
            $crate::adapters::instance::plugin_for_other_copy().cast()
        }

        /// Returns the address of the lock under which all copies of this library in a process decide which one creates
        /// the plugin.
        #[unsafe(no_mangle)]
        pub extern "C" fn memprof_adapter_lock() -> *const u32 {
            $crate::adapters::instance::lock_address()
        }
    };
}

/// Exports `$name`, which forwards its arguments and adds its return address in `$register`, a
/// [`CallerAddress`](super::host_symbols::CallerAddress). The name is a constant text: a literal, or `concat!` of
/// literals and `env!("CARGO_CRATE_NAME")`, if the program derives it from the library's name.
#[doc(hidden)]
#[macro_export]
macro_rules! __export_with_caller {
    ($name:expr, $register:literal, $entry_point:path) => {
        const _: () = {
            /// Adds the return address to the arguments, and jumps to the entry point.
            #[unsafe(naked)]
            #[unsafe(export_name = $name)]
            unsafe extern "C" fn exported() {
                ::std::arch::naked_asm!(
                    concat!("mov ", $register, ", [rsp]"),
                    "jmp {}",
                    sym $entry_point
                )
            }
        };
    };
}

/// Name of the plugin's library as a C string, between a prefix and a suffix.
#[doc(hidden)]
#[macro_export]
macro_rules! __library_name {
    () => {
        $crate::__library_name!("", "")
    };
    ($before:literal, $after:literal) => {
        const {
            match ::std::ffi::CStr::from_bytes_with_nul(
                concat!($before, env!("CARGO_CRATE_NAME"), $after, "\0").as_bytes(),
            ) {
                Ok(name) => name,
                Err(_) => unreachable!(),
            }
        }
    };
}
