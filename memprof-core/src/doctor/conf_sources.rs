//! Where a jemalloc took its options from, in the order in which it reads them (jemalloc.3,
//! TUNING): what comes later counts.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::malloc_conf::{ConfSource, unknown_keys};
use crate::allocators::jemalloc::Jemalloc;
use crate::allocators::loaded_objects::LoadedObject;
use crate::allocators::symbols::ObjectSymbols;
use crate::allocators::unprofilable::is_secure_execution;

/// Longer than any text of options that a person writes.
const LONGEST: usize = 4096;

/// The texts that set options, the environment's last but one.
pub(crate) fn sources(jemalloc: &Jemalloc, objects: &[LoadedObject]) -> Vec<ConfSource> {
    let Some(variable) = &jemalloc.conf_variable else {
        return Vec::new();
    };
    // `malloc_conf`, `_rjem_malloc_conf`.
    let symbol = variable.to_lowercase();
    let harder = format!("{symbol}_2_conf_harder");
    let link = link(&symbol);
    let built_in = jemalloc.mallctl.read_text(c"config.malloc_conf").ok();
    let texts = [
        ("--with-malloc-conf".to_owned(), built_in),
        (
            format!("the program's {symbol}"),
            variable_text(jemalloc, objects, &symbol),
        ),
        (link.clone(), link_text(link.as_ref())),
        (variable.clone(), environment(variable)),
        (
            format!("the program's {harder}"),
            variable_text(jemalloc, objects, &harder),
        ),
    ];
    let source = |(name, text): (String, Option<String>)| {
        let text = text.filter(|text| !text.is_empty())?;
        let is_option = |key: &&str| has_option(jemalloc, key);
        let newer = unknown_keys(&text).filter(is_option).map(str::to_owned);
        Some(ConfSource {
            newer: newer.collect(),
            name,
            text,
        })
    };
    texts.into_iter().filter_map(source).collect()
}

/// `/etc/malloc.conf`, or that of a prefix.
pub(crate) fn link(symbol: &str) -> String {
    format!("/etc/{}", symbol.replace("malloc_conf", "malloc.conf"))
}

/// The text is the link's target; a file that is no link is not read.
fn link_text(link: &Path) -> Option<String> {
    let target = std::fs::read_link(link).ok()?;
    Some(target.to_string_lossy().into_owned())
}

fn environment(variable: &str) -> Option<String> {
    let value = std::env::var_os(variable).filter(|_| !is_secure_execution())?;
    Some(value.to_string_lossy().into_owned())
}

/// Whether this jemalloc lists an option of that name among those that it runs with.
fn has_option(jemalloc: &Jemalloc, key: &str) -> bool {
    let Ok(name) = CString::new(format!("opt.{key}")) else {
        return false;
    };
    jemalloc.mallctl.can_read(&name)
}

/// What a variable of the program's points to. Read through /proc, because the program may have
/// put anything into it since.
fn variable_text(jemalloc: &Jemalloc, objects: &[LoadedObject], symbol: &str) -> Option<String> {
    let name = CString::new(symbol).ok()?;
    let address = variable_address(jemalloc, objects, &name)?;
    let memory = File::open("/proc/thread-self/mem").ok()?;
    let mut pointer = [0; size_of::<usize>()];
    memory.read_exact_at(&mut pointer, address as u64).ok()?;
    let start = usize::from_ne_bytes(pointer) as u64;
    let mut text = Vec::new();
    while text.len() < LONGEST {
        let mut byte = [0];
        memory
            .read_exact_at(&mut byte, start + text.len() as u64)
            .ok()?;
        if byte == [0] {
            return String::from_utf8(text).ok();
        }
        text.extend(byte);
    }
    None
}

/// The one that the whole process sees, else the one in the file that has the jemalloc.
fn variable_address(jemalloc: &Jemalloc, objects: &[LoadedObject], name: &CStr) -> Option<usize> {
    let mallctl = jemalloc.mallctl.address();
    let object = objects.iter().find(|object| object.contains(mallctl))?;
    let exported = ObjectSymbols::exported_variable(objects, name);
    exported.or_else(|| {
        let wanted = |known: &[u8]| known == name.to_bytes();
        let symbols = ObjectSymbols::in_file(object, &[name.to_bytes()], wanted);
        symbols.ok()??.variable(name)
    })
}
