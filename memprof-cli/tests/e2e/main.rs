//! The real thing: hosts, plugins and `memprof` as they lie in `target/dist`, over real sockets,
//! with real jemalloc and stock jeprof.

mod dist;
mod host;
mod memprof;

mod artifact;
mod bus_preload;
mod control;
mod dumps;

mod hosts;
mod operate;
mod plugins;
mod report;
