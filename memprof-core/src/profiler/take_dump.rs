//! Takes a dump. The host never waits for a disk, no partial dump ever becomes visible, and every failure is reported
//! with its true cause.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::time::SystemTime;

use super::labels;
use crate::allocators::loaded_objects::{self, LoadedObject};
use crate::dumps::checksum::{self, ChecksummedDump};
use crate::dumps::headroom::require_dump_memory;
use crate::dumps::heap::{ProfileSummary, SamplerSummary, Tally};
use crate::dumps::name::DumpName;
use crate::dumps::scratch::Scratch;
use crate::dumps::store::Store;
use crate::dumps::trigger::Trigger;
use crate::error::{Error, ErrorKind, Result};
use crate::identity::AllocatorIdentity;
use crate::sampler::{Backend, languages};
use crate::system::seccomp;
use crate::unwinder;
use memprof_messages::{Dump, UnseenFrees};

/// Separator between the stacks and the mappings.
const MAPPED_LIBRARIES: &str = "\nMAPPED_LIBRARIES:\n";

/// Origin of a dump, for comment lines that jeprof skips.
#[derive(Clone, Debug)]
pub(crate) struct DumpOrigin {
    pub program: String,
    pub started: SystemTime,
    pub active_since: Option<SystemTime>,
    pub trigger: Trigger,
    /// Resident bytes. `None` if the kernel does not report them.
    pub rss: Option<u64>,
    /// Content of the `# ages:` line. `None` if no sample has an age.
    pub ages: Option<String>,
}

/// Summary of the profile in a scratch file, and the text that completes the dump.
struct WrittenProfile {
    summary: ProfileSummary,
    /// Text after the profile, in two parts. The checksum line goes between them.
    tail: [String; 2],
}

/// A dump that exists only in memory.
#[derive(Debug)]
pub struct InMemoryDump {
    /// File opened for reading only, positioned at its start. Its content is final.
    pub file: File,
    /// Length in bytes.
    pub bytes: u64,
    /// Estimated live bytes, as in [`Dump::estimated_inuse_bytes`].
    pub estimated_inuse_bytes: u64,
}

/// Takes a dump of `backend`, and stores it. The profile is first written to `scratch`, a file in memory, whose pages
/// are released while it is copied.
///
/// # Errors
/// Action that failed, and the cause. Nothing is left behind.
pub(crate) fn take_and_store_dump(
    backend: &Backend,
    store: &Store,
    name: &DumpName,
    origin: &DumpOrigin,
    scratch: &Scratch,
) -> Result<Dump> {
    let WrittenProfile { summary, tail } = write_profile_and_tail(backend, name, origin, scratch)?;
    let mut body = ChecksummedDump::new(scratch.draining_reader(summary.profile_len), tail);
    let length = summary.profile_len + body.bytes_after_profile();
    let kept = store.add_dump(name, origin.started, length, &mut body)?;
    let own_sampler = summary.own_sampler.as_ref();
    Ok(Dump {
        id: kept.id,
        kind: name.kind.into(),
        path: kept.path,
        bytes: kept.bytes,
        stacks: summary.stacks,
        sample_interval: summary.sample_interval,
        estimated_inuse_bytes: summary.estimated_inuse_bytes,
        allocator: backend.identity().to_string(),
        metadata_bytes: backend.sample_memory_bytes(),
        unseen_frees: own_sampler
            .map(|sampler| sampler.unseen_frees)
            .filter(|unseen| *unseen != UnseenFrees::default()),
        unseen_allocation_bytes: own_sampler
            .map(|sampler| sampler.unseen_allocation_bytes)
            .filter(|bytes| *bytes > 0),
        early_ends: own_sampler
            .map(|sampler| sampler.early_ends.clone())
            .unwrap_or_default(),
        stall_ms: summary.stall.map(|stall| stall.as_millis() as u64),
    })
}

