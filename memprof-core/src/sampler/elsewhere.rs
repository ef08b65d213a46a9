//! Where memprof's sampler is not built.

use std::sync::Arc;

use super::{SamplerStatus, Samples};
use crate::allocators::backend::Backend;
use crate::error::Result;

/// The allocator as it is.
pub(crate) fn before(allocator: Arc<dyn Backend>) -> Arc<dyn Backend> {
    allocator
}

/// None is ever made.
#[derive(Debug)]
pub(crate) enum WithSampler {}

impl WithSampler {
    pub(crate) fn allocator(&self) -> &dyn Backend {
        match *self {}
    }

    pub(crate) fn choose(&self, _: Samples) -> Result<()> {
        match *self {}
    }

    pub(crate) fn status(&self) -> Option<SamplerStatus> {
        match *self {}
    }

    pub(crate) fn tend(&self) -> bool {
        match *self {}
    }
}
