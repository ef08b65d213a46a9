//! Lines of a thread's /proc status file, read in pieces. The list of a user's groups is up to 700 KB long, and the
//! capabilities and the seccomp mode follow it.

/// Calls `visit` with each line that ends in a newline and is UTF-8. `read` fills a slice from its start and returns
/// the number of bytes, 0 at the end. A line longer than the buffer, such as the list of a user's groups, arrives in
/// pieces. Empty texts may occur between lines. `None` if a read fails. Allocates nothing.
pub fn for_each_status_line(
    mut read: impl FnMut(&mut [u8]) -> Option<usize>,
    mut visit: impl FnMut(&str),
) -> Option<()> {
    // Smaller than a page, because a stack page stays resident once it was touched.
    let mut buffer = [0; 2048];
    let mut filled = 0;
    loop {
        let count = read(&mut buffer[filled..])?;
        filled += count;
        let last_newline = buffer[..filled].iter().rposition(|&byte| byte == b'\n');
        let whole = match last_newline {
            Some(end) => end + 1,
            None if filled == buffer.len() => filled,
            None => 0,
        };
        let lines = buffer[..whole].split(|&byte| byte == b'\n');
        lines.flat_map(str::from_utf8).for_each(&mut visit);
        if count == 0 {
            return Some(());
        }
        buffer.copy_within(whole..filled, 0);
        filled -= whole;
    }
}
