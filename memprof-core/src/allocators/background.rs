//! jemalloc's background threads, which give free pages back without the program's help.

use rustix::io::Errno;

use crate::allocators::jemalloc::Jemalloc;
use crate::error::{Error, ErrorKind, Result};
use memprof_messages::BackgroundThreads;

/// Whether this jemalloc takes `max` background threads.
///
/// # Errors
/// `Invalid` where `max` is 0 or more than it was started with.
pub(crate) fn check_max(jemalloc: &Jemalloc, max: u64) -> Result<()> {
    let limit = limit(jemalloc)?;
    if (1..=limit).contains(&max) {
        return Ok(());
    }
    let message = format!("max={max} is out of range 1..={limit}");
    Err(Error::new(ErrorKind::InvalidArgument, message)
        .remedy("jemalloc takes a higher limit only at its start: max_background_threads:N"))
}

/// Switches the background threads where `on` is given, at most `max` of them, and reads back
/// what they are.
///
/// # Errors
/// jemalloc refused, or ignored it.
pub(crate) fn switch(
    jemalloc: &Jemalloc,
    on: Option<bool>,
    max: Option<u64>,
) -> Result<BackgroundThreads> {
    let mallctl = &jemalloc.mallctl;
    if let Some(max) = max {
        mallctl
            .write(c"max_background_threads", max as usize)
            .map_err(|errno| Error::mallctl("max_background_threads", errno))?;
    }
    if let Some(on) = on {
        mallctl
            .write_bool(c"background_thread", on)
            .map_err(|errno| Error::mallctl("background_thread", errno))?;
    }
    let background = read(jemalloc)?;
    if on.is_some_and(|on| background.background_thread != on) {
        return Err(Error::allocator(format!(
            "{} accepted background_thread and ignored it",
            jemalloc.identity
        )));
    }
    Ok(background)
}

/// Whether `switch` can work here.
///
/// # Errors
/// `Unsupported`, with the remedy.
pub(crate) fn require(jemalloc: &Jemalloc) -> Result<()> {
    match jemalloc.mallctl.read_bool(c"background_thread") {
        Ok(_) => Ok(()),
        Err(Errno::NOENT) => {
            let message = format!("{} was built without background threads", jemalloc.identity);
            Err(Error::new(ErrorKind::Unsupported, message).remedy(
                "use jemalloc 5 (Rust: feature \"background_threads_runtime_support\" of \
                 tikv-jemallocator); `purge` gives free pages back once",
            ))
        }
        Err(errno) => Err(Error::mallctl("background_thread", errno)),
    }
}

/// What it was started with, beyond which jemalloc does not go.
fn limit(jemalloc: &Jemalloc) -> Result<u64> {
    const LIMIT: &std::ffi::CStr = c"opt.max_background_threads";
    let limit = jemalloc.mallctl.read::<usize>(LIMIT);
    limit
        .map(|limit| limit as u64)
        .map_err(|errno| Error::mallctl("opt.max_background_threads", errno))
}

fn read(jemalloc: &Jemalloc) -> Result<BackgroundThreads> {
    let mallctl = &jemalloc.mallctl;
    Ok(BackgroundThreads {
        kind: jemalloc.identity.kind.into(),
        version: jemalloc.identity.version.clone(),
        background_thread: mallctl
            .read_bool(c"background_thread")
            .map_err(|errno| Error::mallctl("background_thread", errno))?,
        max_background_threads: mallctl
            .read::<usize>(c"max_background_threads")
            .map_err(|errno| Error::mallctl("max_background_threads", errno))?
            as u64,
    })
}
