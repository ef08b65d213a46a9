//! libstdc++'s `std::string`, which gperftools fills with a profile.
#![expect(unsafe_code, reason = "plays the C++ library's side of a type")]

use std::ffi::{c_char, c_void};
use std::ptr::{self, NonNull};

use crate::allocators::symbols::as_function;

/// What a string of libstdc++ holds without the heap.
const LOCAL: usize = 15;

type DeleteFn = unsafe extern "C" fn(*mut c_void);

/// `operator delete(void*)` of the process: that which frees what `operator new` gave.
#[derive(Clone, Copy, Debug)]
pub(super) struct OperatorDelete(DeleteFn);

impl OperatorDelete {
    pub(super) fn find() -> Option<Self> {
        // SAFETY: dlsym(3) with a NUL-terminated name.
        let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_ZdlPv".as_ptr()) } as usize;
        // SAFETY: Itanium C++ ABI: the mangled name of a function of this type.
        (address != 0).then(|| Self(unsafe { as_function(address) }))
    }
}

/// The layout of `std::__cxx11::string` in `bits/basic_string.h`, stable since GCC 5.
#[derive(Debug)]
#[repr(C)]
struct Layout {
    start: *mut c_char,
    length: usize,
    /// The capacity once `start` points elsewhere.
    local: [usize; 2],
}

/// An empty string for C++ code to fill.
#[derive(Debug)]
pub(super) struct CxxString {
    layout: NonNull<Layout>,
    delete: OperatorDelete,
}

impl CxxString {
    pub(super) fn new(delete: OperatorDelete) -> Self {
        let layout = Box::leak(Box::new(Layout {
            start: ptr::null_mut(),
            length: 0,
            local: [0; 2],
        }));
        // An empty string of libstdc++ points into itself, so it must not move.
        layout.start = (&raw mut layout.local).cast();
        Self {
            layout: NonNull::from(layout),
            delete,
        }
    }

    /// What C++ code takes as `std::string*`.
    pub(super) fn as_pointer(&mut self) -> *mut c_void {
        self.layout.as_ptr().cast()
    }

    /// What it holds; none where it is no string any more.
    pub(super) fn bytes(&self) -> Option<&[u8]> {
        // SAFETY: from a Box, and borrowed by nobody else.
        let layout = unsafe { self.layout.as_ref() };
        let capacity = if self.is_local() {
            LOCAL
        } else {
            layout.local[0]
        };
        if layout.start.is_null() || layout.length > capacity || capacity > isize::MAX as usize {
            return None;
        }
        // SAFETY: bits/basic_string.h: `length` bytes are valid at `start`.
        Some(unsafe { std::slice::from_raw_parts(layout.start.cast(), layout.length) })
    }

    fn is_local(&self) -> bool {
        // SAFETY: from a Box, and borrowed by nobody else.
        let layout = unsafe { self.layout.as_ref() };
        ptr::eq(layout.start.cast(), &raw const layout.local)
    }
}

impl Drop for CxxString {
    fn drop(&mut self) {
        let is_local = self.is_local();
        // SAFETY: from a Box, and dropped once.
        let layout = unsafe { Box::from_raw(self.layout.as_ptr()) };
        if !is_local && !layout.start.is_null() {
            // SAFETY: bits/basic_string.h: the buffer came from the process's operator new.
            unsafe { (self.delete.0)(layout.start.cast()) };
        }
    }
}
