//! Cases of the search, each beside the loader of this machine: a program loads the plugin and prints what was loaded.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::process_search::ProcessSearch;
use super::{library_cache, require_versioned_files, visit_dependencies};

/// Prints the paths of all loaded objects, loads a library, and prints them again.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
static int print(struct dl_phdr_info *info, size_t size, void *data) { return puts(info->dlpi_name) < 0; }
int main(int count, char **args) {
    dl_iterate_phdr(print, 0);
    puts("loading");
    fflush(stdout);
    if (!dlopen(args[1], RTLD_NOW | RTLD_LOCAL)) { fprintf(stderr, "%s\n", dlerror()); return 1; }
    return dl_iterate_phdr(print, 0);
}
"#;

/// Files below a directory of the test's own, and the library that the loader takes. `ROOT` in a flag or path is that
/// directory. The plugin is `plugins/p.so` and needs `libhelp.so`; the program is `bin/program`.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    program_flags: &'static [&'static str],
    plugin_flags: &'static [&'static str],
    /// Libraries with further flags for their linker.
    libraries: &'static [(&'static str, &'static [&'static str])],
    /// Symbolic links and where they lead.
    links: &'static [(&'static str, &'static str)],
    library_path: Option<&'static str>,
    /// Libraries that the loader takes, in its order. Empty if it does not find them all.
    expected: &'static [&'static str],
    /// Libraries that are checked too, because another loader or CPU takes one of them, or before the loader fails.
    also: &'static [&'static str],
}

const HELP: &[(&str, &[&str])] = &[("lib/libhelp.so", &[])];
/// Two libraries of one name.
const TWO: &[(&str, &[&str])] = &[("lib/libhelp.so", &[]), ("other/libhelp.so", &[])];
/// Makes the linker write `DT_RPATH`.
const OLD: &str = "-Wl,--disable-new-dtags";
const PLAIN: Case = Case {
    name: "",
    program_flags: &[],
    plugin_flags: &[],
    libraries: HELP,
    links: &[],
    library_path: None,
    expected: &["lib/libhelp.so"],
    also: &[],
};

