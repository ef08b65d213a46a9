//! A program in Rust with a global allocator: over memory of its own (`--cfg own_memory`), or over that of the C
//! library (`--cfg system`). Prints "ready PID" and echoes what it reads.
#![allow(unexpected_cfgs)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

struct Allocator;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;
static NEXT: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" {
    fn mmap(address: usize, length: usize, access: i32, flags: i32, fd: i32, offset: i64) -> usize;
}

// SAFETY: the memory of each object is mapped, and given out once.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if cfg!(system) {
            return unsafe { System.alloc(layout) };
        }
        if NEXT.load(Relaxed) == 0 {
            // PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS
            NEXT.store(unsafe { mmap(0, 64 << 20, 3, 0x22, -1, 0) }, Relaxed);
        }
        NEXT.fetch_add((layout.size() + 63) & !63, Relaxed) as *mut u8
    }

    unsafe fn dealloc(&self, object: *mut u8, layout: Layout) {
        if cfg!(system) {
            unsafe { System.dealloc(object, layout) };
        }
    }
}

fn main() {
    for _ in 0..80 {
        std::mem::forget(black_box(vec![1_u8; 5000]));
    }
    let mut text = format!("ready {}\n", std::process::id()).into_bytes();
    loop {
        std::io::stdout().write_all(&text).unwrap();
        std::io::stdout().flush().unwrap();
        text.resize(256, 0);
        let length = std::io::stdin().read(&mut text).unwrap();
        text.truncate(length);
        if length == 0 {
            return;
        }
    }
}