/// Takes a dump of `backend` in `scratch`, a file in memory, without storing it. Ignores the store, which it takes so
/// that it has the type of [`take_and_store_dump`].
///
/// # Errors
/// The allocator or the kernel refused, the profile is damaged, or memory ran short.
pub(crate) fn take_dump_in_memory(
    backend: &Backend,
    _: &Store,
    name: &DumpName,
    origin: &DumpOrigin,
    scratch: &Scratch,
) -> Result<InMemoryDump> {
    let WrittenProfile { summary, tail } = write_profile_and_tail(backend, name, origin, scratch)?;
    let mut body = ChecksummedDump::new(scratch.prefix_reader(summary.profile_len), tail);
    let completed = scratch.complete_and_reopen_read_only(summary.profile_len, &mut body);
    let (file, bytes) = completed.map_err(|error| Error::io("complete the dump", &error))?;
    Ok(InMemoryDump {
        file,
        bytes,
        estimated_inuse_bytes: summary.estimated_inuse_bytes,
    })
}

/// Makes `backend` write its profile to the temporary file `scratch`, checks it, and builds the text that completes the
/// dump.
///
/// # Errors
/// The allocator or the kernel refused, the profile is damaged, or memory ran short.
fn write_profile_and_tail(
    backend: &Backend,
    name: &DumpName,
    origin: &DumpOrigin,
    scratch: &Scratch,
) -> Result<WrittenProfile> {
    require_dump_memory()?;
    // Checked on this thread, because seccomp filters are per thread.
    seccomp::require_seccomp_allows_calls()?;
    let written = backend.write_profile(name.kind, scratch);
    // Before the result is checked, because an abandoned profile is incomplete through no fault of the allocator.
    scratch.finish_writing()?;
    let summary = written?;
    let objects = loaded_objects::list_loaded_objects();
    let maps = read_maps_text(&objects)?;
    // Written after the mappings, so that code unloaded in between is in both lists.
    let changed_code = join_comments(&unwinder::code_history_comment_lines(
        summary.own_sampler.is_some(),
    ));
    let languages = join_comments(&languages::language_comment_lines());
    let comments = origin_comments(backend.identity(), name, origin, &objects, &maps);
    // A reader that counts other values recognizes a damaged dump.
    let sums = format!(
        "# stacks: {}\n# estimated-inuse-bytes: {}\n",
        summary.stacks, summary.estimated_inuse_bytes
    );
    let sampler_text = summary
        .own_sampler
        .as_ref()
        .map(sampler_comments)
        .unwrap_or_default();
    let announced = checksum::CHECKSUM_ANNOUNCEMENT;
    let text = format!(
        "{MAPPED_LIBRARIES}{announced}{maps}{comments}{changed_code}{languages}{sampler_text}"
    );
    Ok(WrittenProfile {
        summary,
        tail: [text, sums],
    })
}

/// Text of the process's mappings from /proc/thread-self/maps, or made from `objects` if that file is missing. The text
/// that an allocator appends to its profile is not used: allocators report success even if they cannot read the file.
///
/// # Errors
/// `Io`: /proc/thread-self/maps exists, but cannot be read completely.
fn read_maps_text(objects: &[LoadedObject]) -> Result<String> {
    match std::fs::read("/proc/thread-self/maps") {
        Ok(maps) if maps.ends_with(b"\n") => Ok(String::from_utf8_lossy(&maps).into_owned()),
        Ok(_) => Err(Error::new(
            ErrorKind::Io,
            "/proc/thread-self/maps is empty or cut off",
        )),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Ok(loaded_objects::maps_text(objects))
        }
        Err(error) => Err(Error::io("read /proc/thread-self/maps", &error)),
    }
}

