//! The order in which evidence on a function's origin counts, and the evidence that a whole profile gives.

use std::collections::HashSet;

use super::function_evidence::{FunctionEvidence, SourceEvidence};
use super::name_rules::{find_rule, language_of_demangled_name};
use super::namespace::namespaces;
use super::reason::{OriginReason, Verdict};
use super::rules::{RUNTIMES, Runtime};
use super::source_file::find_library_directory;
use super::{CodeOrigin, OriginRules, crates_with_main};
use crate::demangle::Language;
use crate::names::{Frame, StringId};
use crate::stacks::AddressId;
use crate::symbolized_profile::SymbolizedProfile;

/// Starts of names that only Rust programs have.
const RUST_PREFIXES: &[&str] = &[
    "std::rt::lang_start",
    "std::sys::",
    "core::ops::function::",
    "alloc::raw_vec::",
    "tokio::runtime::",
    "_RNv",
];

/// Evidence that the whole profile gives.
#[derive(Debug, Default)]
pub(super) struct ProfileEvidence {
    /// Crates and packages that have a function `main`: they are the program.
    main_crates: HashSet<String>,
    main_packages: HashSet<String>,
    /// Whether a function of the profile is of Rust.
    has_rust: bool,
    runtime: Option<Runtime>,
}

impl ProfileEvidence {
    /// Collects the evidence from all function names of a profile: the crates and packages that have a function `main`,
    /// the linked runtime of OCaml or Nim, and whether the profile has Rust code.
    pub(super) fn new(named: &SymbolizedProfile) -> Self {
        let SymbolizedProfile { profile, names, .. } = named;
        let addresses = 0..profile.stacks.addresses().len() as u32;
        let frames = addresses.flat_map(|index| names.frames(AddressId(index)));
        let with_name = |frame| -> (&str, &Frame) {
            let frame: &Frame = frame;
            (names.strings.get(frame.function), frame)
        };
        let mains: Vec<(&str, &Frame)> = frames
            .map(with_name)
            .filter(|(name, _)| *name == "main" || name.ends_with("::main"))
            .collect();
        let packages = mains.iter().filter_map(|(_, frame)| {
            let path = names.strings.get(frame.file?);
            let (directory, package) = find_library_directory(path)?;
            (directory.package_depth > 0).then(|| package.to_owned())
        });
        let strings = || (0..names.strings.len() as u32).map(|id| names.strings.get(StringId(id)));
        let is_runtime = |starts: &[&str]| {
            strings().any(|name| starts.iter().any(|start| name.starts_with(start)))
        };
        let runtime = RUNTIMES.iter().find(|(_, starts)| is_runtime(starts));
        Self {
            main_packages: packages.collect(),
            main_crates: crates_with_main(mains.iter().copied()),
            runtime: runtime.map(|(runtime, _)| *runtime),
            has_rust: strings()
                .any(|name| RUST_PREFIXES.iter().any(|start| name.starts_with(start))),
        }
    }

    /// Determines the code origin of a function: by the user's patterns, else by a rule for its name, else by its
    /// source file, else by its mapped file. Rules for names do not hold in a Rust crate with `main`. A source file
    /// outside of library directories makes the function the program's own, but not if the mapped file is known and is
    /// named by a rule or lies in a system directory. Wrappers of malloc are found later, by their calls.
    pub(super) fn verdict(
        &self,
        function: &FunctionEvidence<'_>,
        origin_rules: &OriginRules,
    ) -> Verdict {
        if let Some(verdict) = origin_rules.pattern_verdict(function.name) {
            return verdict;
        }
        let function = self.with_profile_evidence(function);
        let rule = match function.is_named {
            true => find_rule(&function).filter(|_| !self.is_in_main_crate(&function)),
            false => None,
        };
        let by_name = rule.map(|rule| Verdict::new(rule.origin, OriginReason::Name(rule.pattern)));
        match function.source {
            SourceEvidence::Library { directory, .. } => match rule {
                Some(rule) => {
                    let reason = OriginReason::LibrarySourceAndName(rule.pattern);
                    return Verdict::new(rule.origin, reason);
                }
                None => {
                    let reason = OriginReason::LibrarySource(directory.path);
                    return Verdict::new(directory.origin, reason);
                }
            },
            SourceEvidence::Own(_) if function.file.is_own() || function.file.path.is_none() => {
                let own = Verdict::new(CodeOrigin::Program, OriginReason::OwnSource);
                return by_name.unwrap_or(own);
            }
            SourceEvidence::Own(_) | SourceEvidence::Unknown => {}
        }
        by_name.unwrap_or_else(|| verdict_by_mapped_file(&function))
    }

