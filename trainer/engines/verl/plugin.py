"""Import this to register with verl; `VERL_USE_EXTERNAL_MODULES` does so in every process.

Estimators `sero_grpo`, `sero_gigpo`, ... for `algorithm.adv_estimator`, and the policy loss `sero`
for `actor_rollout_ref.actor.policy_loss.loss_mode`. Public API of verl: `register_adv_est` and
`register_policy_loss` of `verl.trainer.ppo.core_algos`.

Raises, on import: `MissingExtra` without verl, `IncompatibleExtra` with another release of it.
"""

from __future__ import annotations

from trainer.engines.verl.branch_rows import make_policy_loss
from trainer.engines.verl.estimators import ESTIMATORS
from trainer.engines.verl.versions import require_verl

require_verl()

from verl.trainer.ppo import core_algos  # type: ignore[import-not-found, unused-ignore]  # noqa: E402

for _name, _estimate in ESTIMATORS.items():
    core_algos.register_adv_est(_name)(_estimate)
core_algos.register_policy_loss("sero")(make_policy_loss(core_algos.compute_policy_loss_vanilla))
