//! Code origins by the directory of the source file.

use super::CodeOrigin;

/// Directory that holds sources of libraries.
#[derive(Debug)]
pub(in crate::code_origin) struct SourceDirectory {
    /// Origin of functions that no rule for names decides.
    pub(in crate::code_origin) origin: CodeOrigin,
    /// Text of the path; one that starts with `^` is the path's start.
    pub(in crate::code_origin) path: &'static str,
    /// Number of components below it that name a package: the program itself may be one. 0 if there are no packages.
    pub(in crate::code_origin) package_depth: usize,
}

const fn plumbing(path: &'static str) -> SourceDirectory {
    SourceDirectory {
        origin: CodeOrigin::Plumbing,
        path,
        package_depth: 0,
    }
}

const fn packages(path: &'static str, package_depth: usize) -> SourceDirectory {
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
    plumbing("/include/c++/"),
    plumbing("/lib/gcc/"),
    plumbing("/lib64/gcc/"),
    plumbing("/lib/clang/"),
    plumbing("/libstdc++-v3/"),
    plumbing("/libiberty/"),
    // The event loop of node, which calls it back.
    plumbing("/deps/uv/"),
    plumbing("/usr/include/x86_64-linux-gnu/bits/"),
    plumbing("/usr/include/aarch64-linux-gnu/bits/"),
    plumbing("/usr/include/bits/"),
    // Rust: as rustc maps the paths of its libraries, and of their dependencies.
    plumbing("/rustc/"),
    plumbing("/rustlib/src/rust/"),
    plumbing("/rust/deps/"),
    // Ada, D, Fortran, Go, Nim, OCaml, Pascal, Zig.
    plumbing("/adainclude/"),
    plumbing("/include/d/"),
    plumbing("/libphobos/"),
    plumbing("/usr/local/go/src/"),
    plumbing("/usr/lib/go-"),
    plumbing("/usr/share/go-"),
    plumbing("/lib/nim/"),
    plumbing("/nim/lib/"),
    plumbing("@sstd"),
    plumbing("/stdlib_"),
    plumbing("/@m..@s..@slib@s"),
    plumbing("/lib/ocaml/"),
    plumbing("/ocaml-base-compiler"),
    plumbing("/ocaml-variants"),
    plumbing("/lib/zig/"),
    plumbing("/zig/lib/"),
    // Installed headers.
    packages("^/usr/include/", 0),
    packages("^/usr/local/include/", 0),
    packages("^/nix/store/", 1),
    packages("^/opt/homebrew/", 0),
    // Package managers.
    packages("/registry/src/", 2),
    packages("/cargo/registry/", 1),
    packages("/git/checkouts/", 2),
    packages("/go/pkg/mod/", 3),
    packages("/node_modules/", 1),
    packages("/site-packages/", 1),
    packages("/dist-packages/", 1),
    packages("/vcpkg_installed/", 1),
    packages("/.conan/data/", 1),
    packages("/.conan2/p/", 1),
    packages("/_deps/", 1),
    packages("/bazel-out/", 1),
    packages("^external/", 1),
    // Copies of libraries in the program's own tree.
    packages("/third_party/", 1),
    packages("^third_party/", 1),
    packages("/third-party/", 1),
    packages("/thirdparty/", 1),
    packages("/3rdparty/", 1),
    packages("/subprojects/", 1),
];
