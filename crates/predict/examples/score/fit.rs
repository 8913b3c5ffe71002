//! The fit: the parameters that explain the cells best without leaving what is known of them.

use levenberg_marquardt::{LeastSquaresProblem, LevenbergMarquardt};
use nalgebra::storage::Owned;
use nalgebra::{DMatrix, DVector, Dyn};
use netsilo_predict::parameters::{Table, Values};

use crate::cells::{Cell, Kind, predicted};

/// A step of a parameter's logarithm for its derivative.
const STEP: f64 = 1e-3;

struct Problem<'a> {
    table: &'a Table,
    cells: Vec<&'a Cell>,
    /// Logarithm of value over prior, in units of the prior's uncertainty.
    at: DVector<f64>,
}

impl Problem<'_> {
    fn values(&self, at: &DVector<f64>) -> Values {
        let mut values = [0.0; Values::NAMES.len()];
        for ((value, row), at) in values.iter_mut().zip(&self.table.rows).zip(at.iter()) {
            *value = row.prior * (row.uncertainty * at).exp();
        }
        Values::from_array(values)
    }

    fn errors(&self, at: &DVector<f64>) -> DVector<f64> {
        let values = self.values(at);
        let predicted = predicted(self.cells.iter().copied(), &values);
        let of_cells = self.cells.iter().zip(predicted).map(|(cell, it)| residual(cell, it));
        DVector::from_iterator(self.cells.len() + at.len(), of_cells.chain(at.iter().copied()))
    }

    fn slopes(&self) -> DMatrix<f64> {
        let here = self.errors(&self.at);
        let mut slopes = DMatrix::zeros(here.len(), self.at.len());
        for column in 0..self.at.len() {
            let mut moved = self.at.clone();
            moved[column] += STEP;
            slopes.set_column(column, &((self.errors(&moved) - &here) / STEP));
        }
        slopes
    }
}

impl LeastSquaresProblem<f64, Dyn, Dyn> for Problem<'_> {
    type ParameterStorage = Owned<f64, Dyn>;
    type ResidualStorage = Owned<f64, Dyn>;
    type JacobianStorage = Owned<f64, Dyn, Dyn>;

    fn set_params(&mut self, at: &DVector<f64>) {
        self.at.copy_from(at);
    }

    fn params(&self) -> DVector<f64> {
        self.at.clone()
    }

    fn residuals(&self) -> Option<DVector<f64>> {
        Some(self.errors(&self.at))
    }

    fn jacobian(&self) -> Option<DMatrix<f64>> {
        Some(self.slopes())
    }
}

/// Returns `table` with the values that explain `cells` best, and how sure they are.
pub(crate) fn fit<'a>(table: &'a Table, cells: impl Iterator<Item = &'a Cell>) -> Option<Table> {
    let at = DVector::zeros(table.rows.len());
    let problem = Problem { table, cells: cells.collect(), at };
    let solver = LevenbergMarquardt::new().with_ftol(1e-8).with_xtol(1e-8).with_gtol(1e-8);
    let (problem, _) = solver.minimize(problem);
    // The prior is in the residuals, so this is never singular.
    let slopes = problem.slopes();
    let covariance = (slopes.transpose() * slopes).try_inverse()?;
    let factor = covariance.cholesky()?.l();
    let values = problem.values(&problem.at).to_array();
    let mut table = table.clone();
    for (index, (fitted, value)) in table.fitted.iter_mut().zip(values).enumerate() {
        let uncertainty = table.rows[index].uncertainty;
        fitted.value = value;
        fitted.spread = (0..=index).map(|column| uncertainty * factor[(index, column)]).collect();
    }
    Some(table)
}

/// Returns by how much the model is off, in units of what counts as one standard deviation.
fn residual(cell: &Cell, predicted: f64) -> f64 {
    match cell.kind {
        Kind::Gain => ((1.0 + predicted) / (1.0 + cell.published)).ln() / 0.03,
        Kind::Rate => (predicted / cell.published).ln() / 0.03,
        Kind::Softirq(_) => (predicted - cell.published) / 0.06,
        // Where the scheduler puts tasks is not modelled: their sum counts.
        Kind::Tasks(_) => 0.0,
        Kind::AllTasks => (predicted / cell.published).ln() / 0.08,
        Kind::SoftirqRatio => (predicted / cell.published).ln() / 0.1,
    }
}