    /// Adds the evidence of the whole profile to the evidence on one function. Sets the program's runtime. A source
    /// file in the package of `main` becomes the program's own. In a profile with Rust code, a function of unknown
    /// language whose name is a path is taken for Rust.
    fn with_profile_evidence<'p>(&self, function: &FunctionEvidence<'p>) -> FunctionEvidence<'p> {
        let source = match function.source {
            SourceEvidence::Library { path, package, .. }
                if self.main_packages.contains(package) =>
            {
                SourceEvidence::Own(path)
            }
            source => source,
        };
        let language = function
            .language
            .or_else(|| language_of_demangled_name(function.name, self.has_rust));
        FunctionEvidence {
            source,
            language,
            runtime: self.runtime,
            ..*function
        }
    }

    /// Returns whether a Rust function of unknown source is in a crate that has a function `main`.
    fn is_in_main_crate(&self, function: &FunctionEvidence<'_>) -> bool {
        let is_main = |name: &str| self.main_crates.contains(name);
        function.language == Some(Language::Rust)
            && matches!(function.source, SourceEvidence::Unknown)
            && namespaces(function.name).iter().any(|name| is_main(name))
    }
}

/// Decides on a function for which no rule holds, by its mapped file. If a rule names the file, that rule decides.
///
/// In any other file, the function is the program's own if the file is the main program or was unloaded, or if the
/// function has a name and the file is no system library. Else it is a library's.
fn verdict_by_mapped_file(function: &FunctionEvidence<'_>) -> Verdict {
    let file = function.file;
    // A function that a JIT compiler named is one of the script.
    let known = file.known.filter(|_| !(file.is_jit && function.is_named));
    match known {
        Some(origin) => Verdict::new(origin, OriginReason::MappedFile),
        None if file.is_main => Verdict::new(CodeOrigin::Program, OriginReason::Program),
        None if file.is_system_library && function.is_named => {
            Verdict::new(CodeOrigin::Library, OriginReason::SystemLibrary)
        }
        None if function.is_named => {
            Verdict::new(CodeOrigin::Program, OriginReason::NamedInLibrary)
        }
        // Unloaded code that allocated has no other name, and its caller is not the one that allocated.
        None if file.is_unloaded => Verdict::new(CodeOrigin::Program, OriginReason::Unloaded),
        None => Verdict::new(CodeOrigin::Library, OriginReason::UnnamedInLibrary),
    }
}

#[cfg(test)]
mod tests {
    use super::super::mapped_file::MappedFile;
    use super::*;
    use crate::names::Names;

    /// Function with the evidence on it: symbol or given name, source file, mapped file.
    #[derive(Clone, Copy)]
    struct Case {
        symbol: &'static str,
        source: &'static str,
        file: &'static str,
    }

    const PROGRAM: &str = "/srv/bin/shop";
    const LUA: &str = "/usr/bin/lua5.4";
    const PYTHON: &str = "/usr/bin/python3.11";
    const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/libother.so.1";

    /// Verdict in a profile with these functions, whose names are demangled if they are symbols.
    fn origin(case: Case, others: &[Case]) -> CodeOrigin {
        let mut named = SymbolizedProfile {
            profile: crate::profile::Profile::default(),
            names: Names::default(),
            depths: Vec::new(),
        };
        let mut frames = Vec::new();
        for (index, case) in [case].iter().chain(others).enumerate() {
            let strings = &mut named.names.strings;
            let name = crate::demangle::demangle(case.symbol);
            let frame = Frame {
                function: strings.intern(&name),
                linkage: (name != case.symbol).then(|| strings.intern(case.symbol)),
                file: (!case.source.is_empty()).then(|| strings.intern(case.source)),
                line: 0,
                named: !case.symbol.contains("+0x"),
            };
            let stacks = &mut named.profile.stacks;
            let id = stacks.intern_address(crate::profile::Address(index as u64));
            named.names.set_frames(id, &[frame]);
            frames.push(frame);
        }
        let file = MappedFile {
            path: Some(case.file),
            is_main: [PROGRAM, LUA, PYTHON].contains(&case.file),
            is_system_library: case.file == LIBRARY,
            ..MappedFile::default()
        };
        let path = frames[0]
            .file
            .map_or("", |path| named.names.strings.get(path));
        let source = SourceEvidence::new(path);
        let function = FunctionEvidence::new(&frames[0], &named.names, source, file);
        ProfileEvidence::new(&named)
            .verdict(&function, &OriginRules::default())
            .origin
    }

