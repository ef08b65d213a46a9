//! Files of plugins, and of their libraries, that are damaged, missing, replaced or not to be trusted: no host loads them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::dist::{dist, tool_text};
use crate::host::Setup;
use crate::memprof::memprof;
use crate::plugins::{changed_hello, check_refused, compiled, host_with, plain_hello, text_of};

/// A library that a plugin brings is code of the plugin, wherever its runpath leads.
#[test]
fn library_of_a_plugin_that_everybody_may_write() {
    let place = tempfile::tempdir().unwrap();
    let lib = place.path().join("lib");
    fs::create_dir(&lib).unwrap();
    let helper = compiled(place.path(), "int help(void) { return 1; }", &[]);
    let helped = lib.join("libhelp.so");
    fs::rename(helper, &helped).unwrap();
    let needs_help = format!(
        "extern int help(void);\nint (*unused)(void) = help;\n{}",
        plain_hello()
    );
    let search = format!("-L{}", lib.display());
    for runpath in [
        "-Wl,-rpath,$ORIGIN/lib",
        "-Wl,-rpath,/nowhere:$ORIGIN/./lib",
        "-Wl,-rpath,/..${ORIGIN}/lib",
        "-Wl,--disable-new-dtags,-rpath,$ORIGIN/lib",
    ] {
        for (mode, is_trusted) in [(0o755, true), (0o777, false)] {
            fs::set_permissions(&helped, fs::Permissions::from_mode(mode)).unwrap();
            let flags = [
                "-Wl,-z,nodelete",
                "-Wl,--no-as-needed",
                &search,
                "-lhelp",
                runpath,
            ];
            let plugin = compiled(place.path(), &needs_help, &flags);
            let check = memprof(place.path(), &["check", plugin.to_str().unwrap()]);
            let run = check.exits(if is_trusted { 0 } else { 1 });
            let reason = format!(
                "a library that it needs: {} is not to be trusted: everybody may write to it",
                helped.canonicalize().unwrap().display()
            );
            assert_eq!(run.stderr.contains(&reason), !is_trusted, "{run:?}");
        }
    }
}

/// The loader would crash on a damaged library, wherever it finds it.
#[test]
fn damaged_library_of_a_plugin() {
    let place = tempfile::tempdir().unwrap();
    let lib = place.path().join("lib");
    fs::create_dir_all(lib.join("glibc-hwcaps/x86-64-v2")).unwrap();
    let helper = compiled(place.path(), "int help(void) { return 1; }", &[]);
    let helper = fs::read(helper).unwrap();
    let needs_help = format!(
        "extern int help(void);\nint (*unused)(void) = help;\n{}",
        plain_hello()
    );
    let search = format!("-L{}", lib.display());
    let check = |damaged: &str, flags: &[&str], library_path: &str| {
        fs::write(lib.join("libhelp.so"), &helper).unwrap();
        let flags = [
            &["-Wl,-z,nodelete", "-Wl,--no-as-needed", &search, "-lhelp"],
            flags,
        ]
        .concat();
        let plugin = compiled(place.path(), &needs_help, &flags);
        for length in [helper.len(), helper.len() * 3 / 4, 4096, 100] {
            fs::write(lib.join(damaged), &helper[..length]).unwrap();
            let mut check = Command::new(dist("bin/memprof"));
            check
                .arg("check")
                .arg(&plugin)
                .env("LD_LIBRARY_PATH", library_path);
            let output = check.output().unwrap();
            let stderr = String::from_utf8_lossy(&output.stderr);
            let is_whole = length == helper.len();
            let expected = if is_whole { 0 } else { 1 };
            assert_eq!(
                output.status.code(),
                Some(expected),
                "{damaged} {length}: {stderr}"
            );
            let reason = format!(
                "a library that it needs: {}",
                lib.canonicalize().unwrap().join(damaged).display()
            );
            assert_eq!(stderr.contains(&reason), !is_whole, "{stderr}");
        }
        fs::remove_file(lib.join(damaged)).unwrap();
    };
    check("libhelp.so", &["-Wl,-rpath,$ORIGIN/lib"], "");
    check(
        "libhelp.so",
        &["-Wl,--disable-new-dtags,-rpath,$ORIGIN/lib"],
        "",
    );
    check("libhelp.so", &[], lib.to_str().unwrap());
    check(
        "glibc-hwcaps/x86-64-v2/libhelp.so",
        &["-Wl,-rpath,$ORIGIN/lib"],
        "",
    );
}

