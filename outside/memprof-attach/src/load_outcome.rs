//! Waits for the outcome of loading the plugin by the new thread.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use memprof_ptrace::maps::mappings;
use memprof_ptrace::{HaltWatch, Refusal};
use nix::errno::Errno;

use crate::error::AttachError;
use crate::memory_file::provide_plugin_file;
use crate::plugin::Plugin;
use crate::run_calls::{CallInProgress, POLL_INTERVAL, has_returned};
use crate::shared_page::{self, LoaderAck, LoaderStage, RemotePage};
use crate::step_deadline::StepDeadline;
use crate::target::{Target, read_maps, thread_lost_error};

/// Timeout for the plugin to be loaded. Its constructors run meanwhile, and the loader's lock is waited for.
const LOAD_TIMEOUT: Duration = Duration::from_secs(60);

/// Outcome of creating the new thread.
pub(crate) enum LoadOutcome {
    /// Error text of the loader or the plugin; empty on success.
    Finished(String),
    /// `pthread_create(3)` failed, with this errno.
    NoThread(Errno),
}

/// Waits until the plugin was started, or its loading or its thread has failed. Provides the file in memory when the
/// thread requests it. `creator` is the call that creates the thread. Gives up if the process is stopped, or if a step
/// takes too long; the error then says what of memprof is left in the process.
pub(crate) fn wait_until_loaded(
    target: &Target,
    page: RemotePage<'_>,
    plugin: &Plugin,
    creator: &CallInProgress,
) -> Result<LoadOutcome, AttachError> {
    let lost_error = |_| thread_lost_error(target);
    let give_up = |reason: String| match cancel_loading(page) {
        Ok(left) => Err(AttachError::Failed(format!("{reason}; {left}"))),
        Err(error) => Err(lost_error(error)),
    };
    let start = Instant::now();
    let mut begin_deadline = StepDeadline::new();
    let mut has_memfd = false;
    let mut halts = HaltWatch::new(target.pid);
    loop {
        let stage = page.read_stage().map_err(lost_error)?;
        if let Some(halt) = halts.poll() {
            return give_up(halt.to_string());
        }
        match stage {
            LoaderStage::Done => break,
            LoaderStage::AwaitsFile if !has_memfd => {
                if let Err(error) = provide_plugin_file(target, page, &plugin.path) {
                    // The error of the file says more than that of a page that is gone.
                    let _ = cancel_loading(page);
                    return Err(error);
                }
                has_memfd = true;
            }
            // The creating thread has returned from the code, and no new thread runs in it.
            LoaderStage::NotStarted
                if has_thread_creation_failed(page).map_err(lost_error)?
                    && has_returned(target, creator) =>
            {
                let errno = page
                    .read_word(shared_page::CREATE_RESULT)
                    .map_err(lost_error)?;
                return Ok(LoadOutcome::NoThread(Errno::from_raw(errno as i32)));
            }
            LoaderStage::NotStarted if begin_deadline.has_passed(target.pid, creator.tid) => {
                return give_up(format!(
                    "its new thread did not begin for {} s (too many busy threads, or one of a real-time priority?)",
                    begin_deadline.elapsed_seconds()
                ));
            }
            stage if stage < LoaderStage::Calling && start.elapsed() > LOAD_TIMEOUT => {
                return give_up(
                    "it was still loading the plugin after a minute: the program holds the loader's lock, or a \
                     constructor takes long"
                        .into(),
                );
            }
            _ if start.elapsed() > 2 * LOAD_TIMEOUT => {
                return give_up("the plugin was still starting after two minutes".into());
            }
            _ => thread::sleep(POLL_INTERVAL),
        }
    }
    if page
        .read_word(shared_page::IS_MISALIGNED)
        .map_err(lost_error)?
        != 0
    {
        let malloc = page.read_word(shared_page::MALLOC).map_err(lost_error)?;
        page.send_reply(LoaderAck::ResultRead).map_err(lost_error)?;
        return Err(Refusal::Misaligned {
            allocator: file_name_at(target.pid, malloc),
        }
        .into());
    }
    let message = page.read_text().map_err(lost_error)?;
    page.send_reply(LoaderAck::ResultRead).map_err(lost_error)?;
    Ok(LoadOutcome::Finished(message))
}

/// Requests the new thread to end without loading or calling the plugin. Returns the end of an error's sentence: what
/// is left in the process.
///
/// # Errors
/// The page is not mapped any more.
fn cancel_loading(page: RemotePage<'_>) -> io::Result<&'static str> {
    page.send_reply(LoaderAck::Cancelled)?;
    // Read after the request, which the thread reads after it has stored its stage.
    let Ok(stage) = page.read_stage() else {
        return Ok("its new thread has ended there");
    };
    Ok(match stage {
        LoaderStage::NotStarted | LoaderStage::Started | LoaderStage::AwaitsFile => {
            "nothing is left there: the thread ends without loading the plugin"
        }
        LoaderStage::Loading => {
            "the plugin's file may stay mapped there, without effect, until the process ends"
        }
        LoaderStage::Calling | LoaderStage::Done => {
            "the plugin is there, or starts yet: it leaves by itself at the end of its time, or by `memprof detach`"
        }
    })
}

/// Returns the name, without directories, of the file that is mapped at an address of a process. Returns "of no file"
/// if there is none, or if the mappings cannot be read.
fn file_name_at(pid: u32, address: u64) -> String {
    let maps = read_maps(pid).unwrap_or_default();
    let mapping = mappings(&maps).find(|mapping| mapping.range.contains(&address));
    let name = mapping.map(|mapping| String::from_utf8_lossy(mapping.file_name()).into_owned());
    name.filter(|name| !name.is_empty())
        .unwrap_or_else(|| "of no file".to_owned())
}

/// Returns whether `pthread_create(3)` has returned an error; false while it has not returned. Fails if the page is not
/// mapped any more.
fn has_thread_creation_failed(page: RemotePage<'_>) -> io::Result<bool> {
    Ok(page.read_word(shared_page::CREATED)? != 0
        && page.read_word(shared_page::CREATE_RESULT)? != 0)
}