    fn case(symbol: &'static str, source: &'static str, file: &'static str) -> Case {
        Case {
            symbol,
            source,
            file,
        }
    }

    /// Each rule has functions that it must not hide, and such that it must.
    #[test]
    fn names_decide_only_where_nothing_else_does() {
        let shown = [
            // C++ namespaces with the names of Rust's crates, with and without debug information.
            case("_ZN4core6Engine4loadEv", "", PROGRAM),
            case(
                "_ZN4core6Engine4loadEv",
                "/home/me/app/core/engine.cc",
                PROGRAM,
            ),
            case("_ZN4http6Server10accept_allEv", "", PROGRAM),
            case("_ZN5tokio5Queue4pushEv", "", PROGRAM),
            case("_ZN4slab6refillEv", "", "/srv/lib/plugin.so"),
            case("_ZN2v86engine5startEv", "/home/me/car/v6.cc", PROGRAM),
            // A specialization of the standard library's template, and a library's name in the program's source.
            case(
                "_ZNKSt4hashIN4shop2DbEEclERKS1_",
                "/home/me/app/db.cc",
                PROGRAM,
            ),
            case("xmlNewInvoice", "/home/me/app/invoice.c", PROGRAM),
            // C names of libraries in the program's own file.
            case("thread_start", "", PROGRAM),
            case("xmlNewInvoice", "", PROGRAM),
            case("luaC_newobj", "./lgc.c", PROGRAM),
            case("luaC_newobj", "/home/me/shop/lgc.c", LUA),
            case("g_list_of_orders", "", PROGRAM),
            case("talloc_report_page", "", PROGRAM),
            case("obstack_of_orders", "", PROGRAM),
            case("PyObject_Registry", "", PROGRAM),
            case("Stub::fill", "", PROGRAM),
            // Rust: a trait of the program for a foreign type, and the program's own sources.
            case(
                "_ZN67_$LT$alloc..vec..Vec$LT$T$GT$$u20$as$u20$shop..Load$GT$8load_all17h0123456789abcdefE",
                "",
                PROGRAM,
            ),
            case(
                "_ZN3csv6Loader4read17h0123456789abcdefE",
                "csv/src/lib.rs",
                PROGRAM,
            ),
            case(
                "gin_extract_value_trgm",
                "",
                "/usr/lib/postgresql/15/lib/pg_trgm.so",
            ),
        ];
        for one in shown {
            assert_eq!(
                origin(one, &[]),
                CodeOrigin::Program,
                "{} {}",
                one.symbol,
                one.source
            );
        }
        let gcc = "/usr/lib/gcc/x86_64-linux-gnu/12/../../../../include/c++/12/bits/basic_string.h";
        let registry = "/root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/";
        let plumbing = [
            case("_ZNSt6vectorIN4shop4CartEE9push_backEv", "", PROGRAM),
            case("basic_string", gcc, PROGRAM),
            case("allocate", gcc, PROGRAM),
            case(
                "_ZN5alloc7raw_vec11finish_grow17h0123456789abcdefE",
                "",
                PROGRAM,
            ),
            case(
                "realpath",
                "/usr/include/x86_64-linux-gnu/bits/stdlib.h",
                PROGRAM,
            ),
            case("xmlNewDocNode", "", "/opt/app/lib/libxml2.so.2"),
            case("operator new(unsigned long)", "", PROGRAM),
            case("strdup", "", PROGRAM),
            case("_obstack_newchunk", "", PROGRAM),
            case("_obstack_newchunk", "./libiberty/obstack.c", PROGRAM),
            case("rpl_obstack_newchunk", "lib/obstack.c", PROGRAM),
            case("g_list_append", "", LIBRARY),
            case("EVP_CIPHER_CTX_new", "", LIBRARY),
            case("EVP_CIPHER_CTX_new", "crypto/evp/evp_enc.c", LIBRARY),
            case("_ZN4absl7debian317CordRepFromStringEv", "", PROGRAM),
            case("g_list_append", "../glib/glist.c", PROGRAM),
            case("sdsnewlen", "./src/sds.c", PROGRAM),
            case("luaC_newobj", "./lgc.c", LUA),
            case("PyList_New", "../Objects/listobject.c", PYTHON),
            case(
                "_ZN5bytes9bytes_mut8BytesMut7reserve17h0123456789abcdefE",
                "",
                PROGRAM,
            ),
        ];
        for one in plumbing {
            assert!(
                origin(one, &[]) < CodeOrigin::Program,
                "{} {}",
                one.symbol,
                one.source
            );
        }
        let library = format!("{registry}left-pad-1.0.0/src/lib.rs");
        let library: &'static str = Box::leak(library.into_boxed_str());
        let one = case("left_pad::pad", library, PROGRAM);
        assert_eq!(origin(one, &[]), CodeOrigin::Library);
    }

