//! Table of the verdicts by kind, and what was wrong.

use std::fmt;

use crate::answer::Verdict;
use crate::case::Case;

#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Row>,
    /// Area, name, reasons and answer of each case that was answered wrongly.
    wrong: Vec<String>,
}

/// Numbers of a kind's cases.
#[derive(Debug)]
struct Row {
    kind: String,
    right: usize,
    noted: usize,
    wrong: usize,
}

impl Row {
    /// Creates the row of a kind of which no case was judged yet.
    fn new(kind: &str) -> Self {
        Self {
            kind: kind.to_owned(),
            right: 0,
            noted: 0,
            wrong: 0,
        }
    }

    /// Counts a verdict as right, noted or wrong.
    fn add(&mut self, verdict: &Verdict) {
        let count = match verdict {
            Verdict::Right => &mut self.right,
            Verdict::Noted => &mut self.noted,
            Verdict::Wrong(_) => &mut self.wrong,
        };
        *count += 1;
    }
}

impl Table {
    /// Counts the verdict in the row of the case's kind. Keeps the reasons of a wrong one.
    pub(crate) fn add(&mut self, area: &str, case: &Case, verdict: &Verdict) {
        let row = match self.rows.iter_mut().find(|row| row.kind == case.kind) {
            Some(row) => row,
            None => {
                self.rows.push(Row::new(&case.kind));
                self.rows.last_mut().expect("pushed above")
            }
        };
        row.add(verdict);
        if let Verdict::Wrong(why) = verdict {
            self.wrong.push(format!("{area}: {}\n{why}", case.name));
        }
    }

    /// Number of answers that are wrong, whatever their kind.
    pub(crate) fn wrong_count(&self) -> usize {
        self.wrong.len()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "cases right noted wrong  kind")?;
        let mut sum = Row::new("all");
        let mut line = |right: usize, noted: usize, wrong: usize, kind: &str| {
            let cases = right + noted + wrong;
            writeln!(f, "{cases:5} {right:5} {noted:5} {wrong:5}  {kind}")
        };
        for row in &self.rows {
            line(row.right, row.noted, row.wrong, &row.kind)?;
            sum.right += row.right;
            sum.noted += row.noted;
            sum.wrong += row.wrong;
        }
        line(sum.right, sum.noted, sum.wrong, &sum.kind)?;
        for wrong in &self.wrong {
            writeln!(f, "\nwrong: {wrong}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Table;
    use crate::answer::Verdict;
    use crate::case::Case;

    #[test]
    fn cases_of_a_kind_share_a_row() {
        let mut table = Table::default();
        let mut add = |kind: &str, name: &str, verdict| {
            let case = Case {
                kind: kind.to_owned(),
                name: name.to_owned(),
                ..Case::default()
            };
            table.add("files", &case, &verdict);
        };
        add("units", "bytes", Verdict::Right);
        add("maps", "none", Verdict::Noted);
        add(
            "units",
            "pages",
            Verdict::Wrong("lacks \"8\"\n7\n".to_owned()),
        );
        assert_eq!(table.wrong_count(), 1);
        let expected = [
            "cases right noted wrong  kind",
            "    2     1     0     1  units",
            "    1     0     1     0  maps",
            "    3     1     1     1  all",
            "",
            "wrong: files: pages",
            "lacks \"8\"",
            "7",
        ];
        assert_eq!(table.to_string().trim_end(), expected.join("\n"));
    }
}
