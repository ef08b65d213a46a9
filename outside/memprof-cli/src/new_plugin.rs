//! `memprof plugin new NAME --lang rust|c`: a folder with a plugin that builds, is checked and answers at once.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use crate::exit::{Outcome, USAGE, with_exit_code};
use crate::output;

/// Language of a new plugin.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum Language {
    Rust,
    C,
}

#[derive(Debug, clap::Args)]
pub(crate) struct NewPluginArgs {
    /// The plugin's name in messages: lower-case letters, digits and `_`
    name: String,
    /// The plugin's language
    #[arg(long)]
    lang: Language,
    /// The directory to make [default: ./NAME]
    #[arg(long, value_name = "DIR")]
    path: Option<PathBuf>,
    /// The directory with memprof's crates and headers [default: that of this program's package or build]
    #[arg(long, value_name = "DIR")]
    sdk: Option<PathBuf>,
}

/// Name of the plugin in the templates.
const TEMPLATE_NAME: &str = "greeter";

/// Path below the folder, and text.
type Template = (&'static str, &'static str);

const RUST: &[Template] = &[
    ("Cargo.toml", include_str!("new_plugin/rust/Cargo.toml.in")),
    ("build.rs", include_str!("new_plugin/rust/build.rs.in")),
    ("src/lib.rs", include_str!("new_plugin/rust/src/lib.rs")),
    (
        "tests/answers.rs",
        include_str!("new_plugin/rust/tests/answers.rs"),
    ),
    ("README.md", include_str!("new_plugin/rust/README.md")),
];
const C: &[Template] = &[
    ("Makefile", include_str!("new_plugin/c/Makefile")),
    ("greeter.c", include_str!("new_plugin/c/greeter.c")),
    ("test.c", include_str!("new_plugin/c/test.c")),
    ("README.md", include_str!("new_plugin/c/README.md")),
];

/// Crates of memprof that a plugin in Rust and its test need.
const CRATES: &[&str] = &["memprof-host", "memprof-own", "memprof-plugin-abi"];

/// Names that are taken by another plugin, a dependency or a file of the templates, and names that cargo refuses:
/// keywords of Rust, cargo's own folders, and the language's crates.
const RESERVED: &[&str] = &[
    "abstract",
    "alloc",
    "answers",
    "as",
    "async",
    "await",
    "become",
    "box",
    "break",
    "build",
    "const",
    "continue",
    "core",
    "crate",
    "deps",
    "do",
    "dyn",
    "else",
    "enum",
    "examples",
    "extern",
    "false",
    "final",
    "fn",
    "for",
    "gen",
    "if",
    "impl",
    "in",
    "incremental",
    "let",
    "log",
    "loop",
    "macro",
    "match",
    "memory_profile",
    "memprof_host",
    "memprof_plugin_abi",
    "mod",
    "move",
    "mut",
    "override",
    "priv",
    "proc_macro",
    "pub",
    "ref",
    "return",
    "self",
    "serde",
    "static",
    "std",
    "struct",
    "super",
    "test",
    "toml",
    "trait",
    "true",
    "try",
    "type",
    "typeof",
    "unsafe",
    "unsized",
    "use",
    "virtual",
    "where",
    "while",
    "yield",
];

/// Runs `memprof plugin new`: writes the plugin to a new folder, and prints the command that tests it.
pub(crate) fn run(args: &NewPluginArgs) -> Outcome {
    check_plugin_name(&args.name)?;
    let folder = args
        .path
        .clone()
        .unwrap_or_else(|| args.name.clone().into());
    let files = match args.lang {
        Language::Rust => {
            let patches = cargo_patches(args.sdk.as_deref())?;
            fill_templates(RUST, &args.name, |text| text + &patches)
        }
        Language::C => {
            let include = include_dir(args.sdk.as_deref())?;
            fill_templates(C, &args.name, |text| {
                text.replace("INCLUDE", &quote_for_make(&include))
            })
        }
    };
    make_folder(&folder, &files)?;
    let test = match args.lang {
        Language::Rust => "cargo test",
        Language::C => "make check",
    };
    let folder = quote_for_shell(&folder.display().to_string());
    output::print(&format!("cd {folder} && {test}"));
    Ok(0.into())
}