const CASES: &[Case] = &[
    Case {
        name: "no list",
        expected: &[],
        ..PLAIN
    },
    Case {
        name: "runpath with origin",
        plugin_flags: &["-Wl,-rpath,$ORIGIN/../lib"],
        ..PLAIN
    },
    Case {
        name: "rpath with origin in braces, not at the start",
        plugin_flags: &[OLD, "-Wl,-rpath,/nowhere:/..${ORIGIN}/../lib"],
        ..PLAIN
    },
    Case {
        name: "longer name than origin",
        plugin_flags: &["-Wl,-rpath,$ORIGINAL/../lib"],
        expected: &[],
        ..PLAIN
    },
    Case {
        name: "variable of the library directory",
        plugin_flags: &["-Wl,-rpath,ROOT/$LIB"],
        libraries: &[
            ("lib/x86_64-linux-gnu/libhelp.so", &[]),
            ("lib64/libhelp.so", &[]),
        ],
        expected: &["lib/x86_64-linux-gnu/libhelp.so"],
        also: &["lib64/libhelp.so"],
        ..PLAIN
    },
    Case {
        name: "variable of the platform",
        plugin_flags: &["-Wl,-rpath,ROOT/${PLATFORM}"],
        libraries: &[("haswell/libhelp.so", &[]), ("x86_64/libhelp.so", &[])],
        expected: &["haswell/libhelp.so"],
        also: &["x86_64/libhelp.so"],
        ..PLAIN
    },
    Case {
        name: "subdirectory for the CPU",
        plugin_flags: &["-Wl,-rpath,ROOT/lib"],
        libraries: &[
            ("lib/glibc-hwcaps/x86-64-v2/libhelp.so", &[]),
            ("lib/libhelp.so", &[]),
        ],
        expected: &["lib/glibc-hwcaps/x86-64-v2/libhelp.so"],
        also: &["lib/libhelp.so"],
        ..PLAIN
    },
    Case {
        name: "rpath of the program is inherited",
        program_flags: &[OLD, "-Wl,-rpath,$ORIGIN/../lib"],
        ..PLAIN
    },
    Case {
        name: "runpath of the program is not inherited",
        program_flags: &["-Wl,-rpath,$ORIGIN/../lib"],
        expected: &[],
        ..PLAIN
    },
    Case {
        name: "rpath of the program is not for a plugin with a runpath",
        program_flags: &[OLD, "-Wl,-rpath,ROOT/other"],
        plugin_flags: &["-Wl,-rpath,ROOT/lib"],
        libraries: TWO,
        ..PLAIN
    },
    Case {
        name: "own rpath comes before that of the program",
        program_flags: &[OLD, "-Wl,-rpath,ROOT/other"],
        plugin_flags: &[OLD, "-Wl,-rpath,ROOT/lib"],
        libraries: TWO,
        ..PLAIN
    },
    Case {
        name: "environment comes before a runpath",
        plugin_flags: &["-Wl,-rpath,ROOT/other"],
        libraries: TWO,
        library_path: Some("/nowhere;$ORIGIN/../lib"),
        ..PLAIN
    },
    Case {
        name: "environment comes after an rpath",
        plugin_flags: &[OLD, "-Wl,-rpath,ROOT/lib"],
        libraries: TWO,
        library_path: Some("ROOT/other"),
        ..PLAIN
    },
    Case {
        name: "rpath is inherited by the libraries of a plugin",
        plugin_flags: &[OLD, "-Wl,-rpath,ROOT/lib"],
        libraries: &[("lib/libhelp.so", &["-ldeep"]), ("lib/libdeep.so", &[])],
        expected: &["lib/libhelp.so", "lib/libdeep.so"],
        ..PLAIN
    },
    Case {
        name: "runpath is not inherited by the libraries of a plugin",
        plugin_flags: &["-Wl,-rpath,ROOT/lib"],
        libraries: &[("lib/libhelp.so", &["-ldeep"]), ("lib/libdeep.so", &[])],
        expected: &[],
        also: &["lib/libhelp.so"],
        ..PLAIN
    },
    Case {
        name: "origin of a library behind a symbolic link",
        plugin_flags: &["-Wl,-rpath,ROOT/lib"],
        libraries: &[
            ("real/libhelp.so", &["-ldeep", "-Wl,-rpath,$ORIGIN/deep"]),
            ("lib/deep/libdeep.so", &[]),
            ("real/deep/libdeep.so", &[]),
        ],
        links: &[("lib/libhelp.so", "../real/libhelp.so")],
        expected: &["real/libhelp.so", "lib/deep/libdeep.so"],
        ..PLAIN
    },
    Case {
        name: "library that two need is searched for once",
        plugin_flags: &["-ldeep", OLD, "-Wl,-rpath,ROOT/lib"],
        libraries: &[
            ("lib/libhelp.so", &["-ldeep", "-Wl,-rpath,ROOT/other"]),
            ("lib/libdeep.so", &[]),
            ("other/libdeep.so", &[]),
        ],
        expected: &["lib/libhelp.so", "lib/libdeep.so"],
        ..PLAIN
    },
    Case {
        name: "filter and auxiliary filter",
        plugin_flags: &["-Wl,-rpath,ROOT/lib"],
        libraries: &[
            (
                "lib/libhelp.so",
                &["-Wl,--auxiliary,libdeep.so", "-Wl,-rpath,ROOT/other"],
            ),
            ("other/libdeep.so", &[]),
        ],
        expected: &["other/libdeep.so", "lib/libhelp.so"],
        ..PLAIN
    },
    Case {
        name: "library for another machine is passed over",
        plugin_flags: &["-Wl,-rpath,ROOT/other:ROOT/lib"],
        libraries: &[("other/libhelp.so", &["-m32"]), ("lib/libhelp.so", &[])],
        ..PLAIN
    },
    Case {
        name: "library that is loaded already",
        program_flags: &["-Wl,--no-as-needed", "-lhelp", "-Wl,-rpath,ROOT/lib"],
        plugin_flags: &["-Wl,-rpath,ROOT/other"],
        libraries: TWO,
        expected: &[],
        ..PLAIN
    },
];

