//! The connections that are open, and what each one lets the server wait for.
//!
//! There are at most so many, and they hold at most so much memory. Where more is wanted, the client
//! that has let the server wait longest is pushed out: one that is slow on purpose never keeps out
//! one that is not.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// More than a person's pages and scripts have open.
const CONNECTIONS: usize = 256;
/// Connections beyond those, which are told to come back later.
const REFUSALS: usize = 64;
/// Bytes of requests' bodies and of replies that were made and are not read yet: twice the largest
/// upload.
const HELD: usize = 128 << 20;
/// Bytes that a connection may always hold.
const FREE: usize = 64 << 10;

/// From the connection's start, or the last reply, to the end of a request's head.
const HEAD: Duration = Duration::from_secs(30);
/// From a request's head to the end of its body: the largest one in 9 Mbit/s.
const BODY: Duration = Duration::from_secs(60);
/// How long a client may leave what is ready for it.
const UNREAD: Duration = Duration::from_secs(30);
/// How long a client may take for a body, or to read, before another one has its place: one that
/// is not slow on purpose is faster, unless the machine is busy.
const GRACE: Duration = Duration::from_millis(500);

/// The open connections of a server.
#[derive(Debug, Default)]
pub(crate) struct Connections(Mutex<Vec<Arc<ConnectionState>>>);

/// One connection, and how long it let the server wait.
#[derive(Debug)]
pub(crate) struct ConnectionState {
    /// Whether all other places are taken, and it is to be told so.
    pub(crate) is_surplus: bool,
    state: Mutex<ConnectionProgress>,
    pushed_out: Notify,
}

#[derive(Debug)]
struct ConnectionProgress {
    /// Whether it may ask without a token: it is pushed out after all that may not.
    is_known: bool,
    owes: Option<AwaitedPart>,
    /// Since when it takes nothing of what is ready for it.
    unread: Option<Instant>,
    held: usize,
    is_pushed_out: bool,
}

/// What a client has yet to send, and since when.
#[derive(Clone, Copy, Debug)]
enum AwaitedPart {
    RequestHead(Instant),
    RequestBody(Instant),
}

impl AwaitedPart {
    fn deadline(self) -> Instant {
        match self {
            Self::RequestHead(since) => since + HEAD,
            Self::RequestBody(since) => since + BODY,
        }
    }
}

