//! jemalloc's background threads, which purge free pages automatically.

use rustix::io::Errno;

use crate::allocators::jemalloc::Jemalloc;
use crate::error::{Error, ErrorKind, Result};
use memprof_messages::BackgroundThreads;

/// Fails unless this jemalloc can be limited to `max` background threads.
///
/// # Errors
/// `InvalidArgument`: `max` is 0. `Unavailable`: `max` exceeds the limit that jemalloc got at its start. `Allocator`:
/// jemalloc does not report that limit.
pub(crate) fn check_max_background_threads(jemalloc: &Jemalloc, max: u64) -> Result<()> {
    let limit = max_background_threads(jemalloc)?;
    if (1..=limit).contains(&max) {
        return Ok(());
    }
    // Too large a value is `Unavailable`, because another process may have a higher limit.
    let kind = match max {
        0 => ErrorKind::InvalidArgument,
        _ => ErrorKind::Unavailable,
    };
    let message = format!("max={max} is out of range 1..={limit}");
    Err(Error::new(kind, message)
        .with_remedy("jemalloc takes a higher limit only at its start: max_background_threads:N"))
}

/// Turns the background threads on or off if `on` is given, and limits them to `max` if given. Returns their state,
/// read back from jemalloc.
///
/// # Errors
/// jemalloc refused, or accepted the value and ignored it.
pub(crate) fn set_background_threads(
    jemalloc: &Jemalloc,
    on: Option<bool>,
    max: Option<u64>,
) -> Result<BackgroundThreads> {
    let mallctl = &jemalloc.mallctl;
    if let Some(max) = max {
        mallctl
            .write(c"max_background_threads", max as usize)
            .map_err(|errno| Error::refused_mallctl("max_background_threads", errno))?;
    }
    if let Some(on) = on {
        mallctl
            .write_bool(c"background_thread", on)
            .map_err(|errno| Error::refused_mallctl("background_thread", errno))?;
    }
    let background = read_background_threads(jemalloc)?;
    if on.is_some_and(|on| background.background_thread != on) {
        return Err(Error::allocator(format!(
            "{} accepted background_thread and ignored it",
            jemalloc.identity
        )));
    }
    Ok(background)
}

/// Fails unless this jemalloc supports background threads.
///
/// # Errors
/// `Unsupported`: this jemalloc was built without background threads. `Allocator`: it refused the call.
pub(crate) fn require_background_thread_support(jemalloc: &Jemalloc) -> Result<()> {
    match jemalloc.mallctl.read_bool(c"background_thread") {
        Ok(_) => Ok(()),
        Err(Errno::NOENT) => {
            let message = format!("{} was built without background threads", jemalloc.identity);
            Err(Error::new(ErrorKind::Unsupported, message).with_remedy(
                "use jemalloc 5 (Rust: feature \"background_threads_runtime_support\" of \
                 tikv-jemallocator); `purge` gives free pages back once",
            ))
        }
        Err(errno) => Err(Error::refused_mallctl("background_thread", errno)),
    }
}

/// Maximum number to which background threads can be limited. jemalloc fixes it at its start. Fails if jemalloc does
/// not report it.
fn max_background_threads(jemalloc: &Jemalloc) -> Result<u64> {
    const LIMIT: &std::ffi::CStr = c"opt.max_background_threads";
    let limit = jemalloc.mallctl.read::<usize>(LIMIT);
    limit
        .map(|limit| limit as u64)
        .map_err(|errno| Error::refused_mallctl("opt.max_background_threads", errno))
}

/// Reads whether background threads are on, and the current limit of their number. Fails if jemalloc refuses either.
fn read_background_threads(jemalloc: &Jemalloc) -> Result<BackgroundThreads> {
    let mallctl = &jemalloc.mallctl;
    Ok(BackgroundThreads {
        kind: jemalloc.identity.kind.into(),
        version: jemalloc.identity.version.clone(),
        background_thread: mallctl
            .read_bool(c"background_thread")
            .map_err(|errno| Error::refused_mallctl("background_thread", errno))?,
        max_background_threads: mallctl
            .read::<usize>(c"max_background_threads")
            .map_err(|errno| Error::refused_mallctl("max_background_threads", errno))?
            as u64,
    })
}
