//! Code origin of functions, so that a report shows the program's own functions and not the libraries that every
//! program calls: a row is the leaf-most frame of the highest origin in its stack.

mod rules;

use std::borrow::Cow;

use regex::Regex;

use self::rules::{FILES, FUNCTIONS, LANGUAGES, LIBRARIES, NAMESPACES};
use crate::names::Frame;
use crate::profile::{Mapping, Profile};

/// Origin of a function's code, from the least to the most informative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum CodeOrigin {
    /// Code that starts a program or a thread, before `main`.
    #[default]
    Startup,
    /// Standard libraries, containers and wrappers of malloc.
    Plumbing,
    /// An interpreter or a language's runtime.
    Interpreter,
    /// A library: one without symbols, or one that stores what its callers give it.
    Library,
    /// The program's own code.
    Program,
}

impl CodeOrigin {
    /// Text that tables append to a function's name; empty for the program's own.
    pub(crate) fn suffix(self) -> &'static str {
        match self {
            Self::Startup => " (start)",
            Self::Plumbing => " (plumbing)",
            Self::Interpreter => " (interpreter)",
            Self::Library => " (library)",
            Self::Program => "",
        }
    }
}

/// Rules that determine code origins. The default is only the built-in tables in `code_origin/rules`.
#[derive(Clone, Debug, Default)]
pub struct OriginRules {
    /// Makes every function a row: none is folded into its caller.
    pub flat: bool,
    /// Names that count as the program's own, whatever other rules say.
    pub own: Option<Regex>,
    /// Names that count as plumbing, unless `own` matches too.
    pub plumbing: Option<Regex>,
}

impl OriginRules {
    /// Returns the origin that a function's name determines: by the user's patterns first, then by the built-in tables.
    /// `named` is false for `file+0xoffset`, to which only the user's patterns apply. `None` if no pattern matches.
    pub(crate) fn origin_of_name(&self, function: &str, named: bool) -> Option<CodeOrigin> {
        let matches = |pattern: &Option<Regex>| {
            pattern
                .as_ref()
                .is_some_and(|pattern| pattern.is_match(function))
        };
        if matches(&self.own) {
            return Some(CodeOrigin::Program);
        }
        if matches(&self.plumbing) {
            return Some(CodeOrigin::Plumbing);
        }
        named.then(|| origin_by_rules(function)).flatten()
    }
}

/// Properties of the mapping that contains an address.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CodeLocation {
    /// Origin that the file's name determines.
    origin: Option<CodeOrigin>,
    is_main: bool,
    /// Whether the code is JIT code: not from a file.
    is_jit: bool,
}

impl CodeLocation {
    /// Returns the code location of each of the profile's mappings, in their order.
    pub(crate) fn for_mappings(profile: &Profile) -> Vec<Self> {
        let main = profile.main_file().map(|mapping| mapping.path.as_str());
        let mappings = profile.mappings.iter();
        mappings
            .map(|mapping| Self {
                origin: origin_of_file(mapping),
                is_main: main == Some(mapping.path.as_str()),
                is_jit: !mapping.is_file(),
            })
            .collect()
    }

    /// Returns the origin of a function whose name does not determine it: that of its file. In a file without one, the
    /// function is the program's own if it is named or the file is the main program, else a library's.
    pub(crate) fn origin_of_frame(self, frame: &Frame) -> CodeOrigin {
        // A function that a JIT compiler named is one of the script.
        let origin = self.origin.filter(|_| !(self.is_jit && frame.named));
        origin.unwrap_or(match frame.named || self.is_main {
            true => CodeOrigin::Program,
            false => CodeOrigin::Library,
        })
    }
}

/// Returns the origin that a file's name determines. `None` if no pattern matches.
fn origin_of_file(mapping: &Mapping) -> Option<CodeOrigin> {
    find_origin(FILES, stem(mapping.file_name()))
}

/// Returns the origin of a function by the built-in tables. `None` if no pattern matches.
fn origin_by_rules(function: &str) -> Option<CodeOrigin> {
    match namespace(function) {
        Some(namespace) => find_origin(NAMESPACES, &namespace),
        None => None,
    }
    .or_else(|| find_origin(FUNCTIONS, function))
    .or_else(|| find_origin(LIBRARIES, function))
    .or_else(|| find_origin(LANGUAGES, function))
}

