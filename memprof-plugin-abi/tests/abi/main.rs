//! The contract: its header, and its behaviour towards callers that violate it.

mod boundary;
mod header;
