//! Open connections, and the part of a request or reply for which each one makes the server wait.
//!
//! Their number and their memory are limited. When a limit is reached, the connection that has made the server wait
//! longest is evicted: a deliberately slow client never keeps out others.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// Most connections that are served: more than a person's pages and scripts open.
const MAX_CONNECTIONS: usize = 256;
/// Most further connections, which only receive a 503 reply.
const MAX_SURPLUS: usize = 64;
/// Most bytes of request bodies and of replies that are not read yet: twice the largest upload.
const MAX_RESERVED_BYTES: usize = 128 << 20;
/// Bytes that a connection may always reserve.
const ALWAYS_FREE_BYTES: usize = 64 << 10;

/// Time from the start of the connection, or from the last reply, to the end of a request's head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Time from the end of a request's head to the end of its body: allows the largest one at 9 Mbit/s.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest time for which a client may leave unread what is ready for it.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Shortest of these timeouts.
const SHORTEST_TIMEOUT: Duration = HEAD_TIMEOUT;
/// Time that a client may take for a body, or to read, before it can be evicted. Clients that are not slow on
/// purpose are faster, unless the machine is busy.
const EVICTION_GRACE: Duration = Duration::from_millis(500);

/// Open connections of a server.
#[derive(Debug, Default)]
pub(crate) struct Connections(Mutex<Vec<Arc<ConnectionState>>>);

/// State of one connection.
#[derive(Debug)]
pub(crate) struct ConnectionState {
    /// Whether all slots are in use, so that the client only receives a 503 reply.
    pub(crate) is_surplus: bool,
    progress: Mutex<ConnectionProgress>,
    evicted: Notify,
}

#[derive(Debug)]
/// Progress of a connection.
struct ConnectionProgress {
    /// Whether the client needs no token; others are evicted first.
    is_known: bool,
    awaited: Option<AwaitedPart>,
    /// Time since which the client reads nothing of what is ready for it. `None` if it reads.
    blocked_since: Option<Instant>,
    reserved: usize,
    is_evicted: bool,
}

/// Part of a request that the client has yet to send, and the time since which it is awaited.
#[derive(Clone, Copy, Debug)]
enum AwaitedPart {
    RequestHead(Instant),
    RequestBody(Instant),
}

impl AwaitedPart {
    /// Returns the time at which the client must have sent this part.
    fn deadline(self) -> Instant {
        match self {
            Self::RequestHead(since) => since + HEAD_TIMEOUT,
            Self::RequestBody(since) => since + BODY_TIMEOUT,
        }
    }
}

impl Connections {
    /// Acquires a slot for a new connection. If none is free, evicts the client that has made the server wait longest.
    /// If no client can be evicted, acquires a surplus slot, whose client only receives a 503 reply. `None` if all
    /// surplus slots are in use, too.
    pub(crate) fn acquire_slot(self: &Arc<Self>) -> Option<ConnectionSlot> {
        let mut open = self.lock_connections();
        let count = open
            .iter()
            .filter(|client| client.has_regular_slot())
            .count();
        let is_surplus = count >= MAX_CONNECTIONS
            && !evict_slowest(&open, Instant::now(), ConnectionState::has_regular_slot);
        if is_surplus && open.len() >= MAX_CONNECTIONS + MAX_SURPLUS {
            return None;
        }
        let client = Arc::new(ConnectionState::new(is_surplus));
        open.push(Arc::clone(&client));
        drop(open);
        Some(ConnectionSlot {
            clients: Arc::clone(self),
            client,
        })
    }

    /// Evicts the connection that has made the server wait longest, if there is one, so that its descriptor becomes
    /// free for a new connection.
    pub(crate) fn evict_slowest_connection(&self) {
        evict_slowest(&self.lock_connections(), Instant::now(), |_| true);
    }

