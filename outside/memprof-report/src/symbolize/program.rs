//! Finds the main program among the mapped files, where the profile does not name it: as jemalloc's and tcmalloc's
//! dumps.

use super::Sources;
use super::image::{Image, is_program};
use super::limited_file::LimitedFile;
use super::object_files::ObjectFile;
use super::regular_file::READ_LIMIT;
use super::search::{BinaryLookup, find_binary};
use crate::profile::Profile;

/// Most files that are opened to find the program.
const MAX_FILES: usize = 32;

/// Sets the profile's program to the first file of code that is a program, unless the profile names a program that is
/// mapped. Tries up to [`MAX_FILES`] files, first the one whose name is the likeliest. If none of them is a program,
/// the profile then has no name of a program.
pub(super) fn set_program_if_unnamed(profile: &mut Profile, sources: &Sources) {
    if profile.named_program().is_some() {
        return;
    }
    let guess = profile.main_file().map(|mapping| mapping.path.as_str());
    let code = profile.mappings.iter();
    let code = code.filter(|mapping| mapping.is_file() && mapping.executable);
    let mut paths: Vec<&str> = guess.into_iter().collect();
    for mapping in code {
        if !paths.contains(&mapping.path.as_str()) {
            paths.push(&mapping.path);
        }
        if paths.len() == MAX_FILES {
            break;
        }
    }
    let program = paths
        .into_iter()
        .find(|path| is_program_at(path, profile, sources));
    profile.program = program.map(str::to_owned);
}

/// Returns whether the mapped file at `path` is a program that contains code, unlike a program's debug file. False if
/// the file cannot be found or read.
fn is_program_at(path: &str, profile: &Profile, sources: &Sources) -> bool {
    let file = ObjectFile::new(path, profile, sources);
    let Ok(BinaryLookup::Binary(binary)) =
        find_binary(&file, profile.origin.machine.as_deref(), sources)
    else {
        return false;
    };
    let cache = LimitedFile::new(&binary.file, READ_LIMIT);
    let elf = object::File::parse(&cache);
    elf.is_ok_and(|elf| Image::new(&elf).has_code && is_program(&elf))
}
