//! The real thing: hosts, plugins and `memprof` as they lie in `target/dist`, over real sockets,
//! with real allocators and stock jeprof.

mod curl;
mod dist;
mod host;
mod memprof;
mod place;
#[path = "../../../memprof-messages/tests/schema/mod.rs"]
mod schema;
mod server;

mod abi;
mod ages;
mod allocators;
mod artifact;
mod attach;
mod attach_jvm;
mod book;
mod bus;
mod bus_lua;
mod bus_mariadb;
mod bus_mosquitto;
mod bus_postgres;
mod bus_preload;
mod bus_redis;
mod bus_traffic_server;
mod bus_web;
mod compat;
mod control;
mod dumps;
mod fleet;
mod fleet_attached;
mod fleet_page;
mod fleet_scraped;
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
mod pinned;
mod plain_rust;
mod plugins;
mod processes;
mod prove;
mod refusals;
mod report;
mod runtimes;
mod unwinder;
mod watch;
