//! Compares the rules for this machine's libraries with readelf's and with gimli's evaluation.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use gimli::{
    BaseAddresses, CfaRule, EhFrame, EndianSlice, NativeEndian, RegisterRule, UnwindContext,
    UnwindContextStorage, UnwindSection, UnwindTableRow, X86_64,
};
use memprof_unwind::cfi::{Section, rule_at};
use memprof_unwind::{Cfa, Rule, SavedBp};
use object::{Object, ObjectSection};

/// Libraries of most programs, with special cases among them: hand-written assembly, realigned
/// stacks, C++, linkage tables, signal frames.
const LIBRARIES: [&str; 7] = [
    "libc.so.6",
    "libm.so.6",
    "libstdc++.so.6",
    "libgcc_s.so.1",
    "libjemalloc.so.2",
    "libcrypto.so.3",
    "ld-linux-x86-64.so.2",
];
/// Largest share of rows that the rules may not support, such as some of the assembly in libcrypto.
const MAX_UNSUPPORTED_SHARE: f64 = 0.01;

struct Library {
    path: PathBuf,
    hdr: (u64, Vec<u8>),
    eh_frame: (u64, Vec<u8>),
}

impl Library {
    /// Opens a library of the system. `None` if it is not installed.
    fn open(name: &str) -> Option<Self> {
        let directory = Path::new("/lib/x86_64-linux-gnu");
        let usr = Path::new("/usr/lib/x86_64-linux-gnu");
        let paths = [directory.join(name), usr.join(name)];
        let path = paths.into_iter().find(|path| path.exists())?;
        let bytes = fs::read(&path).unwrap();
        let file = object::File::parse(&*bytes).unwrap();
        let section = |name| {
            let section = file.section_by_name(name).unwrap();
            (section.address(), section.data().unwrap().to_vec())
        };
        Some(Self {
            hdr: section(".eh_frame_hdr"),
            eh_frame: section(".eh_frame"),
            path,
        })
    }

    fn rule_at(&self, address: u64) -> Rule {
        let hdr = Section {
            address: self.hdr.0,
            bytes: &self.hdr.1,
        };
        let eh_frame = Section {
            address: self.eh_frame.0,
            bytes: &self.eh_frame.1,
        };
        let section_at = |address| {
            assert_eq!(address, eh_frame.address, "{}", self.path.display());
            Some(eh_frame)
        };
        rule_at(hdr, section_at, address)
    }
}

/// Opens the libraries of [`LIBRARIES`] that are installed. Panics if these are fewer than three.
fn libraries() -> Vec<Library> {
    let found: Vec<_> = LIBRARIES
        .iter()
        .filter_map(|name| Library::open(name))
        .collect();
    // The C library is everywhere.
    assert!(found.len() >= 3, "only {} of {LIBRARIES:?}", found.len());
    found
}

struct Storage;
impl UnwindContextStorage<usize> for Storage {
    type Rules = [(gimli::Register, RegisterRule<usize>); 32];
    type Stack = [UnwindTableRow<usize, Self>; 8];
}

/// The rule that a row stands for. `None` if memprof's rules do not support it.
fn expected(row: &UnwindTableRow<usize, Storage>) -> Option<Rule> {
    if row.register(X86_64::RA) == Some(RegisterRule::Undefined) {
        return Some(Rule::Outermost);
    }
    let words = |bytes: i64| u16::try_from(bytes / 8).ok().filter(|_| bytes % 8 == 0);
    let cfa = match *row.cfa() {
        CfaRule::RegisterAndOffset {
            register: X86_64::RSP,
            offset,
        } => Cfa::Sp(words(offset)?),
        CfaRule::RegisterAndOffset {
            register: X86_64::RBP,
            offset,
        } => Cfa::Bp(words(offset)?),
        _ => return None,
    };
    let bp = match row.register(X86_64::RBP) {
        None | Some(RegisterRule::Undefined | RegisterRule::SameValue) => SavedBp::Unchanged,
        Some(RegisterRule::Offset(offset)) => SavedBp::BelowCfa(words(-offset)?),
        _ => return None,
    };
    let is_usual = row.register(X86_64::RA) == Some(RegisterRule::Offset(-8));
    is_usual.then_some(Rule::Frame { cfa, bp })
}

