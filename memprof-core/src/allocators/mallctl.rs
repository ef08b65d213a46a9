//! One jemalloc's control functions, called through pointers.
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

/// The control functions of one jemalloc. The linker leaves out what a program does not use, but
/// not `mallctl`, which jemalloc itself calls; it does by name what `mallctlbymib` does by number.
#[derive(Clone, Copy)]
pub struct Mallctl {
    mallctl: MallctlFn,
    stats_print: Option<StatsPrintFn>,
}

/// What a control that prints takes (ctl.c, `write_cb_packet_t`).
#[repr(C)]
struct PrintCallback {
    write: StatsCallback,
    opaque: *mut c_void,
}

/// A type that jemalloc(3) documents for some control.
pub trait Value: Copy + Default + sealed::Sealed {}

mod sealed {
    /// Keeps [`Value`](super::Value) to plain integers, for which any bytes are valid.
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
    /// From `mallctl` and, where it was linked, `malloc_stats_print`.
    ///
    /// # Safety
    /// Both are these functions of one jemalloc, which stays loaded as long as the process.
    pub unsafe fn new(mallctl: MallctlFn, stats_print: Option<StatsPrintFn>) -> Self {
        Self {
            mallctl,
            stats_print,
        }
    }

    /// As one whose `malloc_stats_print` was left out.
    pub(crate) fn without_stats_print(self) -> Self {
        Self {
            stats_print: None,
            ..self
        }
    }

    /// Where `mallctl` lies: the identity of a jemalloc within the process.
    pub fn address(&self) -> usize {
        self.mallctl as usize
    }

    /// `mallctl`.
    pub fn function(&self) -> MallctlFn {
        self.mallctl
    }

    /// `malloc_stats_print`, where it was linked.
    pub fn stats_print(&self) -> Option<StatsPrintFn> {
        self.stats_print
    }

    /// Reads a number.
    ///
    /// # Errors
    /// What `mallctl` returned; EINVAL when the control has another size.
    pub fn read<T: Value>(&self, name: &CStr) -> Result<T, Errno> {
        let mut value = T::default();
        let mut size = size_of::<T>();
        // SAFETY: jemalloc.3: writes at most `size` bytes to `oldp`, and refuses another size.
        let rc = unsafe {
            (self.mallctl)(
                name.as_ptr(),
                (&raw mut value).cast(),
                &raw mut size,
                ptr::null_mut(),
                0,
            )
        };
        check(rc)?;
        if size == size_of::<T>() {
            Ok(value)
        } else {
            Err(Errno::INVAL)
        }
    }

    /// Whether there is a control of that name that can be read.
    pub(crate) fn can_read(&self, name: &CStr) -> bool {
        let mut value = [0u8; 16];
        let mut size = 0;
        let old = (&raw mut value).cast();
        // SAFETY: jemalloc.3: writes at most `size` bytes to `oldp`: none, and refuses it so.
        let rc = unsafe { (self.mallctl)(name.as_ptr(), old, &raw mut size, ptr::null_mut(), 0) };
        rc != Errno::NOENT.raw_os_error()
    }

    /// Reads a switch.
    ///
    /// # Errors
    /// What `mallctl` returned.
    pub fn read_bool(&self, name: &CStr) -> Result<bool, Errno> {
        // Read as a byte: a Rust bool must not hold what a broken allocator may write.
        self.read::<u8>(name).map(|byte| byte != 0)
    }

    /// Reads a text, such as `version`.
    ///
    /// # Errors
    /// What `mallctl` returned; EINVAL when it answers a null pointer.
    pub fn read_text(&self, name: &CStr) -> Result<String, Errno> {
        let address = self.read::<usize>(name)? as *const c_char;
        if address.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: jemalloc.3: controls of type `const char *` yield NUL-terminated constants.
        let text = unsafe { CStr::from_ptr(address) };
        Ok(text.to_string_lossy().into_owned())
    }

    /// Writes a number.
    ///
    /// # Errors
    /// What `mallctl` returned.
    pub fn write<T: Value>(&self, name: &CStr, mut value: T) -> Result<(), Errno> {
        // SAFETY: jemalloc.3: reads `newlen` bytes at `newp` during the call.
        check(unsafe {
            (self.mallctl)(
                name.as_ptr(),
                ptr::null_mut(),
                ptr::null_mut(),
                (&raw mut value).cast(),
                size_of::<T>(),
            )
        })
    }

