//! Suffixes of symbols by which compilers distinguish the clones and parts of one function.

/// Words of suffixes that a number follows: GCC's passes and OpenMP regions, and LLVM's names of promoted, merged and
/// split functions.
const NUMBERED: &[&str] = &[
    "__part",
    "__uniq",
    "_omp_cpyfn",
    "_omp_fn",
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
    "argelim",
    "argprom",
    "avx",
    "avx2",
    "avx512f",
    "cold",
    "default",
    "localalias",
    "lto_priv",
    "omp_outlined",
    "resolver",
    "retelim",
    "sse4_2",
];

/// Splits a symbol into its function's name and the suffixes by which compilers distinguish clones of the function:
/// `xmalloc` and `.constprop.0.cold`. The second part is empty if the symbol has no suffix. After a mangled name any
/// suffix counts, e.g. `.actor` of a coroutine; after other names only known ones, because they may contain dots.
pub(super) fn split_clone_suffix(symbol: &str) -> (&str, &str) {
    // Most symbols have none.
    if !symbol.contains('.') {
        return (symbol, "");
    }
    let mut end = end_of_mangled_name(symbol).unwrap_or(symbol.len());
    while let Some(start) = last_suffix_start(&symbol[..end]) {
        end = start;
    }
    symbol.split_at(end)
}

/// Returns the end of a mangled name, at the dot of the suffix that follows. The first dot in a C++ name or a Rust v0
/// name begins the suffix. A legacy Rust name contains dots itself, so its hash is its end. `None` if the symbol is not
/// mangled, has no suffix, or is a legacy Rust name without a hash.
fn end_of_mangled_name(symbol: &str) -> Option<usize> {
    if let Some(end) = end_of_legacy_rust_name(symbol) {
        return symbol[end..].starts_with('.').then_some(end);
    }
    let is_mangled = ["_Z", "__Z", "_R"]
        .iter()
        .any(|start| symbol.starts_with(start));
    // Two dots are Rust's `::` in a name of its legacy scheme that has no hash.
    let is_legacy = symbol.contains("..");
    // A name is longer than its prefix, of up to three bytes.
    symbol
        .find('.')
        .filter(|end| is_mangled && !is_legacy && *end > 3)
}

/// Returns the end of a name of Rust's legacy scheme, after its hash: `17h`, 16 hexadecimal digits, `E`. `None` for
/// other names.
fn end_of_legacy_rust_name(symbol: &str) -> Option<usize> {
    const HASH: usize = "17h".len() + 16;
    let mut starts = symbol
        .match_indices("17h")
        .filter(|_| symbol.starts_with("_Z"));
    starts.find_map(|(start, _)| {
        let hash = symbol.get(start + 3..start + HASH)?;
        let is_end = symbol[start + HASH..].starts_with('E');
        let is_hash = is_end && hash.bytes().all(|c| c.is_ascii_hexdigit());
        is_hash.then_some(start + HASH + 1)
    })
}

/// Returns the start of the last suffix of a symbol, at its dot: a known word, with a number after it or without.
/// `None` if the symbol does not end with a known suffix, or has no text before the suffix.
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
        check("hot_loop", ".__part.3");
        check("main", "._omp_fn.0");
        check("main", ".omp_outlined");
        check("_ZN4shop4taskEv", ".actor");
        check("_ZN4shop4taskEv", ".resume.cold");
        check("_RNvCs1234_4shop4task", ".warm.12");
        check("_ZN4core3fmt17h0123456789abcdefE", ".cold.2.llvm.99");
        check(
            "_ZN50_$LT$shop..Cart$u20$as$u20$core..fmt..Debug$GT$3fmt17h0123456789abcdefE",
            "",
        );
        check(
            "_ZN50_$LT$shop..Cart$u20$as$u20$core..fmt..Debug$GT$3fmt17h0123456789abcdefE",
            ".llvm.7",
        );
        check("main.leak.func1", "");
        check("runtime.main", "");
        check("main.part", "");
        check("shop.constprop", "");
        check("v1.0", "");
        check(".cold", "");
        check("", "");
    }
}