/// An empty part of a runpath is the working directory. A plugin without a runpath has nothing to do with that.
#[test]
fn library_in_the_working_directory_that_everybody_may_write() {
    let place = tempfile::tempdir().unwrap();
    let helper = compiled(place.path(), "int help(void) { return 1; }", &[]);
    let needs_help = format!(
        "extern int help(void);\nint (*unused)(void) = help;\n{}",
        plain_hello()
    );
    let search = format!("-L{}", place.path().display());
    let check = |text: &str, flags: &[&str], library: &str, is_trusted: bool| {
        let working = tempfile::tempdir().unwrap();
        let library = working.path().join(library);
        fs::copy(&helper, &library).unwrap();
        fs::copy(&helper, place.path().join("libhelp.so")).unwrap();
        fs::set_permissions(&library, fs::Permissions::from_mode(0o777)).unwrap();
        let flags = [&["-Wl,-z,nodelete", "-Wl,--no-as-needed"], flags].concat();
        let plugin = compiled(place.path(), text, &flags);
        let mut check = Command::new(dist("bin/memprof"));
        check.arg("check").arg(plugin).current_dir(working.path());
        let output = check.output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.success(), is_trusted, "{flags:?}: {stderr}");
        let reason = format!(
            "{} is not to be trusted: everybody may write to it",
            library.canonicalize().unwrap().display()
        );
        assert_eq!(stderr.contains(&reason), !is_trusted, "{stderr}");
    };
    check(&plain_hello(), &[], "libc.so.6", true);
    for runpath in ["-Wl,-rpath,/nowhere:", "-Wl,-rpath,."] {
        check(
            &needs_help,
            &[&search, "-lhelp", runpath],
            "libhelp.so",
            false,
        );
    }
}

#[test]
fn crash_while_it_is_checked() {
    let place = tempfile::tempdir().unwrap();
    let crash = "__attribute__((constructor)) static void crash(void) { __builtin_trap(); }\n";
    let declaration = "static const memprof_host_t *host;";
    let plugin = changed_hello(place.path(), declaration, &format!("{crash}{declaration}"));
    let run = memprof(place.path(), &["check", plugin.to_str().unwrap()]).exits(1);
    assert!(
        run.stderr
            .contains("loading it ended the process by signal 4"),
        "{run:?}"
    );
}

#[test]
fn library_without_entry() {
    let place = tempfile::tempdir().unwrap();
    let plugin = place.path().join("other.so");
    fs::copy("/lib/x86_64-linux-gnu/libm.so.6", &plugin).unwrap();
    check_refused(&plugin, "", "it exports no memprof_plugin_entry");
}

#[test]
fn loader_error_is_reported_once() {
    let program = dist("examples/c_host");
    let why =
        "c_host: the loader refused it: cannot dynamically load position-independent executable";
    check_refused(&program, "", why);
}

#[test]
fn damaged_files() {
    let place = tempfile::tempdir().unwrap();
    let whole = fs::read(dist("plugins/hello_c.so")).unwrap();
    let check = |name: &str, bytes: &[u8], why: &str| {
        let plugin = place.path().join(name);
        fs::write(&plugin, bytes).unwrap();
        check_refused(&plugin, "", why);
    };
    // Without the end of a segment, and without the section headers.
    check("start.so", &whole[..4096], "truncated");
    check(
        "half.so",
        &whole[..whole.len() / 2],
        "it is not a whole ELF file",
    );
    check("empty.so", &[], "it is empty; copy the plugin again");
    let other = "it is not a shared library for this machine; name the plugin's shared library";
    check("text.so", b"[plugin]\n", other);
    check("noise.so", &[0x9d; 5000], other);
    let mut arm = whole;
    arm[18] = 183;
    check("arm.so", &arm, "another architecture");
}

