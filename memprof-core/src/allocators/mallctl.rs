//! Control functions of one jemalloc, called through pointers.
#![expect(unsafe_code, reason = "the allocator calls")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::{fmt, ptr};

use rustix::io::Errno;

/// `mallctl` of jemalloc(3).
pub type MallctlFn =
    unsafe extern "C" fn(*const c_char, *mut c_void, *mut usize, *mut c_void, usize) -> c_int;
/// The callback of `malloc_stats_print`.
pub type StatsCallback = Option<unsafe extern "C" fn(*mut c_void, *const c_char)>;
/// `malloc_stats_print` of jemalloc(3).
pub type StatsPrintFn = unsafe extern "C" fn(StatsCallback, *mut c_void, *const c_char);

/// The control functions of one jemalloc. `mallctlbymib` is not needed: the linker may omit it if the program does not
/// use it, whereas jemalloc itself calls `mallctl`, which does the same by name.
#[derive(Clone, Copy)]
pub struct Mallctl {
    mallctl: MallctlFn,
    stats_print: Option<StatsPrintFn>,
}

/// Argument of a mallctl that prints (`write_cb_packet_t` of ctl.c).
#[repr(C)]
struct PrintCallback {
    write: StatsCallback,
    opaque: *mut c_void,
}

/// Integer type of a mallctl's value (jemalloc(3)).
pub trait Value: Copy + Default + sealed::Sealed {}

mod sealed {
    /// Restricts [`Value`](super::Value) to plain integers, for which every bit pattern is valid.
    pub trait Sealed {}
    impl Sealed for u8 {}
    impl Sealed for u32 {}
    impl Sealed for u64 {}
    impl Sealed for usize {}
}

impl Value for u8 {}
impl Value for u32 {}
impl Value for u64 {}
impl Value for usize {}

impl Mallctl {
    /// Creates a handle from `mallctl` and, if the program contains it, `malloc_stats_print`.
    ///
    /// # Safety
    /// Both are functions of the same jemalloc, which is never unloaded.
    pub unsafe fn new(mallctl: MallctlFn, stats_print: Option<StatsPrintFn>) -> Self {
        Self {
            mallctl,
            stats_print,
        }
    }

    /// Returns a copy without `malloc_stats_print`, as if the linker had omitted that function.
    pub(crate) fn without_stats_print(self) -> Self {
        Self {
            stats_print: None,
            ..self
        }
    }

    /// Address of `mallctl`, which identifies a jemalloc within the process.
    pub fn address(&self) -> usize {
        self.mallctl as usize
    }

    /// Pointer to `mallctl`, for code that needs the C function itself.
    pub fn mallctl_function(&self) -> MallctlFn {
        self.mallctl
    }

    /// Pointer to `malloc_stats_print`. `None` if the program does not contain it.
    pub fn stats_print_function(&self) -> Option<StatsPrintFn> {
        self.stats_print
    }

    /// Reads the integer value of the mallctl `name`.
    ///
    /// # Errors
    /// The error that `mallctl` returned; EINVAL if the value has another size than `T`.
    pub fn read<T: Value>(&self, name: &CStr) -> Result<T, Errno> {
        let mut value = T::default();
        let mut size = size_of::<T>();
        // SAFETY: jemalloc(3): mallctl writes at most `size` bytes to `oldp`, and refuses another size.
        let rc = unsafe {
            (self.mallctl)(
                name.as_ptr(),
                (&raw mut value).cast(),
                &raw mut size,
                ptr::null_mut(),
                0,
            )
        };
        check_status(rc)?;
        if size == size_of::<T>() {
            Ok(value)
        } else {
            Err(Errno::INVAL)
        }
    }

