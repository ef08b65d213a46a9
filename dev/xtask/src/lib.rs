//! Shared by the project's commands: building and layout ([`dist`]), packages of the distribution that are needed for
//! it ([`packages`]), and running other programs ([`run`](mod@run)).

pub mod dist;
pub mod packages;
pub mod run;
