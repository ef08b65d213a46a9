//! Symbolizes from the files to which debug information refers: dwz's supplementary files, split units and packages.

use std::fs;

use memprof_report::{Granularity, Sources};

use crate::shop::{Shop, assert_named, collapsed, here, stacks};
use crate::support::run;

const SERVE: &str = "main;shop::serve;shop::Basket::add<int>;shop::capture ";
const WITHOUT_INLINED: &str = "main;shop::serve;shop::capture ";

/// Stacks and notes of the dump.
fn report(shop: &Shop, sources: &Sources) -> (String, Vec<String>) {
    collapsed(&shop.dump, sources, Granularity::Functions).expect("it is a good dump")
}

#[track_caller]
fn assert_noted(notes: &[String], expected: &str) {
    let count = notes.iter().filter(|note| note.contains(expected)).count();
    assert_eq!(count, 1, "{notes:?}");
}

/// `shop` and its copy, with what both have in `common`, which is at `link` for them.
fn build_with_dwz(options: &[&str], common: &str, link: &str) -> Shop {
    let shop = Shop::build();
    fs::copy(shop.path("shop"), shop.path("copy")).expect("it can be copied");
    let common = shop.path(common);
    fs::create_dir_all(common.parent().expect("a directory")).expect("it can be made");
    run("dwz", "dwz", |dwz| {
        dwz.current_dir(shop.directory.path())
            .args(options)
            .arg("-m")
            .arg(&common)
            .args(["-M", link, "shop", "copy"])
    });
    shop
}

#[test]
fn names_in_supplementary_file_are_read() {
    let plain = stacks(&Shop::build().dump, &here());
    for options in [&[][..], &["--dwarf-5"]] {
        for (common, link) in [
            ("common.dwz", "common.dwz"),
            ("shared/common.dwz", "shared/common.dwz"),
            (".dwz/common.dwz", "/no/such/directory/common.dwz"),
        ] {
            let shop = build_with_dwz(options, common, link);
            let sources = Sources {
                binary_root: Some(shop.directory.path().into()),
                ..here()
            };
            assert_eq!(stacks(&shop.dump, &sources), plain, "{options:?} {link}");
        }
    }
}

/// The nameless functions would else have the name of their caller.
#[test]
fn functions_without_supplementary_file_are_left_out_and_noted() {
    for options in [&[][..], &["--dwarf-5"]] {
        let shop = build_with_dwz(options, "common.dwz", "common.dwz");
        let common = shop.path("common.dwz");
        fs::remove_file(&common).expect("it can be removed");
        let check = || {
            let (stacks, notes) = report(&shop, &here());
            assert!(stacks.contains(WITHOUT_INLINED), "{stacks}");
            assert!(!stacks.contains("shop::serve;shop::serve"), "{stacks}");
            assert_noted(&notes, "their names are in common.dwz, which is not here");
        };
        check();
        // Another file of that name, and one that is no file of debug information.
        fs::copy("/bin/true", &common).expect("it can be copied");
        check();
        fs::write(&common, b"junk").expect("it can be written");
        check();
    }
}

/// Builds `shop` with split debug information, in `shop-shop.dwo` or the like.
fn build_split(compiler: &str, options: &[&str]) -> Shop {
    Shop::build_with(
        compiler,
        &[&["-g", "-O2", "-gsplit-dwarf"], options].concat(),
    )
}

fn split_files(shop: &Shop) -> Vec<String> {
    let files = fs::read_dir(&shop.directory).expect("it is there");
    let names = files.map(|file| file.expect("it is there").file_name());
    let names = names.map(|name| name.to_string_lossy().into_owned());
    names.filter(|name| name.ends_with(".dwo")).collect()
}

#[test]
fn split_units_are_read() {
    for options in [
        &["-gdwarf-5"][..],
        &["-gdwarf-4"],
        &["-fdebug-types-section"],
    ] {
        let shop = build_split("g++", options);
        assert_named(&stacks(&shop.dump, &here()));

        let [file] = &split_files(&shop)[..] else {
            panic!("one unit");
        };
        let moved = tempfile::tempdir().expect("a directory");
        fs::rename(shop.path(file), moved.path().join(file)).expect("it can be moved");
        let (found, notes) = report(&shop, &here());
        assert!(found.contains(WITHOUT_INLINED), "{found}");
        assert_noted(
            &notes,
            &format!(
                "inlined functions of 1 of 1 units are missing: their debug information is in {file}"
            ),
        );

        let given = Sources {
            binary_root: Some(moved.path().into()),
            ..here()
        };
        assert!(stacks(&shop.dump, &given).contains(SERVE));
    }
}

