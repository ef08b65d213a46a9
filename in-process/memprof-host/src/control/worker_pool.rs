//! Threads that serve connections.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use memprof_own::{Needs, Privileges, Thread};

/// Time after which a thread without a connection ends.
const IDLE_TIMEOUT: Duration = Duration::from_secs(1);

/// Pool of threads: as many as connections were open at a time within the last second.
#[derive(Clone, Debug)]
pub(super) struct WorkerPool(Arc<PoolShared>);

/// State that the pool and its threads share.
#[derive(Debug, Default)]
struct PoolShared {
    needs: Needs,
    state: Mutex<PoolState>,
    /// Notified when `state` has a new connection, or the pool ends.
    changed: Condvar,
}

/// Connections and threads of the pool.
#[derive(Debug, Default)]
struct PoolState {
    /// Ids of connections that idle threads will serve.
    queue: VecDeque<u64>,
    /// Number of threads that wait for a connection.
    idle_count: usize,
    next_id: u64,
    threads: HashMap<u64, Thread>,
    is_ending: bool,
}

impl WorkerPool {
    /// Creates a pool without threads. Its threads will have these needs.
    pub(super) fn new(needs: Needs) -> Self {
        Self(Arc::new(PoolShared {
            needs,
            ..PoolShared::default()
        }))
    }

    /// Calls `serve` with the id of a connection on an idle thread, or on a new one. Does not wait for the call.
    /// `serve` must be equivalent for all connections, because a thread calls that of its first connection for all.
    /// Fails if a new thread is needed and no memory or no thread is left.
    pub(super) fn dispatch_connection(
        &self,
        connection: u64,
        serve: impl Fn(u64, &mut Privileges) + Send + 'static,
    ) -> io::Result<()> {
        let mut state = self.0.lock_state();
        // Each queued connection will take an idle thread.
        if state.idle_count > state.queue.len() {
            state.queue.push_back(connection);
            self.0.changed.notify_one();
            return Ok(());
        }
        state.next_id += 1;
        let id = state.next_id;
        let pool = Arc::clone(&self.0);
        let thread =
            memprof_own::spawn_with_needs(c"memprof-conn", self.0.needs, move |privileges| {
                let mut next = Some(connection);
                while let Some(connection) = next {
                    serve(connection, privileges);
                    next = pool.wait_for_next_connection(id);
                }
            })?;
        state.threads.insert(id, thread);
        Ok(())
    }

    /// Ends all threads, each after the connection that it serves, and waits for them.
    pub(super) fn join_all(&self) {
        let mut state = self.0.lock_state();
        state.is_ending = true;
        let threads = mem::take(&mut state.threads);
        drop(state);
        self.0.changed.notify_all();
        threads.into_values().for_each(Thread::join);
    }
}

impl PoolShared {
    /// Locks the state, even after a panic of a thread that held the lock.
    fn lock_state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next connection of the thread `id`. `None` if the thread should end: the pool ends, or there was
    /// no connection for [`IDLE_TIMEOUT`].
    fn wait_for_next_connection(&self, id: u64) -> Option<u64> {
        let mut state = self.lock_state();
        state.idle_count += 1;
        let is_idle = |state: &mut PoolState| state.queue.is_empty() && !state.is_ending;
        let waited = self
            .changed
            .wait_timeout_while(state, IDLE_TIMEOUT, is_idle);
        (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.idle_count -= 1;
        let next = state.queue.pop_front();
        if next.is_none() {
            // Dropping the `Thread` detaches it. `join_all` has taken it if the pool ends.
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

    /// Dispatches a connection whose `serve` reports its thread and then blocks until the returned sender is used or
    /// dropped.
    fn dispatch_blocking(
        workers: &WorkerPool,
        connection: u64,
        served: &Sender<(u64, ThreadId)>,
    ) -> Sender<()> {
        let (resume, wait) = channel();
        let (served, wait) = (served.clone(), Mutex::new(wait));
        let serve = move |connection, _: &mut Privileges| {
            served.send((connection, thread::current().id())).unwrap();
            let wait: MutexGuard<'_, Receiver<()>> = wait.lock().unwrap();
            // The sender is gone if the thread serves its second connection.
            let _ = wait.recv();
        };
        workers.dispatch_connection(connection, serve).unwrap();
        resume
    }

    /// Waits until `idle_count` threads of the pool have no connection.
    fn wait_until_idle(workers: &WorkerPool, idle_count: usize) {
        while workers.0.lock_state().idle_count != idle_count {
            thread::yield_now();
        }
    }

    #[test]
    fn idle_thread_serves_next_connection() {
        let workers = WorkerPool::new(Needs::default());
        let (served, order) = channel();
        let mut threads = Vec::new();
        for connection in 0..20 {
            drop(dispatch_blocking(&workers, connection, &served));
            threads.push(order.recv().unwrap());
            wait_until_idle(&workers, 1);
        }
        let first = threads[0].1;
        let expected: Vec<_> = (0..20).map(|connection| (connection, first)).collect();
        assert_eq!(threads, expected);
        workers.join_all();
        assert_eq!(workers.0.lock_state().idle_count, 0);
    }

    #[test]
    fn concurrent_connections_have_separate_threads() {
        let workers = WorkerPool::new(Needs::default());
        let (served, order) = channel();
        let resume: Vec<_> = (0..5)
            .map(|connection| dispatch_blocking(&workers, connection, &served))
            .collect();
        let threads: std::collections::HashSet<_> =
            order.iter().take(5).map(|(_, thread)| thread).collect();
        assert_eq!(threads.len(), 5);
        drop(resume);
        wait_until_idle(&workers, 5);
        workers.join_all();
    }
}
