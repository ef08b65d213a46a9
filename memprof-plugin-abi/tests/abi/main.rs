//! The contract: its header, and what it does to those who break it.

mod boundary;
mod header;
