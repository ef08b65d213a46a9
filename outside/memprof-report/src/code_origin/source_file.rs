//! Directories in which a source file is a library's.

use super::rules::{SOURCE_DIRECTORIES, SourceDirectory};

/// Returns the directory of libraries in which a source file lies, and the path of the file's package in that
/// directory. If the directory is not divided into packages, the path ends with the directory. `None` if the file lies
/// in no such directory: it belongs to the program, or to a shared library of the program.
pub(super) fn find_library_directory(path: &str) -> Option<(&'static SourceDirectory, &str)> {
    let mut directories = SOURCE_DIRECTORIES
        .iter()
        .filter(|directory| directory.files.contains(path));
    directories.find_map(|directory| {
        let end = directory_end(path, directory.path)?;
        let components = path[end..].match_indices('/').map(|(slash, _)| end + slash);
        let package_end = match directory.package_depth {
            0 => end,
            depth => components.take(depth).last().unwrap_or(path.len()),
        };
        Some((directory, &path[..package_end]))
    })
}

/// Returns the byte index in a path at which the text `directory` ends. `None` if the path does not contain it. With
/// `^` before it, `directory` must be the start of the path.
fn directory_end(path: &str, directory: &str) -> Option<usize> {
    match directory.strip_prefix('^') {
        Some(start) => path.starts_with(start).then_some(start.len()),
        None => path.find(directory).map(|at| at + directory.len()),
    }
}

/// Returns whether a word of a path starts with one of `words`, with or without `lib` before it. Words are separated by
/// characters that are neither letters nor digits.
pub(super) fn has_word_with_prefix(path: &str, words: &[&str]) -> bool {
    let mut parts = path.split(|c: char| !c.is_ascii_alphanumeric());
    parts.any(|part| {
        let part = part.to_ascii_lowercase();
        let bare = part.strip_prefix("lib").unwrap_or(&part);
        words
            .iter()
            .any(|word| part.starts_with(word) || bare.starts_with(word))
    })
}

#[cfg(test)]
mod tests {
    use super::super::CodeOrigin;
    use super::{find_library_directory, has_word_with_prefix};

    #[test]
    fn library_sources_are_known_by_their_directory() {
        let check = |path: &str, expected: Option<(CodeOrigin, &str)>| {
            let found = find_library_directory(path);
            let found = found.map(|(directory, package)| (directory.origin, package));
            assert_eq!(found, expected, "{path}");
        };
        let (plumbing, library) = (CodeOrigin::Plumbing, CodeOrigin::Library);
        let gcc = "/usr/lib/gcc/x86_64-linux-gnu/12/../../../../include/c++/";
        check(&format!("{gcc}12/bits/vector.tcc"), Some((plumbing, gcc)));
        check(
            "/rustc/59807616e1fa/library/alloc/src/vec/mod.rs",
            Some((plumbing, "/rustc/")),
        );
        check(
            "/rust/deps/hashbrown-0.15.2/src/raw/mod.rs",
            Some((plumbing, "/rust/deps/")),
        );
        let registry = "/root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f";
        check(
            &format!("{registry}/bytes-1.5.0/src/bytes.rs"),
            Some((library, &format!("{registry}/bytes-1.5.0"))),
        );
        check(
            "/home/me/app/third_party/abseil-cpp/absl/strings/cord.cc",
            Some((library, "/home/me/app/third_party/abseil-cpp")),
        );
        check(
            "/usr/include/boost/any.hpp",
            Some((library, "/usr/include/")),
        );
        check(
            "external/com_google_absl/absl/base/call_once.h",
            Some((library, "external/com_google_absl")),
        );
        check("/home/me/app/core/engine.cc", None);
        check("/home/me/app/include/app/engine.h", None);
        check("/home/me/app/src/vendor/list.cc", None);
        check("./src/zmalloc.c", None);
        // Directories of the program with the names of a toolchain's.
        for own in [
            "/home/me/rust/deps/shop/cart.c",
            "/home/me/rustc/src/cart.rs",
            "/home/me/lib/gcc/cart.c",
            "/home/me/lib/clang/cart.cpp",
            "/home/me/include/d/cart.c",
            "/home/me/libphobos/cart.c",
            "/home/me/nim/lib/cart.c",
            "/home/me/stdlib_shop/cart.c",
            "/home/me/lib/ocaml/cart.c",
            "/home/me/zig/lib/cart.c",
            "/home/me/deps/uv/cart.c",
            "/home/me/usr/lib/go-shop/cart.c",
        ] {
            check(own, None);
        }
        let check = |path: &str, directory: &str| {
            let found = find_library_directory(path).map(|(found, _)| found.path);
            assert_eq!(found, Some(directory), "{path}");
        };
        check("/usr/lib/nim/system.nim", "/lib/nim/");
        check("/root/.cache/nim/app_d/stdlib_system.nim.c", "/stdlib_");
        check("/usr/lib/ocaml/caml/alloc.h", "/lib/ocaml/");
        check("/usr/lib/zig/std/heap.zig", "/lib/zig/");
        check("/usr/lib/go-1.19/src/runtime/malloc.go", "^/usr/lib/go-");
        check(
            "/usr/lib/gcc/x86_64-linux-gnu/12/include/d/std/stdio.d",
            "/lib/gcc/",
        );
        check("../deps/uv/src/unix/core.c", "/deps/uv/src/");
        check(
            "/usr/lib/gcc/x86_64-linux-gnu/12/adainclude/a-except.adb",
            "/lib/gcc/",
        );
    }

    #[test]
    fn words_of_a_path_are_whole_at_their_start() {
        assert!(has_word_with_prefix("/usr/bin/redis-server", &["redis"]));
        assert!(has_word_with_prefix("/usr/lib/libglib-2.0.so.0", &["glib"]));
        assert!(has_word_with_prefix("../glib/gmem.c", &["glib"]));
        assert!(!has_word_with_prefix("/home/me/predis/a.c", &["redis"]));
    }
}
