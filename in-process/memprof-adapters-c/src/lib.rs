//! Adapters for plugins in C and C++: linked into the plugin's library, they let Redis, Mosquitto and Traffic Server load
//! it. `adapters.map` is the linker's list of what the library then exports.
#![expect(unsafe_code, reason = "the plugin's entry is a symbol of C")]

use memprof_plugin_abi::raw::memprof_plugin_entry_t;

// SAFETY: memprof.h declares the symbol with this type, and `MEMPROF_PLUGIN` defines it as a constant.
unsafe extern "C" {
    safe static memprof_plugin_entry: memprof_plugin_entry_t;
}

memprof_host::export_adapters!(memprof_plugin_entry: mosquitto, redis, traffic_server);