    /// Reserves `bytes` more for `client`, evicting slow connections if necessary. Returns false, and reserves nothing,
    /// if too many bytes are reserved and no other connection can be evicted. The first [`ALWAYS_FREE_BYTES`] of a
    /// connection are always granted. `now` is the time up to which the waits of connections count.
    fn reserve_bytes(&self, client: &ConnectionState, bytes: usize, now: Instant) -> bool {
        let open = self.lock_connections();
        let own = client.lock_progress().reserved + bytes;
        let total = || {
            open.iter()
                .map(|client| client.reserved_bytes())
                .sum::<usize>()
        };
        let may_evict =
            |other: &ConnectionState| !std::ptr::eq(client, other) && other.reserved_bytes() > 0;
        while own > ALWAYS_FREE_BYTES && total() + bytes > MAX_RESERVED_BYTES {
            if !evict_slowest(&open, now, may_evict) {
                return false;
            }
        }
        client.lock_progress().reserved = own;
        true
    }

    /// Locks the list of open connections, even if a thread panicked while it held the lock.
    fn lock_connections(&self) -> MutexGuard<'_, Vec<Arc<ConnectionState>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Evicts the connection that has made the server wait longest, of those that `may_evict` accepts: marks it, and wakes
/// its task, which closes it. `now` is the time up to which waits count. Returns false if no connection can be evicted.
fn evict_slowest(
    open: &[Arc<ConnectionState>],
    now: Instant,
    may_evict: impl Fn(&ConnectionState) -> bool,
) -> bool {
    let waiting = open.iter().filter(|client| may_evict(client));
    let waiting = waiting.filter_map(|client| Some((client.eviction_rank(now)?, client)));
    let Some((_, client)) = waiting.min_by_key(|(rank, _)| *rank) else {
        return false;
    };
    client.lock_progress().is_evicted = true;
    client.evicted.notify_one();
    true
}

impl ConnectionState {
    /// Creates the state of a connection from which nothing is awaited yet. With `is_surplus`, its client only receives
    /// a 503 reply.
    fn new(is_surplus: bool) -> Self {
        Self {
            is_surplus,
            progress: Mutex::new(ConnectionProgress {
                is_known: false,
                awaited: None,
                blocked_since: None,
                reserved: 0,
                is_evicted: false,
            }),
            evicted: Notify::new(),
        }
    }

    /// Records that the server waits for the head of the first request from now on. `is_known` means that the client
    /// needs no token.
    pub(crate) fn record_head_wait(&self, is_known: bool) {
        let mut progress = self.lock_progress();
        progress.is_known = is_known;
        progress.awaited = Some(AwaitedPart::RequestHead(Instant::now()));
    }

    /// Records that the server waits for no part of a request: its head, or all of its body, has arrived.
    pub(crate) fn record_wait_end(&self) {
        self.lock_progress().awaited = None;
    }

    /// Records that the server waits for more of a request's body. Repeated calls keep the start of the wait.
    pub(crate) fn record_body_wait(&self) {
        let mut progress = self.lock_progress();
        if !matches!(progress.awaited, Some(AwaitedPart::RequestBody(_))) {
            progress.awaited = Some(AwaitedPart::RequestBody(Instant::now()));
        }
    }

    /// Records that a reply was handed to the connection: the server waits for the head of the next request from now
    /// on.
    pub(crate) fn record_next_head_wait(&self) {
        self.lock_progress().awaited = Some(AwaitedPart::RequestHead(Instant::now()));
    }

    /// Records whether the client's socket accepted bytes of the reply. The write timeout counts from the first refused
    /// write after an accepted one.
    pub(crate) fn record_write(&self, has_accepted: bool) {
        let mut progress = self.lock_progress();
        progress.blocked_since = match progress.blocked_since {
            _ if has_accepted => None,
            since => since.or_else(|| Some(Instant::now())),
        };
    }

