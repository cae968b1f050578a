"""Is an oracle worth adopting? Everything that can be judged without a model.

`measure` runs an oracle from states that a policy visited, `overhead` projects its cost to an
iteration of training, `verdict` says GO or NO-GO and why, and `to_json` puts all of it into one
object. `sero bench oracle` does these in turn.
"""

from oracles.bench.cost import overhead, step_costs
from oracles.bench.fidelity import restore_figures, restore_root
from oracles.bench.figures import (
    GROUPS,
    ROLLOUTS,
    Code,
    GateFigures,
    IterationCosts,
    Measured,
    OracleFigures,
    Overhead,
    Probe,
    RestoreFigures,
    StepCosts,
    Verdict,
    to_json,
)
from oracles.bench.measure import Progress, measure
from oracles.bench.outcomes import gate_figures, oracle_figures
from oracles.bench.verdict import FEWEST_ROOTS, MOST_OVERHEAD, verdict

__all__ = [
    "FEWEST_ROOTS",
    "GROUPS",
    "MOST_OVERHEAD",
    "ROLLOUTS",
    "Code",
    "GateFigures",
    "IterationCosts",
    "Measured",
    "OracleFigures",
    "Overhead",
    "Probe",
    "Progress",
    "RestoreFigures",
    "StepCosts",
    "Verdict",
    "gate_figures",
    "measure",
    "oracle_figures",
    "overhead",
    "restore_figures",
    "restore_root",
    "step_costs",
    "to_json",
    "verdict",
]
