//! Says whose work a thread does, so that memprof's heap profiles tell whose memory it is.
//!
//! A sample has the labels of the thread that allocated, as of that moment: they tell who allocated, not who holds.
//! They are read by `memprof activate labels=KEY,…`, be the plugin loaded by the program, preloaded or attached.
//!
//! ```
//! use memprof_labels::{Label, Labels, label};
//!
//! fn search(tenant: &str) {
//!     let _tenant = label("tenant", tenant);
//!     // What is allocated until the end of this function is the tenant's.
//! }
//!
//! async fn handle(route: &str) {
//!     let labels = Labels::new().with("route", route);
//!     async { search("acme") }.labelled(labels).await;
//! }
//! ```
//!
//! A label costs a few nanoseconds and no memory, beside 1 KiB of each thread; there is no lock. A process has up to
//! [`MOST_KEYS`] keys, and a thread up to [`MOST_BYTES`] bytes of labels, two of them beside each value; more are
//! left out.

mod elf_note;
mod future;
mod key;
mod labels;
mod record;

pub use future::{Label, Labelled};
pub use key::MOST_KEYS;
pub use labels::{Entered, Labels, label};
pub use record::{MOST_BYTES, Mark, pop, push};
