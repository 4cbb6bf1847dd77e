//! What steps take, as a policy of drafts looks at it: seconds by rows, between known points on straight lines.

/// Seconds of a step by its rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Line(Vec<(usize, f64)>);

impl Line {
    /// Through points of rows and seconds. More rows never take less: what was measured so counts as the most before it.
    pub fn new(mut points: Vec<(usize, f64)>) -> Line {
        points.retain(|(_, seconds)| seconds.is_finite() && *seconds >= 0.0);
        points.sort_by_key(|(rows, _)| *rows);
        points.dedup_by_key(|(rows, _)| *rows);
        let mut most = 0.0f64;
        for (_, seconds) in &mut points {
            most = most.max(*seconds);
            *seconds = most;
        }
        Line(points)
    }

    /// Seconds of so many rows: on the line between two points, before the first as the first, behind the last as between
    /// the last two.
    pub fn at(&self, rows: usize) -> f64 {
        let points = &self.0;
        let next = points.iter().position(|(at, _)| *at >= rows).unwrap_or(points.len().saturating_sub(1));
        let (Some((x1, y1)), before) = (points.get(next), next.checked_sub(1).and_then(|i| points.get(i))) else {
            return 0.0;
        };
        let Some((x0, y0)) = before else { return *y1 };
        y0 + (y1 - y0) / (x1 - x0) as f64 * (rows as f64 - *x0 as f64)
    }
}

/// What the steps of a model with a drafter take.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DraftCosts {
    /// A step of the model, its drafter's cache included.
    pub forward: Line,
    /// A draft step; rows are those of all blocks.
    pub draft: Line,
}

impl DraftCosts {
    /// Seconds in which `sequences` advance by one run each: `drafting` of them with blocks of so many rows.
    pub fn round(&self, sequences: usize, drafting: usize, block: usize) -> f64 {
        if drafting == 0 || block < 2 {
            return self.forward.at(sequences);
        }
        self.forward.at(sequences + drafting * (block - 1)) + self.draft.at(drafting * block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_lie_on_lines_between_points() {
        let line = Line::new(vec![(4, 4.0), (1, 1.0), (8, 2.0), (16, 6.0), (2, f64::NAN)]);
        assert_eq!([0, 1, 2, 4, 6, 12, 20].map(|rows| line.at(rows)), [1.0, 1.0, 2.0, 4.0, 4.0, 5.0, 7.0]);
        assert_eq!(Line::default().at(3), 0.0);
        assert_eq!(Line::new(vec![(4, 2.0)]).at(40), 2.0);
        let costs = DraftCosts { forward: line, draft: Line::new(vec![(8, 0.5)]) };
        assert_eq!([costs.round(4, 0, 8), costs.round(4, 4, 1), costs.round(1, 1, 8)], [4.0, 4.0, 4.5]);
    }
}
