//! Other processes, as they are: in every state in which they are left alone.

mod filters;
mod refusals;
mod target;
