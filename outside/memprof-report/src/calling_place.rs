//! Names of rows that are a place without a symbol, with the library's function that it calls.

/// Text between a place and the function that it calls.
const CALLING: &str = " calling ";

/// Most characters of the function's name in a row: each place that calls it has a name of its own.
const MAX_FUNCTION_CHARS: usize = 256;

/// Returns the name of a report's row for a place in code without a symbol, with the library function that it calls:
/// `git+0x1c3f calling deflateInit_`. A function name of more than `MAX_FUNCTION_CHARS` characters is cut.
pub(crate) fn row_name_with_call(place: &str, function: &str) -> String {
    match function.char_indices().nth(MAX_FUNCTION_CHARS) {
        Some((end, _)) => format!("{place}{CALLING}{}…", &function[..end]),
        None => format!("{place}{CALLING}{function}"),
    }
}

/// Removes the called function from the name of a row: `git+0x1c3f` for `git+0x1c3f calling deflateInit_`. A name that
/// [`row_name_with_call`] cannot have created is returned unchanged.
pub(crate) fn row_name_without_call(row: &str) -> &str {
    match row.split_once(CALLING) {
        Some((place, _)) if place.contains("+0x") => place,
        _ => row,
    }
}

#[cfg(test)]
mod tests {
    use super::{row_name_with_call, row_name_without_call};

    #[test]
    fn long_name_of_a_function_is_cut() {
        assert_eq!(row_name_with_call("p+0x2", "z"), "p+0x2 calling z");
        let row = row_name_with_call("p+0x2", &"é".repeat(100_000));
        assert_eq!(row, format!("p+0x2 calling {}…", "é".repeat(256)));
    }

    #[test]
    fn place_is_taken_from_the_name_of_a_row() {
        assert_eq!(row_name_without_call("p+0x2 calling z_init"), "p+0x2");
        assert_eq!(row_name_without_call("p+0x2"), "p+0x2");
        assert_eq!(
            row_name_without_call("operator calling x"),
            "operator calling x"
        );
    }
}