    /// Whether a mallctl of this name exists. Does not read its value: any error except ENOENT shows that it exists.
    pub(crate) fn has_mallctl(&self, name: &CStr) -> bool {
        let mut value = [0u8; 16];
        let mut size = 0;
        let old = (&raw mut value).cast();
        // SAFETY: jemalloc(3): mallctl writes at most `size` bytes to `oldp`. Here it writes none, and returns an
        // error.
        let rc = unsafe { (self.mallctl)(name.as_ptr(), old, &raw mut size, ptr::null_mut(), 0) };
        rc != Errno::NOENT.raw_os_error()
    }

    /// Reads the bool value of the mallctl `name`; any byte other than 0 is true.
    ///
    /// # Errors
    /// The error that `mallctl` returned.
    pub fn read_bool(&self, name: &CStr) -> Result<bool, Errno> {
        // Reads a byte, because a broken allocator may write a value other than 0 and 1.
        self.read::<u8>(name).map(|byte| byte != 0)
    }

    /// Reads the text value of the mallctl `name`, such as `version`. Replaces bytes that are not UTF-8.
    ///
    /// # Errors
    /// The error that `mallctl` returned; EINVAL for a null pointer.
    pub fn read_text(&self, name: &CStr) -> Result<String, Errno> {
        let address = self.read::<usize>(name)? as *const c_char;
        if address.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: jemalloc(3): mallctls of type `const char *` return NUL-terminated constants.
        let text = unsafe { CStr::from_ptr(address) };
        Ok(text.to_string_lossy().into_owned())
    }

    /// Writes an integer to the mallctl `name`. `T` must be the type of its value.
    ///
    /// # Errors
    /// The error that `mallctl` returned.
    pub fn write<T: Value>(&self, name: &CStr, mut value: T) -> Result<(), Errno> {
        // SAFETY: jemalloc(3): mallctl reads `newlen` bytes at `newp` during the call.
        check_status(unsafe {
            (self.mallctl)(
                name.as_ptr(),
                ptr::null_mut(),
                ptr::null_mut(),
                (&raw mut value).cast(),
                size_of::<T>(),
            )
        })
    }

