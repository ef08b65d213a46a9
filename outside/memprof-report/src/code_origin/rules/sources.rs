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
}

/// Directory of sources that are plumbing. It has no packages.
const fn plumbing_directory(path: &'static str) -> SourceDirectory {
    SourceDirectory {
        origin: CodeOrigin::Plumbing,
        path,
        package_depth: 0,
    }
}

/// Directory of libraries: `package_depth` path components below it name a package, 0 if it has no packages.
const fn package_directory(path: &'static str, package_depth: usize) -> SourceDirectory {
    SourceDirectory {
        origin: CodeOrigin::Library,
        path,
        package_depth,
    }
}

/// Directories of compilers and their standard libraries, of installed headers, and of package managers. The first
/// whose text is in a path counts.
pub(in crate::code_origin) const SOURCE_DIRECTORIES: &[SourceDirectory] = &[
    // C and C++: GCC, clang's libc++, and their sources as Debian builds them.
    plumbing_directory("/include/c++/"),
    plumbing_directory("/lib/gcc/"),
    plumbing_directory("/lib64/gcc/"),
    plumbing_directory("/lib/clang/"),
    plumbing_directory("/libstdc++-v3/"),
    plumbing_directory("/libiberty/"),
    // The event loop of node, which calls it back.
    plumbing_directory("/deps/uv/"),
    plumbing_directory("/usr/include/x86_64-linux-gnu/bits/"),
    plumbing_directory("/usr/include/aarch64-linux-gnu/bits/"),
    plumbing_directory("/usr/include/bits/"),
    // Rust: as rustc maps the paths of its libraries, and of their dependencies.
    plumbing_directory("/rustc/"),
    plumbing_directory("/rustlib/src/rust/"),
    plumbing_directory("/rust/deps/"),
    // Ada, D, Fortran, Go, Nim, OCaml, Pascal, Zig.
    plumbing_directory("/adainclude/"),
    plumbing_directory("/include/d/"),
    plumbing_directory("/libphobos/"),
    plumbing_directory("/usr/local/go/src/"),
    plumbing_directory("/usr/lib/go-"),
    plumbing_directory("/usr/share/go-"),
    plumbing_directory("/lib/nim/"),
    plumbing_directory("/nim/lib/"),
    plumbing_directory("@sstd"),
    plumbing_directory("/stdlib_"),
    plumbing_directory("/@m..@s..@slib@s"),
    plumbing_directory("/lib/ocaml/"),
    plumbing_directory("/ocaml-base-compiler"),
    plumbing_directory("/ocaml-variants"),
    plumbing_directory("/lib/zig/"),
    plumbing_directory("/zig/lib/"),
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
