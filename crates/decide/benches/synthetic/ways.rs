//! The compared placement algorithms: the solver's and the usual ones.

use netsilo_decide::place::model::Model;
use netsilo_decide::place::{AlgorithmName, Suggestion, suggest};
use netsilo_model::cost::solver;
use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::machine::topology::Topology;

use crate::problems::Work;

/// Their names, in the order of [`ways`].
pub(crate) const WAYS: [&str; 4] = ["solver", "spread", "least-loaded", "round-robin"];

/// The placement by each algorithm.
pub(crate) fn ways(work: &Work, topology: &Topology, model: &Model) -> [Vec<usize>; 4] {
    let capacity = work.capacity(topology);
    let by = |algorithm| -> Vec<usize> {
        let suggestions = suggest(algorithm, &capacity, &work.vectors);
        let cpus = suggestions
            .iter()
            .zip(&work.vectors)
            .map(|(it, vector)| Suggestion::cpu(it).or(vector.present).unwrap());
        cpus.map(|cpu| model.cpus.binary_search(&cpu).unwrap()).collect()
    };
    // As set_irq_affinity scripts do: queue n goes to the n-th CPU of the list.
    let pool: Vec<CpuId> = work.vectors[0].pool.iter().collect();
    let round_robin =
        (0..work.vectors.len()).map(|n| model.cpus.binary_search(&pool[n % pool.len()]).unwrap());
    let found = solver::solve(&model.problem).into_iter().map(Option::unwrap).collect();
    [found, by(AlgorithmName::Spread), by(AlgorithmName::LeastLoaded), round_robin.collect()]
}
