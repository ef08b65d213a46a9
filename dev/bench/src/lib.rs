//! Scripts of cases, which the programs `truth` and `growth` run.

pub mod script;
