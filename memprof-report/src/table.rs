//! Functions with what they allocated themselves (flat) and with their callees (cumulative).

use std::ops::AddAssign;

use crate::evidence::Evidence;
use crate::fold::Folded;
use crate::names::StringId;

/// A value in the profile and in its base.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pair {
    /// In the profile.
    pub new: i64,
    /// In the base; 0 without one.
    pub base: i64,
    /// What the value, or the change from the base, rests on.
    pub evidence: Evidence,
}

impl Pair {
    /// The value, or the change from the base.
    pub fn value(self) -> i64 {
        self.new - self.base
    }

    /// Whether the change is no larger than sampling alone may make it: two standard errors.
    pub fn is_noise(self) -> bool {
        self.value() != 0 && (self.value().unsigned_abs() as f64) < 2.0 * self.evidence.error()
    }

    fn is_nothing(self) -> bool {
        (self.new, self.base) == (0, 0)
    }

    /// How it changed.
    pub fn change(self) -> Change {
        match (self.base, self.new) {
            (base, new) if base == new => Change::Same,
            (0, _) => Change::New,
            (_, 0) => Change::Gone,
            (base, new) if new > base => Change::Grew,
            _ => Change::Shrank,
        }
    }
}

impl AddAssign for Pair {
    fn add_assign(&mut self, other: Self) {
        self.new += other.new;
        self.base += other.base;
        self.evidence += other.evidence;
    }
}

/// What became of a function since the base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// More than before.
    Grew,
    /// Less than before.
    Shrank,
    /// Not there before.
    New,
    /// Not there any more.
    Gone,
    /// As before.
    Same,
}

impl Change {
    /// Those a diff shows, in its order.
    pub const SHOWN: [Self; 4] = [Self::Grew, Self::Shrank, Self::New, Self::Gone];

    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Grew => "grew",
            Self::Shrank => "shrank",
            Self::New => "new",
            Self::Gone => "gone",
            Self::Same => "same",
        }
    }
}

/// One function.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Its name.
    pub function: StringId,
    /// Its own allocations.
    pub flat: Pair,
    /// Its own and its callees'; a recursive function counts once per stack.
    pub cum: Pair,
    /// How far from the leaf it stands, summed over what it holds: what orders functions that hold the same,
    /// as all do that lead to one leak. 0 in a table of every function.
    distance: u128,
}

/// One row per function, the largest first: by flat value, or by cumulative.
pub fn table(folded: &Folded, by_cum: bool) -> Vec<Row> {
    let mut rows: Vec<Row> = (0..folded.functions.len() as u32)
        .map(|id| Row {
            function: StringId(id),
            flat: Pair::default(),
            cum: Pair::default(),
            distance: 0,
        })
        .collect();
    let mut seen = vec![usize::MAX; rows.len()];
    let mut told = Vec::new();
    for (index, stack) in folded.stacks.iter().enumerate() {
        told.clear();
        told.extend(folded.counted(stack));
        for (above, function) in told.iter().enumerate() {
            let function = function.0 as usize;
            if seen[function] != index {
                seen[function] = index;
                let row = &mut rows[function];
                row.cum += stack.values;
                if folded.is_told {
                    let distance = told.len() - 1 - above;
                    row.distance +=
                        u128::from(stack.values.value().unsigned_abs()) * distance as u128;
                }
            }
        }
        if let Some(leaf) = told.last() {
            rows[leaf.0 as usize].flat += stack.values;
        }
    }
    rows.retain(|row| !row.cum.is_nothing());
    let size = |pair: Pair| std::cmp::Reverse(pair.value().unsigned_abs());
    let place = |row: &Row| (row.distance, folded.functions.get(row.function));
    match by_cum {
        true => rows.sort_by(|a, b| {
            (size(a.cum), size(a.flat), place(a)).cmp(&(size(b.cum), size(b.flat), place(b)))
        }),
        false => rows.sort_by(|a, b| {
            (size(a.flat), size(a.cum), place(a)).cmp(&(size(b.flat), size(b.cum), place(b)))
        }),
    }
    rows
}
