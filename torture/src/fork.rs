//! A program forks while its threads allocate and talk to the plugin: what a child has of the
//! activation is off, and whole when it is switched on there.

use std::fs;
use std::process::Command;

use anyhow::{Result, ensure};

use super::Form;
use super::place::Place;
use xtask::dist::dist;
use xtask::run::output;

/// Whose children are looked at.
const ALLOCATORS: [(&str, &[(&str, &str)]); 2] = [
    (
        "jemalloc",
        &[
            ("LD_PRELOAD", "libjemalloc.so.2"),
            ("MALLOC_CONF", "prof:true,prof_active:false"),
        ],
    ),
    ("glibc, sampled by memprof", &[]),
];

pub(super) fn run(form: Form) -> Result<String> {
    let children = form.pick(20, 200);
    for (name, env) in ALLOCATORS {
        let place = Place::new()?;
        let config = place.path().join("host.toml");
        let text = format!(
            "[control]\nsocket = {:?}\n[[plugin]]\npath = {:?}\n[plugin.config]\ndump_dir = {:?}\n",
            place.socket(),
            dist().join("plugins/memory_profile.so"),
            place.dumps()
        );
        fs::write(&config, text)?;
        let mut forker = Command::new(dist().join("torture/forker"));
        forker.arg(&config).arg(children.to_string());
        forker.env("MEMPROF_SOCKET_DIR", place.path().join("run"));
        let told = output(forker.envs(env.iter().copied()))?;
        let whole = told.lines().filter(|line| *line == "exit 0").count();
        ensure!(whole == children, "{name}: {whole} of {children}: {told}");
    }
    Ok(format!(
        "{} children of {} programs whose threads were at work: none sampled by itself, each did when \
         it was told to, and dumped",
        children * ALLOCATORS.len(),
        ALLOCATORS.len()
    ))
}
