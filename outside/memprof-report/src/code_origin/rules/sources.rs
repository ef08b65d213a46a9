//! Code origins by the directory of the source file.

use super::CodeOrigin;

/// Directory that holds sources of libraries.
#[derive(Debug)]
pub(in crate::code_origin) struct SourceDirectory {
    /// Origin of functions that no rule for names decides.
    pub(in crate::code_origin) origin: CodeOrigin,
    /// Text of the path; one that starts with `^` is the path's start.
    pub(in crate::code_origin) path: &'static str,
    /// Number of path components below it that name a package, which may be the program itself. 0 if there are no
    /// packages.
    pub(in crate::code_origin) package_depth: usize,
    pub(in crate::code_origin) files: SourceFiles,
}

/// Files of a directory that are a library's. Others there are of a program that has a directory of the same name.
#[derive(Clone, Copy, Debug)]
pub(in crate::code_origin) enum SourceFiles {
    All,
    /// Files that other sources include: none that a compiler of C or C++ is called with.
    Headers,
    /// Those with one of these endings.
    EndingWith(&'static [&'static str]),
}

impl SourceFiles {
    /// Returns whether the file at `path` is one of these source files. Only the ending of the path decides.
    pub(in crate::code_origin) fn contains(self, path: &str) -> bool {
        let ends = |endings: &[&str]| endings.iter().any(|ending| path.ends_with(ending));
        match self {
            Self::All => true,
            Self::Headers => !ends(&[".c", ".cc", ".cpp", ".cxx", ".C"]),
            Self::EndingWith(endings) => ends(endings),
        }
    }
}

/// Creates the entry of a directory whose sources are all plumbing, code that reports fold into its callers. It has no
/// packages.
const fn plumbing_directory(path: &'static str) -> SourceDirectory {
    plumbing_files(path, SourceFiles::All)
}

/// Creates the entry of a directory in which only `files` are plumbing, code that reports fold into its callers. It has
/// no packages.
const fn plumbing_files(path: &'static str, files: SourceFiles) -> SourceDirectory {
    SourceDirectory {
        origin: CodeOrigin::Plumbing,
        path,
        package_depth: 0,
        files,
    }
}

/// Creates the entry of a directory in which only headers are plumbing, code that reports fold into its callers. It has
/// no packages.
const fn plumbing_headers(path: &'static str) -> SourceDirectory {
    plumbing_files(path, SourceFiles::Headers)
}

/// Creates the entry of a directory of a language's standard library, which is plumbing: code that reports fold into
/// its callers. Only files with one of `endings` belong to the library. It has no packages.
const fn language_library(path: &'static str, endings: &'static [&'static str]) -> SourceDirectory {
    plumbing_files(path, SourceFiles::EndingWith(endings))
}

/// Creates the entry of a directory that holds packages of libraries: the first `package_depth` path components below
/// it name the package; with 0 there are no packages.
const fn package_directory(path: &'static str, package_depth: usize) -> SourceDirectory {
    SourceDirectory {
        origin: CodeOrigin::Library,
        path,
        package_depth,
        files: SourceFiles::All,
    }
}

/// Directories of compilers and their standard libraries, of installed headers, and of package managers. The first
/// whose text is in a path counts.
pub(in crate::code_origin) const SOURCE_DIRECTORIES: &[SourceDirectory] = &[
    // C and C++: GCC, clang's libc++, and their sources as Debian builds them.
    plumbing_headers("/include/c++/"),
    plumbing_headers("/lib/gcc/"),
    plumbing_headers("/lib64/gcc/"),
    plumbing_headers("/lib/clang/"),
    plumbing_directory("/libstdc++-v3/"),
    plumbing_directory("/libiberty/"),
    // The event loop of node, which calls it back.
    plumbing_directory("/deps/uv/src/"),
    plumbing_directory("/usr/include/x86_64-linux-gnu/bits/"),
    plumbing_directory("/usr/include/aarch64-linux-gnu/bits/"),
    plumbing_directory("/usr/include/bits/"),
    // Rust: as rustc maps the paths of its libraries, and of their dependencies.
    plumbing_directory("^/rustc/"),
    plumbing_directory("/rustlib/src/rust/"),
    plumbing_directory("^/rust/deps/"),
    // Ada, D, Fortran, Go, Nim, OCaml, Pascal, Zig.
    language_library("/adainclude/", &[".adb", ".ads"]),
    language_library("/include/d/", &[".d", ".di"]),
    language_library("/libphobos/", &[".d", ".di"]),
    plumbing_directory("^/usr/local/go/src/"),
    plumbing_directory("^/usr/lib/go-"),
    plumbing_directory("^/usr/share/go-"),
    language_library("/lib/nim/", &[".nim"]),
    language_library("/nim/lib/", &[".nim"]),
    plumbing_directory("@sstd"),
    language_library("/stdlib_", &[".nim.c", ".nim.cpp"]),
    plumbing_directory("/@m..@s..@slib@s"),
    language_library("/lib/ocaml/", &[".ml", ".mli", ".h"]),
    plumbing_directory("/ocaml-base-compiler"),
    plumbing_directory("/ocaml-variants"),
    language_library("/lib/zig/", &[".zig"]),
    language_library("/zig/lib/", &[".zig"]),
    // Installed headers.
    package_directory("^/usr/include/", 0),
    package_directory("^/usr/local/include/", 0),
    package_directory("^/nix/store/", 1),
    package_directory("^/opt/homebrew/", 0),
    // Package managers.
    package_directory("/registry/src/", 2),
    package_directory("/cargo/registry/", 1),
    package_directory("/git/checkouts/", 2),
    package_directory("/go/pkg/mod/", 3),
    package_directory("/node_modules/", 1),
    package_directory("/site-packages/", 1),
    package_directory("/dist-packages/", 1),
    package_directory("/vcpkg_installed/", 1),
    package_directory("/.conan/data/", 1),
    package_directory("/.conan2/p/", 1),
    package_directory("/_deps/", 1),
    package_directory("/bazel-out/", 1),
    package_directory("^external/", 1),
    // Copies of libraries in the program's own tree.
    package_directory("/third_party/", 1),
    package_directory("^third_party/", 1),
    package_directory("/third-party/", 1),
    package_directory("/thirdparty/", 1),
    package_directory("/3rdparty/", 1),
    package_directory("/subprojects/", 1),
];