    #[test]
    fn functions_of_openssl_are_plumbing_only_if_they_allocate_or_store() {
        for (symbol, expected) in [
            ("OPENSSL_init_crypto", CodeOrigin::Library),
            ("OPENSSL_strndup", CodeOrigin::Plumbing),
            ("OPENSSL_LH_insert", CodeOrigin::Plumbing),
            ("OPENSSL_sk_push", CodeOrigin::Plumbing),
        ] {
            let one = case(symbol, "", LIBRARY);
            assert_eq!(origin(one, &[]), expected, "{symbol}");
        }
    }

    /// A program that was installed from a registry, or has the name of a known crate.
    #[test]
    fn package_and_crate_of_main_are_the_programs() {
        let path = "/root/.cargo/registry/src/index.crates.io-1/ripgrep-14.1.0/crates/core/main.rs";
        let main = case("rg::main", path, PROGRAM);
        let other =
            "/root/.cargo/registry/src/index.crates.io-1/ripgrep-14.1.0/crates/core/search.rs";
        let search = case("rg::search::run", other, PROGRAM);
        assert_eq!(origin(search, &[]), CodeOrigin::Library);
        assert_eq!(origin(search, &[main]), CodeOrigin::Program);
        let read = case("_ZN3csv4read17h0123456789abcdefE", "", PROGRAM);
        let main = case("_ZN3csv4main17h0123456789abcdefE", "", PROGRAM);
        assert_eq!(origin(read, &[]), CodeOrigin::Plumbing);
        assert_eq!(origin(read, &[main]), CodeOrigin::Program);
    }

    /// Runtimes without debug information, in the program's own file.
    #[test]
    fn names_of_a_runtime_are_plumbing_only_in_its_programs() {
        let ocaml = case("caml_start_program", "", PROGRAM);
        let nim = case("NimMainModule", "", PROGRAM);
        for (symbol, entry) in [
            ("caml_alloc_for_heap", ocaml),
            ("caml_ba_alloc", ocaml),
            ("expand_heap", ocaml),
            ("newSeq__n_386", nim),
            ("mnewString", nim),
            ("alignedAlloc__system_1865", nim),
        ] {
            let one = case(symbol, "", PROGRAM);
            assert_eq!(origin(one, &[]), CodeOrigin::Program, "{symbol}");
            assert_eq!(origin(one, &[entry]), CodeOrigin::Plumbing, "{symbol}");
            let own = case(symbol, "/home/me/shop/stubs.c", PROGRAM);
            assert_eq!(origin(own, &[entry]), CodeOrigin::Program, "{symbol}");
        }
        for (symbol, entry) in [
            ("camlShop__load_orders_550", ocaml),
            ("shop_expand_heap", ocaml),
            ("loadOrders__n_367", nim),
            ("add__n_394", nim),
        ] {
            let one = case(symbol, "", PROGRAM);
            assert_eq!(origin(one, &[entry]), CodeOrigin::Program, "{symbol}");
        }
    }

    /// Names that a file gives show their language by those beside them.
    #[test]
    fn given_names_are_of_rust_if_others_are() {
        let read = case("bytes::Pool::grow", "", PROGRAM);
        let start = case("std::rt::lang_start::{{closure}}", "", PROGRAM);
        assert_eq!(origin(read, &[]), CodeOrigin::Program);
        assert_eq!(origin(read, &[start]), CodeOrigin::Plumbing);
    }
}
