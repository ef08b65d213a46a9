//! `memprof-fleet` as a program, over stores in directories: dumps are put into its spool as an agent does.

mod bad_input;
mod bus;
mod compact;
mod kill;
mod many_agents;
#[cfg(feature = "otlp")]
mod otlp;
mod place;
mod s3;
mod tls;
mod web;