    /// Waits until the client exceeds a timeout or is evicted.
    pub(crate) async fn wait_for_timeout_or_eviction(&self) {
        let timeout = async {
            loop {
                let now = Instant::now();
                let deadline = self.deadline();
                if deadline.is_some_and(|deadline| deadline <= now) {
                    return;
                }
                // A deadline that is set meanwhile may be earlier than this one, but not than that of a shortest
                // timeout from now on.
                let next_check = now + SHORTEST_TIMEOUT;
                sleep_until(deadline.map_or(next_check, |deadline| deadline.min(next_check))).await;
            }
        };
        tokio::select! {
            () = timeout => {}
            () = self.evicted.notified() => {}
        }
    }

    /// Returns the time at which the client exceeds a timeout if it makes no progress. `None` if the server waits for
    /// nothing from the client.
    fn deadline(&self) -> Option<Instant> {
        let progress = self.lock_progress();
        let blocked_since = progress.blocked_since.map(|since| since + WRITE_TIMEOUT);
        let owed = progress.awaited.map(AwaitedPart::deadline);
        blocked_since.into_iter().chain(owed).min()
    }

    /// Returns the rank of the connection in the order of eviction, least first: clients that need a token before
    /// others, then clients that have not sent a request's head before those that have, then those that made the server
    /// wait longest.
    ///
    /// `None` if the server waits for nothing from the client, or the connection is evicted already. A client that has
    /// sent a head is spared for the first 500 ms of the wait.
    fn eviction_rank(&self, now: Instant) -> Option<(bool, bool, Instant)> {
        let progress = self.lock_progress();
        let (has_head, since) = match (progress.blocked_since, progress.awaited) {
            (Some(since), _) | (None, Some(AwaitedPart::RequestBody(since))) => (true, since),
            (None, Some(AwaitedPart::RequestHead(since))) => (false, since),
            (None, None) => return None,
        };
        let can_be_evicted =
            !progress.is_evicted && (!has_head || now.duration_since(since) > EVICTION_GRACE);
        can_be_evicted.then_some((progress.is_known, has_head, since))
    }

    /// Returns whether the connection occupies a regular slot. False for a surplus connection and for an evicted one.
    fn has_regular_slot(&self) -> bool {
        !self.is_surplus && !self.lock_progress().is_evicted
    }

    /// Returns the reserved bytes; 0 once evicted, because they are about to be released.
    fn reserved_bytes(&self) -> usize {
        let progress = self.lock_progress();
        if progress.is_evicted {
            0
        } else {
            progress.reserved
        }
    }

    /// Locks the progress, even if a thread panicked while it held the lock.
    fn lock_progress(&self) -> MutexGuard<'_, ConnectionProgress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Slot of a connection, released when dropped.
#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    clients: Arc<Connections>,
    pub(crate) client: Arc<ConnectionState>,
}

impl ConnectionSlot {
    /// Returns a reservation of 0 bytes for this connection.
    pub(crate) fn empty_reservation(self: &Arc<Self>) -> MemoryReservation {
        MemoryReservation {
            slot: Arc::clone(self),
            bytes: 0,
        }
    }
}

impl Drop for ConnectionSlot {
    /// Removes the connection from the open ones.
    fn drop(&mut self) {
        let mut open = self.clients.lock_connections();
        open.retain(|client| !Arc::ptr_eq(client, &self.client));
    }
}

/// Memory reserved for a connection, released when dropped.
#[derive(Debug)]
pub(crate) struct MemoryReservation {
    slot: Arc<ConnectionSlot>,
    bytes: usize,
}

impl MemoryReservation {
    /// Reserves `bytes` more, evicting slow connections if necessary. Returns false, and reserves nothing, if too many
    /// bytes are reserved.
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        self.grow_at_time(Instant::now(), bytes)
    }

    /// Like [`grow`](Self::grow), but at the time `now`, up to which the waits of connections count.
    fn grow_at_time(&mut self, now: Instant, bytes: usize) -> bool {
        let is_reserved = self
            .slot
            .clients
            .reserve_bytes(&self.slot.client, bytes, now);
        if is_reserved {
            self.bytes += bytes;
        }
        is_reserved
    }
}

