//! Repeats requests that a host refuses while it takes a dump for another client: an agent, a page, a script.

use std::thread;
use std::time::{Duration, Instant};

use memprof_host::client::ClientError;
use memprof_plugin_abi::raw::MEMPROF_BUSY;

use crate::message::TakenDump;
use crate::reply::ParsedReply;

/// Timeout for dumps of other clients to end, and the time between two attempts.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Result of a request that may be refused because a dump runs.
pub(crate) trait MaybeBusy {
    /// Whether the request was refused because the host takes a dump for another client.
    fn is_busy(&self) -> bool;
}

/// Calls `request` again while the host is busy with another client's dump, for up to [`BUSY_TIMEOUT`]. Returns the
/// last result, which may still be the refusal.
pub(crate) fn retry_while_busy<T: MaybeBusy>(mut request: impl FnMut() -> T) -> T {
    let start = Instant::now();
    loop {
        let result = request();
        if !result.is_busy() || start.elapsed() > BUSY_TIMEOUT {
            return result;
        }
        thread::sleep(POLL_INTERVAL);
    }
}

impl<T> MaybeBusy for Result<T, ClientError> {
    fn is_busy(&self) -> bool {
        matches!(self, Err(ClientError::Plugin { status, .. }) if *status == MEMPROF_BUSY)
    }
}

impl MaybeBusy for anyhow::Result<ParsedReply> {
    fn is_busy(&self) -> bool {
        self.as_ref()
            .is_ok_and(|reply| reply.status == MEMPROF_BUSY)
    }
}

impl MaybeBusy for anyhow::Result<TakenDump> {
    fn is_busy(&self) -> bool {
        matches!(self, Ok(TakenDump::Kept(reply)) if reply.status == MEMPROF_BUSY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reply::Body;

    #[test]
    fn busy_request_is_repeated_until_it_is_not() {
        let check = |statuses: &[i32], expected: i32, sent: usize| {
            let mut left = statuses.iter();
            let reply = retry_while_busy(|| {
                let status = *left.next().unwrap();
                let body = Body::Text(String::new());
                anyhow::Ok(ParsedReply { status, body })
            });
            assert_eq!(
                (reply.unwrap().status, left.len()),
                (expected, statuses.len() - sent)
            );
        };
        check(&[0, 1], 0, 1);
        check(&[MEMPROF_BUSY, MEMPROF_BUSY, 0], 0, 3);
        check(&[MEMPROF_BUSY, -1, 0], -1, 2);
    }
}
