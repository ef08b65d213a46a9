//! Checks of the program that a process executes: whether a library can be loaded into it.

use object::elf::{EM_386, EM_X86_64, FileHeader32, FileHeader64};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, FileKind, ReadRef};

use crate::maps::{Mapping, mappings};
use crate::refusal::Refusal;

/// Largest part of a C library that is searched for its versions, in bytes: the first segment of glibc 2.36 has 150
/// KiB.
const LIBC_LIMIT: u64 = 2 << 20;

/// Returns the file name of the loader (ld.so(8)) of a process that executes a file with that name and content: the
/// loader that the file names (`PT_INTERP`), or the file itself if it is a loader that was executed directly.
///
/// # Errors
/// `Static`: the file names no loader. `OtherArchitecture`: it is not for 64-bit x86; `Unreadable`: it is not an
/// ELF file.
pub fn loader_name<'data>(
    file_name: &'data [u8],
    data: impl ReadRef<'data>,
) -> Result<&'data [u8], Refusal> {
    match FileKind::parse(data).map_err(malformed_error)? {
        FileKind::Elf64 => {}
        FileKind::Elf32 => {
            let header = FileHeader32::<Endianness>::parse(data).map_err(malformed_error)?;
            let endian = header.endian().map_err(malformed_error)?;
            return Err(Refusal::OtherArchitecture(match header.e_machine(endian) {
                EM_386 => "i386",
                EM_X86_64 => "x32",
                _ => "another processor",
            }));
        }
        _ => return Err(malformed_error("it is not an ELF file")),
    }
    let header = FileHeader64::<Endianness>::parse(data).map_err(malformed_error)?;
    let endian = header.endian().map_err(malformed_error)?;
    if header.e_machine(endian) != EM_X86_64 {
        return Err(Refusal::OtherArchitecture("another processor"));
    }
    for segment in header
        .program_headers(endian, data)
        .map_err(malformed_error)?
    {
        if let Some(path) = segment.interpreter(endian, data).map_err(malformed_error)? {
            let name = path.rsplit(|byte| *byte == b'/').next();
            return Ok(name.unwrap_or_default());
        }
    }
    match file_name.starts_with(b"ld-") {
        true => Ok(file_name),
        false => Err(Refusal::Static),
    }
}

/// Fails if a process has a C library that the plugin cannot use. `loader` is the file name of its loader, `maps` the
/// text of /proc/PID/maps, and `libraries` the load addresses in the loader's list. `read` reads the start of a
/// mapping, up to a number of bytes.
///
/// # Errors
/// `Musl`: the C library is musl; `NoGlibc`: no glibc is loaded; `OldGlibc`: glibc is older than 2.34.
pub(crate) fn require_glibc(
    loader: &[u8],
    maps: &[u8],
    libraries: &[u64],
    read: impl FnOnce(&Mapping<'_>, u64) -> Vec<u8>,
) -> Result<(), Refusal> {
    let is_loaded = |mapping: &Mapping<'_>| libraries.contains(&mapping.range.start);
    match defines_glibc_2_34(&read(&find_glibc(loader, maps, is_loaded)?, LIBC_LIMIT)) {
        true => Ok(()),
        false => Err(Refusal::OldGlibc),
    }
}

/// Finds the first mapping of a process's glibc by its file name, without reading memory; the file must also be mapped
/// as code. Wrongly accepts an old glibc under the name of a later one, and a glibc that only another namespace
/// (dlmopen(3)) has.
///
/// # Errors
/// `Musl`: the C library is musl; `NoGlibc`: no glibc is loaded; `OldGlibc`: glibc is older than 2.34.
pub(crate) fn find_glibc_by_name<'a>(
    loader: &[u8],
    maps: &'a [u8],
) -> Result<Mapping<'a>, Refusal> {
    // A file that is mapped as data has no executable mapping.
    find_glibc(loader, maps, |image| {
        let is_same_file =
            |mapping: &Mapping<'_>| (mapping.device, mapping.inode) == (image.device, image.inode);
        mappings(maps).any(|mapping| mapping.is_executable() && is_same_file(&mapping))
    })
}