fn library_with_constructor(place: &Path, code: &str) -> PathBuf {
    let (source, library) = (place.join("x.c"), place.join("x.so"));
    let text = format!(
        "#include <unistd.h>\n__attribute__((constructor)) static void begin(void) {{ {code} }}\n"
    );
    fs::write(&source, text).unwrap();
    let mut cc = Command::new("cc");
    let built = cc
        .args(["-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .status();
    assert!(built.unwrap().success());
    library
}

#[test]
fn check_ended_by_a_constructor_fails() {
    let place = tempfile::tempdir().unwrap();
    let check = |code: &str, why: &str| {
        let library = library_with_constructor(place.path(), code);
        let mut memprof = Command::new(dist("bin/memprof"));
        let memprof = memprof.args(["check", "--for", "2s"]).arg(&library);
        let output = memprof.output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(text.contains(why), "{code}: {text}");
        assert!(!output.status.success(), "{code}");
    };
    check("_exit(0);", "exit status: 0");
    check("_exit(3);", "exit status: 3");
    check("close(0); close(1); _exit(0);", "exit status: 0");
    check("if (fork()) _exit(0);", "exit status: 0");
    check("for (;;) pause();", "did not end within 2 seconds");
    check("__builtin_trap();", "by signal 4");
    check("", "exports no memprof_plugin_entry");
}

/// Each page of zeros is refused, or harms nothing as the plugin is loaded.
#[test]
fn page_of_zeros_anywhere_never_harms_the_host() {
    const PAGE: usize = 4096;
    let place = tempfile::tempdir().unwrap();
    let whole = fs::read(dist("plugins/hello_c.so")).unwrap();
    for page in (0..whole.len()).step_by(PAGE) {
        let mut damaged = whole.clone();
        let end = damaged.len().min(page + PAGE);
        damaged[page..end].fill(0);
        let plugin = place.path().join("hello_c.so");
        fs::write(&plugin, damaged).unwrap();
        let host = host_with(&plugin, "");
        drop(host);
    }
}

#[test]
fn same_library_twice_is_created_once() {
    let place = tempfile::tempdir().unwrap();
    let plugin = place.path().join("hello_c.so");
    fs::copy(dist("plugins/hello_c.so"), &plugin).unwrap();
    let (link, other) = (place.path().join("link.so"), place.path().join("other.so"));
    std::os::unix::fs::symlink(&plugin, &link).unwrap();
    fs::hard_link(&plugin, &other).unwrap();
    for second in [&plugin, &link, &other] {
        let more = format!("[[plugin]]\npath = {plugin:?}\n[[plugin]]\npath = {second:?}\n");
        let host = Setup::of("c_host").more(&more).start();
        let log = host.log();
        let refused: Vec<_> = log
            .iter()
            .filter(|line| line.starts_with("ERROR"))
            .collect();
        assert_eq!(refused.len(), 1, "{log:#?}");
        assert!(refused[0].contains("is loaded already"), "{}", refused[0]);
    }
}

#[test]
fn file_truncated_at_any_point_never_harms_the_host() {
    let place = tempfile::tempdir().unwrap();
    let whole = fs::read(dist("plugins/hello_c.so")).unwrap();
    let mut config = String::new();
    for part in 0..100 {
        let plugin = place.path().join(format!("cut{part}.so"));
        fs::write(&plugin, &whole[..whole.len() * part / 100]).unwrap();
        config += &format!("[[plugin]]\npath = {plugin:?}\n");
    }
    let host = Setup::of("c_host").more(&config).start();
    let refused = host
        .log()
        .iter()
        .filter(|line| line.starts_with("ERROR"))
        .count();
    assert_eq!(refused, 100);
    host.memprof("status", &[]).exits(0);
}

#[test]
fn missing_relative_and_untrusted_paths() {
    let place = tempfile::tempdir().unwrap();
    check_refused(
        &place.path().join("gone.so"),
        "",
        "No such file or directory (os error 2); correct the path, or install the plugin there",
    );
    let relative = "is not absolute; write its whole path, from / on";
    check_refused(Path::new("plugins/relative.so"), "", relative);
    let plugin = place.path().join("open.so");
    fs::copy(dist("plugins/hello_c.so"), &plugin).unwrap();
    fs::set_permissions(&plugin, PermissionsExt::from_mode(0o777)).unwrap();
    check_refused(&plugin, "", "everybody may write to it");
}

#[test]
fn digest_mismatch() {
    let plugin = dist("plugins/hello_c.so");
    let digest = tool_text("coreutils", Command::new("sha256sum").arg(&plugin));
    let digest = digest.split(' ').next().unwrap();
    let with = |digest: &str| {
        let more = format!("[[plugin]]\npath = {plugin:?}\nsha256 = {digest:?}");
        Setup::of("c_host").more(&more).start()
    };
    let (status, _) = text_of(&mut with(digest).client(), "hello_c", "hello");
    assert_eq!(status, 0);
    with(&"0".repeat(64)).wait_for_log(&format!("its sha256 is {digest}, the config asks for 000"));
}

#[test]
fn file_replaced_while_loading() {
    let place = tempfile::tempdir().unwrap();
    let (library, other) = (
        place.path().join("changed.so"),
        place.path().join("other.so"),
    );
    let swap = format!(
        "#include <stdio.h>\n__attribute__((constructor)) static void swap(void) \
         {{ if (rename({other:?}, {library:?}) != 0) perror(\"rename\"); }}\n#include"
    );
    changed_hello(place.path(), "#include", &swap);
    fs::copy(dist("plugins/hello_c.so"), &other).unwrap();
    check_refused(&library, "", "it was replaced while it was loaded");
}
