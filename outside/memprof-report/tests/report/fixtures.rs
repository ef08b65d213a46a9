//! Symbolizes programs that are built here: inlined functions, PIE, dlopen, stripped, moved and wrong binaries.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use memprof_report::{ErrorKind, Granularity, Sources};

use crate::shop::{Shop, assert_named, collapsed, here, stacks};
use crate::support::{path, run};

fn xz(bytes: Vec<u8>) -> Vec<u8> {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("file");
    fs::write(&file, bytes).expect("it can be written");
    run("xz", "xz-utils", |xz| {
        xz.args(["-0", "--stdout"]).arg(&file)
    })
}

#[test]
fn inlined_pie_and_dlopened_functions_are_named() {
    let shop = Shop::build();
    let named = stacks(&shop.dump, &here());
    assert_named(&named);
    let without_linkage_names = "main;shop::tidy;shop::(anonymous namespace)::Shelf::each<\
         shop::tidy()::<lambda(int)> >;shop::tidy::{lambda}::operator();shop::capture ";
    assert!(named.contains(without_linkage_names), "{named}");
    let (lines, _) = collapsed(&shop.dump, &here(), Granularity::Lines).expect("it is a good dump");
    assert!(lines.contains("shop.cpp:19;shop::capture"), "{lines}");
}

/// tcmalloc's short memory map has the ranges and paths of code only.
#[test]
fn map_without_offsets_is_named_by_sizes() {
    let shop = Shop::build();
    let dump = String::from_utf8_lossy(&shop.dump).into_owned();
    let (stacks_only, map) = dump
        .split_once("MAPPED_LIBRARIES:\n")
        .expect("it has a map");
    let code = map
        .lines()
        .filter(|line| line.contains(" r-xp ") && line.contains(" /"));
    let brief = code.map(|line| {
        let range = line.split(' ').next().expect("a range");
        format!("  {range}: {}\n", &line[line.find('/').expect("a path")..])
    });
    let dump = format!(
        "{stacks_only}--- Memory map: ---\n{}",
        brief.collect::<String>()
    );
    assert_named(&stacks(dump.as_bytes(), &here()));
}

/// `jemalloc_pprof` writes the addresses at which each file is linked, in mappings of the whole address space.
#[test]
fn normalized_addresses_are_named() {
    let shop = Shop::build();
    let dump = String::from_utf8_lossy(&shop.dump).into_owned();
    let path = shop.path("shop");
    let path = path.display();
    let ranges = dump
        .lines()
        .filter(|line| line.ends_with(&format!(" {path}")));
    let hex = |text: &str| u64::from_str_radix(text, 16).expect("a number");
    let mut ends = ranges.flat_map(|line| line.split([' ', '-']).take(2).map(hex));
    let base = ends.next().expect("it is mapped");
    let end = ends.last().expect("it has an end");
    let stacks_only = dump
        .split("MAPPED_LIBRARIES:")
        .next()
        .expect("it has stacks");
    let normalized = stacks_only
        .lines()
        .map(|line| match line.strip_prefix("@ ") {
            Some(addresses) => {
                let addresses = addresses.split(' ').map(|word| hex(&word[2..]));
                let inside = addresses.filter(|address| (base..end).contains(address));
                let linked = inside.map(|address| format!(" {:#x}", address - base));
                format!("@{}\n", linked.collect::<String>())
            }
            None => format!("{line}\n"),
        });
    let mapping = format!("0-ffffffffffffffff r-xp 00000000 00:00 0 {path}\n");
    let dump = normalized.collect::<String>() + "MAPPED_LIBRARIES:\n" + &mapping;
    let named = stacks(dump.as_bytes(), &here());
    assert!(named.contains("main;shop::tidy;"), "{named}");
    assert!(!named.contains("shop+0x"), "{named}");
}

#[test]
fn debug_link_is_followed() {
    let shop = Shop::build();
    for file in ["shop", "libplugin.so"] {
        let debug = format!(".debug/{file}.debug");
        shop.split_debug(file, &debug);
        shop.strip(file);
        let link = format!("--add-gnu-debuglink={}", shop.path(&debug).display());
        run("objcopy", "binutils", |o| o.arg(link).arg(shop.path(file)));
    }
    assert_named(&stacks(&shop.dump, &here()));
}

#[test]
fn build_id_directory_is_searched() {
    let shop = Shop::build();
    for file in ["shop", "libplugin.so"] {
        let id = shop.build_id(file);
        shop.split_debug(
            file,
            &format!("debug/.build-id/{}/{}.debug", &id[..2], &id[2..]),
        );
        shop.strip(file);
    }
    let sources = Sources {
        binary_root: Some(shop.path("debug")),
        ..here()
    };
    assert_named(&stacks(&shop.dump, &sources));
}

