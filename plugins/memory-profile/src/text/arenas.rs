//! Summarizes `malloc_info(3)`: one line per arena of glibc instead of XML.

use super::size_text;

/// Maximum number of arenas that get a line. A program with many threads has eight arenas per processor.
const MAX_SHOWN: usize = 16;

/// Size of one arena, or of all arenas together, in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Arena {
    number: u64,
    /// Bytes from the kernel.
    size: u64,
    /// Part of `size` that no object uses.
    free: u64,
}

/// Formats glibc's arenas: one line for each of the largest [`MAX_SHOWN`], then the number of other arenas and the
/// total. If `info` was cut off, the last line says so in place of the total. `None` if `info` is not the output of
/// `malloc_info(3)`.
pub(super) fn arenas_text(info: &str) -> Option<String> {
    let mut arenas: Vec<Arena> = Vec::new();
    let mut total = Arena::default();
    let mut mapped = (0, 0);
    let mut is_inside = false;
    for line in info.lines().map(str::trim_start) {
        if line.starts_with("<heap ") {
            is_inside = true;
            let number = parse_attribute(line, "nr")?;
            arenas.push(Arena {
                number,
                ..Arena::default()
            });
        } else if line.starts_with("</heap>") {
            is_inside = false;
        } else if line.starts_with("<total type=\"mmap\"") {
            mapped = (
                parse_attribute(line, "count")?,
                parse_attribute(line, "size")?,
            );
        } else {
            // Elements outside of a heap are about all arenas together.
            let arena = if is_inside {
                arenas.last_mut()?
            } else {
                &mut total
            };
            if line.starts_with("<total ") {
                arena.free += parse_attribute(line, "size")?;
            } else if line.starts_with("<system type=\"current\"") {
                arena.size = parse_attribute(line, "size")?;
            }
        }
    }
    if arenas.is_empty() {
        return None;
    }
    arenas.sort_by_key(|arena| std::cmp::Reverse(arena.size));
    let usage_text = |arena: &Arena| {
        format!(
            "{}, {} of it free",
            size_text(arena.size),
            size_text(arena.free)
        )
    };
    let shown = arenas.iter().take(MAX_SHOWN);
    let mut text: String = shown
        .map(|arena| format!("arena {:<4} {}\n", arena.number, usage_text(arena)))
        .collect();
    if let Some(more @ 1..) = arenas.len().checked_sub(MAX_SHOWN) {
        text += &format!("{more} smaller arenas\n");
    }
    let count = arenas.len();
    // The printout has a maximum length, which a hundred arenas with many sizes exceed.
    let is_complete = info.contains("\n</malloc>");
    text += &match is_complete {
        true => format!(
            "{count} arenas: {}; {} larger blocks mapped, {}\n",
            usage_text(&total),
            mapped.0,
            size_text(mapped.1)
        ),
        false => format!("{count} arenas and more, which the printout left out\n"),
    };
    Some(text)
}

/// Parses the number in an attribute, such as `size` in `<total type="fast" count="0" size="0"/>`. `None` if the line
/// lacks the attribute, or if its value is not a number.
fn parse_attribute(line: &str, name: &str) -> Option<u64> {
    let (_, remaining) = line.split_once(&format!(" {name}=\""))?;
    remaining.split('"').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::arenas_text;

    /// Output of glibc 2.36.
    const INFO: &str = r#"<malloc version="1">
<heap nr="0">
<sizes>
  <size from="33" to="48" total="96" count="2"/>
</sizes>
<total type="fast" count="2" size="96"/>
<total type="rest" count="1" size="83920"/>
<system type="current" size="262144"/>
<system type="max" size="270336"/>
<aspace type="total" size="262144"/>
<aspace type="mprotect" size="262144"/>
</heap>
<heap nr="1">
<sizes>
  <unsorted from="209" to="1009" total="5447" count="7"/>
</sizes>
<total type="fast" count="1" size="112"/>
<total type="rest" count="11" size="7338"/>
<system type="current" size="516096"/>
<system type="max" size="516096"/>
<aspace type="subheaps" size="1"/>
</heap>
<total type="fast" count="3" size="208"/>
<total type="rest" count="12" size="91258"/>
<total type="mmap" count="2" size="2097152"/>
<system type="current" size="778240"/>
<system type="max" size="786432"/>
</malloc>
"#;

    #[test]
    fn largest_arena_comes_first() {
        assert_eq!(
            arenas_text(INFO).as_deref(),
            Some(
                "arena 1    504.0 KiB, 7.3 KiB of it free\n\
                 arena 0    256.0 KiB, 82.0 KiB of it free\n\
                 2 arenas: 760.0 KiB, 89.3 KiB of it free; 2 larger blocks mapped, 2.0 MiB\n"
            )
        );
    }

    #[test]
    fn hundred_arenas_take_few_lines_if_cut() {
        let heap = |number| format!("<heap nr=\"{number}\">\n</heap>\n");
        let text = arenas_text(&(0..100).map(heap).collect::<String>()).unwrap();
        assert_eq!(text.lines().count(), 18, "{text}");
        assert!(text.contains("\n84 smaller arenas\n"), "{text}");
        assert!(text.contains("\n100 arenas and more"), "{text}");
    }

    #[test]
    fn other_text_has_no_arenas() {
        let check = |text| assert_eq!(arenas_text(text), None, "{text}");
        check("");
        check("glibc 2.36 lacks malloc_info");
        check("<heap nr=\"x\">");
        check("<heap nr=\"0\">\n<total type=\"fast\" count=\"0\"/>");
    }
}
