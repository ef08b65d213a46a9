//! Sources of a jemalloc's options, in the order in which jemalloc reads them (jemalloc(3), TUNING). Later sources
//! override earlier ones.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::malloc_conf::{ConfSource, unknown_keys};
use crate::allocators::jemalloc::Jemalloc;
use crate::allocators::loaded_objects::LoadedObject;
use crate::allocators::symbols::ObjectSymbols;
use crate::allocators::unprofilable::is_secure_execution;

/// Maximum length of an option text to read, in bytes; more than anyone would write.
const MAX_TEXT_LEN: usize = 4096;

/// Reads the option texts of a jemalloc, in the order in which jemalloc applies them: later ones override earlier ones.
/// For each text, also notes the options that memprof does not know but this jemalloc has. Sources without a text are
/// omitted. Empty if the name of jemalloc's environment variable is unknown.
pub(crate) fn read_conf_sources(jemalloc: &Jemalloc, objects: &[LoadedObject]) -> Vec<ConfSource> {
    let Some(variable) = &jemalloc.conf_variable else {
        return Vec::new();
    };
    // `malloc_conf` or, with a prefix, `_rjem_malloc_conf`.
    let symbol = variable.to_lowercase();
    let harder = format!("{symbol}_2_conf_harder");
    let link = conf_link_path(&symbol);
    let built_in = jemalloc.mallctl.read_text(c"config.malloc_conf").ok();
    let texts = [
        ("--with-malloc-conf".to_owned(), built_in),
        (
            format!("the program's {symbol}"),
            read_program_string(jemalloc, objects, &symbol),
        ),
        (link.clone(), read_conf_link(link.as_ref())),
        (variable.clone(), read_environment_variable(variable)),
        (
            format!("the program's {harder}"),
            read_program_string(jemalloc, objects, &harder),
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

/// Path of the symbolic link with options: `/etc/malloc.conf`, with the jemalloc's prefix in the file name. `symbol` is
/// the name of its variable, such as `_rjem_malloc_conf`.
pub(crate) fn conf_link_path(symbol: &str) -> String {
    format!("/etc/{}", symbol.replace("malloc_conf", "malloc.conf"))
}

/// Target of the symbolic link `link`, which jemalloc reads as options. `None` if the file is missing or not a link.
fn read_conf_link(link: &Path) -> Option<String> {
    let target = std::fs::read_link(link).ok()?;
    Some(target.to_string_lossy().into_owned())
}

/// Value of the environment variable. `None` if it is unset, or if jemalloc ignores the environment.
fn read_environment_variable(variable: &str) -> Option<String> {
    let value = std::env::var_os(variable).filter(|_| !is_secure_execution())?;
    Some(value.to_string_lossy().into_owned())
}

/// Whether this jemalloc has the start option `key`, by its mallctl `opt.KEY`.
fn has_option(jemalloc: &Jemalloc, key: &str) -> bool {
    let Ok(name) = CString::new(format!("opt.{key}")) else {
        return false;
    };
    jemalloc.mallctl.has_mallctl(&name)
}

/// Reads the string to which a variable of the program points. `None` if the variable is missing, or does not point to
/// a string of less than [`MAX_TEXT_LEN`] bytes of UTF-8. Reads memory through /proc, which fails safely: the program
/// may have set the pointer to anything.
fn read_program_string(
    jemalloc: &Jemalloc,
    objects: &[LoadedObject],
    symbol: &str,
) -> Option<String> {
    let name = CString::new(symbol).ok()?;
    let address = find_conf_variable(jemalloc, objects, &name)?;
    let memory = File::open("/proc/thread-self/mem").ok()?;
    let mut pointer = [0; size_of::<usize>()];
    memory.read_exact_at(&mut pointer, address as u64).ok()?;
    let start = usize::from_ne_bytes(pointer) as u64;
    let mut text = Vec::new();
    // Byte by byte, because the memory behind the text may be unreadable.
    while text.len() < MAX_TEXT_LEN {
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

/// Address of the variable `name` in the process's global scope, or else in the object that contains the jemalloc, by
/// the symbols of that object's file. `None` if neither has the variable, or no object contains the jemalloc.
fn find_conf_variable(jemalloc: &Jemalloc, objects: &[LoadedObject], name: &CStr) -> Option<usize> {
    let mallctl = jemalloc.mallctl.address();
    let object = objects.iter().find(|object| object.contains(mallctl))?;
    let exported = ObjectSymbols::find_exported_variable(objects, name);
    exported.or_else(|| {
        let wanted = |known: &[u8]| known == name.to_bytes();
        let symbols = ObjectSymbols::from_file(object, &[name.to_bytes()], wanted);
        symbols.ok()??.variable_address(name)
    })
}