#[test]
fn mini_debug_information_is_read() {
    let shop = Shop::build();
    shop.strip_to_mini_debug("shop", xz);
    shop.strip_to_mini_debug("libplugin.so", xz);
    let (stacks, notes) =
        collapsed(&shop.dump, &here(), Granularity::Functions).expect("it is a good dump");
    // It contains symbols, but no inlined functions.
    assert!(
        stacks.contains("main;shop::serve;shop::capture "),
        "{stacks}"
    );
    let plugin = "main;plugin_work;hidden_helper;shop::capture ";
    assert!(stacks.contains(plugin), "{stacks}");
    assert!(!notes.concat().contains("gnu_debugdata"), "{notes:?}");
}

#[test]
fn damaged_mini_debug_information_is_noted() {
    let bomb = |_| xz(vec![0; (128 << 20) + 1]);
    let cut = |bytes| {
        let whole = xz(bytes);
        whole[..whole.len() / 2].to_vec()
    };
    let not_elf = |_| xz(b"hello".to_vec());
    check_mini_debug(bomb, "passes the limit of 134217728 bytes");
    check_mini_debug(cut, "");
    check_mini_debug(not_elf, "");
}

#[track_caller]
fn check_mini_debug(pack: impl FnOnce(Vec<u8>) -> Vec<u8>, problem: &str) {
    let shop = Shop::build();
    shop.strip_to_mini_debug("shop", pack);
    let (stacks, notes) =
        collapsed(&shop.dump, &here(), Granularity::Functions).expect("it is a good dump");
    assert!(stacks.contains(";shop+0x"), "{stacks}");
    let note = format!("its .gnu_debugdata cannot be read: {problem}");
    assert!(notes.concat().contains(&note), "{notes:?}");
}

#[test]
fn stripped_function_does_not_get_neighbours_name() {
    let shop = Shop::build();
    shop.strip("shop");
    shop.strip("libplugin.so");
    let stacks = stacks(&shop.dump, &here());
    assert!(
        stacks.contains(";shop+0x") && stacks.contains("plugin_work;libplugin.so+0x"),
        "{stacks}"
    );
}

/// Debian's redis-server is a link to redis-check-rdb.
#[test]
fn stripped_program_started_by_link_is_noted() {
    let shop = Shop::build();
    shop.strip("shop");
    let dump = shop.with_comments("# memprof 1\n# host: store pid 1 on here\n");
    let (_, notes) = collapsed(&dump, &here(), Granularity::Functions).expect("it is a good dump");
    let note = "/shop (the file of store): it is stripped";
    assert!(notes.concat().contains(note), "{notes:?}");
}

#[test]
fn moved_binary_is_found_in_binary_root() {
    let shop = Shop::build();
    fs::rename(shop.path("shop"), shop.path("moved")).expect("it can be moved");
    let (without, notes) =
        collapsed(&shop.dump, &here(), Granularity::Functions).expect("it is a good dump");
    assert!(without.contains("shop+0x"), "{without}");
    assert!(
        notes.iter().any(|note| note.contains("no such file here")),
        "{notes:?}"
    );
    assert_named(&stacks(
        &shop.dump,
        &Sources {
            binary: Some(shop.path("moved")),
            ..here()
        },
    ));
}

#[test]
fn different_build_id_is_refused() {
    let shop = Shop::build();
    let comment = |id: &str| {
        format!(
            "# memprof 1\n# build-id: {id} {}\n",
            shop.path("shop").display()
        )
    };
    let wrong = shop.with_comments(&comment("00112233"));
    let error = collapsed(&wrong, &here(), Granularity::Functions).expect_err("it is another one");
    assert_eq!(error.kind(), ErrorKind::BuildIdMismatch);
    assert_named(&stacks(
        &wrong,
        &Sources {
            force: true,
            ..here()
        },
    ));
    let right = shop.with_comments(&comment(&shop.build_id("shop")));
    assert_named(&stacks(&right, &here()));
}

