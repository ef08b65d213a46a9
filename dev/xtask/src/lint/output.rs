//! Output beside memprof-output: calls that panic on a closed pipe, or leave half a file on a full disk.

use syn::visit::Visit;

use super::sources::SourceFile;

/// Crates of programs that print and write files.
const PROGRAMS: &str = "outside/";

/// The crate that prints and writes for them.
const OUTPUT: &str = "outside/memprof-output";

const MACROS: &[&str] = &["print", "println", "eprint", "eprintln", "dbg"];

/// Functions by the last two parts of their path.
const FUNCTIONS: &[[&str; 2]] = &[
    ["io", "stdout"],
    ["io", "stderr"],
    ["fs", "write"],
    ["fs", "copy"],
    ["File", "create"],
    ["File", "create_new"],
];

/// Methods of `OpenOptions` that create a file, if their argument is `true`.
const METHODS: &[&str] = &["create", "create_new"];

/// Calls that are right where they are: the file, the call and the reason.
const EXCEPTIONS: &[[&str; 3]] = &[
    [
        "outside/memprof-fleet/src/spool.rs",
        "create",
        "the lock file stays empty",
    ],
    [
        "outside/memprof-fleet/src/spool.rs",
        "File::create",
        "a profile's temporary name is always the same, so that a killed agent leaves one at most",
    ],
    [
        "outside/memprof-cli/src/gate/measure.rs",
        "fs::write",
        "a new temporary directory has no older file",
    ],
    [
        "outside/memprof-cli/src/gate/measure.rs",
        "io::stderr",
        "the tested command gets the descriptor",
    ],
];

/// Finds calls that print or create files in the crates of programs, which leave that to memprof-output; those in
/// [`EXCEPTIONS`] are allowed. Each fault is `FILE: what`.
pub(super) fn find_faults(files: &[SourceFile]) -> Vec<String> {
    let programs = files
        .iter()
        .filter(|file| file.member.starts_with(PROGRAMS) && file.member != OUTPUT);
    let faults = programs.flat_map(|file| {
        let path = file.path.display().to_string();
        let is_exception = |call: &str| {
            let mut exceptions = EXCEPTIONS.iter();
            exceptions.any(|[of, excepted, _]| *of == path && *excepted == call)
        };
        let calls = output_calls(&file.text).into_iter();
        let calls: Vec<_> = calls.filter(|call| !is_exception(call)).collect();
        calls
            .into_iter()
            .map(move |call| format!("{path}: calls `{call}`, which is memprof-output's"))
    });
    faults.collect()
}

/// Returns the calls in a file that print or create files, and the imports of such functions, without those of its
/// tests. None in a file that is not Rust, which the compiler reports.
fn output_calls(text: &str) -> Vec<String> {
    let mut calls = OutputCalls(Vec::new());
    if let Ok(file) = syn::parse_file(text) {
        calls.visit_file(&file);
    }
    calls.0
}

struct OutputCalls(Vec<String>);

impl OutputCalls {
    /// Adds the last two parts of a path if they are one of [`FUNCTIONS`].
    fn add_if_output_function(&mut self, parts: &[String]) {
        let end = parts.len().checked_sub(2).map(|start| &parts[start..]);
        if FUNCTIONS
            .iter()
            .any(|path| end.is_some_and(|end| end == path))
        {
            self.0.push(parts[parts.len() - 2..].join("::"));
        }
    }

    /// Adds the functions among [`FUNCTIONS`] that a tree imports; `parts` is the path before it.
    fn add_imports(&mut self, tree: &syn::UseTree, parts: &mut Vec<String>) {
        match tree {
            syn::UseTree::Path(path) => {
                parts.push(path.ident.to_string());
                self.add_imports(&path.tree, parts);
                parts.pop();
            }
            syn::UseTree::Group(group) => {
                for tree in &group.items {
                    self.add_imports(tree, parts);
                }
            }
            syn::UseTree::Name(syn::UseName { ident })
            | syn::UseTree::Rename(syn::UseRename { ident, .. }) => {
                self.add_if_output_function(&[&parts[..], &[ident.to_string()]].concat());
            }
            syn::UseTree::Glob(_) => {}
        }
    }
}

impl<'ast> Visit<'ast> for OutputCalls {
    fn visit_macro(&mut self, called: &'ast syn::Macro) {
        let name = called
            .path
            .segments
            .last()
            .map(|last| last.ident.to_string());
        if let Some(name) = name.filter(|name| MACROS.contains(&name.as_str())) {
            self.0.push(format!("{name}!"));
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let parts = path.segments.iter().map(|part| part.ident.to_string());
        self.add_if_output_function(&parts.collect::<Vec<_>>());
        syn::visit::visit_path(self, path);
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.add_imports(&item.tree, &mut Vec::new());
    }

    /// Adds a call of one of [`METHODS`] with an argument `true`, such as `create(true)`.
    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        let is_true = |argument: &syn::Expr| {
            let syn::Expr::Lit(literal) = argument else {
                return false;
            };
            matches!(&literal.lit, syn::Lit::Bool(value) if value.value)
        };
        let name = call.method.to_string();
        if METHODS.contains(&name.as_str()) && call.args.iter().any(is_true) {
            self.0.push(name);
        }
        syn::visit::visit_expr_method_call(self, call);
    }

    /// Visits all modules but those of tests.
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if item.ident != "tests" {
            syn::visit::visit_item_mod(self, item);
        }
    }

    /// Visits all functions but tests.
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        let is_test = item
            .attrs
            .iter()
            .any(|attribute| attribute.path().is_ident("test"));
        if !is_test {
            syn::visit::visit_item_fn(self, item);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_print_or_create_files_are_faults() {
        let check = |member: &str, text: &str, expected: &[&str]| {
            let file = SourceFile {
                member: member.into(),
                path: format!("{member}/src/main.rs").into(),
                text: text.into(),
            };
            let expected = expected.iter().map(|call| {
                format!("{member}/src/main.rs: calls `{call}`, which is memprof-output's")
            });
            assert!(find_faults(&[file]).into_iter().eq(expected), "{text}");
        };
        let cli = "outside/memprof-cli";
        check(
            cli,
            "fn f() { println!(\"x\"); std::eprint!(\"x\"); }",
            &["println!", "eprint!"],
        );
        check(
            cli,
            "fn f() { std::fs::write(a, b)?; fs::read(a) }",
            &["fs::write"],
        );
        check(cli, "fn f() { io::stdout().lock(); }", &["io::stdout"]);
        check(cli, "use std::io::{self, stderr};", &["io::stderr"]);
        check(cli, "use std::fs::write as put;", &["fs::write"]);
        check(cli, "fn f() { a.map(File::create); }", &["File::create"]);
        check(
            cli,
            "fn f() { OpenOptions::new().write(true).create(true) }",
            &["create"],
        );
        check(
            cli,
            "fn f() { store.create(name); options.create(false) }",
            &[],
        );
        check(cli, "mod tests { fn f() { println!(\"x\") } }", &[]);
        check(cli, "#[test] fn f() { fs::write(a, b) }", &[]);
        check("outside/memprof-output", "fn f() { io::stderr(); }", &[]);
        check("dev/bench", "fn f() { println!(\"x\"); }", &[]);
    }
}
