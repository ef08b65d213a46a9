//! Reports on real, made up and hostile profiles, as their readers see them.

mod ages;
mod blame;
mod bombs;
mod corpus;
mod diff;
mod evidence;
mod fixtures;
mod goldens;
mod hostile;
mod labels;
mod own;
mod pinned;
mod support;
mod tools;