/// Finds the mapping of a process's glibc with the file's start, the first one that `is_loaded` accepts. Fails with
/// `Musl` by the file name of the loader, with `NoGlibc` if `is_loaded` accepts none, and with `OldGlibc` by glibc's
/// file name.
fn find_glibc<'a>(
    loader: &[u8],
    maps: &'a [u8],
    is_loaded: impl Fn(&Mapping<'_>) -> bool,
) -> Result<Mapping<'a>, Refusal> {
    if loader.starts_with(b"ld-musl-") {
        return Err(Refusal::Musl);
    }
    // Before 2.34 the file was called libc-2.33.so; maps contains the file's name, not that of a link.
    let is_old = |mapping: &Mapping<'_>| {
        let version = mapping.file_name().strip_prefix(b"libc-2.");
        version.is_some_and(|version| version.first().is_some_and(u8::is_ascii_digit))
    };
    let is_libc = |mapping: &Mapping<'_>| is_old(mapping) || mapping.file_name() == b"libc.so.6";
    let mut images = mappings(maps).filter(|mapping| mapping.offset == 0 && is_libc(mapping));
    let libc = images.find(is_loaded).ok_or(Refusal::NoGlibc)?;
    match is_old(&libc) {
        true => Err(Refusal::OldGlibc),
        false => Ok(libc),
    }
}

/// Returns whether the first segment of a libc.so.6 names the symbol version `GLIBC_2.34`. Later versions of glibc keep
/// it, because the functions of threads have it.
fn defines_glibc_2_34(segment: &[u8]) -> bool {
    memchr::memmem::find(segment, b"\0GLIBC_2.34\0").is_some()
}

/// Returns whether memprof's plugin is mapped, by the text of /proc/PID/maps: a file, on disk or in memory, whose name
/// ends in `memory_profile.so`.
pub fn has_plugin(maps: &[u8]) -> bool {
    mappings(maps).any(|mapping| mapping.file_name().ends_with(b"memory_profile.so"))
}

