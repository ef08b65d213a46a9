//! The table of functions, in jeprof's columns; in a diff, what grew, shrank, came and went.

use std::io::Write;

use super::{Subject, amount, counted, label, percent};
use crate::error::Result;
use crate::fold::Folded;
use crate::report::Options;
use crate::table::{Change, Row, table};

pub(super) fn write(subject: &Subject<'_>, options: &Options, out: &mut dyn Write) -> Result<()> {
    let folded = subject.telling(options);
    let rows = table(&folded, options.by_cum);
    writeln!(out, "{}", subject.heading(options))?;
    match subject.base {
        None => write_values(&rows, &folded, subject, options, out),
        Some(_) => write_changes(&rows, &folded, options, out),
    }
}

fn write_values(
    rows: &[Row],
    folded: &Folded,
    subject: &Subject<'_>,
    options: &Options,
    out: &mut dyn Write,
) -> Result<()> {
    let total = subject.totals()[options.sample_type];
    writeln!(
        out,
        "{:>10} {:>6} {:>6} {:>10} {:>6}  function",
        "flat", "flat%", "sum%", "cum", "cum%"
    )?;
    let shown = options.top.unwrap_or(rows.len()).min(rows.len());
    let mut sum = 0;
    for row in &rows[..shown] {
        let (flat, cum) = (row.flat.value(), row.cum.value());
        sum += flat;
        writeln!(
            out,
            "{:>10} {:>5.1}% {:>5.1}% {:>10} {:>5.1}%  {}",
            amount(flat, options.sample_type),
            percent(flat, total),
            percent(sum, total),
            amount(cum, options.sample_type),
            percent(cum, total),
            label(folded, row.function, options)
        )?;
    }
    write_rest(rows.len() - shown, out)
}

fn write_changes(
    rows: &[Row],
    folded: &Folded,
    options: &Options,
    out: &mut dyn Write,
) -> Result<()> {
    let pair = |row: &Row| if options.by_cum { row.cum } else { row.flat };
    let column = if options.by_cum { "cumulative" } else { "flat" };
    let changed: Vec<&Row> = rows.iter().filter(|row| pair(row).value() != 0).collect();
    if changed.is_empty() {
        writeln!(out, "no function changed")?;
        return Ok(());
    }
    let amount = |value| amount(value, options.sample_type);
    for change in Change::SHOWN {
        let rows: Vec<_> = changed
            .iter()
            .filter(|row| pair(row).change() == change)
            .collect();
        if rows.is_empty() {
            continue;
        }
        let sum: i64 = rows.iter().map(|row| pair(row).value()).sum();
        writeln!(
            out,
            "\n{} ({column}): {}, {}",
            change.name(),
            counted(rows.len() as u64, "function"),
            signed(amount(sum))
        )?;
        writeln!(
            out,
            "{:>11} {:>10} {:>10}  function",
            "change", "base", "new"
        )?;
        let shown = options.top.unwrap_or(rows.len()).min(rows.len());
        for row in &rows[..shown] {
            let pair = pair(row);
            writeln!(
                out,
                "{:>11} {:>10} {:>10}  {}",
                signed(amount(pair.value())),
                amount(pair.base),
                amount(pair.new),
                label(folded, row.function, options)
            )?;
        }
        write_rest(rows.len() - shown, out)?;
    }
    Ok(())
}

fn signed(amount: String) -> String {
    if amount.starts_with('-') {
        amount
    } else {
        format!("+{amount}")
    }
}

fn write_rest(count: usize, out: &mut dyn Write) -> Result<()> {
    if count > 0 {
        let more = counted(count as u64, "more function");
        let them = if count == 1 { "it" } else { "them" };
        writeln!(out, "({more}, --top shows {them})")?;
    }
    Ok(())
}
