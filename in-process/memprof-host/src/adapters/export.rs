//! What a plugin's library exports, so that other programs load it: one macro for each adapter, which
//! stands in the adapter's file, and those that choose among them.

/// Makes a plugin's library loadable by other programs. `$entry` is the plugin's
/// `memprof_plugin_entry`; the adapters are chosen after a colon, all of them by default. Call it
/// once, in the cdylib, beside `export_plugin!`. By default they are those whose feature of this crate
/// is on; to name one whose feature is off is an error.
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

/// What stands in the place of an adapter whose feature is off.
macro_rules! without {
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

without!(__export_attached, "adapter-attached");
without!(__export_ffi, "adapter-ffi");
without!(__export_java, "adapter-java");
without!(__export_lua, "adapter-lua");
without!(__export_node, "adapter-node");
without!(__export_preload, "adapter-preload");
without!(__export_python, "adapter-python");
without!(__export_redis, "adapter-redis");
without!(__export_ruby, "adapter-ruby");
without!(__export_httpd, "adapter-httpd");
without!(__export_mariadb, "adapter-mariadb");
without!(__export_nginx, "adapter-nginx");
without!(__export_postgres, "adapter-postgres");
without!(__export_mosquitto, "adapter-mosquitto");
without!(__export_traffic_server, "adapter-traffic-server");

#[doc(hidden)]
#[macro_export]
macro_rules! __export_instance {
    () => {
        /// Runs before everything else of this library, also before other entries of `.init_array`.
        #[used]
        #[unsafe(link_section = ".init_array.00000")]
        static MEMPROF_BIND_IMPORTS: unsafe extern "C" fn() = {
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

        /// The plugin, for another copy of this library in the same process; null where there is none.
        #[unsafe(no_mangle)]
        pub extern "C" fn memprof_adapter_instance() -> *mut ::std::ffi::c_void {
            $crate::adapters::instance::shared().cast()
        }

        /// The word by which all copies of this library in a process settle which one makes the plugin.
        #[unsafe(no_mangle)]
        pub extern "C" fn memprof_adapter_lock() -> *const u32 {
            $crate::adapters::instance::lock_word()
        }
    };
}

/// Exports `$name`, which passes on its arguments, and after them, in `$register`, the address that it
/// returns to: a [`CallerAddress`](super::host_symbols::CallerAddress). The name is a text for a compiler: a literal, or `concat!` of some and
/// `env!("CARGO_CRATE_NAME")`, where the program derives it from the name of the library.
#[doc(hidden)]
#[macro_export]
macro_rules! __export_with_caller {
    ($name:expr, $register:literal, $entry_point:path) => {
        const _: () = {
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

/// The name of the plugin's library as a C string, between two other texts.
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
