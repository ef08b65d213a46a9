//! The threads that serve connections.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use memprof_own::{Needs, Privileges, Thread};

/// So long a thread waits for its next connection.
const REST: Duration = Duration::from_secs(1);

/// As many threads as connections were open at a time within the last second.
#[derive(Clone, Debug)]
pub(super) struct WorkerPool(Arc<PoolShared>);

#[derive(Debug, Default)]
struct PoolShared {
    needs: Needs,
    state: Mutex<PoolState>,
    came: Condvar,
}

#[derive(Debug, Default)]
struct PoolState {
    /// Connections that resting threads were woken for.
    queue: VecDeque<u64>,
    resting: usize,
    next_id: u64,
    threads: HashMap<u64, Thread>,
    ends: bool,
}

impl WorkerPool {
    /// Whose threads have these needs.
    pub(super) fn new(needs: Needs) -> Self {
        Self(Arc::new(PoolShared {
            needs,
            ..PoolShared::default()
        }))
    }

    /// Serves a connection by `serve`, which is the same for all of them, on a thread that rests, else on
    /// a new one.
    ///
    /// # Errors
    /// There is no memory or no thread left.
    pub(super) fn dispatch(
        &self,
        connection: u64,
        serve: impl Fn(u64, &mut Privileges) + Send + 'static,
    ) -> io::Result<()> {
        let mut state = self.0.lock();
        if state.resting > state.queue.len() {
            state.queue.push_back(connection);
            self.0.came.notify_one();
            return Ok(());
        }
        state.next_id += 1;
        let id = state.next_id;
        let office = Arc::clone(&self.0);
        let thread = memprof_own::spawn_with(c"memprof-conn", self.0.needs, move |privileges| {
            let mut next = Some(connection);
            while let Some(connection) = next {
                serve(connection, privileges);
                next = office.next_connection(id);
            }
        })?;
        state.threads.insert(id, thread);
        Ok(())
    }

    /// Ends all threads, once each has served its connection.
    pub(super) fn end(&self) {
        let mut state = self.0.lock();
        state.ends = true;
        let threads = mem::take(&mut state.threads);
        drop(state);
        self.0.came.notify_all();
        threads.into_values().for_each(Thread::join);
    }
}

impl PoolShared {
    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next connection of a thread; none when it shall end.
    fn next_connection(&self, id: u64) -> Option<u64> {
        let mut state = self.lock();
        state.resting += 1;
        let is_idle = |state: &mut PoolState| state.queue.is_empty() && !state.ends;
        let waited = self.came.wait_timeout_while(state, REST, is_idle);
        (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.resting -= 1;
        let next = state.queue.pop_front();
        if next.is_none() {
            // So nobody waits for its end, but `end`, where that took it before.
            state.threads.remove(&id);
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread::{self, ThreadId};

    use super::*;

    /// Serves a connection until it is told to go on, and tells which thread does.
    fn employ(
        workers: &WorkerPool,
        connection: u64,
        served: &Sender<(u64, ThreadId)>,
    ) -> Sender<()> {
        let (go_on, wait) = channel();
        let (served, wait) = (served.clone(), Mutex::new(wait));
        let serve = move |connection, _: &mut Privileges| {
            served.send((connection, thread::current().id())).unwrap();
            let wait: MutexGuard<'_, Receiver<()>> = wait.lock().unwrap();
            // The other end is gone where a thread serves its second connection.
            let _ = wait.recv();
        };
        workers.dispatch(connection, serve).unwrap();
        go_on
    }

    fn wait_for_rest(workers: &WorkerPool, resting: usize) {
        while workers.0.lock().resting != resting {
            thread::yield_now();
        }
    }

    #[test]
    fn a_thread_serves_one_connection_after_the_other() {
        let workers = WorkerPool::new(Needs::default());
        let (served, order) = channel();
        let mut threads = Vec::new();
        for connection in 0..20 {
            drop(employ(&workers, connection, &served));
            threads.push(order.recv().unwrap());
            wait_for_rest(&workers, 1);
        }
        let first = threads[0].1;
        let expected: Vec<_> = (0..20).map(|connection| (connection, first)).collect();
        assert_eq!(threads, expected);
        workers.end();
        assert_eq!(workers.0.lock().resting, 0);
    }

    #[test]
    fn connections_at_a_time_have_a_thread_each() {
        let workers = WorkerPool::new(Needs::default());
        let (served, order) = channel();
        let go_on: Vec<_> = (0..5)
            .map(|connection| employ(&workers, connection, &served))
            .collect();
        let threads: std::collections::HashSet<_> =
            order.iter().take(5).map(|(_, thread)| thread).collect();
        assert_eq!(threads.len(), 5);
        drop(go_on);
        wait_for_rest(&workers, 5);
        workers.end();
    }
}
