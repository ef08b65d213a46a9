//! What the project's commands share: where everything is built and laid out ([`dist`]), the packages of the
//! distribution that this takes ([`packages`]), and other programs ([`run`](mod@run)).

pub mod dist;
pub mod packages;
pub mod run;
