//! The contract's proofs that need a C compiler.

mod header;
