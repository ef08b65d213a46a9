//! Page of a ledger.

use memprof_messages::{Ledger, LedgerPart};
use memprof_report::{Cells, Column, Outline, OutlinePage};

/// Builds the HTML page: a table of the ledger's rows, with the parts of the row `not_the_allocator` below that row.
/// `process` is the pid and name of the process.
pub(super) fn build_ledger_page(process: &str, ledger: &Ledger) -> OutlinePage {
    let (mut depth, mut bytes, mut shares, mut names) = (vec![], vec![], vec![], vec![]);
    let mut add = |level, size: u64, name: &str| {
        depth.push(level);
        bytes.push(Some(size));
        shares.push(format!(
            "{:.1} %",
            size as f64 * 100.0 / ledger.rss_bytes.max(1) as f64
        ));
        names.push(name.to_owned());
    };
    for row in &ledger.rows {
        add(0, row.bytes, row.name.as_str());
        if row.name == LedgerPart::NotTheAllocator {
            for part in ledger.parts.iter().filter(|part| part.resident_bytes > 0) {
                add(1, part.resident_bytes, &part.owner);
            }
        }
    }
    let column = |title, help, cells| Column {
        title,
        help,
        wide: false,
        cells,
    };
    let findings = ledger.verdicts.iter();
    OutlinePage {
        title: format!("memprof ledger {process}"),
        heading: format!(
            "{process}: {} of resident memory",
            memprof_messages::size_text(ledger.rss_bytes)
        ),
        facts: Vec::new(),
        notes: findings
            .map(|finding| format!("{}: {}; {}", finding.kind, finding.why, finding.remedy))
            .collect(),
        limits: Vec::new(),
        outlines: vec![Outline {
            title: "Parts",
            empty: String::new(),
            depth,
            columns: vec![
                column("Resident", "Bytes in memory", Cells::Bytes(bytes)),
                column("Share", "Share of the resident memory", Cells::Text(shares)),
                column("Part", "Part of the resident memory", Cells::Name(names)),
            ],
        }],
    }
}
