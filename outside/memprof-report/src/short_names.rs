//! Shortens names for tables.

use std::borrow::Cow;

/// Names with up to this many characters are not shortened.
const MAX_CHARS: usize = 60;

/// Most characters of a name in a table: names that no demangler reads have up to thousands.
const MAX_TABLE_CHARS: usize = 160;

/// Shortens a function's name of more than `MAX_CHARS` characters for a table: replaces its generic arguments by `…`,
/// as in `Vec<…>::push`. The type and the trait of `<T as Trait>::f` stay, without their arguments. If that does not
/// suffice, or the brackets do not match, [`cut_name`] cuts the middle out.
pub(crate) fn short_name(name: &str) -> Cow<'_, str> {
    if name.len() <= MAX_CHARS || name.chars().count() <= MAX_CHARS {
        return Cow::Borrowed(name);
    }
    match without_generic_arguments(name) {
        Some(short) => Cow::Owned(cut_name(&short).into_owned()),
        None => cut_name(name),
    }
}

/// Replaces the middle of a name that has more than [`MAX_TABLE_CHARS`] characters by `…`.
pub(crate) fn cut_name(name: &str) -> Cow<'_, str> {
    let count = name.chars().count();
    if count <= MAX_TABLE_CHARS {
        return Cow::Borrowed(name);
    }
    let half = MAX_TABLE_CHARS / 2;
    let start = name.chars().take(half);
    let end = name.chars().skip(count - half + 1);
    Cow::Owned(start.chain(['…']).chain(end).collect())
}

/// Replaces generic arguments by `…`. The brackets of a type, as in `<T as Trait>`, stay. `None` if the brackets do not
/// match.
fn without_generic_arguments(name: &str) -> Option<String> {
    let mut short = String::new();
    // Open brackets of removed arguments, and of types that stay.
    let (mut removed, mut kept) = (0, 0);
    let mut rest = name;
    while let Some(c) = rest.chars().next() {
        let length = operator_len(&short, rest).unwrap_or(c.len_utf8());
        let (text, after) = rest.split_at(length);
        rest = after;
        match text {
            "<" if removed > 0 => removed += 1,
            "<" if opens_type(&short, rest) => {
                kept += 1;
                short.push('<');
            }
            "<" => {
                removed = 1;
                short.push_str("<…");
            }
            ">" if removed > 0 => {
                removed -= 1;
                if removed == 0 {
                    short.push('>');
                }
            }
            ">" => {
                kept = i32::checked_sub(kept, 1).filter(|kept| *kept >= 0)?;
                short.push('>');
            }
            _ if removed > 0 => {}
            _ => short.push_str(text),
        }
    }
    (removed == 0 && kept == 0).then_some(short)
}

/// Length in bytes of the text at the start of `rest` that looks like brackets but is none: `->` or, if `before` ends
/// with the word `operator`, a C++ operator such as `<<`. `None` if `rest` starts with neither.
fn operator_len(before: &str, rest: &str) -> Option<usize> {
    if !rest.starts_with(['<', '>', '-']) {
        return None;
    }
    let marks: &[&str] = match before.ends_with("operator") {
        true => &[
            "<<=", ">>=", "<=>", "->*", "<<", ">>", "<=", ">=", "->", "<", ">",
        ],
        false => &["->"],
    };
    let found = marks.iter().find(|mark| rest.starts_with(**mark));
    found.map(|mark| mark.len())
}

/// Returns whether the bracket `<` between `before` and `after` opens a type, as in `<T as Trait>::f` or
/// `shop::<impl Trait for T>::f`, not generic arguments.
fn opens_type(before: &str, after: &str) -> bool {
    let begins = before.is_empty() || before.ends_with(['<', '(', '&', ' ', '[', ',']);
    begins || (before.ends_with("::") && after.starts_with("impl "))
}

#[cfg(test)]
mod tests {
    use super::{MAX_TABLE_CHARS, cut_name, short_name, without_generic_arguments};

    #[test]
    fn middle_of_overlong_name_is_cut() {
        let name = |length: usize| format!("_ZN4shop{}7load_allEv", "ä".repeat(length));
        let longest = name(MAX_TABLE_CHARS - 20);
        assert_eq!(short_name(&longest), longest);
        for long in [name(MAX_TABLE_CHARS), name(1500)] {
            let cut = cut_name(&long);
            assert_eq!(cut.chars().count(), MAX_TABLE_CHARS);
            assert!(
                cut.starts_with("_ZN4shopä") && cut.ends_with("7load_allEv"),
                "{cut}"
            );
            assert_eq!(short_name(&long), cut);
        }
        let generic = format!("shop::{}<int>::add", "a".repeat(1500));
        assert!(short_name(&generic).ends_with("a<…>::add"));
    }

    #[test]
    fn long_name_loses_generic_arguments() {
        let check =
            |name, expected| assert_eq!(without_generic_arguments(name).as_deref(), expected);
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
    fn short_name_is_not_changed() {
        assert_eq!(
            short_name("std::vector<int>::push_back"),
            "std::vector<int>::push_back"
        );
        let long = format!("shop::{}<int>::add", "a".repeat(60));
        assert_eq!(
            short_name(&long),
            format!("shop::{}<…>::add", "a".repeat(60))
        );
    }
}
