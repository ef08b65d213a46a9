//! Demangles names of symbols: Rust (v0 and legacy), C++ (Itanium) and D. Symbol versions, and the suffixes by which
//! compilers distinguish the clones of a function, are no part of a name.

mod clone_suffix;
mod dlang;

use std::borrow::Cow;
use std::fmt;

use cpp_demangle::{DemangleOptions, Symbol};

use self::clone_suffix::split_clone_suffix;
use self::dlang::demangle_d;

/// Longest demangled name, in bytes; longer ones stay mangled: a few hundred bytes of substitutions can expand to
/// gigabytes.
const MAX_BYTES: usize = 16 << 10;

/// Language of a function, as far as its symbol or source file shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Language {
    Rust,
    Cpp,
    D,
}

impl Language {
    /// Returns the language of a symbol's name. `None` if it is not mangled.
    pub(crate) fn from_symbol(symbol: &str) -> Option<Self> {
        let (plain, _) = split_clone_suffix(symbol);
        match plain.as_bytes() {
            [b'_', b'R', ..] => Some(Self::Rust),
            [b'_', b'Z', ..] | [b'_', b'_', b'Z', ..] if is_legacy_rust(plain) => Some(Self::Rust),
            [b'_', b'Z', ..] | [b'_', b'_', b'Z', ..] => Some(Self::Cpp),
            [b'_', b'D', b'0'..=b'9', ..] => Some(Self::D),
            _ => None,
        }
    }
}

/// Demangles the name of a symbol, without parameters, clone suffix and symbol version. A name that is not mangled, or
/// whose demangled form is longer than `MAX_BYTES`, is returned mangled but without suffix and version.
pub fn demangle(symbol: &str) -> Cow<'_, str> {
    let (plain, _) = split_symbol(symbol);
    let options = DemangleOptions::new().no_params().no_return_type();
    demangle_without_suffix(plain, &options).map_or(Cow::Borrowed(plain), Cow::Owned)
}

/// Demangles the name of a symbol in a file of Go or Zig, in whose names dots separate packages from functions. A name
/// that is not mangled loses its symbol version but no suffix: `main.cold` is the function `cold` of `main`, not a
/// clone of `main`.
pub(crate) fn demangle_dotted(symbol: &str) -> Cow<'_, str> {
    match Language::from_symbol(symbol) {
        Some(_) => demangle(symbol),
        None => Cow::Borrowed(without_version(symbol)),
    }
}

/// Demangles the name of a symbol with the parameters of C++ functions, which distinguish overloads: `shop::open(int)`.
/// Without clone suffix and symbol version; a name that is not mangled loses these, too.
pub(crate) fn demangle_with_parameters(symbol: &str) -> Cow<'_, str> {
    let (plain, _) = split_symbol(symbol);
    let options = DemangleOptions::new().no_return_type();
    demangle_without_suffix(plain, &options).map_or(Cow::Borrowed(plain), Cow::Owned)
}

/// Demangles the name of a symbol with the parameters of C++ functions and the clone suffix, but without the symbol
/// version: `shop::open(int) [clone .part.0]`. A name that is not mangled keeps its suffix as it is: `open.part.0`.
pub(crate) fn demangle_with_parameters_and_suffix(symbol: &str) -> String {
    let (plain, suffix) = split_symbol(symbol);
    let name = demangle_with_parameters(plain);
    match suffix {
        "" => name.into_owned(),
        _ if name == plain => format!("{plain}{suffix}"),
        _ => format!("{name} [clone {suffix}]"),
    }
}

/// Returns whether a symbol's name may have parameters or a clone suffix, which [`demangle_with_parameters_and_suffix`]
/// keeps and [`demangle`] removes. Only Rust's symbols are known to have no parameters.
pub(crate) fn may_have_parameters_or_suffix(symbol: &str) -> bool {
    let (plain, suffix) = split_symbol(symbol);
    !suffix.is_empty() || Language::from_symbol(plain) != Some(Language::Rust)
}

/// Splits a symbol into its function's name and clone suffix, without the symbol version. Also removes the prefix of
/// `__second_sect_of_NAME`: in DWARF 2, which has no ranges, GCC gives that name to the cold part of a function.
fn split_symbol(symbol: &str) -> (&str, &str) {
    let symbol = match symbol.strip_prefix("__second_sect_of_") {
        Some(name) if !name.is_empty() => name,
        _ => symbol,
    };
    split_clone_suffix(without_version(symbol))
}

/// Demangles a name that has no clone suffix or version. A name that looks like Rust's but is malformed as such is read
/// as one of C++. `None` if the name is not mangled or malformed, or its demangled form is empty or longer than
/// `MAX_BYTES`.
fn demangle_without_suffix(plain: &str, options: &DemangleOptions) -> Option<String> {
    let name = match Language::from_symbol(plain)? {
        Language::Rust => demangle_rust(plain).or_else(|| demangle_cpp(plain, options)),
        Language::Cpp => demangle_cpp(plain, options),
        Language::D => demangle_d(plain),
    };
    name.filter(|name| !name.is_empty())
}

