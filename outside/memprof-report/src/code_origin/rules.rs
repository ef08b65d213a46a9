//! Tables of the code origins of functions and files.
//!
//! A pattern is a whole name, or has `*` for any text. Names that match no pattern are the program's own.

mod files;
mod functions;
mod languages;
mod libraries;

use super::CodeOrigin;
pub(super) use files::{FILES, NAMESPACES};
pub(super) use functions::FUNCTIONS;
pub(super) use languages::LANGUAGES;
pub(super) use libraries::LIBRARIES;