#[test]
fn profile_of_other_machine_needs_binary_root() {
    let shop = Shop::build();
    let id = shop.build_id("shop");
    let dump = shop.with_comments(&format!(
        "# host: shop pid 7 on elsewhere\n# build-id: {id} {}\n",
        shop.path("shop").display()
    ));
    let numbers = stacks(&dump, &here());
    assert!(
        !numbers.contains("shop::") && numbers.contains("shop+0x"),
        "{numbers}"
    );
    let root = tempfile::tempdir().expect("a directory");
    fs::copy(shop.path("shop"), root.path().join("shop")).expect("it can be copied");
    let with_root = stacks(
        &dump,
        &Sources {
            binary_root: Some(root.path().into()),
            ..here()
        },
    );
    assert!(
        with_root.contains("main;shop::serve;shop::Basket::add<int>;shop::capture "),
        "{with_root}"
    );
}

/// A running `shop` that has printed its dump.
struct Living {
    process: Child,
    dump: Vec<u8>,
}

impl Living {
    fn start(shop: &Shop) -> Self {
        let mut process = Command::new(shop.path("shop"))
            .arg(shop.path("libplugin.so"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut dump = Vec::new();
        let mut out = process.stdout.take().expect("it is a pipe");
        out.read_to_end(&mut dump).expect("it can be read");
        Self { process, dump }
    }

    fn proc(&self, file: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{file}", self.process.id()))
    }

    /// Sources of `memprof report --pid`, without the files of this machine.
    fn sources(&self) -> Sources {
        Sources {
            roots: vec![self.proc("root")],
            ..Sources::default()
        }
    }
}

impl Drop for Living {
    fn drop(&mut self) {
        self.process.kill().expect("it is alive");
        self.process.wait().expect("it ends");
    }
}

#[test]
fn files_of_running_process_are_read() {
    let shop = Shop::build();
    let living = Living::start(&shop);
    assert_named(&stacks(&living.dump, &living.sources()));
}

/// The path is now of the new file, which is not the running one.
#[test]
fn replaced_binary_of_running_process_is_read() {
    let shop = Shop::build();
    let living = Living::start(&shop);
    let id = shop.build_id("shop");
    fs::remove_file(shop.path("shop")).expect("it can be removed");
    fs::copy(shop.path("libplugin.so"), shop.path("shop")).expect("it can be replaced");
    let mut dump = living.dump.clone();
    let path = shop.path("shop").display().to_string();
    dump.extend_from_slice(format!("# memprof 1\n# build-id: {id} {path}\n").as_bytes());

    let error = collapsed(&dump, &living.sources(), Granularity::Functions).expect_err("it is new");
    assert_eq!(error.kind(), ErrorKind::BuildIdMismatch);
    let running = Sources {
        binary: Some(living.proc("exe")),
        ..living.sources()
    };
    assert_named(&stacks(&dump, &running));
}

/// A dump may name devices, FIFOs or directories, none of which may block.
#[test]
fn special_files_do_not_block() {
    let shop = Shop::build();
    let fifo = shop.path("fifo");
    run("mkfifo", "coreutils", |mkfifo| mkfifo.arg(&fifo));
    let text = String::from_utf8(shop.dump.clone()).expect("it is text");
    let binary = shop.path("shop").display().to_string();
    for path in [
        "/dev/zero",
        "/proc/self/mem",
        "/",
        "/../../etc/passwd",
        fifo.to_str().expect("a path"),
    ] {
        let dump = text.replace(&binary, path);
        let stacks = stacks(dump.as_bytes(), &here());
        assert!(!stacks.contains("shop::"), "{stacks}");
    }
}

/// A truncated or changed binary yields names or offsets, for all stacks.
#[test]
fn damaged_binary_yields_names_or_offsets() {
    let shop = Shop::build();
    shop.strip_to_mini_debug("libplugin.so", xz);
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = |below: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random % below as u64) as usize
    };
    // Without the system's libraries, which are large.
    let text = str::from_utf8(&shop.dump).expect("it is text");
    let dump: String = text
        .split_inclusive('\n')
        .filter(|line| !line.contains(" /usr/lib/") && !line.contains(" /lib/"))
        .collect();
    for file in ["shop", "libplugin.so"] {
        let whole = fs::read(shop.path(file)).expect("it is there");
        for round in 0..100 {
            let mut damaged = whole.clone();
            for _ in 0..20 {
                damaged[next(whole.len())] = next(256) as u8;
            }
            if round % 4 == 0 {
                damaged.truncate(next(whole.len()));
            }
            fs::write(shop.path(file), damaged).expect("it can be written");
            assert_eq!(stacks(dump.as_bytes(), &here()).lines().count(), 3);
        }
        fs::write(shop.path(file), whole).expect("it can be written");
    }
}

