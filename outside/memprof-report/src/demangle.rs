//! Names as the programmer wrote them: Rust (v0 and legacy) and C++ (Itanium), without parameters.

use std::borrow::Cow;
use std::fmt;

use cpp_demangle::{DemangleOptions, Symbol};

/// Longer names are shown as the linker knows them: a few hundred bytes of substitutions can mean
/// gigabytes.
const LONGEST: usize = 16 << 10;

/// The demangled name, or the name itself where it is not mangled.
pub fn demangle(name: &str) -> Cow<'_, str> {
    // glibc's versions, as in "stdin@GLIBC_2.2.5", are no part of the name.
    let plain = match name.find('@') {
        Some(at) if at > 0 => &name[..at],
        _ => name,
    };
    let demangled = match plain.as_bytes() {
        [b'_', b'R', ..] => rust(plain),
        // Rust's end with a hash; without one, variables of C++ have the same form.
        [b'_', b'Z', ..] | [b'_', b'_', b'Z', ..] if plain.contains("17h") => {
            rust(plain).or_else(|| cpp(plain))
        }
        [b'_', b'Z', ..] | [b'_', b'_', b'Z', ..] => cpp(plain),
        _ => None,
    };
    demangled.map_or(Cow::Borrowed(plain), Cow::Owned)
}

fn rust(name: &str) -> Option<String> {
    let mut text = Text(String::new());
    let name = rustc_demangle::try_demangle(name).ok()?;
    fmt::write(&mut text, format_args!("{name:#}")).ok()?;
    Some(text.0)
}

fn cpp(name: &str) -> Option<String> {
    let mut text = Text(String::new());
    let options = DemangleOptions::new().no_params().no_return_type();
    Symbol::new(name)
        .ok()?
        .structured_demangle(&mut text, &options)
        .ok()?;
    Some(text.0)
}

/// Text that refuses to grow beyond [`LONGEST`].
struct Text(String);

impl fmt::Write for Text {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        if self.0.len() + part.len() > LONGEST {
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
    fn names_are_shown_as_written() {
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