/// Makes a new folder with `files`, each a path below the folder and a text. The folder appears with all files at once:
/// if one cannot be written, as on a full disk, nothing is left. If this program is killed, a hidden folder beside the
/// new one may be left. Fails if the folder exists.
fn make_folder(folder: &Path, files: &[(String, String)]) -> Result<()> {
    if folder.symlink_metadata().is_ok() {
        return Err(folder_error(folder, io::ErrorKind::AlreadyExists.into()));
    }
    let parent = folder
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let hidden = tempfile::Builder::new()
        .prefix(".memprof-")
        // The umask applies, as for any folder.
        .permissions(Permissions::from_mode(0o777))
        .tempdir_in(parent.unwrap_or(Path::new(".")));
    let hidden = hidden.map_err(|error| {
        let cause = error.to_string();
        folder_error(
            folder,
            io::Error::new(error.kind(), output::without_temporary_path(&cause)),
        )
    })?;
    write_files(hidden.path(), files)
        .with_context(|| format!("failed to make the directory {}", folder.display()))?;
    rename_without_replacing(hidden.path(), folder).map_err(|error| folder_error(folder, error))?;
    // The hidden folder was renamed, so there is none to remove when `hidden` is dropped.
    let _path = hidden.keep();
    Ok(())
}

/// Renames a folder. Fails if the new name is taken; on a file system without `RENAME_NOREPLACE`, an empty folder is
/// replaced.
fn rename_without_replacing(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // A file system without the flag: rename(2) replaces nothing but an empty folder.
        Err(Errno::INVAL | Errno::NOSYS) => std::fs::rename(from, to),
        renamed => Ok(renamed?),
    }
}

/// Writes files into a new folder, and makes the folders below it. Fails at the first file that cannot be written; the
/// error names the file without the folder.
fn write_files(folder: &Path, files: &[(String, String)]) -> Result<()> {
    for (name, text) in files {
        let path = folder.join(name);
        let parent = path.parent().unwrap_or(folder);
        std::fs::create_dir_all(parent).with_context(|| format!("failed to write {name}"))?;
        let written = output::publish_file(&path, |out| Ok(out.write_all(text.as_bytes())?));
        written.map_err(|error| {
            let cause = error.root_cause().to_string();
            anyhow!(
                "failed to write {name}: {}",
                output::without_temporary_path(&cause)
            )
        })?;
    }
    Ok(())
}