impl Connections {
    /// Takes a place, if need be that of the client that has let the server wait longest. None when
    /// there is not even a place to say that there is none.
    pub(crate) fn enter(self: &Arc<Self>) -> Option<ConnectionSlot> {
        let mut open = self.open();
        let count = open.iter().filter(|client| client.has_slot()).count();
        let is_surplus = count >= CONNECTIONS
            && !evict_slowest(&open, Instant::now(), ConnectionState::has_slot);
        if is_surplus && open.len() >= CONNECTIONS + REFUSALS {
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

    /// Gives up a place for one that the system has no descriptor for.
    pub(crate) fn evict_one(&self) {
        evict_slowest(&self.open(), Instant::now(), |_| true);
    }

    /// Lets `client` hold so many bytes more. False when too much is held already, and not by
    /// clients that let the server wait.
    fn reserve(&self, client: &ConnectionState, bytes: usize, now: Instant) -> bool {
        let open = self.open();
        let own = client.state().held + bytes;
        let total = || {
            open.iter()
                .map(|client| client.reserved_bytes())
                .sum::<usize>()
        };
        let may =
            |other: &ConnectionState| !std::ptr::eq(client, other) && other.reserved_bytes() > 0;
        while own > FREE && total() + bytes > HELD {
            if !evict_slowest(&open, now, may) {
                return false;
            }
        }
        client.state().held = own;
        true
    }

    fn open(&self) -> MutexGuard<'_, Vec<Arc<ConnectionState>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends the connection that `may` be ended and has let the server wait longest. False when there is
/// none.
fn evict_slowest(
    open: &[Arc<ConnectionState>],
    now: Instant,
    may: impl Fn(&ConnectionState) -> bool,
) -> bool {
    let waiting = open.iter().filter(|client| may(client));
    let waiting = waiting.filter_map(|client| Some((client.eviction_rank(now)?, client)));
    let Some((_, client)) = waiting.min_by_key(|(rank, _)| *rank) else {
        return false;
    };
    client.state().is_pushed_out = true;
    client.pushed_out.notify_one();
    true
}

impl ConnectionState {
    fn new(is_surplus: bool) -> Self {
        Self {
            is_surplus,
            state: Mutex::new(ConnectionProgress {
                is_known: false,
                owes: None,
                unread: None,
                held: 0,
                is_pushed_out: false,
            }),
            pushed_out: Notify::new(),
        }
    }

    /// It is its turn to send a request. `is_known` when it needs no token for that.
    pub(crate) fn start_request(&self, is_known: bool) {
        let mut state = self.state();
        state.is_known = is_known;
        state.owes = Some(AwaitedPart::RequestHead(Instant::now()));
    }

    /// It has sent all that a request consists of.
    pub(crate) fn request_complete(&self) {
        self.state().owes = None;
    }

    /// The server waits for more of a request's body.
    pub(crate) fn await_body(&self) {
        let mut state = self.state();
        if !matches!(state.owes, Some(AwaitedPart::RequestBody(_))) {
            state.owes = Some(AwaitedPart::RequestBody(Instant::now()));
        }
    }

    /// The reply is on its way; the next request may come.
    pub(crate) fn response_started(&self) {
        self.state().owes = Some(AwaitedPart::RequestHead(Instant::now()));
    }

    /// Whether it took some of what was ready for it.
    pub(crate) fn record_write(&self, took: bool) {
        let mut state = self.state();
        state.unread = match state.unread {
            _ if took => None,
            since => since.or_else(|| Some(Instant::now())),
        };
    }

    /// Returns when the server has waited long enough for it.
    pub(crate) async fn until_timeout(&self) {
        let late = async {
            loop {
                let end = self.deadline().unwrap_or_else(|| Instant::now() + HEAD);
                if end <= Instant::now() {
                    return;
                }
                sleep_until(end).await;
            }
        };
        tokio::select! {
            () = late => {}
            () = self.pushed_out.notified() => {}
        }
    }

    /// When the server has waited long enough, unless something happens before.
    fn deadline(&self) -> Option<Instant> {
        let state = self.state();
        let unread = state.unread.map(|since| since + UNREAD);
        let owed = state.owes.map(AwaitedPart::deadline);
        unread.into_iter().chain(owed).min()
    }

    /// The smaller, the sooner it makes way: whether it is known, whether it has sent a head, and
    /// since when it lets the server wait. None when the server works for it, or has ended it.
    fn eviction_rank(&self, now: Instant) -> Option<(bool, bool, Instant)> {
        let state = self.state();
        let (has_head, since) = match (state.unread, state.owes) {
            (Some(since), _) | (None, Some(AwaitedPart::RequestBody(since))) => (true, since),
            (None, Some(AwaitedPart::RequestHead(since))) => (false, since),
            (None, None) => return None,
        };
        let may = !state.is_pushed_out && (!has_head || now.duration_since(since) > GRACE);
        may.then_some((state.is_known, has_head, since))
    }

    fn has_slot(&self) -> bool {
        !self.is_surplus && !self.state().is_pushed_out
    }

    /// What it holds, unless it is about to give it back.
    fn reserved_bytes(&self) -> usize {
        let state = self.state();
        if state.is_pushed_out { 0 } else { state.held }
    }

    fn state(&self) -> MutexGuard<'_, ConnectionProgress> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A client's place, given up when dropped.
#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    clients: Arc<Connections>,
    pub(crate) client: Arc<ConnectionState>,
}

impl ConnectionSlot {
    /// Memory that is held for this client, none so far.
    pub(crate) fn empty_reservation(self: &Arc<Self>) -> MemoryReservation {
        MemoryReservation {
            place: Arc::clone(self),
            bytes: 0,
        }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut open = self.clients.open();
        open.retain(|client| !Arc::ptr_eq(client, &self.client));
    }
}

/// Memory that is held for a client until this is dropped.
#[derive(Debug)]
pub(crate) struct MemoryReservation {
    place: Arc<ConnectionSlot>,
    bytes: usize,
}

impl MemoryReservation {
    /// Holds so many bytes more. False when too much is held already.
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        self.grow_at(Instant::now(), bytes)
    }

    fn grow_at(&mut self, now: Instant, bytes: usize) -> bool {
        let may = self.place.clients.reserve(&self.place.client, bytes, now);
        if may {
            self.bytes += bytes;
        }
        may
    }
}

impl Drop for MemoryReservation {
    fn drop(&mut self) {
        self.place.client.state().held -= self.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(clients: &Arc<Connections>, is_known: bool) -> Arc<ConnectionSlot> {
        let place = clients.enter().unwrap();
        place.client.start_request(is_known);
        Arc::new(place)
    }

    fn is_out(place: &ConnectionSlot) -> bool {
        place.client.state().is_pushed_out
    }

    #[test]
    fn the_one_that_waits_longest_makes_way() {
        let clients = Arc::default();
        let places: Vec<_> = (0..CONNECTIONS).map(|_| enter(&clients, true)).collect();
        places[0].client.request_complete();
        assert!(!places.iter().any(|place| is_out(place)));
        let next = enter(&clients, true);
        assert!(!next.client.is_surplus);
        assert!(!is_out(&places[0]) && is_out(&places[1]) && !is_out(&places[2]));
    }

    #[test]
    fn strangers_make_way_first() {
        let clients = Arc::default();
        let known: Vec<_> = (1..CONNECTIONS).map(|_| enter(&clients, true)).collect();
        let stranger = enter(&clients, false);
        let next = enter(&clients, true);
        assert!(is_out(&stranger) && !next.client.is_surplus);
        assert!(!known.iter().any(|place| is_out(place)));
    }

    #[test]
    fn where_all_are_served_the_next_is_told_so() {
        let clients = Arc::default();
        let places: Vec<_> = (0..CONNECTIONS).map(|_| enter(&clients, true)).collect();
        places
            .iter()
            .for_each(|place| place.client.request_complete());
        let told: Vec<_> = (0..REFUSALS).map(|_| enter(&clients, true)).collect();
        assert!(told.iter().all(|place| place.client.is_surplus));
        // Those who are being told are not what a further one waits for.
        told.iter()
            .for_each(|place| place.client.request_complete());
        assert!(clients.enter().is_none());
        drop(places);
        assert!(!enter(&clients, true).client.is_surplus);
    }

    #[test]
    fn what_slow_clients_hold_is_taken_from_them() {
        let clients = Arc::default();
        let places = [(); 3].map(|()| enter(&clients, true));
        let [slow, served, honest] = &places;
        let mut held = [slow, served, honest].map(ConnectionSlot::empty_reservation);
        assert!(held[0].grow(HELD / 2) && held[1].grow(HELD / 2));
        served.client.request_complete();
        slow.client.request_complete();
        let begun = Instant::now();
        slow.client.record_write(false);
        // A little is always there, and a client that is busy for a moment keeps its place.
        assert!(held[2].grow_at(begun, FREE) && !held[2].grow_at(begun, HELD / 4));
        assert!(!is_out(slow));
        let later = Instant::now() + 2 * GRACE;
        assert!(held[2].grow_at(later, HELD / 4) && is_out(slow));
        // Now nobody is left who could make way.
        assert!(!held[2].grow_at(later, HELD / 2));
        let [_, second, _] = held;
        drop(second);
        assert!(honest.empty_reservation().grow_at(later, HELD / 2));
    }

    #[test]
    fn those_who_sent_no_head_make_way_first() {
        let clients: Arc<Connections> = Arc::default();
        let half_body = enter(&clients, true);
        half_body.client.await_body();
        let unread = enter(&clients, true);
        unread.client.request_complete();
        unread.client.record_write(false);
        let half_head = enter(&clients, true);
        let later = Instant::now() + 2 * GRACE;
        for expected in [&half_head, &half_body, &unread] {
            assert!(evict_slowest(&clients.open(), later, |_| true));
            assert!(is_out(expected));
        }
        assert!(!evict_slowest(&clients.open(), later, |_| true));
    }

    #[test]
    fn patience_ends() {
        let check = |what: fn(&ConnectionState), seconds: Option<u64>| {
            let client = ConnectionState::new(false);
            let begun = Instant::now();
            client.start_request(true);
            what(&client);
            let wait = client.deadline().map(|end| (end - begun).as_secs());
            assert_eq!(wait, seconds);
        };
        check(|_| {}, Some(30));
        check(ConnectionState::request_complete, None);
        check(ConnectionState::await_body, Some(60));
        check(
            |client| {
                client.request_complete();
                client.record_write(false);
            },
            Some(30),
        );
        check(
            |client| {
                client.request_complete();
                client.record_write(false);
                client.record_write(true);
            },
            None,
        );
        check(
            |client| {
                client.request_complete();
                client.response_started();
            },
            Some(30),
        );
    }

    /// Whether the server ends the connection at once.
    async fn is_late(client: &ConnectionState) -> bool {
        let late = tokio::time::timeout(Duration::ZERO, client.until_timeout());
        late.await.is_ok()
    }

    #[test]
    fn a_connection_ends_when_patience_does_and_when_it_is_pushed_out() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build();
        runtime.unwrap().block_on(async {
            let clients = Arc::default();
            let place = enter(&clients, true);
            assert!(!is_late(&place.client).await);
            clients.evict_one();
            assert!(is_late(&place.client).await);

            let client = ConnectionState::new(false);
            assert!(!is_late(&client).await);
            client.state().unread = Some(Instant::now() - UNREAD);
            assert!(is_late(&client).await);
            client.record_write(true);
            assert!(!is_late(&client).await);
        });
    }
}
