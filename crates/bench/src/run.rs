//! The loop of every study: all cells once, then again, another peer first each time.

use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::report::Recorder;
use crate::results::Sample;
use std::time::Duration;

/// One peer (or one mesh) in one scenario, or in several that share what must be started.
pub struct Cell<'a> {
    /// The name for the progress line.
    pub name: String,
    /// Cells of one group are compared with each other; within it the order changes every repeat.
    pub group: String,
    /// How long it will take.
    pub estimate: Duration,
    /// Measures it in the given repeat.
    pub measure: Measure<'a>,
}

/// Measures a cell once. `repeat`, `scenario` and `peer` of what it returns must be set.
pub type Measure<'a> = Box<dyn FnMut(u32) -> Result<Vec<Sample>> + 'a>;

/// Measures every cell `repeats` times, interleaved. What is measured is recorded at once.
///
/// # Errors
/// A cell could not be measured at all (not: its sample was invalid), or Ctrl-C. The recorder has
/// what was done until then.
pub fn interleaved(
    cells: &mut [Cell<'_>],
    repeats: u32,
    interrupt: &Interrupt,
    recorder: &mut Recorder,
) -> Result<()> {
    let once: Duration = cells.iter().map(|cell| cell.estimate).sum();
    recorder.plan(cells.len() * repeats as usize, once * repeats);
    for repeat in 0..repeats {
        for index in order(cells, repeat) {
            interrupt.check()?;
            let cell = &mut cells[index];
            recorder.begin(&format!("{}/{repeats} {}", repeat + 1, cell.name));
            let samples = (cell.measure)(repeat)
                .map_err(|f| Failure::new(f.kind, format!("{}: {f}", cell.name)))?;
            for mut sample in samples {
                sample.judge();
                recorder.record(sample)?;
            }
            recorder.done(cell.estimate);
        }
    }
    Ok(())
}

/// Groups in their order, the cells of each rotated by the repeat, so that no peer is always first
/// and drift favours nobody.
fn order(cells: &[Cell<'_>], repeat: u32) -> Vec<usize> {
    let mut order = Vec::with_capacity(cells.len());
    let mut begin = 0;
    while begin < cells.len() {
        let same = |cell: &Cell<'_>| cell.group == cells[begin].group;
        let count = cells[begin..].iter().take_while(|c| same(c)).count();
        let turn = repeat as usize % count;
        order.extend((0..count).map(|i| begin + (i + turn) % count));
        begin += count;
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_peer_is_first_in_each_repeat() {
        let cell = |group: &str, name: &str| Cell {
            name: name.into(),
            group: group.into(),
            estimate: Duration::ZERO,
            measure: Box::new(|_| Ok(Vec::new())),
        };
        let cells = [
            cell("a", "tulle"),
            cell("a", "envoy"),
            cell("a", "none"),
            cell("b", "tulle"),
            cell("b", "envoy"),
        ];
        assert_eq!(order(&cells, 0), [0, 1, 2, 3, 4]);
        assert_eq!(order(&cells, 1), [1, 2, 0, 4, 3]);
        assert_eq!(order(&cells, 2), [2, 0, 1, 3, 4]);
    }
}
