//! Demangles Rust (v0 and legacy) and C++ (Itanium) names, without parameters.

use std::borrow::Cow;
use std::fmt;

use cpp_demangle::{DemangleOptions, Symbol};

/// Longest demangled name, in bytes; longer ones stay mangled: a few hundred bytes of substitutions can expand to
/// gigabytes.
const MAX_BYTES: usize = 16 << 10;

/// Demangles the name of a Rust or C++ function. A name that is not mangled, or whose demangled form is longer than
/// `MAX_BYTES`, is returned as it is, but without glibc's version suffix.
pub fn demangle(name: &str) -> Cow<'_, str> {
    // glibc's version suffix, as in "stdin@GLIBC_2.2.5", is not part of the name.
    let plain = match name.find('@') {
        Some(at) if at > 0 => &name[..at],
        _ => name,
    };
    let demangled = match plain.as_bytes() {
        [b'_', b'R', ..] => demangle_rust(plain),
        // Legacy Rust names end with a hash `17h…`; C++ variables may contain that text too.
        [b'_', b'Z', ..] | [b'_', b'_', b'Z', ..] if plain.contains("17h") => {
            demangle_rust(plain).or_else(|| demangle_cpp(plain))
        }
        [b'_', b'Z', ..] | [b'_', b'_', b'Z', ..] => demangle_cpp(plain),
        _ => None,
    };
    demangled.map_or(Cow::Borrowed(plain), Cow::Owned)
}

/// Demangles Rust's legacy and v0 names, without their hash. `None` if the name is neither, or passes the limit.
fn demangle_rust(name: &str) -> Option<String> {
    let mut text = LimitedText(String::new());
    let name = rustc_demangle::try_demangle(name).ok()?;
    fmt::write(&mut text, format_args!("{name:#}")).ok()?;
    Some(text.0)
}

/// Demangles an Itanium C++ name, without parameters and return type. `None` if it is none, or passes the limit.
fn demangle_cpp(name: &str) -> Option<String> {
    let mut text = LimitedText(String::new());
    let options = DemangleOptions::new().no_params().no_return_type();
    Symbol::new(name)
        .ok()?
        .structured_demangle(&mut text, &options)
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
    use super::demangle;

    #[test]
    fn mangled_names_are_demangled() {
        let check = |mangled, expected| assert_eq!(demangle(mangled), expected);
        check("zmalloc", "zmalloc");
        check("stdin@GLIBC_2.2.5", "stdin");
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
    }
}
