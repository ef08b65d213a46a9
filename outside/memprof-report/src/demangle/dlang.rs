//! Demangles the qualified names of D functions: <https://dlang.org/spec/abi.html#name_mangling>.

/// Demangles the path of a name with the prefix `_D`, without types: `shop.Cart.add` of `_D4shop4Cart3addMFiZv`. A
/// template instance ends the path, as in `shop.build!(…)`. `_Dmain` becomes `D main`. `None` if the name is malformed.
pub(super) fn demangle_d(name: &str) -> Option<String> {
    if name == "_Dmain" {
        return Some("D main".to_owned());
    }
    let mut path: Vec<&str> = Vec::new();
    // The path begins after `_D`.
    let mut at = 2;
    let mut is_template = false;
    while let Some(next) = name.as_bytes().get(at) {
        match next {
            b'0'..=b'9' => {
                let (word, end) = parse_identifier(name, at)?;
                match word.strip_prefix("__T").or(word.strip_prefix("__U")) {
                    // Older compilers write an instance as one identifier.
                    Some(inner) => {
                        path.push(parse_identifier(inner, 0)?.0);
                        is_template = true;
                    }
                    None => path.push(word),
                }
                at = end;
            }
            b'Q' => {
                let (distance, end) = parse_back_reference(name, at + 1)?;
                path.push(parse_identifier(name, at.checked_sub(distance)?)?.0);
                at = end;
            }
            b'_' if name[at..].starts_with("__T") || name[at..].starts_with("__U") => {
                path.push(match name.as_bytes().get(at + 3)? {
                    b'Q' => {
                        let (distance, _) = parse_back_reference(name, at + 4)?;
                        parse_identifier(name, (at + 3).checked_sub(distance)?)?.0
                    }
                    _ => parse_identifier(name, at + 3)?.0,
                });
                is_template = true;
            }
            _ => break,
        }
        if is_template {
            break;
        }
    }
    let suffix = if is_template { "!(…)" } else { "" };
    (!path.is_empty()).then(|| path.join(".") + suffix)
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
        distance = distance.checked_mul(26)?;
        match digit {
            b'A'..=b'Z' => distance += usize::from(digit - b'A'),
            b'a'..=b'z' => return Some((distance + usize::from(digit - b'a'), index)),
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::demangle_d;

    #[test]
    fn d_name_is_demangled() {
        let check =
            |name, expected: Option<&str>| assert_eq!(demangle_d(name).as_deref(), expected);
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
        check("_D9", None);
        check("_D0", None);
    }
}
