//! Names of types that say nothing, or that too many crates have.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::Visit;

use super::sources::SourceFile;

/// Participles, pronouns and question words by themselves: a type is a noun.
const BARE: &[&str] = &[
    "Asked", "At", "Begun", "By", "Chosen", "Driven", "Ended", "Found", "Given", "Gone", "Held",
    "How", "Kept", "Known", "Led", "Left", "Looked", "Made", "Moved", "Named", "Not", "On",
    "Opened", "Ours", "Passed", "Placed", "Raised", "Seen", "Sent", "Shown", "Taken", "Theirs",
    "There", "To", "Told", "Wanted", "What", "Which", "Whose", "Written",
];

/// A name that more crates have is too general for each of them.
const MAX_CRATES: usize = 3;

/// By convention the name of each crate's error, which `crate::Error` distinguishes.
const CRATE_ERROR: &str = "Error";

/// Finds types whose name has no noun, and names that the types of more than [`MAX_CRATES`] crates share. Each fault is
/// `FILE: what`, or `CRATES: what`.
pub(super) fn find_faults(files: &[SourceFile]) -> Vec<String> {
    let mut faults = Vec::new();
    let mut members = BTreeMap::<_, BTreeSet<_>>::new();
    for file in files {
        for name in declared_types(&file.text) {
            if BARE.contains(&name.as_str()) {
                faults.push(format!(
                    "{}: the type `{name}` has no noun",
                    file.path.display()
                ));
            }
            members
                .entry(name)
                .or_default()
                .insert(file.member.as_str());
        }
    }
    let common = members
        .into_iter()
        .filter(|(name, members)| members.len() > MAX_CRATES && name != CRATE_ERROR);
    faults.extend(common.map(|(name, members)| {
        let members: Vec<_> = members.into_iter().collect();
        format!("{}: each has a type `{name}`", members.join(", "))
    }));
    faults
}

/// Returns the names of the structs, enums and traits of a file, without its tests. None in a file that is not Rust,
/// which the compiler reports.
fn declared_types(text: &str) -> Vec<String> {
    let mut names = TypeNames(Vec::new());
    if let Ok(file) = syn::parse_file(text) {
        names.visit_file(&file);
    }
    names.0
}

struct TypeNames(Vec<String>);

impl<'ast> Visit<'ast> for TypeNames {
    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.0.push(item.ident.to_string());
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.0.push(item.ident.to_string());
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.0.push(item.ident.to_string());
    }

    /// Visits all modules but those of tests.
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if item.ident != "tests" {
            syn::visit::visit_item_mod(self, item);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_without_a_noun_and_types_of_four_crates_are_faults() {
        let check = |members: &[&str], text: &str, expected: &[&str]| {
            let file = |member: &&str| SourceFile {
                member: (*member).into(),
                path: format!("{member}/src/lib.rs").into(),
                text: text.into(),
            };
            let files: Vec<_> = members.iter().map(file).collect();
            assert_eq!(find_faults(&files), expected, "{text}");
        };
        check(&["a", "b", "c"], "struct Place;", &[]);
        check(
            &["a"],
            "enum Told {}",
            &["a/src/lib.rs: the type `Told` has no noun"],
        );
        check(&["a"], "mod tests { struct Told; }", &[]);
        check(
            &["a"],
            "mod inner { trait Which {} }",
            &["a/src/lib.rs: the type `Which` has no noun"],
        );
        check(
            &["a", "b", "c", "d"],
            "struct Place;",
            &["a, b, c, d: each has a type `Place`"],
        );
    }
}