#[test]
fn rules_of_system_libraries_equal_gimli_rows() {
    let (mut rows, mut unsupported) = (0_u64, 0_u64);
    for library in libraries() {
        let (address, bytes) = &library.eh_frame;
        let bases = BaseAddresses::default()
            .set_eh_frame_hdr(library.hdr.0)
            .set_eh_frame(*address);
        let mut eh_frame = EhFrame::from(EndianSlice::new(bytes, NativeEndian));
        eh_frame.set_address_size(8);
        let mut context = UnwindContext::<usize, Storage>::new_in();
        let mut entries = eh_frame.entries(&bases);
        while let Some(entry) = entries.next().unwrap() {
            let gimli::CieOrFde::Fde(partial) = entry else {
                continue;
            };
            let fde = partial.parse(EhFrame::cie_from_offset).unwrap();
            let mut table = fde.rows(&eh_frame, &bases, &mut context).unwrap();
            while let Some(row) = table.next_row().unwrap() {
                if row.start_address() >= row.end_address() {
                    continue;
                }
                for address in [row.start_address(), row.end_address() - 1] {
                    rows += 1;
                    let rule = library.rule_at(address);
                    let place = || format!("{} {address:#x}", library.path.display());
                    if fde.is_signal_trampoline() {
                        assert_eq!(rule, Rule::Signal, "{}", place());
                        continue;
                    }
                    match (rule, expected(row)) {
                        (Rule::Unsupported | Rule::Complex, None) => unsupported += 1,
                        // Rows with expressions, which the comparison with readelf covers.
                        (Rule::Frame { .. }, None) => {}
                        (rule, expected) => assert_eq!(Some(rule), expected, "{}", place()),
                    }
                }
            }
        }
    }
    assert!(rows > 50_000, "{rows}");
    let share = unsupported as f64 / rows as f64;
    assert!(share < MAX_UNSUPPORTED_SHARE, "{unsupported} of {rows}");
}

/// Returns the rows that readelf(1) prints for a library, by address: the CFA and the rules of `rbp` and `ra`. A row is
/// printed as `0000000000026000 rsp+8 u c-8`; `u` means unchanged.
fn readelf_rows(path: &Path) -> BTreeMap<u64, (String, String, String)> {
    let output = Command::new("readelf")
        .args(["--wide", "--debug-dump=frames-interp"])
        .arg(path)
        .output()
        .expect("readelf of binutils");
    let text = String::from_utf8_lossy(&output.stdout);
    let mut rows = BTreeMap::new();
    let mut columns: Vec<&str> = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["LOC", "CFA", ..] => columns = words,
            [location, cfa, rest @ ..]
                if !columns.is_empty() && rest.len() + 2 == columns.len() =>
            {
                let Ok(address) = u64::from_str_radix(location, 16) else {
                    continue;
                };
                let register = |name| {
                    let at = columns.iter().position(|column| *column == name);
                    at.map_or("u", |at| words[at]).to_owned()
                };
                rows.insert(
                    address,
                    ((*cfa).to_owned(), register("rbp"), register("ra")),
                );
            }
            _ => columns.clear(),
        }
    }
    rows
}

/// Formats a rule as readelf(1) prints its row: the CFA and the rules of `rbp` and `ra`. `None` for a rule without a
/// frame.
fn printed(rule: Rule) -> Option<(String, String, String)> {
    let Rule::Frame { cfa, bp } = rule else {
        return None;
    };
    let cfa = match cfa {
        Cfa::Sp(words) => format!("rsp+{}", words * 8),
        Cfa::Bp(words) => format!("rbp+{}", words * 8),
        Cfa::BelowBp(_) | Cfa::Plt(_) => "exp".to_owned(),
    };
    let bp = match bp {
        SavedBp::Unchanged => "u".to_owned(),
        SavedBp::BelowCfa(words) => format!("c-{}", words * 8),
        SavedBp::AtBp => "exp".to_owned(),
    };
    Some((cfa, bp, "c-8".to_owned()))
}

#[test]
fn rules_of_libc_equal_readelf_rows() {
    let library = Library::open("libc.so.6").unwrap();
    let rows = readelf_rows(&library.path);
    assert!(rows.len() > 10_000, "{}", rows.len());
    let mut compared = 0;
    for (address, row) in rows {
        // The row of a CIE has no address of its own.
        let Some(ours) = printed(library.rule_at(address)).filter(|_| address != 0) else {
            continue;
        };
        // The row of an empty range is followed by another one at the same address, and readelf
        // writes "s" for a register that keeps its value.
        let row = (row.0, row.1.replace('s', "u"), row.2);
        assert_eq!(ours, row, "{address:#x}");
        compared += 1;
    }
    assert!(compared > 10_000, "{compared}");
}