#[test]
fn package_of_split_units_is_read() {
    for options in ["-gdwarf-5", "-gdwarf-4"] {
        let shop = build_split("g++", &[options]);
        let files = split_files(&shop);
        run("llvm-dwp", "llvm", |dwp| {
            dwp.current_dir(&shop.directory)
                .args(&files)
                .args(["-o", "shop.dwp"])
        });
        for file in files {
            fs::remove_file(shop.path(&file)).expect("it can be removed");
        }
        let (found, notes) = report(&shop, &here());
        assert!(found.contains(SERVE), "{found} {notes:?}");
        assert!(
            !notes.iter().any(|note| note.contains("units")),
            "{notes:?}"
        );
    }
}

/// A unit of another build, and damaged ones, are not read.
#[test]
fn foreign_split_unit_is_not_read() {
    let shop = build_split("g++", &[]);
    let other = build_split("g++", &["-DOTHER", "-O1"]);
    let (file, others) = (&split_files(&shop)[0], &split_files(&other)[0]);
    let unit = fs::read(shop.path(file)).expect("it is there");
    let foreign = fs::read(other.path(others)).expect("it is there");
    for bytes in [&foreign[..], b"junk", b"", &unit[..unit.len() / 2]] {
        fs::write(shop.path(file), bytes).expect("it can be written");
        let (found, notes) = report(&shop, &here());
        assert!(found.contains(WITHOUT_INLINED), "{found}");
        assert_noted(&notes, "inlined functions of 1 of 1 units are missing");
    }
    fs::remove_file(shop.path(file)).expect("it can be removed");
    fs::create_dir(shop.path(file)).expect("it can be made");
    assert_noted(&report(&shop, &here()).1, "are missing");
}

/// addr2line follows nested entries by recursion. The limit holds for a unit in a package, too.
#[test]
fn deeply_nested_split_unit_is_not_read() {
    let check = |depth: usize, is_packed: bool, expected: &str| {
        let directory = tempfile::tempdir().expect("a directory");
        let path = |name: &str| directory.path().join(name);
        let blocks = "{ volatile int local = 0;".repeat(depth);
        let ends = "}".repeat(depth);
        let source = format!(
            "__attribute__((always_inline)) static inline void inner(void) {{ asm(\".skip 16384\"); }}\n\
             void outer(void) {{ {blocks} inner(); {ends} }}\n"
        );
        fs::write(path("deep.c"), source).expect("it can be written");
        run("gcc", "gcc", |gcc| {
            gcc.current_dir(&directory)
                .args(["-g", "-gsplit-dwarf", "-shared", "-fPIC", "-nostdlib"])
                .args(["-Wl,-Ttext=0x1000", "deep.c", "-o", "libdeep.so"])
        });
        if is_packed {
            run("llvm-dwp", "llvm", |dwp| {
                dwp.current_dir(&directory)
                    .args(["-e", "libdeep.so", "-o", "libdeep.so.dwp"])
            });
            fs::remove_file(path("libdeep.so-deep.dwo")).expect("it can be removed");
        }
        // A local takes at most 10 bytes of code, and `inner` 16,384.
        let address = 0x1000 + 12 * depth + 64;
        let dump = format!(
            "heap_v2/512\n  t*: 1: 1 [0: 0]\n@ {address:#x}\n  t*: 1: 1 [0: 0]\n\nMAPPED_LIBRARIES:\n\
             00001000-00010000 r-xp 00001000 fe:00 1 {}\n",
            path("libdeep.so").display()
        );
        let (stacks, notes) =
            collapsed(dump.as_bytes(), &here(), Granularity::Functions).expect("it is a good dump");
        assert_eq!(stacks, expected, "{depth} {is_packed} {notes:?}");
    };
    for is_packed in [false, true] {
        check(900, is_packed, "outer;inner 513\n");
        check(1001, is_packed, "outer 513\n");
    }
}