    /// Writes `new` to the mallctl `name`, and returns the `size_t` that the same call reads. `T` must be the type of
    /// the written value.
    ///
    /// # Errors
    /// The error that `mallctl` returned.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn write_and_read<T: Copy>(&self, name: &CStr, mut new: T) -> Result<usize, Errno> {
        let mut result = 0_usize;
        let mut size = size_of::<usize>();
        // SAFETY: jemalloc(3): mallctl reads `newlen` bytes at `newp`, and writes at most `size` to `oldp`.
        check_status(unsafe {
            (self.mallctl)(
                name.as_ptr(),
                (&raw mut result).cast(),
                &raw mut size,
                (&raw mut new).cast(),
                size_of::<T>(),
            )
        })?;
        Ok(result)
    }

    /// Passes `addresses` to the mallctl `name`, which writes one `T` per address to `results`.
    ///
    /// # Safety
    /// The mallctl accepts these addresses, and writes valid values of type `T`.
    ///
    /// # Errors
    /// The error that `mallctl` returned; EINVAL if the slices differ in length.
    #[cfg(target_arch = "x86_64")]
    pub(crate) unsafe fn query_addresses<T: Copy>(
        &self,
        name: &CStr,
        addresses: &[usize],
        results: &mut [T],
    ) -> Result<(), Errno> {
        let mut size = size_of_val(results);
        if addresses.len() != results.len() {
            return Err(Errno::INVAL);
        }
        // SAFETY: jemalloc(3): mallctl reads `newlen` bytes at `newp`, and writes at most `size` to `oldp`.
        // The caller guarantees that this mallctl accepts the addresses and writes valid values of `T`.
        check_status(unsafe {
            (self.mallctl)(
                name.as_ptr(),
                results.as_mut_ptr().cast(),
                &raw mut size,
                addresses.as_ptr().cast_mut().cast(),
                size_of_val(addresses),
            )
        })
    }

    /// Calls the mallctl `name` for its effect, without a value, such as `arena.<i>.purge`.
    ///
    /// # Errors
    /// The error that `mallctl` returned.
    pub fn call(&self, name: &CStr) -> Result<(), Errno> {
        let null = ptr::null_mut();
        // SAFETY: jemalloc(3): without `oldp` and `newp`, mallctl neither reads nor writes a value.
        check_status(unsafe { (self.mallctl)(name.as_ptr(), null, ptr::null_mut(), null, 0) })
    }

    /// Calls `malloc_stats_print`, and passes its output to `sink` in pieces of any length. Prints nothing if the
    /// program lacks that function.
    pub(crate) fn print_stats(&self, options: &CStr, mut sink: &mut dyn FnMut(&[u8])) {
        let opaque = (&raw mut sink).cast();
        if let Some(print) = self.stats_print {
            // SAFETY: jemalloc(3): `malloc_stats_print` calls `forward_printout_piece` with `opaque`, a pointer to
            // `sink`, which lives until the call returns.
            unsafe { print(Some(forward_printout_piece), opaque, options.as_ptr()) }
        }
    }

    /// Calls a mallctl that prints, such as `experimental.prof_recent.alloc_dump`, and passes its output to `sink` in
    /// pieces of any length.
    ///
    /// # Errors
    /// The error that `mallctl` returned.
    pub(crate) fn print_mallctl(
        &self,
        name: &CStr,
        mut sink: &mut dyn FnMut(&[u8]),
    ) -> Result<(), Errno> {
        let mut callback = PrintCallback {
            write: Some(forward_printout_piece),
            opaque: (&raw mut sink).cast(),
        };
        // SAFETY: `write_cb_packet_t` of ctl.c: jemalloc reads the two pointers, and calls the first with the
        // second, a pointer to `sink`, which lives until the call returns.
        check_status(unsafe {
            (self.mallctl)(
                name.as_ptr(),
                ptr::null_mut(),
                ptr::null_mut(),
                (&raw mut callback).cast(),
                size_of::<PrintCallback>(),
            )
        })
    }

    /// Writes a bool to the mallctl `name`.
    ///
    /// # Errors
    /// The error that `mallctl` returned.
    pub fn write_bool(&self, name: &CStr, value: bool) -> Result<(), Errno> {
        self.write(name, u8::from(value))
    }

    /// Writes a path to the mallctl `name`, such as `prof.dump`. jemalloc copies the path.
    ///
    /// # Errors
    /// The error that `mallctl` returned; EFAULT for all file errors.
    pub fn write_path(&self, name: &CStr, path: &CStr) -> Result<(), Errno> {
        self.write(name, path.as_ptr() as usize)
    }
}

/// Callback that passes a piece of jemalloc's output to the sink behind `opaque`. Ignores a null piece, and a panic of
/// the sink.
unsafe extern "C" fn forward_printout_piece(opaque: *mut c_void, piece: *const c_char) {
    if piece.is_null() {
        return;
    }
    // SAFETY: jemalloc(3): a piece is NUL-terminated and valid during the call.
    let piece = unsafe { CStr::from_ptr(piece) }.to_bytes();
    // SAFETY: `print_stats` or `print_mallctl` passed a pointer to its sink, which nothing else uses during the call.
    let sink = unsafe { &mut *opaque.cast::<&mut dyn FnMut(&[u8])>() };
    let passed = catch_unwind(AssertUnwindSafe(|| sink(piece)));
    if let Err(payload) = passed {
        // The payload is leaked: a panic must not unwind through jemalloc's frames, and dropping the payload may panic
        // again.
        std::mem::forget(payload);
    }
}

/// Converts the return value of `mallctl`, which is 0 or an errno.
fn check_status(rc: c_int) -> Result<(), Errno> {
    match rc {
        0 => Ok(()),
        code => Err(Errno::from_raw_os_error(code)),
    }
}

impl fmt::Debug for Mallctl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mallctl({:#x})", self.address())
    }
}