/// Returns the origin of the first pattern that matches. `None` if none does.
fn find_origin(rules: &[(CodeOrigin, &[&str])], name: &str) -> Option<CodeOrigin> {
    rules
        .iter()
        .find(|(_, patterns)| patterns.iter().any(|pattern| matches_glob(pattern, name)))
        .map(|(origin, _)| *origin)
}

/// Returns whether `name` matches `pattern`, in which `*` is any text.
fn matches_glob(pattern: &str, name: &str) -> bool {
    // Fast path: most patterns differ in the first byte, and each function is compared with all of them.
    if pattern.as_bytes().first() != name.as_bytes().first() && !pattern.starts_with('*') {
        return false;
    }
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else {
        return false;
    };
    if first.len() == pattern.len() {
        return rest.is_empty();
    }
    let mut last = "";
    for part in parts {
        last = part;
        match rest.find(part) {
            Some(index) => rest = &rest[index + part.len()..],
            None => return false,
        }
    }
    last.is_empty() || name.ends_with(last)
}

/// File name without its version: `libc` of `libc.so.6`, `python` of `python3.11`.
pub(crate) fn stem(file: &str) -> &str {
    let name = file.find(".so").map_or(file, |index| &file[..index]);
    name.trim_end_matches(|c: char| c.is_ascii_digit() || matches!(c, '.' | '-'))
}

/// Returns the first component of a path. For `<T as Trait>::f` that of the type or, if the type is generic or built
/// in, that of the trait; `core` for other functions of built-in types. `None` if the path has one component only, or
/// its start is not an identifier.
fn namespace(function: &str) -> Option<Cow<'_, str>> {
    let Some(inside) = function.strip_prefix('<') else {
        let (first, rest) = function.split_once("::")?;
        // C++ has whole libraries in nested namespaces.
        let second = rest.split("::").next().unwrap_or_default();
        return Some(match first {
            "boost" | "absl" => Cow::Owned(format!("{first}::{second}")),
            // The type of an operator such as `operator std::string`, or a conversion in template arguments.
            _ if !is_identifier(first) => return None,
            _ => Cow::Borrowed(first),
        });
    };
    let mut kind = inside;
    while let Some(rest) = ["&mut ", "&", "*const ", "*mut ", "dyn ", "(", "["]
        .iter()
        .find_map(|mark| kind.strip_prefix(mark))
    {
        kind = rest;
    }
    if kind.starts_with('\'') {
        kind = kind.split_once(' ').map_or(kind, |(_, rest)| rest);
    }
    if kind.starts_with('<') {
        return namespace(kind);
    }
    let end = kind
        .find(|c: char| !(c.is_alphanumeric() || c == '_'))
        .unwrap_or(kind.len());
    if kind[end..].starts_with("::") {
        return Some(Cow::Borrowed(&kind[..end]));
    }
    match inside.split_once(" as ") {
        Some((_, named)) if !named.starts_with('<') => {
            Some(Cow::Borrowed(named.split("::").next().unwrap_or(named)))
        }
        // `<[T]>::to_vec`, `<u8 as <[_]>::to_vec_in::ConvertVec>::to_vec`: only Rust's own libraries may add to
        // built-in types.
        Some(_) | None => Some(Cow::Borrowed("core")),
    }
}

