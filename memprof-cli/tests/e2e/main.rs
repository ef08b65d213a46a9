//! The real thing: hosts, plugins and `memprof` as they lie in `target/dist`, over real sockets,
//! with real allocators and stock jeprof.

mod curl;
mod dist;
mod host;
mod memprof;
mod server;

mod abi;
mod ages;
mod allocators;
mod artifact;
mod attach;
mod book;
mod bus;
mod bus_mosquitto;
mod bus_preload;
mod bus_redis;
mod bus_traffic_server;
mod compat;
mod control;
mod dumps;
mod fleet;
mod gate;
mod help;
mod hosts;
mod http_access;
mod http_api;
mod http_tools;
mod http_users;
mod labels;
mod languages;
mod ledger;
mod operate;
mod outputs;
mod page;
mod plain_rust;
mod plugins;
mod processes;
mod refusals;
mod report;
mod runtimes;
mod unwinder;
mod watch;
