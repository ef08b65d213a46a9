//! libstdc++'s `std::string`, into which gperftools writes a profile.
#![expect(unsafe_code, reason = "plays the C++ library's side of a type")]

use std::ffi::{c_char, c_void};
use std::ptr::{self, NonNull};

use crate::allocators::symbols::as_function;

/// Capacity in bytes of a string that uses no heap memory.
const LOCAL_CAPACITY: usize = 15;

type DeleteFn = unsafe extern "C" fn(*mut c_void);

/// `operator delete(void*)` of the process, which frees memory from `operator new`.
#[derive(Clone, Copy, Debug)]
pub(super) struct OperatorDelete(DeleteFn);

impl OperatorDelete {
    /// Looks up `operator delete(void*)` by its mangled name in the whole process. `None` if no loaded object exports
    /// it.
    pub(super) fn find() -> Option<Self> {
        // SAFETY: dlsym(3) gets a NUL-terminated name.
        let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_ZdlPv".as_ptr()) } as usize;
        // SAFETY: Itanium C++ ABI: only a function of this type has this mangled name.
        (address != 0).then(|| Self(unsafe { as_function(address) }))
    }
}

/// Memory layout of `std::__cxx11::string` in `bits/basic_string.h`, stable since GCC 5.
#[derive(Debug)]
#[repr(C)]
struct Layout {
    start: *mut c_char,
    length: usize,
    /// Local buffer. If `start` points to heap memory instead, the first word is the capacity of that memory.
    local: [usize; 2],
}

/// Empty string for C++ code to fill.
#[derive(Debug)]
pub(super) struct CxxString {
    layout: NonNull<Layout>,
    delete: OperatorDelete,
}

impl CxxString {
    /// Creates an empty string. If C++ code lets it grow onto the heap, `delete` frees that memory.
    pub(super) fn new(delete: OperatorDelete) -> Self {
        let layout = Box::leak(Box::new(Layout {
            start: ptr::null_mut(),
            length: 0,
            local: [0; 2],
        }));
        // An empty string of libstdc++ points into itself, so it must not move: it is leaked until `drop`.
        layout.start = (&raw mut layout.local).cast();
        Self {
            layout: NonNull::from(layout),
            delete,
        }
    }

    /// Pointer for C++ code that takes `std::string*`.
    pub(super) fn as_pointer(&mut self) -> *mut c_void {
        self.layout.as_ptr().cast()
    }

    /// Content of the string. `None` if the fields are not those of a valid string: the start is null, the length
    /// exceeds the capacity, or the capacity exceeds `isize::MAX`.
    pub(super) fn bytes(&self) -> Option<&[u8]> {
        // SAFETY: the pointer is from `Box::leak`, and `&self` excludes C++ code that writes to it.
        let layout = unsafe { self.layout.as_ref() };
        let capacity = if self.uses_local_buffer() {
            LOCAL_CAPACITY
        } else {
            // libstdc++ stores the capacity of heap memory there.
            layout.local[0]
        };
        if layout.start.is_null() || layout.length > capacity || capacity > isize::MAX as usize {
            return None;
        }
        // SAFETY: bits/basic_string.h: `length` bytes are valid at `start`.
        Some(unsafe { std::slice::from_raw_parts(layout.start.cast(), layout.length) })
    }

    /// Whether the bytes are in the string object itself, and not on the heap.
    fn uses_local_buffer(&self) -> bool {
        // SAFETY: the pointer is from `Box::leak`, and `&self` excludes C++ code that writes to it.
        let layout = unsafe { self.layout.as_ref() };
        ptr::eq(layout.start.cast(), &raw const layout.local)
    }
}

impl Drop for CxxString {
    /// Frees the string object, and also its buffer if C++ code allocated one.
    fn drop(&mut self) {
        let is_local = self.uses_local_buffer();
        // SAFETY: the pointer is from `Box::leak` in `new`, and this is its only drop.
        let layout = unsafe { Box::from_raw(self.layout.as_ptr()) };
        if !is_local && !layout.start.is_null() {
            // SAFETY: bits/basic_string.h: the buffer is from the process's operator new.
            unsafe { (self.delete.0)(layout.start.cast()) };
        }
    }
}