/// Comment lines about the dump's origin, its labels and the loaded objects. `maps` is the text of the mappings, which
/// gives the paths of the objects.
fn origin_comments(
    allocator: &AllocatorIdentity,
    name: &DumpName,
    origin: &DumpOrigin,
    objects: &[LoadedObject],
    maps: &str,
) -> String {
    let time = |time: SystemTime| humantime::format_rfc3339_seconds(time).to_string();
    let machine = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    let mut lines = vec![
        format!("# host: {} pid {} on {machine}", origin.program, name.pid),
        format!("# started: {}", time(origin.started)),
        format!("# taken: {}", time(name.taken)),
        format!("# trigger: {}", origin.trigger),
        format!("# allocator: {allocator}"),
        format!("# kind: {}", name.kind),
    ];
    lines.extend(origin.rss.map(|rss| format!("# rss: {rss}")));
    lines.extend(origin.ages.iter().map(|ages| format!("# ages: {ages}")));
    lines.extend(labels::label_header_lines());
    lines.extend(
        origin
            .active_since
            .map(|since| format!("# active-since: {}", time(since))),
    );
    let paths = mapped_paths(maps);
    // Taken from the mappings: also correct if the program was started through the loader or mapped other files first.
    let program = objects.first().and_then(LoadedObject::start_address);
    let program = program.and_then(|start| paths.get(&start));
    lines.extend(program.map(|path| format!("# program: {path}")));
    let own_code = origin_comments as *const () as usize;
    lines.extend(objects.iter().filter_map(|object| {
        let path = paths.get(&object.start_address()?)?;
        // This file contains memprof's own code. If the allocator cannot exclude memprof's stacks, a reader recognizes
        // them by it.
        let image = object.contains(own_code);
        image.then(|| format!("# memprof-image: {path}"))
    }));
    lines.extend(objects.iter().filter_map(|object| {
        let path = paths.get(&object.start_address()?)?;
        let id = object.build_id.as_ref()?;
        let id: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
        Some(format!("# build-id: {id} {path}"))
    }));
    join_comments(&lines)
}

/// Joins comment lines. A path may contain any byte except NUL, so line breaks are replaced to keep each comment on one
/// line.
fn join_comments(lines: &[String]) -> String {
    lines
        .iter()
        .map(|line| format!("{}\n", line.replace(['\n', '\r'], "?")))
        .collect()
}

/// Comment lines about memprof's sampler: its counts and, if all allocations are counted exactly (tally), their totals.
fn sampler_comments(summary: &SamplerSummary) -> String {
    let SamplerSummary {
        samples,
        lost,
        unseen_frees,
        unseen_allocation_bytes,
        early_ends,
        since,
        tally,
    } = summary;
    let byte_line = |key: &str, bytes: u64| match bytes {
        0 => String::new(),
        bytes => format!("# {key}: {bytes}\n"),
    };
    let freed_line = byte_line("bytes freed unseen", unseen_frees.bytes);
    let allocated_line = byte_line("bytes allocated unseen", *unseen_allocation_bytes);
    let early_lines = early_ends.iter().map(|each| {
        let object = each.object.as_ref().map(|path| path.display().to_string());
        let object = object.unwrap_or_default();
        format!("# early end: {} {} {object}", each.samples, each.reason)
    });
    let early_lines = join_comments(&early_lines.collect::<Vec<_>>());
    let unseen_samples = unseen_frees.samples;
    let since = humantime::format_rfc3339_seconds(*since);
    let tally_line = tally.map_or_else(String::new, |tally| {
        let Tally {
            objects,
            bytes,
            peak,
        } = tally;
        format!("# tally: {objects} objects, {bytes} bytes, {peak} at the peak\n")
    });
    format!(
        "# sampler: ours\n# sampling since: {since}\n# samples: {samples}\n# lost samples: {lost}\n\
         # unseen frees: {unseen_samples}\n{freed_line}{allocated_line}\
         {early_lines}{tally_line}"
    )
}

