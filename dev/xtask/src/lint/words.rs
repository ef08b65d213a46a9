//! Words and beginnings of sentences that comments and names must not have.

use proc_macro2::{Ident, TokenStream, TokenTree};

use super::sources::SourceFile;

/// Beginnings of doc lines: such a line is half a sentence, which the name would have to complete.
const BEGINNINGS: &[&str] = &[
    "What ",
    "Of ",
    "Where ",
    "Whose ",
    "How ",
    "None where ",
    "The same",
    "As of ",
    "So many ",
];

/// Neither comments nor names contain them.
const WORDS: &[&str] = &[
    "ours", "whoever", "nobody", "somebody", "told", "led", "errand", "leash", "farewell",
    "manieth",
];

const PHRASES: &[&str] = &["so many"];

/// Finds forbidden words in comments and names. Each fault is `FILE:LINE: what`.
pub(super) fn find_faults(files: &[SourceFile]) -> Vec<String> {
    let faults = files.iter().flat_map(|file| {
        let path = file.path.display();
        let faults = comment_faults(&file.text)
            .into_iter()
            .chain(name_faults(&file.text));
        let faults: Vec<_> = faults
            .map(|(line, fault)| format!("{path}:{line}: {fault}"))
            .collect();
        faults
    });
    faults.collect()
}

/// Iterates over the lines that are comments and nothing else: the number of each, and its text after the first two
/// slashes.
fn comment_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let numbered = text.lines().zip(1..);
    numbered.filter_map(|(line, number)| Some((number, line.trim_start().strip_prefix("//")?)))
}

/// Finds forbidden words and beginnings in the comments of a file, with their line numbers.
fn comment_faults(text: &str) -> Vec<(usize, String)> {
    let mut faults = Vec::new();
    for (number, comment) in comment_lines(text) {
        let is_doc = comment.starts_with(['/', '!']);
        let sentence = comment.trim_start_matches(['/', '!']).trim_start();
        let beginning = BEGINNINGS
            .iter()
            .find(|begin| sentence.starts_with(**begin));
        if let Some(beginning) = beginning.filter(|_| is_doc) {
            faults.push((
                number,
                format!("a doc line begins with {:?}", beginning.trim_end()),
            ));
        }
        let lower = sentence.to_lowercase();
        let is_used = |word: &str| {
            lower
                .split(|c: char| !c.is_alphanumeric())
                .any(|each| each == word)
        };
        let words = WORDS.iter().filter(|word| is_used(word));
        let phrases = PHRASES.iter().filter(|phrase| lower.contains(**phrase));
        faults.extend(
            words
                .chain(phrases)
                .map(|word| (number, format!("a comment says {word:?}"))),
        );
    }
    faults
}

/// Finds forbidden words in the names of a file, with their line numbers. None in a file that is not Rust, which the
/// compiler reports.
fn name_faults(text: &str) -> Vec<(usize, String)> {
    let mut faults = Vec::new();
    if let Ok(tokens) = text.parse::<TokenStream>() {
        for_each_name(tokens, &mut |name| {
            let text = name.to_string();
            if let Some(word) = WORDS
                .iter()
                .find(|word| name_parts(&text).any(|part| part == **word))
            {
                let line = name.span().start().line;
                faults.push((line, format!("the name `{text}` contains {word:?}")));
            }
        });
    }
    faults
}

/// Calls `visit` with each identifier, also in groups.
fn for_each_name(tokens: TokenStream, visit: &mut impl FnMut(&Ident)) {
    for token in tokens {
        match token {
            TokenTree::Ident(name) => visit(&name),
            TokenTree::Group(group) => for_each_name(group.stream(), visit),
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
}

/// Splits a name into lowercase words: `is_OwnHeap` into `is`, `own`, `heap`.
fn name_parts(name: &str) -> impl Iterator<Item = String> {
    let mut parts = Vec::new();
    for word in name.split('_') {
        let mut part = String::new();
        for letter in word.chars() {
            let is_new = letter.is_uppercase() && part.ends_with(char::is_lowercase);
            if is_new {
                parts.push(std::mem::take(&mut part).to_lowercase());
            }
            part.push(letter);
        }
        parts.push(part.to_lowercase());
    }
    parts.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_names_of_a_file_that_breaks_every_rule_are_faults() {
        let check = |text: &str, expected: &[&str]| {
            let file = SourceFile {
                member: "x".into(),
                path: "x.rs".into(),
                text: text.into(),
            };
            assert_eq!(find_faults(&[file]), expected, "{text}");
        };
        check("/// Size in bytes.\nfn size() {}\n", &[]);
        check("// What follows is a reason, no doc line.\n", &[]);
        check(
            "/// Of all.\nfn f() {}\n",
            &["x.rs:1: a doc line begins with \"Of\""],
        );
        check(
            "//! The same here.\n",
            &["x.rs:1: a doc line begins with \"The same\""],
        );
        check(
            "fn f() {\n    // Ours, then.\n}\n",
            &["x.rs:2: a comment says \"ours\""],
        );
        check(
            "// It takes so many.\n",
            &["x.rs:1: a comment says \"so many\""],
        );
        check("fn coloured() {}\n// Called and settled.\n", &[]);
        check(
            "struct OursHeld;\nfn f() { is_told(1); }\n",
            &[
                "x.rs:1: the name `OursHeld` contains \"ours\"",
                "x.rs:2: the name `is_told` contains \"told\"",
            ],
        );
        check("const SAID: &str = \"nobody\";\n", &[]);
    }
}
