//! Demangles the qualified names of D functions: <https://dlang.org/spec/abi.html#name_mangling>.

use std::fmt::Write as _;

use super::LimitedText;

/// Demangles the path of a name with the prefix `_D`, without types: `shop.Cart.add` of `_D4shop4Cart3addMFiZv`. A
/// template instance ends the path, as in `shop.build!(…)`. `_Dmain` becomes `D main`. `None` if the name is malformed,
/// or the path exceeds [`MAX_BYTES`](super::MAX_BYTES).
pub(super) fn demangle_d(name: &str) -> Option<String> {
    if name == "_Dmain" {
        return Some("D main".to_owned());
    }
    let mut path = LimitedText(String::new());
    // The path begins after `_D`.
    let mut at = 2;
    let mut is_template = false;
    while let Some(next) = name.as_bytes().get(at) {
        match next {
            b'0'..=b'9' => {
                let (word, end) = parse_identifier(name, at)?;
                let word = match word.strip_prefix("__T").or(word.strip_prefix("__U")) {
                    // Older compilers write an instance as one identifier.
                    Some(inner) => {
                        is_template = true;
                        parse_identifier(inner, 0)?.0
                    }
                    None => word,
                };
                push_identifier(&mut path, word)?;
                at = end;
            }
            b'Q' => {
                let (distance, end) = parse_back_reference(name, at + 1)?;
                push_identifier(
                    &mut path,
                    parse_identifier(name, at.checked_sub(distance)?)?.0,
                )?;
                at = end;
            }
            b'_' if name[at..].starts_with("__T") || name[at..].starts_with("__U") => {
                let word = match name.as_bytes().get(at + 3)? {
                    b'Q' => {
                        let (distance, _) = parse_back_reference(name, at + 4)?;
                        parse_identifier(name, (at + 3).checked_sub(distance)?)?.0
                    }
                    _ => parse_identifier(name, at + 3)?.0,
                };
                push_identifier(&mut path, word)?;
                is_template = true;
            }
            _ => break,
        }
        if is_template {
            break;
        }
    }
    if is_template {
        path.write_str("!(…)").ok()?;
    }
    (!path.0.is_empty()).then_some(path.0)
}

/// Appends an identifier to a path. `None` if the path exceeds [`MAX_BYTES`](super::MAX_BYTES): each back reference may
/// repeat a long identifier.
fn push_identifier(path: &mut LimitedText, word: &str) -> Option<()> {
    if !path.0.is_empty() {
        path.write_str(".").ok()?;
    }
    path.write_str(word).ok()
}

/// Returns the identifier whose decimal length stands at the byte index `index`, and the index after the identifier.
/// `None` if the length is missing, 0 or too large.
fn parse_identifier(name: &str, index: usize) -> Option<(&str, usize)> {
    let rest = name.get(index..)?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let len: usize = rest.get(..digits)?.parse().ok()?;
    let start = index + digits;
    let word = name.get(start..start.checked_add(len)?)?;
    (!word.is_empty()).then_some((word, start + len))
}

/// Returns the distance of the back reference at the index `index`, in bytes towards the start of the name, and the
/// index after the reference. The digits are letters in base 26, of which the last is in lower case. `None` if a digit
/// is no letter, the name ends before the last digit, or the number overflows.
fn parse_back_reference(name: &str, mut index: usize) -> Option<(usize, usize)> {
    let mut distance: usize = 0;
    loop {
        let digit = *name.as_bytes().get(index)?;
        index += 1;
        let (value, is_last) = match digit {
            b'A'..=b'Z' => (digit - b'A', false),
            b'a'..=b'z' => (digit - b'a', true),
            _ => return None,
        };
        distance = distance.checked_mul(26)?.checked_add(value.into())?;
        if is_last {
            return Some((distance, index));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::demangle_d;

    #[test]
    fn d_name_is_demangled() {
        let check =
            |name: &str, expected: Option<&str>| assert_eq!(demangle_d(name).as_deref(), expected);
        check("_Dmain", Some("D main"));
        check("_D3app4leakFiZv", Some("app.leak"));
        check("_D4shop4Cart3addMFiZv", Some("shop.Cart.add"));
        check(
            "_D3std5stdio__T7writelnTAyaZQnFNfQjZv",
            Some("std.stdio.writeln!(…)"),
        );
        check("_D4core6memory2GCQdFZv", Some("core.memory.GC.GC"));
        check("_D3app3appQeFZv", Some("app.app.app"));
        check("_D3appQzFZv", None);
        // 2^64 + 9.
        check("_D4shopQHLHXCZMXSYUMQz", None);
        let long = "x".repeat(9000);
        check(&format!("_D9000{long}"), Some(&long));
        // The path would repeat the identifier.
        check(&format!("_D9000{long}QNIi"), None);
        check("_D9", None);
        check("_D0", None);
    }
}