/// Returns whether a name ends with the hash of Rust's legacy scheme: `17h`, 16 hexadecimal digits and `E`. C++ names
/// may contain that text elsewhere.
fn is_legacy_rust(name: &str) -> bool {
    let hash = name.strip_suffix('E').and_then(|name| {
        let start = name.len().checked_sub(19)?;
        name.get(start..)?.strip_prefix("17h")
    });
    hash.is_some_and(|hash| hash.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Removes the symbol version of an ELF symbol: `stdin` of `stdin@GLIBC_2.2.5`, `read` of `read@@LIBFOO_1`. Keeps any
/// other text after an `@`.
fn without_version(symbol: &str) -> &str {
    let Some((name, version)) = symbol.split_once('@') else {
        return symbol;
    };
    let version = version.strip_prefix('@').unwrap_or(version);
    let is_word = |text: &str| {
        !text.is_empty()
            && text
                .bytes()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, b'_' | b'.' | b'$'))
    };
    let is_version = is_word(version) && version.starts_with(|c: char| c.is_ascii_alphabetic());
    match is_version && is_word(name) {
        true => name,
        false => symbol,
    }
}

/// Demangles Rust's legacy and v0 names, without their hash. `None` if the name is neither, or exceeds [`MAX_BYTES`].
fn demangle_rust(name: &str) -> Option<String> {
    let mut text = LimitedText(String::new());
    let name = rustc_demangle::try_demangle(name).ok()?;
    fmt::write(&mut text, format_args!("{name:#}")).ok()?;
    Some(text.0)
}

/// Demangles an Itanium C++ name. `None` if it is another name, or exceeds [`MAX_BYTES`].
fn demangle_cpp(name: &str, options: &DemangleOptions) -> Option<String> {
    let mut text = LimitedText(String::new());
    Symbol::new(name)
        .ok()?
        .structured_demangle(&mut text, options)
        .ok()?;
    Some(text.0)
}

/// Text that fails to grow beyond [`MAX_BYTES`].
struct LimitedText(String);

impl fmt::Write for LimitedText {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        if self.0.len() + part.len() > MAX_BYTES {
            return Err(fmt::Error);
        }
        self.0.push_str(part);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Language, demangle, demangle_with_parameters_and_suffix};

    #[test]
    fn mangled_names_are_demangled() {
        let check = |mangled, expected| assert_eq!(demangle(mangled), expected);
        check("zmalloc", "zmalloc");
        check(
            "_ZNSt6vectorIiSaIiEE9push_backEOi",
            "std::vector<int, std::allocator<int> >::push_back",
        );
        check(
            "_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE",
            "core::fmt::Write::write_fmt",
        );
        check(
            "_ZN12_GLOBAL__N_18sessionsE",
            "(anonymous namespace)::sessions",
        );
        check("_RNvCs1234_7mycrate4main", "mycrate::main");
        check("_ZN", "_ZN");
        check(
            "_ZNSt14_List_iteratorIiEmmEv",
            "std::_List_iterator<int>::operator--",
        );
        check("_D4shop4Cart3addMFiZv", "shop.Cart.add");
    }

    #[test]
    fn symbol_version_is_cut_and_other_text_with_an_at_sign_is_not() {
        let check = |symbol, expected| assert_eq!(demangle(symbol), expected);
        check("stdin@GLIBC_2.2.5", "stdin");
        check("read@@LIBFOO_1", "read");
        check("_ZN4shop4openEi@@SHOP_1.0", "shop::open");
        check("png_free@PNG16_0", "png_free");
        check("Program.worker@12-1", "Program.worker@12-1");
        check("merged @objc Foo.bar", "merged @objc Foo.bar");
        check("get @@iterator", "get @@iterator");
        check("lodash@4.17.21/merge", "lodash@4.17.21/merge");
        check("main.@\"a b\"", "main.@\"a b\"");
        check("@memcpy", "@memcpy");
        check("f@", "f@");
    }

    #[test]
    fn clones_have_the_name_of_their_function() {
        let check = |symbol, expected, whole: &str| {
            assert_eq!(demangle(symbol), expected);
            assert_eq!(demangle_with_parameters_and_suffix(symbol), whole);
        };
        check("xmalloc.constprop.0", "xmalloc", "xmalloc.constprop.0");
        check("__second_sect_of_load", "load", "load");
        check(
            "__second_sect_of_",
            "__second_sect_of_",
            "__second_sect_of_",
        );
        check(
            "_ZN4shop2Db4openEi.part.0.cold",
            "shop::Db::open",
            "shop::Db::open(int) [clone .part.0.cold]",
        );
        check("_ZN4shop4openEPKc", "shop::open", "shop::open(char const*)");
        check(
            "_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE.llvm.123",
            "core::fmt::Write::write_fmt",
            "core::fmt::Write::write_fmt [clone .llvm.123]",
        );
    }

    #[test]
    fn symbols_show_their_language() {
        let check = |symbol, expected| assert_eq!(Language::from_symbol(symbol), expected);
        check("_RNvCs1234_7mycrate4main", Some(Language::Rust));
        check(
            "_ZN4core3fmt17h0123456789abcdefE.cold",
            Some(Language::Rust),
        );
        check("_ZN4core6Engine4loadEv", Some(Language::Cpp));
        check("_ZN4core17hash_of_everythingEv", Some(Language::Cpp));
        check("_D4shop3addFiZv", Some(Language::D));
        check("_Dummy", None);
        check("main", None);
    }
}
