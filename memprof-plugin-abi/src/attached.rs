//! The host that this library's log lines and panics go to.

use std::panic;
use std::sync::RwLock;

use crate::Host;

/// From `create` to `destroy`.
static HOST: RwLock<Option<Host>> = RwLock::new(None);

/// Sends this library's log lines and panics to `host`.
pub(crate) fn attach(host: Host) {
    slot(|slot| *slot = Some(host));
    // Refused when this library has a logger already, as after a second `create`: it is ours.
    if log::set_logger(&ForwardToHost).is_ok() {
        log::set_max_level(log::LevelFilter::Trace);
        // The default hook prints to stderr; with a broken pipe there, that kills the host.
        panic::set_hook(Box::new(|info| log::error!("{info}")));
    }
}

pub(crate) fn detach() {
    slot(|slot| *slot = None);
}

fn slot(change: impl FnOnce(&mut Option<Host>)) {
    change(
        &mut HOST
            .write()
            .unwrap_or_else(|poisoned| poisoned.into_inner()),
    );
}

/// The host, from `create` to `destroy`.
pub(crate) fn host() -> Option<Host> {
    *HOST.read().unwrap_or_else(|poisoned| poisoned.into_inner())
}

struct ForwardToHost;

impl ForwardToHost {
    fn with(work: impl FnOnce(&Host)) {
        let host = HOST.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(host) = host.as_ref() {
            work(host);
        }
    }
}

impl log::Log for ForwardToHost {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        let mut enabled = false;
        Self::with(|host| enabled = host.log_enabled(metadata.level()));
        enabled
    }

    fn log(&self, record: &log::Record<'_>) {
        Self::with(|host| {
            if !host.log_enabled(record.level()) {
                return;
            }
            match record.args().as_str() {
                Some(text) => host.log(record.level(), record.target(), text),
                None => host.log(record.level(), record.target(), &record.args().to_string()),
            }
        });
    }

    fn flush(&self) {}
}
