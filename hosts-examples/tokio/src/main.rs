//! An asynchronous program that labels its tasks: each request has the label `route` on any thread that polls it, and a
//! part of it the label `tenant`. It loads no plugin. For each line that it reads it handles 3,000 requests, and
//! retains the memory that they allocated.
//!
//! ```sh
//! memprof run -- target/dist/examples/tokio_labels &
//! memprof activate tokio_labels labels=route,tenant sample_interval=64KiB
//! # type a line
//! memprof dump tokio_labels
//! memprof report --by route
//! ```

use std::hint::black_box;
use std::sync::{Arc, Mutex};

use memprof_labels::{Label, Labels, label};
use tokio::task::{JoinHandle, yield_now};

/// Number of requests for each line.
const REQUESTS: usize = 3000;
/// Number of steps of a request, after each of which it is polled again, mostly on another thread.
const STEPS: usize = 7;

/// Memory that the requests have allocated.
type RetainedMemory = Arc<Mutex<Vec<Vec<u8>>>>;

#[derive(Clone, Copy)]
enum Route {
    Search,
    Cart,
    Export,
}

impl Route {
    /// Returns the path of the route, the value of the label `route`.
    fn path(self) -> &'static str {
        match self {
            Self::Search => "/search",
            Self::Cart => "/cart",
            Self::Export => "/export",
        }
    }

    /// Allocates the memory of one step of a request. `/export` adds the label `tenant`.
    fn run_step(self) -> Vec<u8> {
        match self {
            Self::Search => read_index(),
            Self::Cart => fill_cart(),
            Self::Export => {
                let _tenant = label("tenant", "acme");
                render_page()
            }
        }
    }
}

/// Allocates the memory of a step of `/search`.
#[inline(never)]
fn read_index() -> Vec<u8> {
    black_box(vec![0; 1000])
}

/// Allocates the memory of a step of `/cart`.
#[inline(never)]
fn fill_cart() -> Vec<u8> {
    black_box(vec![0; 3000])
}

/// Allocates the memory of a step of `/export`.
#[inline(never)]
fn render_page() -> Vec<u8> {
    black_box(vec![0; 9000])
}

/// Handles a request in several steps, and keeps the memory of each.
async fn handle_request(route: Route, retained: RetainedMemory) {
    for _ in 0..STEPS {
        let step = route.run_step();
        retained.lock().expect("no thread panics").push(step);
        yield_now().await;
    }
}

/// Spawns the task of request `number`, which has its route as a label.
fn spawn_request(number: usize, retained: &RetainedMemory) -> JoinHandle<()> {
    let route = [Route::Search, Route::Cart, Route::Export][number % 3];
    let labels = Labels::new().with("route", route.path());
    tokio::spawn(handle_request(route, Arc::clone(retained)).labelled(labels))
}

/// Handles [`REQUESTS`] requests for each line of standard input.
fn main() -> std::io::Result<()> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(4).build()?;
    let retained = RetainedMemory::default();
    for line in std::io::stdin().lines() {
        runtime.block_on(async {
            let requests: Vec<_> = (0..REQUESTS)
                .map(|number| spawn_request(number, &retained))
                .collect();
            for request in requests {
                request.await.expect("no request panics");
            }
        });
        eprintln!("served {}", line?);
    }
    Ok(())
}