/// Returns a text as one word of a shell, in quotes if it needs them.
fn quote_for_shell(text: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+,:@%".contains(c);
    match !text.is_empty() && !text.starts_with('-') && text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

/// Returns a path as one word of a command in a Makefile: quoted for the shell, and with `$` and `#` escaped, because
/// make expands `$`, and ends a line at `#`.
fn quote_for_make(path: &str) -> String {
    quote_for_shell(path).replace('$', "$$").replace('#', "\\#")
}

/// Builds the error for a folder that cannot be made, with a remedy if its name is taken.
fn folder_error(folder: &Path, error: io::Error) -> anyhow::Error {
    let is_taken = error.kind() == io::ErrorKind::AlreadyExists;
    let context = format!("failed to make the directory {}", folder.display());
    match is_taken {
        true => with_exit_code(
            USAGE,
            format!("{context}: it exists; name another one with --path DIR, or remove it"),
        ),
        false => anyhow::Error::new(error).context(context),
    }
}

/// Fills the templates with the plugin's name. Returns the path and text of each file. `end` completes the text of the
/// first file, which is the one for the build tool.
fn fill_templates(
    templates: &[Template],
    name: &str,
    end: impl FnOnce(String) -> String,
) -> Vec<(String, String)> {
    let named = |text: &str| text.replace(TEMPLATE_NAME, name);
    let files = templates
        .iter()
        .map(|(path, text)| (named(path), named(text)));
    let mut files: Vec<_> = files.collect();
    if let Some((_, build)) = files.first_mut() {
        *build = end(std::mem::take(build));
    }
    files
}

/// Fails unless the name can be that of a plugin, a crate, a C file and a command of Redis. The error of a badly
/// spelled name suggests a valid one.
fn check_plugin_name(name: &str) -> Result<()> {
    let is_plain = name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.len() <= 64
        && name
            .bytes()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_');
    let refused = |reason: &str| {
        Err(with_exit_code(
            USAGE,
            format!("invalid name {name:?}: {reason}"),
        ))
    };
    if !is_plain {
        let rule = "expected at most 64 lower-case letters, digits and `_`, a letter first";
        let valid = name.to_ascii_lowercase().replace(['-', '.', ' '], "_");
        return match valid != name && check_plugin_name(&valid).is_ok() {
            true => refused(&format!("{rule}, such as {valid}")),
            false => refused(rule),
        };
    }
    if RESERVED.contains(&name) {
        return refused("cargo, C or memprof has it already");
    }
    Ok(())
}

/// Returns the folders in which the SDK (memprof's crates and headers) may be: the folder `named` by the user or, if
/// that is `None`, those beside this program in a build and in a package. The folders may not exist.
fn candidate_sdk_dirs(named: Option<&Path>) -> Result<Vec<PathBuf>> {
    if let Some(named) = named {
        let named = std::path::absolute(named).context("failed to find the SDK")?;
        return Ok(vec![named]);
    }
    let own = std::env::current_exe().context("failed to find this program")?;
    // `PREFIX/bin/memprof`.
    let prefix = own.ancestors().nth(2).unwrap_or(&own);
    Ok(vec![
        prefix.join("sdk"),
        prefix.join("share/memprof/sdk"),
        prefix.to_owned(),
    ])
}

/// Builds the error for a `file` that no folder of the SDK has. `dirs` are the folders that were searched.
fn missing_sdk_file_error(file: &str, dirs: &[PathBuf]) -> anyhow::Error {
    let dirs: Vec<_> = dirs.iter().map(|dir| dir.display().to_string()).collect();
    let message = format!(
        "found no {file} in {}: name the directory of memprof's crates and headers by --sdk, such as a checkout of memprof",
        dirs.join(", ")
    );
    with_exit_code(USAGE, message)
}

/// Returns the lines of Cargo.toml that point to memprof's crates by their folders in the SDK (memprof's crates and
/// headers). `sdk` is the folder that the user named; if it is `None`, the usual folders are searched. Fails if a crate
/// is missing.
fn cargo_patches(sdk: Option<&Path>) -> Result<String> {
    let dirs = candidate_sdk_dirs(sdk)?;
    let mut lines = String::new();
    for name in CRATES {
        // Packed crates lie side by side; a checkout has folders.
        let places = dirs
            .iter()
            .flat_map(|dir| [dir.join(name), dir.join("in-process").join(name)]);
        let found = places
            .into_iter()
            .find(|place| place.join("Cargo.toml").is_file());
        let found = found.ok_or_else(|| missing_sdk_file_error(&format!("crate {name}"), &dirs))?;
        let path = toml::Value::String(found.display().to_string());
        lines += &format!("{name} = {{ path = {path} }}\n");
    }
    Ok(lines)
}

/// Returns the folder of memprof.h. `sdk` is the folder of memprof's crates and headers that the user named; if it is
/// `None`, the usual folders are searched. Fails if no folder has the file.
fn include_dir(sdk: Option<&Path>) -> Result<String> {
    let dirs = candidate_sdk_dirs(sdk)?;
    let places = dirs
        .iter()
        .flat_map(|dir| [dir.join("include"), dir.join("memprof-plugin-abi/include")]);
    let found = places
        .into_iter()
        .find(|place| place.join("memprof.h").is_file());
    let found = found.ok_or_else(|| missing_sdk_file_error("memprof.h", &dirs))?;
    Ok(found.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_checked() {
        for name in ["words", "w", "a_1", &"x".repeat(64)] {
            check_plugin_name(name).unwrap();
        }
        for name in [
            "",
            "_a",
            "1a",
            "A",
            "a-b",
            "a/b",
            "..",
            "a b",
            "fn",
            "test",
            "memory_profile",
            "é",
            &"x".repeat(65),
        ] {
            check_plugin_name(name).unwrap_err();
        }
    }

    #[test]
    fn refused_name_comes_with_a_valid_one() {
        let check = |name: &str, expected: &str| {
            let refused = check_plugin_name(name).unwrap_err().to_string();
            assert!(refused.ends_with(expected), "{refused}");
        };
        check("my-plugin", ", such as my_plugin");
        check("Two Words", ", such as two_words");
        check("c++", "a letter first");
        check("2nd", "a letter first");
        check("Self", "a letter first");
        for name in ["self", "crate", "test"] {
            check(name, "has it already");
        }
    }

    #[test]
    fn folder_that_cannot_be_filled_is_removed() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("words");
        let file = |path: &str| (path.to_owned(), "text".to_owned());
        let unwritable = file(&format!("src/{}", "x".repeat(300)));
        let failed = make_folder(&folder, &[file("Makefile"), unwritable]);
        let reason = format!("{:#}", failed.unwrap_err());
        assert!(reason.contains("File name too long"), "{reason}");
        assert!(!reason.contains(".memprof-"), "{reason}");
        let left = std::fs::read_dir(place.path()).unwrap();
        assert_eq!(left.count(), 0);
        make_folder(&folder, &[file("Makefile"), file("src/lib.rs")]).unwrap();
        let taken = make_folder(&folder, &[file("other")]).unwrap_err();
        assert!(taken.to_string().contains("name another one"), "{taken}");
        assert!(folder.join("src/lib.rs").exists());
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode();
        let plain = place.path().join("plain");
        std::fs::create_dir(&plain).unwrap();
        assert_eq!(mode(&folder), mode(&plain));
        let error = rename_without_replacing(&plain, &folder).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        let left = std::fs::read_dir(place.path()).unwrap();
        assert_eq!(left.count(), 2);
    }

    #[test]
    fn words_are_quoted_for_the_shell_and_for_make() {
        let check = |path: &str, in_shell: &str, in_make: &str| {
            assert_eq!(quote_for_shell(path), in_shell);
            assert_eq!(quote_for_make(path), in_make);
        };
        check("words", "words", "words");
        check(
            "/usr/share/x_1-2.3",
            "/usr/share/x_1-2.3",
            "/usr/share/x_1-2.3",
        );
        check("two words", "'two words'", "'two words'");
        check("it's", r"'it'\''s'", r"'it'\''s'");
        check("-x", "'-x'", "'-x'");
        check("a$b#c", "'a$b#c'", r"'a$$b\#c'");
    }

    #[test]
    fn filled_templates_have_the_name_only() {
        for templates in [RUST, C] {
            for (path, text) in fill_templates(templates, "words", |text| text) {
                assert!(
                    !path.contains(TEMPLATE_NAME) && !text.contains(TEMPLATE_NAME),
                    "{path}"
                );
            }
        }
        let (_, makefile) =
            fill_templates(C, "words", |text| text.replace("INCLUDE", "/x")).remove(0);
        assert!(
            makefile.contains("words.so: words.c .libraries\n\t$(CC)"),
            "{makefile}"
        );
    }
}