#[test]
fn loader_takes_the_libraries_that_are_found() {
    for case in CASES {
        check(case);
    }
}

/// Compares the libraries that are found with those that the loader takes.
fn check(case: &Case) {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().canonicalize().unwrap();
    let in_root = |text: &str| text.replace("ROOT", root.to_str().unwrap());
    let link = |to: &str, text: &str, flags: &[&str]| {
        let to = root.join(to);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        let code = root.join("code.c");
        fs::write(&code, text).unwrap();
        let mut cc = Command::new("cc");
        cc.args(["-w", "-Wl,--no-as-needed", "-o"])
            .arg(&to)
            .arg(&code);
        cc.arg(format!("-L{}/stubs", root.display()));
        let linked = cc
            .args(flags.iter().map(|flag| in_root(flag)))
            .output()
            .unwrap();
        assert!(linked.status.success(), "{linked:?}");
    };
    let library = |to: &str, flags: &[&str]| {
        let name = Path::new(to).file_name().unwrap().to_str().unwrap();
        let soname = format!("-Wl,-soname,{name}");
        let shared = ["-shared", "-fPIC", "-nostdlib", &soname];
        link(to, "", &[&shared, flags].concat());
    };
    library("stubs/libhelp.so", &[]);
    library("stubs/libdeep.so", &[]);
    for (to, flags) in case.libraries {
        match flags {
            ["-m32"] => write_for_another_machine(&root.join("stubs/libhelp.so"), &root.join(to)),
            flags => library(to, flags),
        }
    }
    for (from, to) in case.links {
        fs::create_dir_all(root.join(from).parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(to, root.join(from)).unwrap();
    }
    library("plugins/p.so", &[&["-lhelp"], case.plugin_flags].concat());
    link("bin/program", PROGRAM, case.program_flags);

    let (program, plugin) = (root.join("bin/program"), root.join("plugins/p.so"));
    let library_path = case.library_path.map(in_root);
    let mut run = Command::new(&program);
    run.arg(&plugin).env_remove("LD_LIBRARY_PATH");
    run.envs(library_path.iter().map(|list| ("LD_LIBRARY_PATH", list)));
    let run = run.output().unwrap();
    let printed = String::from_utf8(run.stdout).unwrap();
    let (before, after) = printed.split_once("loading\n").unwrap();
    let before: BTreeSet<_> = before.lines().map(Path::new).collect();
    let below_root = |path: &Path| {
        Some(
            path.canonicalize()
                .ok()?
                .strip_prefix(&root)
                .ok()?
                .to_owned(),
        )
    };
    let taken = after
        .lines()
        .map(Path::new)
        .filter(|path| !before.contains(path) && *path != plugin);
    let taken: Vec<_> = taken.filter_map(below_root).collect();
    let objects = [program];
    let list = library_path.as_deref().map(OsStr::new);
    let process =
        ProcessSearch::from_parts(&objects, list, &before, library_cache::read_system_cache());
    let bytes = fs::read(&plugin).unwrap();
    let found = visit_dependencies(&plugin, &bytes, &process, |_, _| Ok(())).unwrap();
    let found = found
        .iter()
        .skip(1)
        .filter_map(|library| below_root(&library.path));
    let found: BTreeSet<_> = found.collect();
    let all = case.expected.iter().chain(case.also).map(PathBuf::from);
    assert_eq!(found, all.collect(), "{}", case.name);
    let expected: Vec<_> = case.expected.iter().map(PathBuf::from).collect();
    let is_expected = match case.also {
        [] => taken == expected,
        _ => found.is_superset(&taken.iter().cloned().collect()),
    };
    let errors = String::from_utf8_lossy(&run.stderr);
    assert!(is_expected, "{}: {taken:?}, {errors}", case.name);
}

/// Programs that load a plugin with versions of a library that it does not list (`patchelf --remove-needed`).
#[test]
fn loader_needs_the_libraries_of_versions_only_loaded() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().canonicalize().unwrap();
    let link = |to: &str, code: &str, flags: &[&str]| {
        fs::write(root.join("code.c"), code).unwrap();
        let mut cc = Command::new("cc");
        cc.current_dir(&root).args(["-w", "-o", to, "code.c"]);
        let linked = cc.args(flags).output().unwrap();
        assert!(linked.status.success(), "{linked:?}");
    };
    let shared = ["-shared", "-fPIC", "-nostdlib", "-L."];
    let with = |flags: &[&'static str]| [&shared[..], flags].concat();
    fs::write(root.join("versions"), "V1 { global: help; };").unwrap();
    let help = ["-Wl,-soname,libhelp.so", "-Wl,--version-script,versions"];
    link("libhelp.so", "int help(void) { return 1; }", &with(&help));
    let call = "int help(void); int call(void) { return help(); }";
    link(
        "libindirect.so",
        "",
        &with(&[
            "-Wl,-soname,libindirect.so",
            "-Wl,--no-as-needed",
            "-lhelp",
            "-Wl,-rpath,$ORIGIN",
        ]),
    );
    let check =
        |name: &str, program_flags: &[&str], plugin_flags: &[&'static str], is_loaded: bool| {
            let program_flags = [&["-Wl,--no-as-needed", "-L."][..], program_flags].concat();
            link("program", PROGRAM, &program_flags);
            link(
                "p.so",
                call,
                &with(&[&["-lhelp"][..], plugin_flags].concat()),
            );
            let (program, plugin) = (root.join("program"), root.join("p.so"));
            let mut bytes = fs::read(&plugin).unwrap();
            remove_needed(&mut bytes, b"libhelp.so");
            fs::write(&plugin, &bytes).unwrap();
            let run = Command::new(&program).arg(&plugin).output().unwrap();
            assert_eq!(run.status.success(), is_loaded, "{name}: {run:?}");
            let printed = String::from_utf8(run.stdout).unwrap();
            let (before, _) = printed.split_once("loading\n").unwrap();
            let before: BTreeSet<_> = before.lines().map(Path::new).collect();
            let process = ProcessSearch::from_parts(
                &[program],
                None,
                &before,
                library_cache::read_system_cache(),
            );
            let whole = |_: &super::Library, bytes: &[u8]| crate::elf::check_loadable(bytes);
            crate::elf::check_loadable(&bytes).unwrap();
            let found = visit_dependencies(&plugin, &bytes, &process, whole).unwrap();
            let accepted = require_versioned_files(&found, &process);
            assert_eq!(accepted.is_ok(), is_loaded, "{name}: {accepted:?}");
        };
    let origin = "-Wl,-rpath,$ORIGIN";
    check("loaded by nothing", &[], &[], false);
    check("loaded by the program", &["-lhelp", origin], &[], true);
    let indirect = ["-Wl,--no-as-needed", "-lindirect", origin];
    check("loaded by another library", &[], &indirect, true);
}

/// Gives the entry of a library in the list of needed ones a tag that the loader does not know.
fn remove_needed(bytes: &mut [u8], library: &[u8]) {
    use object::LittleEndian as LE;
    use object::read::elf::{Dyn as _, FileHeader as _, ProgramHeader as _, SectionHeader as _};
    let header = object::elf::FileHeader64::<LE>::parse(&*bytes).unwrap();
    let sections = header.sections(LE, &*bytes).unwrap();
    let (_, strings) = sections.section_by_name(LE, b".dynstr").unwrap();
    let names = strings.data(LE, &*bytes).unwrap();
    let segments = header.program_headers(LE, &*bytes).unwrap();
    let (start, entries) = segments
        .iter()
        .find_map(|segment| Some((segment.p_offset(LE), segment.dynamic(LE, &*bytes).unwrap()?)))
        .unwrap();
    let index = entries.iter().position(|entry| {
        entry.d_tag(LE) == object::elf::DT_NEEDED
            && names[entry.d_val(LE) as usize..].starts_with(library)
    });
    let offset = start as usize + 16 * index.unwrap();
    bytes[offset..offset + 8].copy_from_slice(&0x6000_0fff_u64.to_le_bytes());
}

/// Copies a library and says in its header that it is one of 32 bits.
fn write_for_another_machine(library: &Path, to: &Path) {
    let mut bytes = fs::read(library).unwrap();
    bytes[4] = 1;
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    fs::write(to, bytes).unwrap();
}
