//! The real thing: hosts, plugins and `memprof` as they lie in `target/dist`, over real sockets,
//! with real jemalloc and stock jeprof.

mod dist;
mod host;
mod memprof;

mod artifact;
mod bus;
mod bus_mosquitto;
mod bus_preload;
mod bus_redis;
mod bus_traffic_server;
mod control;
mod dumps;
mod hosts;
mod ledger;
mod operate;
mod plugins;
mod report;
mod watch;