/// Paths of the mapped files, by the start address of each mapping. Unlike the loader's paths, they have symbolic links
/// resolved. Built once for all objects, because there may be thousands.
fn mapped_paths(maps: &str) -> HashMap<usize, &str> {
    let mapped = maps.lines().filter_map(|line| {
        let (start, remaining) = line.split_once('-')?;
        // The path follows the first blank before a slash.
        let path = &remaining[remaining.find(" /")? + 1..];
        Some((usize::from_str_radix(start, 16).ok()?, path))
    });
    mapped.collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use memprof_messages::ProfileKind;

    use super::*;
    use crate::allocators::allocator::Allocator;
    use crate::allocators::fake::{Behaviour, READERS, fake_mallctl};
    use crate::allocators::jemalloc::JemallocCandidate;
    use crate::allocators::jemalloc::identify_jemalloc;
    use crate::dumps::retention::RetentionPolicy;
    use crate::identity::FoundBy;

    fn take_from<B: Behaviour + 'static>() -> (Result<Dump>, Store, tempfile::TempDir) {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::new(directory.path().join("dumps"), RetentionPolicy::default());
        let candidate = JemallocCandidate {
            mallctl: fake_mallctl::<B>(),
            found_by: FoundBy::Host,
            prefix: None,
            interposed: None,
        };
        let started = SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_259_564);
        let name = DumpName {
            taken: started,
            pid: 7,
            sequence: 1,
            random: 1,
            cause: None,
            kind: ProfileKind::Heap,
        };
        let origin = DumpOrigin {
            program: "a\nb".to_owned(),
            started,
            active_since: Some(started),
            trigger: Trigger::Message,
            rss: Some(4096),
            ages: None,
        };
        let jemalloc = identify_jemalloc(candidate, READERS).unwrap();
        let backend = Backend::new(Allocator::Jemalloc(jemalloc), None);
        let scratch = Scratch::create(store.directory(), ".scratch").unwrap();
        let dump = take_and_store_dump(&backend, &store, &name, &origin, &scratch);
        (dump, store, directory)
    }

    #[test]
    fn missing_mappings_are_appended() {
        struct WithoutMappings;
        impl Behaviour for WithoutMappings {}
        let (dump, store, _place) = take_from::<WithoutMappings>();
        let dump = dump.unwrap();
        let text = std::fs::read_to_string(&dump.path).unwrap();
        let (profile, tail) = text.split_once(MAPPED_LIBRARIES).unwrap();
        assert_eq!(
            format!("{profile}\n"),
            format!("{}\n", WithoutMappings::DUMP)
        );
        assert!(tail.contains("[stack]"), "{tail}");
        assert!(tail.contains("# host: a?b pid 7 on "), "{tail}");
        assert!(
            tail.contains("# active-since: 2026-11-21T11:12:44Z\n"),
            "{tail}"
        );
        assert!(tail.contains("# trigger: message\n"), "{tail}");
        assert!(tail.contains("# rss: 4096\n"), "{tail}");
        let image = std::env::current_exe().unwrap();
        let image = format!("# memprof-image: {}\n", image.display());
        assert!(tail.contains(&image), "{tail}");
        let program = format!(
            "# program: {}\n",
            std::env::current_exe().unwrap().display()
        );
        assert!(tail.contains(&program), "{tail}");
        assert!(tail.contains("/libc.so.6\n"), "{tail}");
        assert!(
            tail.ends_with("# stacks: 1\n# estimated-inuse-bytes: 564\n"),
            "{tail}"
        );
        assert!(tail.starts_with(checksum::CHECKSUM_ANNOUNCEMENT), "{tail}");
        assert!(tail.contains("\n# checksum: crc32 "), "{tail}");
        assert_eq!((dump.stacks, dump.sample_interval), (1, 512));
        assert!(dump.stall_ms.is_some());
        assert_eq!(dump.bytes, text.len() as u64);
        assert_eq!(store.list_dumps().unwrap()[0].id, dump.id);
    }

    #[test]
    fn unreported_damage_is_an_error() {
        struct TruncatingFake;
        impl Behaviour for TruncatingFake {
            const DUMP: &'static str = "heap_v2/512\n  t*: 1: 100 [0: 0]\n@ 0x1 0x";
        }
        let (dump, store, _place) = take_from::<TruncatingFake>();
        let error = dump.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Allocator);
        assert!(error.message.contains("found \"@ 0x1 0x\""), "{error}");
        assert_eq!(store.list_dumps().unwrap(), []);
    }

    #[test]
    fn refusal_without_cause_has_errno_of_jemalloc() {
        struct RefusingFake;
        impl Behaviour for RefusingFake {
            const DUMP_STATUS: i32 = libc::EAGAIN;
        }
        let (dump, store, _place) = take_from::<RefusingFake>();
        let error = dump.unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("jemalloc refused prof.dump: "),
            "{error}"
        );
        assert_eq!(store.list_dumps().unwrap(), []);
    }
}
