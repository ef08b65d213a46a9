//! Namespaces of C++ and crates of Rust, read from the names of functions.

use std::borrow::Cow;

/// Rust's own crates. No program may implement one of their traits for one of their types.
const RUST_STD: [&str; 3] = ["core", "alloc", "std"];

/// Returns the possible namespaces of a function: usually one, the first component of its path. `<T as Trait>::f` has
/// two, the crates of the type and of the trait: by Rust's orphan rule, one of them has the implementation. If one of
/// the two is `core`, `alloc` or `std` and the other is not, only the other is returned, because Rust's own crates
/// cannot name its items. A name that starts with `<` and has no crate is of `core`. Empty for any other name that has
/// only one component, or does not start with an identifier.
pub(super) fn namespaces(function: &str) -> Vec<Cow<'_, str>> {
    let Some(inside) = function.strip_prefix('<') else {
        return plain_namespace(function).into_iter().collect();
    };
    let kind = crate_of_type(inside);
    let named = inside.split_once(" as ").map(|(_, named)| named);
    // `<[T]>::to_vec`, `<u8 as <[_]>::to_vec_in::ConvertVec>::to_vec`: only Rust's own libraries may add functions to
    // built-in types.
    let named = named.map(|named| match named.starts_with('<') {
        true => "core",
        false => named.split("::").next().unwrap_or(named),
    });
    let mut both: Vec<Cow<'_, str>> = [kind, named]
        .into_iter()
        .flatten()
        .map(Cow::Borrowed)
        .collect();
    if both.iter().any(|name| !RUST_STD.contains(&&**name)) {
        both.retain(|name| !RUST_STD.contains(&&**name));
    }
    if both.is_empty() {
        both.push(Cow::Borrowed("core"));
    }
    both
}

/// First component of a function's path: `std` for `std::string::append`. The first two for `boost` and `absl`, which
/// contain many libraries. `None` if the name is no path, or does not start with an identifier.
fn plain_namespace(function: &str) -> Option<Cow<'_, str>> {
    let (first, rest) = function.split_once("::")?;
    let second = rest.split("::").next().unwrap_or_default();
    match first {
        "boost" | "absl" => Some(Cow::Owned(format!("{first}::{second}"))),
        // The type of an operator such as `operator std::string`, or a conversion in template arguments.
        _ if !is_identifier(first) => None,
        _ => Some(Cow::Borrowed(first)),
    }
}

/// Returns the crate of the Rust type at the start of `text`, behind references, pointers, `dyn` and brackets. `None`
/// for a type whose name has no path: it is generic or built in.
fn crate_of_type(text: &str) -> Option<&str> {
    let mut kind = text;
    while let Some(rest) = ["&mut ", "&", "*const ", "*mut ", "dyn ", "(", "[", "<"]
        .iter()
        .find_map(|mark| kind.strip_prefix(mark))
    {
        kind = rest;
        if kind.starts_with('\'') {
            kind = kind.split_once(' ').map_or(kind, |(_, rest)| rest);
        }
    }
    let end = kind
        .find(|c: char| !(c.is_alphanumeric() || c == '_'))
        .unwrap_or(kind.len());
    kind[end..].starts_with("::").then_some(&kind[..end])
}

/// Returns whether a text has only ASCII letters, digits and underscores; false if it is empty.
fn is_identifier(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_')
}

#[cfg(test)]
mod tests {
    use super::namespaces;

    #[test]
    fn implementation_is_of_the_crate_that_may_write_it() {
        let check = |function, expected: &[&str]| assert_eq!(namespaces(function), expected);
        check("main", &[]);
        check("shop::Cart::add", &["shop"]);
        check(
            "boost::container::vector<int>::insert",
            &["boost::container"],
        );
        check("operator std::string", &[]);
        check("<shop::Cart as core::clone::Clone>::clone", &["shop"]);
        check(
            "<&shop::Cart as alloc::string::ToString>::to_string",
            &["shop"],
        );
        check("<alloc::vec::Vec<T> as shop::Load>::load_all", &["shop"]);
        check(
            "<std::collections::HashMap<u32, T> as shop::Load>::load_all",
            &["shop"],
        );
        check("<[u8] as shop::Load>::load_all", &["shop"]);
        check(
            "<shop::Cart as serde::ser::Serialize>::serialize",
            &["shop", "serde"],
        );
        check("<F as axum::handler::Handler<(M, T1)>>::call", &["axum"]);
        check(
            "<T as alloc::vec::spec_from_elem::SpecFromElem>::from_elem",
            &["alloc"],
        );
        check("<[T]>::to_vec", &["core"]);
        check("<u8 as <[_]>::to_vec_in::ConvertVec>::to_vec", &["core"]);
        check("<&'a mut [T] as core::iter::Iterator>::next", &["core"]);
        check(
            "<alloc::boxed::Box<F> as core::ops::FnOnce<()>>::call_once",
            &["alloc", "core"],
        );
    }
}
