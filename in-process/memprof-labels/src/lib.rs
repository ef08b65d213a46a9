//! Labels the work of threads, so that memprof's heap profiles show for which tenant, route or task memory was
//! allocated.
//!
//! A sample gets the labels that its thread has at the time of the allocation. They show which work allocated the
//! memory, not which work holds it now. `memprof activate labels=KEY,…` makes the plugin record labels, whether it is
//! loaded by the program, preloaded, or attached.
//!
//! ```
//! use memprof_labels::{Label, Labels, label};
//!
//! fn search(tenant: &str) {
//!     let _tenant = label("tenant", tenant);
//!     // The end of this function ends the label `tenant`.
//! }
//!
//! async fn handle(route: &str) {
//!     let labels = Labels::new().with("route", route);
//!     async { search("acme") }.labelled(labels).await;
//! }
//! ```
//!
//! A label costs a few nanoseconds. Memory is limited to 1 KiB per thread, and there is no lock. A process has up to
//! [`MOST_KEYS`] keys, and a thread up to [`MOST_BYTES`] bytes of labels, each of which needs two bytes in addition to
//! its value. Labels beyond these limits are omitted.

mod elf_note;
mod future;
mod key;
mod labels;
mod record;

pub use future::{Label, Labelled};
pub use key::MOST_KEYS;
pub use labels::{Entered, Labels, label};
pub use record::{MOST_BYTES, Mark, pop, push};
