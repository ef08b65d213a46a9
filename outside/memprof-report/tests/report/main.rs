//! Reports on real, constructed and hostile profiles.

mod ages;
mod bombs;
mod code_origin;
mod confidence;
mod corpus;
mod debug_files;
mod diff;
mod fixtures;
mod goldens;
mod hostile;
mod images;
mod interpreters;
mod labels;
mod no_stack;
mod own;
mod pinned;
mod processes;
mod python;
mod shop;
mod support;
mod symbols;
mod tools;
