//! The program `shop`, which prints a dump of its own stacks, and what they are.

use std::fs;
use std::path::PathBuf;

use memprof_report::{Format, Granularity, Options, Result, Sources};
use tempfile::TempDir;

use crate::support::{path, report_on, run};

/// `shop` and `libplugin.so` in a directory of their own, with a dump that `shop` printed.
pub(crate) struct Shop {
    pub(crate) directory: TempDir,
    pub(crate) dump: Vec<u8>,
}

impl Shop {
    pub(crate) fn build() -> Self {
        Self::build_with("g++", &["-g", "-fPIE", "-pie", "-O2", "-Wl,--build-id"])
    }

    /// Builds `shop` with that compiler and these options, in the directory itself.
    pub(crate) fn build_with(compiler: &str, options: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let (binary, library) = (
            directory.path().join("shop"),
            directory.path().join("libplugin.so"),
        );
        run(compiler, compiler.trim_end_matches("++"), |compiler| {
            compiler
                .current_dir(&directory)
                .args(options)
                .arg(path("fixtures/shop.cpp"))
                .args(["-o", "shop", "-ldl"])
        });
        let flags = ["-g", "-O1", "-shared", "-fPIC", "-Wl,--build-id"];
        run("gcc", "gcc", |g| {
            g.args(flags)
                .arg(path("fixtures/plugin.c"))
                .arg("-o")
                .arg(&library)
        });
        let dump = run(binary.to_str().expect("a path"), "", |shop| {
            shop.arg(&library)
        });
        Self { directory, dump }
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.directory.path().join(file)
    }

    /// The dump with further comment lines.
    pub(crate) fn with_comments(&self, comments: &str) -> Vec<u8> {
        let mut dump = self.dump.clone();
        dump.extend_from_slice(comments.as_bytes());
        dump
    }

    pub(crate) fn build_id(&self, file: &str) -> String {
        let notes = run("readelf", "binutils", |readelf| {
            readelf.arg("-n").arg(self.path(file))
        });
        let notes = String::from_utf8(notes).expect("it is text");
        let id = notes
            .split("Build ID: ")
            .nth(1)
            .and_then(|rest| rest.split_whitespace().next());
        id.expect("it has one").to_owned()
    }

    pub(crate) fn strip(&self, file: &str) {
        run("strip", "binutils", |strip| strip.arg(self.path(file)));
    }

    /// Moves the debug information of `file` to `debug` below the directory.
    pub(crate) fn split_debug(&self, file: &str, debug: &str) {
        let (file, debug) = (self.path(file), self.path(debug));
        fs::create_dir_all(debug.parent().expect("a directory")).expect("it can be made");
        run("objcopy", "binutils", |o| {
            o.arg("--only-keep-debug").arg(&file).arg(&debug)
        });
    }

    /// Strips `file` as Fedora does: its symbols stay in `.gnu_debugdata`. `pack` creates that section from the ELF
    /// file with the symbols.
    pub(crate) fn strip_to_mini_debug(&self, file: &str, pack: impl FnOnce(Vec<u8>) -> Vec<u8>) {
        let (debug, mini) = (self.path("full.debug"), self.path("mini.debug"));
        self.split_debug(file, "full.debug");
        run("objcopy", "binutils", |o| {
            o.arg("--strip-debug").arg(&debug).arg(&mini)
        });
        self.strip(file);
        let packed = self.path("packed");
        fs::write(&packed, pack(fs::read(&mini).expect("it is there"))).expect("it can be written");
        let section = format!("--add-section=.gnu_debugdata={}", packed.display());
        run("objcopy", "binutils", |o| {
            o.arg(section).arg(self.path(file))
        });
        for used in [debug, mini, packed] {
            fs::remove_file(used).expect("it can be removed");
        }
    }
}

pub(crate) fn here() -> Sources {
    Sources {
        roots: vec!["/".into()],
        machine: Some("here".into()),
        ..Sources::default()
    }
}

pub(crate) fn collapsed(
    dump: &[u8],
    sources: &Sources,
    granularity: Granularity,
) -> Result<(String, Vec<String>)> {
    let options = Options {
        format: Format::Collapsed,
        granularity,
        ..Options::default()
    };
    let (out, notes) = report_on(dump, None, Some(sources), &options)?;
    Ok((String::from_utf8(out).expect("it is text"), notes))
}

pub(crate) fn stacks(dump: &[u8], sources: &Sources) -> String {
    collapsed(dump, sources, Granularity::Functions)
        .expect("it is a good dump")
        .0
}

#[track_caller]
pub(crate) fn assert_named(stacks: &str) {
    assert!(
        stacks.contains("main;shop::serve;shop::Basket::add<int>;shop::capture "),
        "{stacks}"
    );
    assert!(
        stacks.contains("main;plugin_work;hidden_helper;shop::capture "),
        "{stacks}"
    );
}
