//! Whose code a function is, so that a report begins with the program's own and not with what every
//! program has below it: a row is the leaf-most frame of the stack's most telling kind.

mod rules;

use std::borrow::Cow;

use regex::Regex;

use self::rules::{FILES, FUNCTIONS, LANGUAGES, LIBRARIES, NAMESPACES};
use crate::names::Frame;
use crate::profile::{Mapping, Profile};

/// Whose code a function is, from what tells least to what tells most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum CodeOrigin {
    /// What starts a program or a thread, above `main`.
    #[default]
    Startup,
    /// Standard libraries, containers, wrappers of malloc.
    Plumbing,
    /// What runs a program of another language.
    Interpreter,
    /// A library: one whose functions have no names here, or that keeps what others give it.
    Library,
    /// The program's own.
    Program,
}

impl CodeOrigin {
    /// What a table says behind a name that is not the program's own.
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

/// How functions are told apart. The default is the table in `blame/rules` alone.
#[derive(Clone, Debug, Default)]
pub struct OriginRules {
    /// Every function is a row, none is folded into its caller.
    pub flat: bool,
    /// These names are the program's own, whatever the rules say.
    pub own: Option<Regex>,
    /// These are not; a name that both match is the program's own.
    pub plumbing: Option<Regex>,
}

impl OriginRules {
    /// Whose a function is, where its name tells. `named` is false for `file+0xoffset`.
    pub(crate) fn origin_of_name(&self, function: &str, named: bool) -> Option<CodeOrigin> {
        let asked = |pattern: &Option<Regex>| {
            pattern
                .as_ref()
                .is_some_and(|pattern| pattern.is_match(function))
        };
        if asked(&self.own) {
            return Some(CodeOrigin::Program);
        }
        if asked(&self.plumbing) {
            return Some(CodeOrigin::Plumbing);
        }
        named.then(|| origin_by_rules(function)).flatten()
    }
}

/// Where an address lies.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CodeLocation {
    /// Whose the file is, where its name tells.
    whose: Option<CodeOrigin>,
    is_main: bool,
    /// Whether its code was made while the program ran.
    is_made: bool,
}

impl CodeLocation {
    /// By mapping.
    pub(crate) fn for_mappings(profile: &Profile) -> Vec<Self> {
        let main = profile.main_file().map(|mapping| mapping.path.as_str());
        let mappings = profile.mappings.iter();
        mappings
            .map(|mapping| Self {
                whose: origin_of_file(mapping),
                is_main: main == Some(mapping.path.as_str()),
                is_made: !mapping.is_file(),
            })
            .collect()
    }

    /// Whose a function is whose name does not tell.
    pub(crate) fn origin_of_frame(self, frame: &Frame) -> CodeOrigin {
        // What a just-in-time compiler names is a function of the script.
        let whose = self.whose.filter(|_| !(self.is_made && frame.named));
        whose.unwrap_or(match frame.named || self.is_main {
            true => CodeOrigin::Program,
            false => CodeOrigin::Library,
        })
    }
}

/// Whose a mapped file is, where its name tells.
fn origin_of_file(mapping: &Mapping) -> Option<CodeOrigin> {
    find(FILES, stem(mapping.file_name()))
}

fn origin_by_rules(function: &str) -> Option<CodeOrigin> {
    match namespace(function) {
        Some(namespace) => find(NAMESPACES, &namespace),
        None => None,
    }
    .or_else(|| find(FUNCTIONS, function))
    .or_else(|| find(LIBRARIES, function))
    .or_else(|| find(LANGUAGES, function))
}

fn find(rules: &[(CodeOrigin, &[&str])], name: &str) -> Option<CodeOrigin> {
    rules
        .iter()
        .find(|(_, patterns)| patterns.iter().any(|pattern| matches_glob(pattern, name)))
        .map(|(whose, _)| *whose)
}

/// Whether `name` is `pattern`, in which `*` is any text.
fn matches_glob(pattern: &str, name: &str) -> bool {
    // Most patterns differ in their first byte, and each function is held against all of them.
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
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    last.is_empty() || name.ends_with(last)
}

/// `libc` of `libc.so.6`, `python` of `python3.11`.
pub(crate) fn stem(file: &str) -> &str {
    let name = file.find(".so").map_or(file, |at| &file[..at]);
    name.trim_end_matches(|c: char| c.is_ascii_digit() || matches!(c, '.' | '-'))
}

/// What stands before the first `::` of a path; of `<T as Trait>::f` that of the type or, where the type
/// has none because it is generic or built in, that of the trait.
fn namespace(function: &str) -> Option<Cow<'_, str>> {
    let Some(inside) = function.strip_prefix('<') else {
        let (first, rest) = function.split_once("::")?;
        // C++ has whole libraries in namespaces of namespaces.
        let second = rest.split("::").next().unwrap_or_default();
        return Some(match first {
            "boost" | "absl" => Cow::Owned(format!("{first}::{second}")),
            // An operator's type, `operator std::string`, or a conversion in a template's arguments.
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
        // `<[T]>::to_vec`, `<u8 as <[_]>::to_vec_in::ConvertVec>::to_vec`: only the language's own libraries may add to
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
    fn names_tell_whose_they_are() {
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
    fn files_tell_whose_they_are() {
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
    fn the_command_line_has_the_last_word() {
        let pattern = |text| Some(Regex::new(text).expect("a pattern"));
        let blame = OriginRules {
            own: pattern("^std::|^libc.so"),
            plumbing: pattern("^shop::|^std::"),
            ..OriginRules::default()
        };
        assert_eq!(
            blame.origin_of_name("std::vector<int>::push_back", true),
            Some(CodeOrigin::Program)
        );
        assert_eq!(
            blame.origin_of_name("libc.so.6+0x10", false),
            Some(CodeOrigin::Program)
        );
        assert_eq!(
            blame.origin_of_name("shop::main", true),
            Some(CodeOrigin::Plumbing)
        );
        assert_eq!(
            blame.origin_of_name("alloc::alloc::alloc", true),
            Some(CodeOrigin::Plumbing)
        );
    }
}
