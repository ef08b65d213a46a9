//! Suffixes of symbols by which compilers distinguish the clones and parts of one function.

/// Words of suffixes that a number follows: GCC's passes, and LLVM's names of promoted and merged functions.
const NUMBERED: &[&str] = &[
    "__uniq",
    "clone",
    "constprop",
    "isra",
    "llvm",
    "memprof",
    "part",
    "simdclone",
    "specialized",
    "sra",
    "warm",
];

/// Words of suffixes with or without a number. Functions with `target_clones` have `.resolver` and instruction sets.
const ALONE: &[&str] = &[
    "argprom",
    "avx",
    "avx2",
    "avx512f",
    "cold",
    "default",
    "localalias",
    "lto_priv",
    "resolver",
    "sse4_2",
];

/// Splits a symbol into its function's name and the suffixes of its clone: `xmalloc` and `.constprop.0.cold`. The
/// second part is empty if it has none.
pub(super) fn split_clone_suffix(symbol: &str) -> (&str, &str) {
    let mut end = symbol.len();
    while let Some(start) = last_suffix_start(&symbol[..end]) {
        end = start;
    }
    symbol.split_at(end)
}

/// Returns the start of the last clone suffix, such as `.cold` or `.part.0`. `None` if the text ends with none, or is
/// nothing else.
fn last_suffix_start(symbol: &str) -> Option<usize> {
    let (before, last) = symbol.rsplit_once('.')?;
    let is_number = !last.is_empty() && last.bytes().all(|c| c.is_ascii_digit());
    let (base, word) = match is_number {
        true => before.rsplit_once('.')?,
        false => (before, last),
    };
    let is_suffix =
        is_number && NUMBERED.contains(&word) || ALONE.contains(&word) || word.starts_with("arch_");
    (is_suffix && !base.is_empty()).then_some(base.len())
}

#[cfg(test)]
mod tests {
    use super::split_clone_suffix;

    #[test]
    fn clone_suffix_is_split_from_name() {
        let check = |name: &str, suffix: &str| {
            assert_eq!(
                split_clone_suffix(&format!("{name}{suffix}")),
                (name, suffix)
            );
        };
        check("checked_malloc", ".constprop.0");
        check("hot", ".part.0.isra.0");
        check("with_cold", ".cold");
        check("with_cold", ".cold.12");
        check("_ZN4shop3addEv", ".llvm.12345678901234567890");
        check("parse", ".lto_priv.0.cold");
        check("f", ".__uniq.98765");
        check("dot", ".avx2.0");
        check("dot", ".arch_haswell");
        check("main.leak.func1", "");
        check("runtime.main", "");
        check("main.part", "");
        check("shop.constprop", "");
        check("v1.0", "");
        check(".cold", "");
        check("", "");
    }
}
