//! Reports on real, made up and hostile profiles, as their readers see them.

mod corpus;
mod diff;
mod goldens;
mod hostile;
mod support;
