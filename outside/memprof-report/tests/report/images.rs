//! Symbolizes dumps whose mappings do not show the program plainly: other files are mapped below it, its code was moved
//! to other memory, or only its debug file is here.

use std::fs;
use std::path::Path;

use memprof_report::{ErrorKind, Granularity, Sources};

use crate::shop::{Shop, assert_named, collapsed, here, stacks};
use crate::support::run;

const PIE: [&str; 4] = ["-g", "-O2", "-fPIE", "-pie"];
const FIXED: [&str; 3] = ["-g", "-O2", "-no-pie"];
/// One segment of code, which begins with the headers.
const JOINED: [&str; 4] = ["-g", "-O2", "-no-pie", "-Wl,-z,noseparate-code"];

const SERVE: &str = "main;shop::serve;shop::Basket::add<int>;shop::capture ";

/// The text of a dump, with the line of the code of `shop` changed; left out if `change` returns none.
fn with_code_line(shop: &Shop, change: impl Fn(&str) -> Option<String>) -> Vec<u8> {
    let path = shop.path("shop").display().to_string();
    let text = str::from_utf8(&shop.dump).expect("it is text");
    let lines =
        text.lines().filter_map(
            |line| match line.contains(" r-xp ") && line.ends_with(&path) {
                true => change(line),
                false => Some(line.to_owned()),
            },
        );
    let lines: Vec<_> = lines.collect();
    (lines.join("\n") + "\n").into_bytes()
}

#[test]
fn code_moved_to_other_memory_is_of_its_file() {
    for options in [&PIE[..], &FIXED, &JOINED] {
        let shop = Shop::build_with("g++", options);
        for name in [
            "",
            "/anon_hugepage (deleted)",
            "/memfd:text (deleted)",
            "/dev/hugepages/text (deleted)",
            "[anon:text]",
        ] {
            let dump = with_code_line(&shop, |line| {
                let range = line.split(' ').next()?;
                Some(format!("{range} r-xp 00000000 00:00 0 {name}"))
            });
            assert_named(&stacks(&dump, &here()));
        }
        // Unmapped since, as by a program that ends.
        let dump = with_code_line(&shop, |_| None);
        assert_named(&stacks(&dump, &here()));
    }
}

/// Only the addresses say which program it was.
#[test]
fn binary_names_its_fixed_addresses_without_mappings() {
    let shop = Shop::build_with("g++", &FIXED);
    let text = String::from_utf8(shop.dump.clone()).expect("it is text");
    let (samples, _) = text.split_once("MAPPED_LIBRARIES:").expect("mappings");
    let dump = format!("{samples}MAPPED_LIBRARIES:\n");
    let sources = Sources {
        binary: Some(shop.path("shop")),
        ..Sources::default()
    };
    let named = stacks(dump.as_bytes(), &sources);
    assert!(named.contains(SERVE), "{named}");
}

/// Mappings of files below the program: class data of Java, a locale, a library that may be executed.
#[test]
fn program_is_found_among_files_below_it() {
    let shop = Shop::build_with("g++", &FIXED);
    let copy = shop.path("copy");
    fs::copy(shop.path("shop"), &copy).expect("it can be copied");
    let text = String::from_utf8(shop.dump.clone()).expect("it is text");
    let gone = text.replace(&shop.path("shop").display().to_string(), "/srv/gone/shop");
    for other in [
        "rw-p 00001000 08:01 9 /usr/lib/jvm/java-17/lib/server/classes.jsa",
        "r-xp 00000000 08:01 9 /usr/lib/jvm/java-17/lib/server/classes.jsa",
        "r--p 00000000 08:01 9 /usr/lib/locale/locale-archive",
        "r-xp 00000000 08:01 9 /usr/lib/x86_64-linux-gnu/libc.so.6",
        "r-xp 00000000 08:01 9 /srv/addon/binding.node",
    ] {
        let mapping = format!("MAPPED_LIBRARIES:\n00010000-00020000 {other}\n");
        let dump = gone.replace("MAPPED_LIBRARIES:\n", &mapping);
        let sources = Sources {
            binary: Some(copy.clone()),
            ..here()
        };
        let named = stacks(dump.as_bytes(), &sources);
        assert!(named.contains(SERVE), "{other}: {named}");
    }
}