/// Builds the refusal for an executed file that cannot be parsed.
fn malformed_error(cause: impl ToString) -> Refusal {
    Refusal::Unreadable {
        file: "the executed file".to_owned(),
        cause: cause.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ELF file with headers and one segment, which names a loader unless `interpreter` is empty.
    fn file(interpreter: &str) -> Vec<u8> {
        let own = std::fs::read("/proc/self/exe").unwrap();
        let mut file = own[..64].to_vec();
        // e_phoff, e_shoff and e_phnum: one program header after the file header.
        file[32..40].copy_from_slice(&64_u64.to_le_bytes());
        file[40..48].fill(0);
        file[56..58].copy_from_slice(&1_u16.to_le_bytes());
        file[60..64].fill(0);
        let text = format!("{interpreter}\0");
        let kind = if interpreter.is_empty() { 1_u32 } else { 3 };
        file.extend(kind.to_le_bytes());
        file.extend([0; 4]);
        for value in [120, 0, 0, text.len() as u64, text.len() as u64, 1] {
            file.extend(u64::to_le_bytes(value));
        }
        file.extend(text.as_bytes());
        file
    }

    #[test]
    fn loader_is_read_from_the_file() {
        let check = |name: &str, data: &[u8], expected: Result<&str, &str>| {
            let found = loader_name(name.as_bytes(), data);
            let found = found.map(|name| str::from_utf8(name).unwrap().to_owned());
            let expected = expected.map(str::to_owned);
            let found = found.map_err(|refusal| refusal.to_string());
            assert_eq!(found, expected.map_err(str::to_owned));
        };
        let glibc = "/lib64/ld-linux-x86-64.so.2";
        check("web", &file(glibc), Ok("ld-linux-x86-64.so.2"));
        check(
            "web",
            &file("/lib/ld-musl-x86_64.so.1"),
            Ok("ld-musl-x86_64.so.1"),
        );
        check(
            "ld-linux-x86-64.so.2",
            &file(""),
            Ok("ld-linux-x86-64.so.2"),
        );
        let words = "is linked statically: nothing in it can load a library";
        check("web", &file(""), Err(words));
        let with = |at: usize, byte: u8| {
            let mut file = file(glibc);
            file[at] = byte;
            file
        };
        check(
            "web",
            &with(18, 183),
            Err("is a program for another processor"),
        );
        let mut i386 = with(4, 1);
        i386[18] = 3;
        check("web", &i386, Err("is a program for i386"));
        i386[18] = 62;
        check("web", &i386, Err("is a program for x32"));
        for length in 0..120 + glibc.len() {
            let cut = file(glibc);
            let refusal = loader_name(b"web", &cut[..length]).unwrap_err();
            assert!(
                matches!(refusal, Refusal::Unreadable { .. }),
                "{length}: {refusal:?}"
            );
        }
    }

    /// Maps files of systems that a test machine need not have.
    #[test]
    fn glibc_is_required_of_a_process() {
        let check = |loader: &str, path: &str, segment: &str, expected: Result<(), Refusal>| {
            // Another file with that name, mapped as data.
            let maps = format!(
                "5f0000-5f2000 r--p 00000000 fe:01 6     /srv/libc.so.6\n\
                 5f3000-5f5000 r--p 00000000 fe:01 5     /srv/libc-2.31.so\n\
                 7f0000-7f2000 r--p 00000000 fe:01 7     {path}\n"
            );
            let read = |mapping: &Mapping<'_>, limit| {
                assert_eq!(mapping.range, 0x7f_0000..0x7f_2000);
                assert!(limit > 0x2000);
                segment.replace(' ', "\0").into_bytes()
            };
            assert_eq!(
                require_glibc(loader.as_bytes(), maps.as_bytes(), &[0x7f_0000], read),
                expected,
                "{path}"
            );
        };
        let glibc = "ld-linux-x86-64.so.2";
        let libc = "/usr/lib/x86_64-linux-gnu/libc.so.6";
        let names = "ELF dlopen GLIBC_2.2.5 GLIBC_2.33 GLIBC_2.34 GLIBC_2.36 ";
        check(glibc, libc, names, Ok(()));
        check(glibc, &format!("{libc} (deleted)"), names, Ok(()));
        let old = names.replace("GLIBC_2.34 GLIBC_2.36", "GLIBC_PRIVATE");
        check(glibc, libc, &old, Err(Refusal::OldGlibc));
        check(glibc, libc, "", Err(Refusal::OldGlibc));
        // By names alone, if reading a page may block.
        let by_name = |first: &str| {
            let maps = format!(
                "5f0000-5f2000 r--p 00000000 fe:01 6     {first}\n\
                 7f0000-7f2000 r--p 00000000 fe:01 7     {libc}\n\
                 7f2000-7f4000 r-xp 00002000 fe:01 7     {libc}\n"
            );
            let found = find_glibc_by_name(glibc.as_bytes(), maps.as_bytes());
            found.map(|mapping| mapping.range)
        };
        for first in ["/srv/web", "/srv/libc.so.6", "/srv/libc-2.31.so"] {
            assert_eq!(by_name(first), Ok(0x7f_0000..0x7f_2000), "{first}");
        }
        // Debian 11, CentOS 7.
        for path in [
            "/usr/lib/x86_64-linux-gnu/libc-2.31.so",
            "/usr/lib64/libc-2.17.so",
        ] {
            check(glibc, path, names, Err(Refusal::OldGlibc));
        }
        check(glibc, "/srv/libc-2.so", names, Err(Refusal::NoGlibc));
        check(glibc, "/srv/web", names, Err(Refusal::NoGlibc));
        check(
            "ld-musl-x86_64.so.1",
            "/lib/ld-musl-x86_64.so.1",
            "",
            Err(Refusal::Musl),
        );
    }

    #[test]
    fn plugin_is_found_under_any_path() {
        let check = |path: &str, expected| {
            let maps = format!("7f0000-7f2000 r-xp 00000000 fe:01 7     {path}\n");
            assert_eq!(has_plugin(maps.as_bytes()), expected, "{path}");
        };
        check("/usr/lib/memprof/memory_profile.so", true);
        check("/target/debug/libmemory_profile.so (deleted)", true);
        check("/memfd:memory_profile.so (deleted)", true);
        check("/usr/lib/memprof/hello_c.so", false);
        check("/srv/memory_profile.so/web", false);
    }
}