impl Drop for MemoryReservation {
    /// Releases the reserved bytes.
    fn drop(&mut self) {
        self.slot.client.lock_progress().reserved -= self.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acquire_slot(clients: &Arc<Connections>, is_known: bool) -> Arc<ConnectionSlot> {
        let slot = clients.acquire_slot().unwrap();
        slot.client.record_head_wait(is_known);
        Arc::new(slot)
    }

    fn is_evicted(slot: &ConnectionSlot) -> bool {
        slot.client.lock_progress().is_evicted
    }

    #[test]
    fn longest_waiting_connection_is_evicted() {
        let clients = Arc::default();
        let slots: Vec<_> = (0..MAX_CONNECTIONS)
            .map(|_| acquire_slot(&clients, true))
            .collect();
        slots[0].client.record_wait_end();
        assert!(!slots.iter().any(|slot| is_evicted(slot)));
        let next = acquire_slot(&clients, true);
        assert!(!next.client.is_surplus);
        assert!(!is_evicted(&slots[0]) && is_evicted(&slots[1]) && !is_evicted(&slots[2]));
    }

    #[test]
    fn unknown_clients_are_evicted_first() {
        let clients = Arc::default();
        let known: Vec<_> = (1..MAX_CONNECTIONS)
            .map(|_| acquire_slot(&clients, true))
            .collect();
        let unknown = acquire_slot(&clients, false);
        let next = acquire_slot(&clients, true);
        assert!(is_evicted(&unknown) && !next.client.is_surplus);
        assert!(!known.iter().any(|slot| is_evicted(slot)));
    }

    #[test]
    fn new_connection_is_surplus_while_all_are_served() {
        let clients = Arc::default();
        let slots: Vec<_> = (0..MAX_CONNECTIONS)
            .map(|_| acquire_slot(&clients, true))
            .collect();
        slots.iter().for_each(|slot| slot.client.record_wait_end());
        let surplus: Vec<_> = (0..MAX_SURPLUS)
            .map(|_| acquire_slot(&clients, true))
            .collect();
        assert!(surplus.iter().all(|slot| slot.client.is_surplus));
        // Surplus connections cannot be evicted for a further one.
        surplus
            .iter()
            .for_each(|slot| slot.client.record_wait_end());
        assert!(clients.acquire_slot().is_none());
        drop(slots);
        assert!(!acquire_slot(&clients, true).client.is_surplus);
    }

    #[test]
    fn slow_client_is_evicted_for_its_memory() {
        let clients = Arc::default();
        let slots = [(); 3].map(|()| acquire_slot(&clients, true));
        let [slow, served, honest] = &slots;
        let mut reservations = [slow, served, honest].map(ConnectionSlot::empty_reservation);
        assert!(
            reservations[0].grow(MAX_RESERVED_BYTES / 2)
                && reservations[1].grow(MAX_RESERVED_BYTES / 2)
        );
        served.client.record_wait_end();
        slow.client.record_wait_end();
        let start = Instant::now();
        slow.client.record_write(false);
        // A few bytes are always available, and a client that is briefly busy keeps its slot.
        assert!(
            reservations[2].grow_at_time(start, ALWAYS_FREE_BYTES)
                && !reservations[2].grow_at_time(start, MAX_RESERVED_BYTES / 4)
        );
        assert!(!is_evicted(slow));
        let later = Instant::now() + 2 * EVICTION_GRACE;
        assert!(reservations[2].grow_at_time(later, MAX_RESERVED_BYTES / 4) && is_evicted(slow));
        // No other connection can be evicted now.
        assert!(!reservations[2].grow_at_time(later, MAX_RESERVED_BYTES / 2));
        let [_, second, _] = reservations;
        drop(second);
        assert!(
            honest
                .empty_reservation()
                .grow_at_time(later, MAX_RESERVED_BYTES / 2)
        );
    }

    #[test]
    fn connections_without_request_head_are_evicted_first() {
        let clients: Arc<Connections> = Arc::default();
        let half_body = acquire_slot(&clients, true);
        half_body.client.record_body_wait();
        let not_reading = acquire_slot(&clients, true);
        not_reading.client.record_wait_end();
        not_reading.client.record_write(false);
        let half_head = acquire_slot(&clients, true);
        let later = Instant::now() + 2 * EVICTION_GRACE;
        for expected in [&half_head, &half_body, &not_reading] {
            assert!(evict_slowest(&clients.lock_connections(), later, |_| true));
            assert!(is_evicted(expected));
        }
        assert!(!evict_slowest(&clients.lock_connections(), later, |_| true));
    }

    #[test]
    fn deadline_depends_on_awaited_part() {
        let check = |action: fn(&ConnectionState), seconds: Option<u64>| {
            let client = ConnectionState::new(false);
            let start = Instant::now();
            client.record_head_wait(true);
            action(&client);
            let wait = client.deadline().map(|end| (end - start).as_secs());
            assert_eq!(wait, seconds);
        };
        check(|_| {}, Some(30));
        check(ConnectionState::record_wait_end, None);
        check(ConnectionState::record_body_wait, Some(60));
        check(
            |client| {
                client.record_wait_end();
                client.record_write(false);
            },
            Some(30),
        );
        check(
            |client| {
                client.record_wait_end();
                client.record_write(false);
                client.record_write(true);
            },
            None,
        );
        check(
            |client| {
                client.record_wait_end();
                client.record_next_head_wait();
            },
            Some(30),
        );
    }

    #[test]
    fn timeout_that_begins_during_another_one_is_on_time() {
        // The second action comes after 10 s.
        let check = |actions: [fn(&ConnectionState); 2], seconds: u64| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .start_paused(true)
                .build();
            runtime.unwrap().block_on(async {
                let client = ConnectionState::new(false);
                let start = Instant::now();
                actions[0](&client);
                let later = async {
                    sleep_until(start + Duration::from_secs(10)).await;
                    actions[1](&client);
                    std::future::pending::<()>().await;
                };
                tokio::select! {
                    () = client.wait_for_timeout_or_eviction() => {}
                    () = later => {}
                }
                assert_eq!(start.elapsed().as_secs(), seconds);
            });
        };
        let nothing: fn(&ConnectionState) = |_| {};
        let body = ConnectionState::record_body_wait;
        let next_head = ConnectionState::record_next_head_wait;
        let reads_nothing: fn(&ConnectionState) = |client| {
            client.record_wait_end();
            client.record_write(false);
        };
        check([body, nothing], 60);
        check([body, next_head], 40);
        check([body, reads_nothing], 40);
        check([nothing, body], 70);
        check([nothing, reads_nothing], 40);
        check([next_head, body], 70);
        check([reads_nothing, nothing], 30);
        let timeouts = [HEAD_TIMEOUT, BODY_TIMEOUT, WRITE_TIMEOUT];
        assert_eq!(timeouts.into_iter().min(), Some(SHORTEST_TIMEOUT));
    }

    /// Returns whether the server ends the connection now.
    async fn has_timed_out(client: &ConnectionState) -> bool {
        let timeout = tokio::time::timeout(Duration::ZERO, client.wait_for_timeout_or_eviction());
        timeout.await.is_ok()
    }

    #[test]
    fn connection_ends_at_timeout_or_eviction() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build();
        runtime.unwrap().block_on(async {
            let clients = Arc::default();
            let slot = acquire_slot(&clients, true);
            assert!(!has_timed_out(&slot.client).await);
            clients.evict_slowest_connection();
            assert!(has_timed_out(&slot.client).await);

            let client = ConnectionState::new(false);
            assert!(!has_timed_out(&client).await);
            client.lock_progress().blocked_since = Some(Instant::now() - WRITE_TIMEOUT);
            assert!(has_timed_out(&client).await);
            client.record_write(true);
            assert!(!has_timed_out(&client).await);
        });
    }
}
