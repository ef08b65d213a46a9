//! The layouts of the structs in [`raw`](crate::raw), in abi_stable's terms. A Rust host compares the plugin's layouts
//! with its own before the first call. This detects a struct that changed without a new version number.
#![expect(
    unsafe_code,
    reason = "the ABI boundary: abi_stable's header in a foreign library"
)]

use abi_stable::StableAbi;
use abi_stable::library::{
    AbiHeaderRef, CheckTypeLayout, LibHeader, ROOT_MODULE_LOADER_NAME, RootModule, RootModuleResult,
};
use abi_stable::package_version_strings;
use abi_stable::prefix_type::PrefixTypeTrait;
use abi_stable::sabi_types::VersionStrings;

use crate::raw::{memprof_host_t, memprof_jemalloc_t, memprof_plugin_entry_t, memprof_reply_t};

/// Symbol under which a plugin exports its [`header`].
pub const SYMBOL: &str = ROOT_MODULE_LOADER_NAME;

/// Root module of abi_stable, with the layouts to compare. The comparison includes this type's name: host and plugin
/// reject each other if the names differ.
#[repr(C)]
#[derive(Debug, StableAbi)]
#[sabi(kind(Prefix(prefix_ref = LayoutRef, prefix_fields = LayoutPrefix)))]
#[sabi(missing_field(panic))]
pub struct Layout {
    /// Mentions every struct that crosses the boundary, so that its layout is compared. Never called.
    #[sabi(last_prefix_field)]
    pub structs: unsafe extern "C" fn(
        entry: *const memprof_plugin_entry_t,
        host: *const memprof_host_t,
        reply: *const memprof_reply_t,
        jemalloc: *const memprof_jemalloc_t,
    ),
}

impl RootModule for LayoutRef {
    abi_stable::declare_root_module_statics! {LayoutRef}
    const BASE_NAME: &'static str = "memprof";
    const NAME: &'static str = "memprof";
    const VERSION_STRINGS: VersionStrings = package_version_strings!();
}

/// Returns abi_stable's header, which describes this build's struct layouts. A plugin exports it as [`SYMBOL`].
pub const fn header() -> LibHeader {
    // SAFETY: `root_module` returns a `LayoutRef`, as abi_stable's `from_constructor` requires.
    unsafe { LibHeader::from_constructor::<LayoutRef>(root_module, CheckTypeLayout::Yes) }
}

/// Constructs the root module, which has the struct layouts to compare. abi_stable calls it.
extern "C" fn root_module() -> RootModuleResult {
    /// Value of [`Layout::structs`]; never called.
    unsafe extern "C" fn structs(
        _: *const memprof_plugin_entry_t,
        _: *const memprof_host_t,
        _: *const memprof_reply_t,
        _: *const memprof_jemalloc_t,
    ) {
    }
    abi_stable::library::__call_root_module_loader(|| Layout { structs }.leak_into_prefix())
}

/// Compares the layouts of the plugin that exported `header` with those of this build.
///
/// # Errors
/// The layouts differ, or abi_stable cannot read the header. Returns a line with the first difference, and abi_stable's
/// full report.
pub fn check_layouts(header: AbiHeaderRef) -> Result<(), (String, String)> {
    header
        .upgrade()
        .and_then(LibHeader::ensure_layout::<LayoutRef>)
        .map_err(|error| {
            let report = error.to_string();
            (first_difference(&report), report)
        })
}

/// Extracts the first difference from abi_stable's report, which has hundreds of lines for one field. The result has
/// the form `STRUCT: ERROR, unexpected field "FIELD"`, without the parts that the report lacks. The struct is that of
/// the last layout before the first error. An unexpected field follows `Found:`.
fn first_difference(report: &str) -> String {
    let (before, errors) = report.split_once("\nError:").unwrap_or(("", report));
    let value = |line: &str, key: &str| line.trim().strip_prefix(key).map(str::to_owned);
    let changed = before
        .rsplit_once("--- Type Layout ---")
        .and_then(|(_, layout)| layout.lines().find_map(|line| value(line, "type:")));
    let error = errors.lines().next().unwrap_or("the layouts differ");
    let field = errors
        .split_once("Error:unexpected field")
        .and_then(|(_, after)| after.split_once("Found:"))
        .and_then(|(_, found)| found.lines().find_map(|line| value(line, "field_name:")));
    let changed = changed.map(|name| format!("{name}: ")).unwrap_or_default();
    let field = field
        .map(|name| format!(", unexpected field {name:?}"))
        .unwrap_or_default();
    format!("{changed}{error}{field}")
}

/// Exports the description of the layouts.
#[doc(hidden)]
#[macro_export]
macro_rules! __export_layout {
    () => {
        /// The layouts that a Rust host compares with its own.
        #[unsafe(export_name = "_1as_0lib_1header_0root_bmodule_bloader")]
        pub static MEMPROF_LAYOUT: $crate::abi_stable::library::LibHeader =
            $crate::layout::header();
    };
}

#[cfg(test)]
mod tests {
    use abi_stable::package_version_strings;
    use abi_stable::sabi_types::VersionNumber;

    use crate::raw::MEMPROF_ABI_MAJOR;

    #[test]
    fn layouts_of_version_0_1_are_compatible() {
        let first = VersionNumber {
            major: 0,
            minor: 1,
            patch: 0,
        };
        let now = package_version_strings!().parsed().unwrap();
        assert_eq!(MEMPROF_ABI_MAJOR, 1);
        // Condition of abi_stable for the packages of two layouts.
        assert!(now.is_loosely_compatible(first), "{now}");
    }

    #[test]
    fn exported_symbol_is_that_of_abi_stable() {
        assert_eq!(super::SYMBOL, "_1as_0lib_1header_0root_bmodule_bloader");
    }
}
