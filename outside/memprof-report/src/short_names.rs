//! Names short enough for a table.

use std::borrow::Cow;

/// Names up to this many characters are shown whole.
const SHORT: usize = 60;

/// A function's name for a table: in a long one what stands between the angle brackets of generic arguments
/// is `…`, as in `Vec<…>::push`. The type and the trait of `<T as Trait>::f` stay, without their arguments.
pub(crate) fn shortened(name: &str) -> Cow<'_, str> {
    if name.len() <= SHORT || name.chars().count() <= SHORT {
        return Cow::Borrowed(name);
    }
    without_arguments(name).map_or(Cow::Borrowed(name), Cow::Owned)
}

/// None where the brackets do not match.
fn without_arguments(name: &str) -> Option<String> {
    let mut short = String::new();
    // How many brackets of arguments are open, and of types that stay.
    let (mut left_out, mut kept) = (0, 0);
    let mut rest = name;
    while let Some(c) = rest.chars().next() {
        let length = operator(&short, rest).unwrap_or(c.len_utf8());
        let (text, after) = rest.split_at(length);
        rest = after;
        match text {
            "<" if left_out > 0 => left_out += 1,
            "<" if is_type(&short, rest) => {
                kept += 1;
                short.push('<');
            }
            "<" => {
                left_out = 1;
                short.push_str("<…");
            }
            ">" if left_out > 0 => {
                left_out -= 1;
                if left_out == 0 {
                    short.push('>');
                }
            }
            ">" => {
                kept = i32::checked_sub(kept, 1).filter(|kept| *kept >= 0)?;
                short.push('>');
            }
            _ if left_out > 0 => {}
            _ => short.push_str(text),
        }
    }
    (left_out == 0 && kept == 0).then_some(short)
}

/// The length of an arrow or of C++'s operators that look like brackets.
fn operator(before: &str, rest: &str) -> Option<usize> {
    let marks: &[&str] = match before.ends_with("operator") {
        true => &[
            "<<=", ">>=", "<=>", "->*", "<<", ">>", "<=", ">=", "->", "<", ">",
        ],
        false => &["->"],
    };
    let found = marks.iter().find(|mark| rest.starts_with(**mark));
    found.map(|mark| mark.len())
}

/// Whether a bracket opens the type of `<T as Trait>::f` or an `<impl Trait for T>`.
fn is_type(before: &str, after: &str) -> bool {
    let begins = before.is_empty() || before.ends_with(['<', '(', '&', ' ', '[', ',']);
    begins || (before.ends_with("::") && after.starts_with("impl "))
}

#[cfg(test)]
mod tests {
    use super::{shortened, without_arguments};

    #[test]
    fn arguments_are_left_out_of_long_names() {
        let check = |name, expected| assert_eq!(without_arguments(name).as_deref(), expected);
        check(
            "std::vector<int, std::allocator<int> >::push_back",
            Some("std::vector<…>::push_back"),
        );
        check(
            "<alloc::vec::Vec<T> as core::iter::traits::collect::Extend<&T>>::extend",
            Some("<alloc::vec::Vec<…> as core::iter::traits::collect::Extend<…>>::extend"),
        );
        check(
            "alloc::slice::<impl [T]>::to_vec::<u8>",
            Some("alloc::slice::<impl [T]>::to_vec::<…>"),
        );
        check("shop::operator<< <char>", Some("shop::operator<< <char>"));
        check("run<fn() -> u8>::go", Some("run<…>::go"));
        check("broken<int", None);
        check("broken>", None);
    }

    #[test]
    fn short_names_stay() {
        assert_eq!(
            shortened("std::vector<int>::push_back"),
            "std::vector<int>::push_back"
        );
        let long = format!("shop::{}<int>::add", "a".repeat(60));
        assert_eq!(
            shortened(&long),
            format!("shop::{}<…>::add", "a".repeat(60))
        );
    }
}
