//! The table of functions, in jeprof's columns; with a base, tables of the functions that grew, shrank, are new or
//! gone.

use std::io::Write;

use super::{RenderInput, format_amount, function_label, percent};
use crate::ages::{Cohorts, MAX_COLUMNS, format_span};
use crate::comparison::Change;
use crate::error::Result;
use crate::fold::Folded;
use crate::label_shares::shares_by_label;
use crate::options::Options;
use crate::plural::pluralize;
use crate::table::{Row, function_rows};

/// Writes the table that the options select: shares by the values of a label, changes from a base, or values of
/// functions.
pub(super) fn write_text(
    input: &RenderInput<'_>,
    options: &Options,
    out: &mut dyn Write,
) -> Result<()> {
    if let Some(key) = &options.by {
        return write_label_shares(input, key, options, out);
    }
    let folded = input.fold_for_table(options);
    let rows = function_rows(&folded, options.by_cum);
    writeln!(out, "{}", input.heading(options))?;
    match input.base {
        None => write_function_values(&rows, &folded, input, options, out),
        Some(_) => write_changes(&rows, &folded, options, out),
    }
}

/// Writes the heading, one row per value of the label `key`, the largest first, up to `top` rows, and the number of
/// values without a row. Fails if the profile has no such label.
fn write_label_shares(
    input: &RenderInput<'_>,
    key: &str,
    options: &Options,
    out: &mut dyn Write,
) -> Result<()> {
    let rows = shares_by_label(&input.profile.profile, key, options.sample_type)?;
    let total = input.amount_for_percentages(options.sample_type);
    writeln!(out, "{}", input.heading(options))?;
    writeln!(
        out,
        "{:>10} {:>6} {:>8} {:>5}  {key}",
        "flat", "flat%", "samples", "±"
    )?;
    let shown = options.top.unwrap_or(rows.len()).min(rows.len());
    for row in &rows[..shown] {
        writeln!(
            out,
            "{:>10} {:>5.1}% {:>8} {:>5}  {}",
            format_amount(row.amount, options.sample_type),
            percent(row.amount, total),
            row.confidence.samples,
            row.confidence.format_relative_error(row.amount),
            row.value
        )?;
    }
    if shown < rows.len() {
        writeln!(out, "({} more, --top shows them)", rows.len() - shown)?;
    }
    Ok(())
}

/// Writes one row per function of a profile without a base, up to `top` rows, and the number of functions without a
/// row. Columns for samples and errors are written if samples were counted, columns for ages if the options request
/// ages and the profile has them.
fn write_function_values(
    rows: &[Row],
    folded: &Folded<'_>,
    input: &RenderInput<'_>,
    options: &Options,
    out: &mut dyn Write,
) -> Result<()> {
    let total = input.amount_for_percentages(options.sample_type);
    let ages = input.profile.profile.ages.filter(|_| options.ages);
    let cohorts = ages.map(|ages| Cohorts::new(folded, ages, MAX_COLUMNS, options.by_cum));
    let age_columns = |median: &str, sparkline_text: &str| match &cohorts {
        Some(_) => format!(
            " {median:>6} |{sparkline_text:<width$}|",
            width = MAX_COLUMNS as usize
        ),
        None => String::new(),
    };
    if let Some(cohorts) = &cohorts {
        let length = format_span(cohorts.cohort_seconds());
        writeln!(
            out,
            "half: an age that half of the bytes have not reached; young to old: a column for each {length}"
        )?;
    }
    let confidence = |row: &Row| match options.by_cum {
        true => row.cum.confidence,
        false => row.flat.confidence,
    };
    let is_sampled = rows.iter().any(|row| row.cum.confidence.samples > 0);
    let confidence_columns = |samples: &str, error: &str| match is_sampled {
        true => format!(" {samples:>8} {error:>5}"),
        false => String::new(),
    };
    writeln!(
        out,
        "{:>10} {:>6} {:>6} {:>10} {:>6}{}{}  function",
        "flat",
        "flat%",
        "sum%",
        "cum",
        "cum%",
        confidence_columns("samples", "±"),
        age_columns("half", "young to old"),
    )?;
    let shown = options.top.unwrap_or(rows.len()).min(rows.len());
    let mut sum = 0;
    for row in &rows[..shown] {
        let (flat, cum) = (row.flat.value(), row.cum.value());
        sum += flat;
        let confidence = confidence(row);
        let value = if options.by_cum { cum } else { flat };
        writeln!(
            out,
            "{:>10} {:>5.1}% {:>5.1}% {:>10} {:>5.1}%{}{}  {}",
            format_amount(flat, options.sample_type),
            percent(flat, total),
            percent(sum, total),
            format_amount(cum, options.sample_type),
            percent(cum, total),
            confidence_columns(
                &confidence.samples.to_string(),
                &confidence.format_relative_error(value)
            ),
            match &cohorts {
                Some(cohorts) => {
                    let function = row.function.0 as usize;
                    let half = cohorts
                        .median_age(function)
                        .map(format_span)
                        .unwrap_or_default();
                    age_columns(&half, &cohorts.sparkline(function, MAX_COLUMNS))
                }
                None => String::new(),
            },
            function_label(folded, row.function, options)
        )?;
    }
    write_omitted_count(rows.len() - shown, out)
}

/// Writes the changes from a base: one table for each of the kinds grew, shrank, new and gone, with up to `top`
/// functions. If no function changed, writes a line that says so.
fn write_changes(
    rows: &[Row],
    folded: &Folded<'_>,
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
    let amount = |value| format_amount(value, options.sample_type);
    let is_sampled = rows.iter().any(|row| row.cum.confidence.samples > 0);
    let confidence_columns = |error: String| match is_sampled {
        true => format!(" {error:>11}"),
        false => String::new(),
    };
    for change in Change::SHOWN {
        let rows: Vec<_> = changed
            .iter()
            .filter(|row| pair(row).change() == change)
            .collect();
        if rows.is_empty() {
            continue;
        }
        let values = rows.iter().map(|row| pair(row).value());
        // Cumulative values have the bytes of a stack once for each of its functions.
        let sum = values.fold(0, i64::saturating_add);
        writeln!(
            out,
            "\n{} ({column}): {}, {}",
            change.name(),
            pluralize(rows.len() as u64, "function"),
            with_sign(amount(sum))
        )?;
        writeln!(
            out,
            "{:>11}{} {:>10} {:>10}  function",
            "change",
            confidence_columns("±".into()),
            "base",
            "new"
        )?;
        let shown = options.top.unwrap_or(rows.len()).min(rows.len());
        for row in &rows[..shown] {
            let pair = pair(row);
            writeln!(
                out,
                "{:>11}{} {:>10} {:>10}  {}{}",
                with_sign(amount(pair.value())),
                confidence_columns(format!("±{}", amount(pair.confidence.error() as i64))),
                amount(pair.base),
                amount(pair.new),
                function_label(folded, row.function, options),
                if pair.is_noise() { " (noise)" } else { "" }
            )?;
        }
        write_omitted_count(rows.len() - shown, out)?;
    }
    Ok(())
}

/// Adds a plus sign to an amount that has no minus sign.
fn with_sign(amount: String) -> String {
    if amount.starts_with('-') {
        amount
    } else {
        format!("+{amount}")
    }
}

/// Writes how many functions the table leaves out; nothing for 0.
fn write_omitted_count(count: usize, out: &mut dyn Write) -> Result<()> {
    if count > 0 {
        let more = pluralize(count as u64, "more function");
        let them = if count == 1 { "it" } else { "them" };
        writeln!(out, "({more}, --top shows {them})")?;
    }
    Ok(())
}
