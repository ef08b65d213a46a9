//! Reports on real, made up and hostile profiles, as their readers see them.

mod corpus;
mod diff;

mod hostile;
mod support;
