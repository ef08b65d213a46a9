//! Where memprof's sampler is not built.

use std::marker::PhantomData;

use super::Samples;
use crate::allocators::allocator::Allocator;
use crate::allocators::interval::SampleInterval;
use crate::allocators::jemalloc::Jemalloc;
use crate::dumps::heap::Summary;
use crate::dumps::scratch::Scratch;
use crate::error::Result;
use memprof_messages::SamplerStatus;

/// Nothing: there is no sampler.
///
/// # Errors
/// None.
pub fn sample_at_once(_: Option<SampleInterval>, _: bool) -> Result<()> {
    Ok(())
}

pub(crate) fn end_in_children() {}

pub(crate) fn leave_this_thread_out() {}

/// None is ever made.
#[derive(Debug)]
pub(crate) enum Ours {}

impl Ours {
    pub(crate) fn before(_: &Allocator, _: Option<SampleInterval>) -> Option<Self> {
        None
    }

    pub(crate) fn is_hooked(&self) -> bool {
        match *self {}
    }

    pub(crate) fn is_outdated(&self, _: &Allocator) -> bool {
        match *self {}
    }

    pub(crate) fn chosen(&self) -> Option<Chosen<'_>> {
        match *self {}
    }

    pub(crate) fn give_back(&self) -> Result<()> {
        match *self {}
    }

    pub(crate) fn choose(&self, _: Samples, _: &Allocator) -> Result<()> {
        match *self {}
    }
}

/// None is ever made.
pub(crate) struct Chosen<'a>(Ours, PhantomData<&'a ()>);

impl Chosen<'_> {
    pub(crate) fn status(self) -> SamplerStatus {
        match self.0 {}
    }

    pub(crate) fn needs_an_end(&self) -> bool {
        match self.0 {}
    }

    pub(crate) fn tend(self) -> bool {
        match self.0 {}
    }

    pub(crate) fn is_active(&self) -> bool {
        match self.0 {}
    }

    pub(crate) fn interval(&self) -> u64 {
        match self.0 {}
    }

    pub(crate) fn activate(self, _: Option<SampleInterval>, _: &Allocator) -> Result<Vec<String>> {
        match self.0 {}
    }

    pub(crate) fn stop(self) -> Result<()> {
        match self.0 {}
    }

    pub(crate) fn reset(self, _: Option<SampleInterval>) -> Result<()> {
        match self.0 {}
    }

    pub(crate) fn require_slabs<'a>(&self, _: &'a Allocator) -> Result<&'a Jemalloc> {
        match self.0 {}
    }

    pub(crate) fn write_pinned(&self, _: &Allocator, _: &Scratch) -> Result<Summary> {
        match self.0 {}
    }

    pub(crate) fn write_profile(&self, _: &Scratch) -> Result<Summary> {
        match self.0 {}
    }
}