    /// Writes a value of the control's own type, and reads the number that it answers.
    ///
    /// # Errors
    /// What `mallctl` returned.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn exchange<T: Copy>(&self, name: &CStr, mut new: T) -> Result<usize, Errno> {
        let mut answer = 0_usize;
        let mut size = size_of::<usize>();
        // SAFETY: jemalloc.3: reads `newlen` bytes at `newp`, and writes at most `size` to `oldp`.
        check(unsafe {
            (self.mallctl)(
                name.as_ptr(),
                (&raw mut answer).cast(),
                &raw mut size,
                (&raw mut new).cast(),
                size_of::<T>(),
            )
        })?;
        Ok(answer)
    }

    /// Asks about each of these addresses; the control writes a `T` for each.
    ///
    /// # Safety
    /// The control takes addresses as these are, and writes valid values of this type.
    ///
    /// # Errors
    /// What `mallctl` returned; EINVAL where there is not as much room as is asked for.
    #[cfg(target_arch = "x86_64")]
    pub(crate) unsafe fn query_each<T: Copy>(
        &self,
        name: &CStr,
        asked: &[usize],
        answers: &mut [T],
    ) -> Result<(), Errno> {
        let mut size = size_of_val(answers);
        if asked.len() != answers.len() {
            return Err(Errno::INVAL);
        }
        // SAFETY: jemalloc.3: reads `newlen` bytes at `newp`, and writes at most `size` to `oldp`; what it makes
        // of them the caller answers for.
        check(unsafe {
            (self.mallctl)(
                name.as_ptr(),
                answers.as_mut_ptr().cast(),
                &raw mut size,
                asked.as_ptr().cast_mut().cast(),
                size_of_val(asked),
            )
        })
    }

    /// Does what a control without a value does, such as `arena.<i>.purge`.
    ///
    /// # Errors
    /// What `mallctl` returned.
    pub fn call(&self, name: &CStr) -> Result<(), Errno> {
        let null = ptr::null_mut();
        // SAFETY: jemalloc.3: neither reads nor writes a value.
        check(unsafe { (self.mallctl)(name.as_ptr(), null, ptr::null_mut(), null, 0) })
    }

    /// Calls `malloc_stats_print`, which calls `sink` with pieces of any length. Without it nothing
    /// is printed.
    pub(crate) fn print_stats(&self, options: &CStr, mut sink: &mut dyn FnMut(&[u8])) {
        let opaque = (&raw mut sink).cast();
        if let Some(print) = self.stats_print {
            // SAFETY: jemalloc.3: calls `pass_on` with `opaque`, which lives until the call returns.
            unsafe { print(Some(forward_piece), opaque, options.as_ptr()) }
        }
    }

    /// Has a control print, such as `experimental.prof_recent.alloc_dump`, which calls `sink` with
    /// pieces of any length.
    ///
    /// # Errors
    /// What `mallctl` returned.
    pub(crate) fn print_to(
        &self,
        name: &CStr,
        mut sink: &mut dyn FnMut(&[u8]),
    ) -> Result<(), Errno> {
        let mut callback = PrintCallback {
            write: Some(forward_piece),
            opaque: (&raw mut sink).cast(),
        };
        // SAFETY: ctl.c, `write_cb_packet_t`: reads the two pointers, and calls the first with the
        // second, which lives until the call returns.
        check(unsafe {
            (self.mallctl)(
                name.as_ptr(),
                ptr::null_mut(),
                ptr::null_mut(),
                (&raw mut callback).cast(),
                size_of::<PrintCallback>(),
            )
        })
    }

    /// Writes a switch.
    ///
    /// # Errors
    /// What `mallctl` returned.
    pub fn write_bool(&self, name: &CStr, value: bool) -> Result<(), Errno> {
        self.write(name, u8::from(value))
    }

    /// Writes a path, such as that of `prof.dump`. jemalloc copies it.
    ///
    /// # Errors
    /// What `mallctl` returned; file trouble of any kind is EFAULT.
    pub fn write_path(&self, name: &CStr, path: &CStr) -> Result<(), Errno> {
        self.write(name, path.as_ptr() as usize)
    }
}

/// Hands a piece of what jemalloc prints to the sink that `opaque` points to.
unsafe extern "C" fn forward_piece(opaque: *mut c_void, piece: *const c_char) {
    if piece.is_null() {
        return;
    }
    // SAFETY: jemalloc.3: a piece is NUL-terminated and valid during the call.
    let piece = unsafe { CStr::from_ptr(piece) }.to_bytes();
    // SAFETY: `print_stats` or `print_to` passed its sink, which nothing else uses meanwhile.
    let sink = unsafe { &mut *opaque.cast::<&mut dyn FnMut(&[u8])>() };
    let passed = catch_unwind(AssertUnwindSafe(|| sink(piece)));
    if let Err(payload) = passed {
        // A panic must not cross jemalloc's frames, and dropping its payload may panic again.
        std::mem::forget(payload);
    }
}

fn check(rc: c_int) -> Result<(), Errno> {
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