#[test]
fn deeply_nested_debug_information_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let library = directory.path().join("libdeep.so");
    run("gcc", "gcc", |gcc| {
        gcc.args(["-shared", "-nostdlib", "-Wl,-Ttext=0x1000", "-o"])
            .arg(&library)
            .arg(path("fixtures/deep.s"))
    });
    let dump = format!(
        "heap_v2/512\n  t*: 1: 1 [0: 0]\n@ 0x1010\n  t*: 1: 1 [0: 0]\n\nMAPPED_LIBRARIES:\n\
         00001000-00002000 r-xp 00001000 fe:00 1 {}\n",
        library.display()
    );
    let (stacks, notes) =
        collapsed(dump.as_bytes(), &here(), Granularity::Functions).expect("it is a good dump");
    assert_eq!(stacks, "deep 513\n");
    let note = "its debug information is not read: it is nested deeper than 1000";
    assert!(notes.concat().contains(note), "{notes:?}");
}

#[test]
fn oversized_debug_section_is_refused() {
    let shop = Shop::build();
    let file = shop.path("shop");
    run("objcopy", "binutils", |o| {
        o.arg("--compress-debug-sections=zlib").arg(&file)
    });
    assert_named(&stacks(&shop.dump, &here()));

    let mut bytes = fs::read(&file).expect("it is there");
    let sizes = compressed_sizes(&bytes);
    for at in sizes {
        bytes[at..at + 8].copy_from_slice(&(3_u64 << 30).to_le_bytes());
    }
    // A running program's file cannot be written to, but replaced.
    fs::remove_file(&file).expect("it can be removed");
    fs::write(&file, bytes).expect("it can be written");
    let (stacks, notes) =
        collapsed(&shop.dump, &here(), Granularity::Functions).expect("it is a good dump");
    assert!(stacks.contains("main;shop::serve;"), "{stacks}");
    let note = "its debug information is not read: a section claims 3221225472 bytes";
    assert!(notes.concat().contains(note), "{notes:?}");
}

/// Offsets of the sizes of compressed sections in an ELF file (gABI, "Compression Header").
fn compressed_sizes(bytes: &[u8]) -> Vec<usize> {
    let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    let short = |at: usize| usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
    let (table, size, count) = (number(40) as usize, short(58), short(60));
    let headers = (0..count).map(|index| table + index * size);
    let compressed = headers.filter(|header| number(header + 8) & 0x800 != 0);
    let sizes: Vec<_> = compressed
        .map(|header| number(header + 24) as usize + 8)
        .collect();
    assert!(!sizes.is_empty(), "no section is compressed");
    sizes
}

#[test]
fn inlined_rust_functions_are_qualified() {
    let directory = tempfile::tempdir().expect("a directory");
    let binary = directory.path().join("market");
    let source = path("fixtures/market.rs");
    for mangling in ["legacy", "v0"] {
        let flag = format!("-Csymbol-mangling-version={mangling}");
        let flags = ["--edition=2024", "-g", "-O", &flag];
        let unstable = mangling == "legacy";
        build_rust(&source, &binary, &flags, unstable);
        let dump = run(binary.to_str().expect("a path"), "", |market| market);
        let stacks = stacks(&dump, &here());
        assert!(stacks.contains("market::main;"), "{stacks}");
        let sell = "market::stall::Sell>::sell;market::stall::weigh;market::capture ";
        assert!(stacks.contains(sell), "{stacks}");
        assert!(!stacks.contains("::h0"), "{stacks}");
    }
}

/// Functions that are inlined across units have their names in another unit than the address.
#[test]
fn referenced_units_are_read() {
    let directory = tempfile::tempdir().expect("a directory");
    let binary = directory.path().join("market");
    let flags = ["--edition=2024", "-g", "-O", "-Clto=fat"];
    build_rust(&path("fixtures/market.rs"), &binary, &flags, false);
    let dump = run(binary.to_str().expect("a path"), "", |market| market);
    let whole = stacks(&dump, &here());
    let sell = "market::stall::Sell>::sell;market::stall::weigh;market::capture ";
    assert!(whole.contains(sell), "{whole}");
    // Without the index of units, all units are read.
    run("objcopy", "binutils", |o| {
        o.arg("--remove-section=.debug_aranges").arg(&binary)
    });
    assert_eq!(whole, stacks(&dump, &here()));
}

fn build_rust(source: &Path, binary: &Path, flags: &[&str], unstable: bool) {
    run("rustc", "rustc", |rustc: &mut Command| {
        if unstable {
            rustc.env("RUSTC_BOOTSTRAP", "1").arg("-Zunstable-options");
        }
        rustc.args(flags).arg(source).arg("-o").arg(binary)
    });
}
