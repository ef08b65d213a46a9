//! Another process from outside: what it is, whether it may be touched, its threads, and calls in it.
//!
//! memprof-attach loads the plugin through it. To talk to a process that holds the plugin already, use
//! memprof-host's client.
