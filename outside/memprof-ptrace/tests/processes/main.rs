//! Other processes, as they are: in every state in which they are left alone.

mod filters;
mod refusals;
#[path = "../../../memprof-cli/tests/e2e/root.rs"]
mod root;
mod target;
