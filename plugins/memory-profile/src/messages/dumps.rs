//! Messages about dumps: `dump`, `gdump`, `list`, `fetch`.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use memprof_core::{Error, Profiler, Trigger};
use memprof_messages::{AllocatorKind, DumpList, ProfileKind};
use memprof_plugin_abi::{Arguments, ErrorKind, Failure, Reply};

use crate::arguments::{take_allocator, take_enum, take_switch};
use crate::gdump_arguments;
use crate::reply::{reply_success, to_failure};
use crate::text::{dump_report_text, gdump_text, kept_dumps_text};

/// Content type of jemalloc's dumps.
const JEMALLOC_PROFILE: &str = "application/x-jemalloc-heap-profile";
/// Content type of tcmalloc's dumps, which have another header.
const TCMALLOC_PROFILE: &str = "application/x-tcmalloc-heap-profile";

/// Handles `dump`: stores a dump of each allocator of the kind `allocator`, or of the default ones without that
/// argument. Replies with a description of the dumps, and logs it. With `keep=off`, stores nothing and replies with the
/// bytes of the dump that has the most bytes in use.
pub(super) fn handle_dump(
    profiler: &Profiler,
    mut args: Arguments,
    reply: &mut Reply<'_>,
) -> Result<(), Failure> {
    let allocator = take_allocator(&mut args)?;
    let kind = take_enum(&mut args, "kind")?.unwrap_or_default();
    let is_kept = take_switch(&mut args, "keep")?.unwrap_or(true);
    args.finish()?;
    if !is_kept {
        return reply_with_dump_bytes(profiler, allocator, kind, reply);
    }
    let report = profiler.dump(allocator, kind, Trigger::Message);
    let report = report.map_err(dump_failure)?;
    let text = dump_report_text(&report);
    log::info!("{text}");
    reply_success(reply, &text, &report)
}

/// Takes a dump and replies with its bytes, without storing it. Dumps the allocators of the kind `allocator`, or the
/// default ones if it is `None`. If several can be dumped, replies with the dump that has the most bytes in use.
fn reply_with_dump_bytes(
    profiler: &Profiler,
    allocator: Option<AllocatorKind>,
    kind: ProfileKind,
    reply: &mut Reply<'_>,
) -> Result<(), Failure> {
    let dump = profiler.dump_in_memory(allocator, kind);
    let dump = dump.map_err(dump_failure)?;
    log::info!("a dump of {} bytes is handed over and not kept", dump.bytes);
    let content_type =
        dump_content_type(&dump.file).map_err(|error| Failure::io("read the dump", &error))?;
    reply.file(&dump.file, dump.bytes, content_type)
}

/// Handles `gdump`: starts (`state=on`) or stops (`state=off`) the automatic dumps at each high-water mark of memory.
/// Replies with their state, and logs it.
pub(super) fn handle_gdump(
    profiler: &Arc<Profiler>,
    args: Arguments,
    reply: &mut Reply<'_>,
) -> Result<(), Failure> {
    let result = match gdump_arguments::parse_gdump_limits(args)? {
        Some(limits) => profiler.start_gdump(limits),
        None => profiler.stop_gdump(),
    };
    let result = result.map_err(to_failure)?;
    let text = gdump_text(&result);
    log::info!("{text}");
    reply_success(reply, &text, result)
}

/// Handles `list`: replies with the descriptions of the kept dumps, newest first.
pub(super) fn handle_list(
    profiler: &Profiler,
    args: Arguments,
    reply: &mut Reply<'_>,
) -> Result<(), Failure> {
    args.finish()?;
    let kept = profiler.list_dumps().map_err(to_failure)?;
    let text = kept_dumps_text(&kept);
    reply_success(reply, &text, DumpList { dumps: kept })
}

/// Handles `fetch`: replies with the bytes of the kept dump `id`. If the bytes cannot be passed to the host, the
/// failure's remedy is to read the dump's file.
pub(super) fn handle_fetch(
    profiler: &Profiler,
    mut args: Arguments,
    reply: &mut Reply<'_>,
) -> Result<(), Failure> {
    let id = args.require("id")?;
    args.finish()?;
    let dump = profiler.open_dump(&id).map_err(to_failure)?;
    let passed = dump_content_type(&dump.file)
        .map_err(|error| Failure::io(&format!("read dump {id}"), &error))
        .and_then(|content_type| reply.file(&dump.file, dump.bytes, content_type));
    passed.map_err(|failure| failure.remedy(format!("read {}", dump.path.display())))
}

/// Converts an error of taking a dump to the failure of a message. Also logs an error of kind `Io`.
fn dump_failure(error: Error) -> Failure {
    // System errors concern the host's operator, and not only the sender of the message.
    if error.kind == ErrorKind::Io {
        log::warn!("{error}");
    }
    to_failure(error)
}

/// Returns the content type of a dump: tcmalloc's if it begins with `heap profile:`, otherwise jemalloc's, even if the
/// file is shorter than that text.
///
/// # Errors
/// The file cannot be read.
fn dump_content_type(dump: &File) -> io::Result<&'static str> {
    const TCMALLOC: &[u8] = b"heap profile:";
    let mut start = [0; TCMALLOC.len()];
    match dump.read_exact_at(&mut start, 0) {
        Ok(()) if start == TCMALLOC => Ok(TCMALLOC_PROFILE),
        Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => Err(error),
        Ok(()) | Err(_) => Ok(JEMALLOC_PROFILE),
    }
}
