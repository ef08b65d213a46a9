//! Entry points that a plugin's library exports, so that other programs can load it. Each adapter's file has a macro
//! for its entry points; the macros here select among them.

/// Defines [`export_adapters!`](crate::export_adapters) and what it needs from a list of all adapters: name, macro
/// and feature of each. `$d` is a dollar sign, which a macro cannot write for a macro that it defines.
macro_rules! define_exports {
    ($d:tt; $($name:ident $macro:ident $feature:literal;)+) => {
        /// Makes a plugin's library loadable by other programs. `$entry` is the plugin's `memprof_plugin_entry`. The
        /// adapters are listed after a colon; by default they are those whose feature of this crate is on. To list one
        /// whose feature is off is an error. Call it once, in the cdylib, beside `export_plugin!`.
        ///
        /// ```text
        /// memprof_plugin_abi::export_plugin!(Greeter);
        /// memprof_host::export_adapters!(memprof_plugin_entry: redis, preload);
        /// ```
        #[macro_export]
        macro_rules! export_adapters {
            ($d entry:path) => {
                $d crate::__export_instance!();
                $($d crate::$macro!(optional, $d entry);)+
            };
            ($d entry:path: $d($d adapter:ident),+ $d(,)?) => {
                $d crate::__export_instance!();
                $d($d crate::__export_adapter!($d adapter, $d entry);)+
            };
        }

        #[doc(hidden)]
        #[macro_export]
        macro_rules! __export_adapter {
            $(($name, $d entry:path) => {
                $d crate::$macro!(named, $d entry);
            };)+
        }

        $(
            /// The macro of the adapter where its feature is off.
            #[cfg(not(feature = $feature))]
            #[doc(hidden)]
            #[macro_export]
            macro_rules! $macro {
                (optional, $d entry:path) => {};
                (named, $d entry:path) => {
                    compile_error!(concat!(
                        "memprof-host needs the feature ",
                        $feature,
                        " for this adapter"
                    ));
                };
            }
        )+
    };
}

define_exports! {
    $;
    attached __export_attached "adapter-attached";
    ffi __export_ffi "adapter-ffi";
    java __export_java "adapter-java";
    lua __export_lua "adapter-lua";
    node __export_node "adapter-node";
    preload __export_preload "adapter-preload";
    python __export_python "adapter-python";
    redis __export_redis "adapter-redis";
    ruby __export_ruby "adapter-ruby";
    httpd __export_httpd "adapter-httpd";
    mariadb __export_mariadb "adapter-mariadb";
    nginx __export_nginx "adapter-nginx";
    postgres __export_postgres "adapter-postgres";
    mosquitto __export_mosquitto "adapter-mosquitto";
    traffic_server __export_traffic_server "adapter-traffic-server";
}

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
            /// Adds the return address to the arguments, and jumps to the entry point. By that address, the entry point
            /// finds the library that called it.
            #[unsafe(naked)]
            #[unsafe(export_name = $name)]
            unsafe extern "C" fn forward_with_caller() {
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
