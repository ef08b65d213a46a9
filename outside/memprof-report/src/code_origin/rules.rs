//! Which functions and files are whose, as data: the one place to edit.
//!
//! A pattern is a whole name, or has `*` for any text. What is not listed is the program's own.

mod files;
mod functions;
mod languages;
mod libraries;

use super::CodeOrigin;
pub(super) use files::{FILES, NAMESPACES};
pub(super) use functions::FUNCTIONS;
pub(super) use languages::LANGUAGES;
pub(super) use libraries::LIBRARIES;
