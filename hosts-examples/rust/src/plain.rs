//! A program that was not built for memprof, like most programs on tikv-jemallocator. Each line that it reads makes it
//! retain 2 MB more.
//!
//! ```sh
//! memprof run --lg-sample 12 -- target/dist/examples/plain_rust &
//! memprof activate plain_rust
//! ```

use std::hint::black_box;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Number of entries for each line.
const ENTRIES: usize = 2000;
/// Size of an entry in bytes.
const ENTRY_SIZE: usize = 1000;

/// Leaks: adds [`ENTRIES`] entries, which are never removed.
#[inline(never)]
fn keep_entries(cache: &mut Vec<Vec<u8>>) {
    cache.extend((0..ENTRIES).map(|_| vec![0; ENTRY_SIZE]));
    black_box(&*cache);
}

/// Leaks [`ENTRIES`] entries for each line of standard input.
fn main() -> std::io::Result<()> {
    let mut cache = Vec::new();
    for line in std::io::stdin().lines() {
        keep_entries(&mut cache);
        eprintln!("served {}", line?);
    }
    Ok(())
}