fn is_identifier(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn function_names_determine_origin() {
        let check = |function: &str, expected: Option<CodeOrigin>| {
            assert_eq!(
                OriginRules::default().origin_of_name(function, true),
                expected,
                "{function}"
            );
        };
        let plumbing = Some(CodeOrigin::Plumbing);
        for own in [
            "main",
            "serve",
            "rust_host::work::grow_cache",
            "<shop::Cart as core::clone::Clone>::clone",
            "<&shop::Cart as alloc::string::ToString>::to_string",
            "shop::Cart::add",
            "list_append",
            "operator<<",
            "stdlib_init",
        ] {
            check(own, None);
        }
        for name in [
            "alloc::raw_vec::RawVec<T,A>::grow",
            "<alloc::boxed::Box<dyn core::ops::function::FnOnce<()>> as core::ops::function::FnOnce<()>>::call_once",
            "<T as alloc::vec::spec_from_elem::SpecFromElem>::from_elem",
            "<[T]>::to_vec",
            "<u8 as <[_]>::to_vec_in::ConvertVec>::to_vec::<alloc::alloc::Global>",
            "<&'a mut [T] as core::iter::Iterator>::next",
            "std::vector<shop::Cart, std::allocator<shop::Cart> >::_M_realloc_insert",
            "hashbrown::raw::RawTable<T,A>::reserve_rehash",
            "core::ptr::drop_in_place<shop::Cart>",
            "boost::container::vector<int>::insert",
            "operator new(unsigned long)",
            "xmalloc",
            "g_malloc0_n",
            "zmalloc_usable",
            "_ZSt11make_sharedIN4shop4ItemEJEESt10shared_ptrINSt9enable_ifIXntsrSt8is_arrayIT_E5valueES5_E4typeEEDpOT0_",
            "gmalloc",
            "PyObject_Malloc",
            "ngx_palloc_large",
            "sqlite3MallocZero",
            "JS:~processTicks node:internal/process:1:1",
        ] {
            check(name, plumbing);
        }
        check("boost::spirit::qi::parse", None);
        check("boost::asio::io_context::run", plumbing);
        check("sqlite3VdbeCreate", Some(CodeOrigin::Library));
        check("__libc_start_main@@GLIBC_2.34", Some(CodeOrigin::Startup));
        check("_PyEval_EvalFrameDefault", Some(CodeOrigin::Interpreter));
        check("PyInit_market", Some(CodeOrigin::Program));
        check("JS:~leak /srv/app.js:3:1", Some(CodeOrigin::Program));
        check(
            "v8::internal::Factory::NewFixedArray",
            Some(CodeOrigin::Interpreter),
        );
    }

    #[test]
    fn file_names_determine_origin() {
        let check = |path: &str, expected: Option<CodeOrigin>| {
            let mapping = Mapping {
                path: path.into(),
                ..Mapping::default()
            };
            assert_eq!(origin_of_file(&mapping), expected, "{path}");
        };
        check(
            "/lib/x86_64-linux-gnu/libc.so.6",
            Some(CodeOrigin::Plumbing),
        );
        check("/lib64/ld-linux-x86-64.so.2", Some(CodeOrigin::Plumbing));
        check(
            "/usr/lib/libtcmalloc_minimal.so.4",
            Some(CodeOrigin::Plumbing),
        );
        check("/usr/bin/python3.11", Some(CodeOrigin::Interpreter));
        check(
            "/usr/lib/numpy/_multiarray_umath.cpython-311-x86_64-linux-gnu.so",
            Some(CodeOrigin::Interpreter),
        );
        check(
            "/usr/lib/libnode.so.108 (deleted)",
            Some(CodeOrigin::Interpreter),
        );
        check("", Some(CodeOrigin::Plumbing));
        check("/usr/bin/node_exporter", None);
        check("/usr/lib/libcrypto.so.3", None);
        check(
            "/usr/lib/x86_64-linux-gnu/libxml2.so.2.9.14",
            Some(CodeOrigin::Plumbing),
        );
        check("/usr/lib/libsqlite3.so.0", Some(CodeOrigin::Plumbing));
        check("/srv/lua-server", None);
    }

    #[test]
    fn command_line_patterns_override_rules() {
        let pattern = |text| Some(Regex::new(text).expect("a pattern"));
        let origin_rules = OriginRules {
            own: pattern("^std::|^libc.so"),
            plumbing: pattern("^shop::|^std::"),
            ..OriginRules::default()
        };
        assert_eq!(
            origin_rules.origin_of_name("std::vector<int>::push_back", true),
            Some(CodeOrigin::Program)
        );
        assert_eq!(
            origin_rules.origin_of_name("libc.so.6+0x10", false),
            Some(CodeOrigin::Program)
        );
        assert_eq!(
            origin_rules.origin_of_name("shop::main", true),
            Some(CodeOrigin::Plumbing)
        );
        assert_eq!(
            origin_rules.origin_of_name("alloc::alloc::alloc", true),
            Some(CodeOrigin::Plumbing)
        );
    }
}