/// The loader is a file with code below the program, and a library of both names may be above it.
#[test]
fn program_run_by_the_loader_is_replaced_by_binary() {
    let shop = Shop::build();
    let loader = fs::read_link("/lib64/ld-linux-x86-64.so.2").expect("the loader is there");
    let loader = Path::new("/lib64").join(loader);
    fs::rename(shop.path("shop"), shop.path("program.so")).expect("it can be renamed");
    let dump = run(loader.to_str().expect("a path"), "libc6", |loader| {
        loader
            .arg(shop.path("program.so"))
            .arg(shop.path("libplugin.so"))
    });
    fs::rename(shop.path("program.so"), shop.path("built")).expect("it can be renamed");
    let program = format!("# program: {}\n", shop.path("program.so").display());
    let dump = [&dump, program.as_bytes()].concat();
    let sources = Sources {
        binary: Some(shop.path("built")),
        ..here()
    };
    assert_named(&stacks(&dump, &sources));
}

/// A profile of another machine, or a library that was updated since.
#[test]
fn library_with_another_build_id_has_numbers() {
    let shop = Shop::build();
    let comment = format!(
        "# memprof 1\n# build-id: 00112233 {}\n",
        shop.path("libplugin.so").display()
    );
    let check = |sources: &Sources, library_frame: &str, notes_expected: usize| {
        let dump = shop.with_comments(&comment);
        let (stacks, notes) =
            collapsed(&dump, sources, Granularity::Functions).expect("it is a good dump");
        assert!(
            stacks.contains(SERVE) && stacks.contains(library_frame),
            "{stacks}"
        );
        let noted = notes.iter().filter(|note| {
            note.contains("libplugin.so: its frames are numbers: build id mismatch")
        });
        assert_eq!(noted.count(), notes_expected, "{notes:?}");
    };
    check(&here(), "libplugin.so+0x", 1);
    let forced = Sources {
        force: true,
        ..here()
    };
    check(&forced, ";plugin_work;", 0);
    let replaced = Sources {
        binary: Some(shop.path("libplugin.so")),
        ..here()
    };
    let dump = shop.with_comments(&comment);
    let error = collapsed(&dump, &replaced, Granularity::Functions).expect_err("it is another one");
    assert_eq!(error.kind(), ErrorKind::BuildIdMismatch);
}

#[test]
fn binary_that_replaces_nothing_is_noted() {
    let shop = Shop::build();
    let without_names =
        b"heap_v2/512\n  t*: 1: 1 [0: 0]\n@ 0x1000\n  t*: 1: 1 [0: 0]\n\nMAPPED_LIBRARIES:\n";
    let check = |dump: &[u8], expected: &str| {
        let sources = Sources {
            binary: Some(shop.path("shop")),
            ..here()
        };
        let (_, notes) = collapsed(dump, &sources, Granularity::Functions).expect("a good dump");
        assert!(
            notes.iter().any(|note| note.contains(expected)),
            "{notes:?}"
        );
    };
    check(without_names, "names nothing: the profile maps no file");
    let idle = [without_names, &b"400000-401000 r-xp 0 0:0 0 /srv/app\n"[..]].concat();
    check(&idle, "no address without a name lies in /srv/app");
}

/// A debug file has other offsets than the file that was mapped.
#[test]
fn debug_file_alone_names_addresses() {
    for options in [&PIE[..], &FIXED, &JOINED] {
        let options = [options, &["-Wl,--build-id"]].concat();
        let shop = Shop::build_with("g++", &options);
        let id = shop.build_id("shop");
        let by_id = format!("root/.build-id/{}/{}.debug", &id[..2], &id[2..]);
        shop.split_debug("shop", "shop.debug");
        shop.split_debug("shop", &by_id);
        let path = shop.path("shop").display().to_string();
        let dump = shop.with_comments(&format!("# build-id: {id} {path}\n"));
        fs::remove_file(shop.path("shop")).expect("it can be removed");
        let by_name = Sources {
            binary: Some(shop.path("shop.debug")),
            ..here()
        };
        assert_named(&stacks(&dump, &by_name));
        let by_id = Sources {
            binary_root: Some(shop.path("root")),
            ..here()
        };
        assert_named(&stacks(&dump, &by_id));
    }
}

/// The note says that the file is another one, rather than none.
#[test]
fn file_without_the_addresses_is_noted() {
    let shop = Shop::build();
    let sources = Sources {
        binary: Some("/bin/true".into()),
        ..here()
    };
    let moved = with_code_line(&shop, |line| {
        let mut words: Vec<_> = line.split_ascii_whitespace().collect();
        words[2] = "7f000000";
        Some(words.join(" "))
    });
    let (_, notes) = collapsed(&moved, &sources, Granularity::Functions).expect("a good dump");
    let expected = "it names nothing, for none of the";
    assert!(
        notes.iter().any(|note| note.contains(expected)),
        "{notes:?}"
    );
}
