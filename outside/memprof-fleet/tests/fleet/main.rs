//! Tests of the program `memprof-fleet` on stores in directories. Profiles are written into its spool as an
//! agent does.

mod bad_input;
mod bus;
mod compact;
mod kill;
mod many_agents;
#[cfg(feature = "otlp")]
mod otlp;
mod s3;
mod test_dir;
mod tls;
mod web;
