//! Switches tcmalloc's sampling in a running process.
#![expect(unsafe_code, reason = "a variable of the allocator's, and its malloc")]

use std::ffi::CStr;
use std::hint::black_box;
use std::sync::atomic::{AtomicI64, Ordering};

use super::extension::Extension;
use crate::allocators::symbols::ObjectSymbols;
use crate::error::{Error, ErrorKind, Result};
use crate::identity::AllocatorIdentity;

/// Property with the sample interval, in gperftools 2.17 and newer.
const PROPERTY: &CStr = c"tcmalloc.sample_parameter";

/// `FLAGS_tcmalloc_sample_parameter`, an int64 that each thread reads when it picks its next sample. All releases
/// without the property export it.
pub(super) const FLAG: &CStr = c"_ZN61FLAG__namespace_do_not_use_directly_use_DECLARE_int64_instead31FLAGS_tcmalloc_sample_parameterE";

/// Bytes that a thread allocates before its first sample if it started while the interval was 0
/// (`PickNextSamplingPoint` in sampler.cc of gperftools).
const UNSAMPLED_START: usize = 16 << 20;
/// Size of the blocks that [`make_tcmalloc_sample_this_thread`] allocates: the minimum by which tcmalloc's heap grows.
const STEP: usize = 1 << 20;

/// Makes tcmalloc sample the calling thread from now on, once per `interval` bytes unless another interval is set. For
/// the program's first thread, while the libraries are loaded: it started before tcmalloc read its environment, so it
/// would stay unsampled for [`UNSAMPLED_START`] bytes. This function allocates and frees that much. Does nothing
/// without tcmalloc, or if tcmalloc does not export its flag.
pub(crate) fn make_tcmalloc_sample_this_thread(interval: u64) {
    // SAFETY: dlsym(3) gets a NUL-terminated name.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, FLAG.as_ptr()) } as usize;
    if address == 0 || !address.is_multiple_of(align_of::<AtomicI64>()) {
        return;
    }
    // SAFETY: gperftools/tcmalloc.cc: the symbol is an int64 variable, of the program or of a library that it starts
    // with. gperftools also accesses it as a whole word.
    let flag = unsafe { AtomicI64::from_ptr(address as *mut i64) };
    // Keeps an interval that is set already. tcmalloc's constructor, which may run later, stores that of the
    // environment.
    let _kept = flag.compare_exchange(0, interval as i64, Ordering::Relaxed, Ordering::Relaxed);
    // One block more than these bytes, so that the thread surely passes their end.
    for _ in 0..=UNSAMPLED_START / STEP {
        // SAFETY: malloc(3) takes any size; `black_box` keeps the compiler from removing the pair.
        let block = black_box(unsafe { libc::malloc(STEP) });
        // SAFETY: free(3) gets the block that malloc(3) returned, or null.
        unsafe { libc::free(block) };
    }
}

/// Storage of the sample interval: mean bytes between samples; 0 turns sampling off.
#[derive(Debug)]
pub(super) enum RateSetting {
    Property,
    Flag(&'static AtomicI64),
}

impl RateSetting {
    /// Finds the property or flag in which this build of tcmalloc stores the sample interval.
    ///
    /// # Errors
    /// `Unsupported`: the build has neither the property nor an aligned flag.
    pub(super) fn find(
        symbols: &ObjectSymbols<'_>,
        extension: &Extension,
        allocator: &AllocatorIdentity,
    ) -> Result<Self> {
        if extension.get_property(PROPERTY).is_some() {
            return Ok(Self::Property);
        }
        let address = symbols.variable_address(FLAG).ok_or_else(|| {
            let message = format!("{allocator} does not let its sampling be switched");
            Error::new(ErrorKind::Unsupported, message)
                .with_remedy("use libtcmalloc.so.4 of gperftools, unstripped")
        })?;
        if !address.is_multiple_of(align_of::<AtomicI64>()) {
            let message = format!("{allocator} has no aligned int64 where its flag should be");
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        // SAFETY: gperftools/tcmalloc.cc: the symbol is an int64 in a writable segment of an object that stays loaded.
        // gperftools also accesses it as a whole word.
        Ok(Self::Flag(unsafe {
            AtomicI64::from_ptr(address as *mut i64)
        }))
    }

    /// Current sample interval in bytes; 0 while sampling is off.
    pub(super) fn interval(&self, extension: &Extension) -> u64 {
        match self {
            Self::Property => extension.get_property(PROPERTY).unwrap_or(0),
            Self::Flag(flag) => u64::try_from(flag.load(Ordering::Relaxed)).unwrap_or(0),
        }
    }

    /// Sets the sample interval in bytes, and verifies it by reading it back.
    ///
    /// # Errors
    /// `Allocator`: tcmalloc refused, or ignored the value.
    pub(super) fn set_interval(
        &self,
        interval: u64,
        extension: &Extension,
        allocator: &AllocatorIdentity,
    ) -> Result<()> {
        match self {
            Self::Property if !extension.set_property(PROPERTY, interval) => {
                let message = format!("{allocator} refused tcmalloc.sample_parameter");
                return Err(Error::allocator(message));
            }
            Self::Property => {}
            Self::Flag(flag) => flag.store(interval as i64, Ordering::Relaxed),
        }
        if self.interval(extension) != interval {
            return Err(Error::allocator(format!(
                "{allocator} accepted tcmalloc.sample_parameter and ignored it"
            )));
        }
        Ok(())
    }
}
