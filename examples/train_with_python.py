"""Training through Python, without the command: GRPO with SERO on generated households.

    python examples/train_with_python.py runs/from_python

The pieces are those of `sero train`, and so is the folder: `sero eval runs/from_python` plays its
policy. Put your own in their place: another `Config`, a model and tokenizer of yours in place of
the warm-started tiny one, your own loop around `Trainer.iterate`. An environment of your own is
`env.id: module:name`, or joins with `trainer.worlds.environments.register_environment`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.config import load_config, resolve
from trainer.iteration import Trainer
from trainer.metrics import MetricsLog
from trainer.models.tiny import save_policy
from trainer.runs.folder import RunFolder
from trainer.runs.info import run_info, write_json
from trainer.supervised.warmstart import warm_policy
from trainer.worlds.tasks import make_env, open_tasks, split_tasks

SETTINGS = {
    "env": {"data": "generated", "max_steps": 15},
    "rollout": {"tasks": 8, "rollouts": 8},
    "objective": {"name": "gigpo"},
    "auxiliary": {"sero": {"weight": 0.1}},
    "run": {"iterations": 20},
}


def main(out: Path, changes: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """Trains in the folder `out`; `changes` have dotted keys. Returns each iteration's metrics."""
    config = load_config(SETTINGS, changes)

    # Tasks are shared by all environments; `make_env` is a factory of gymnasium environments.
    tasks = open_tasks(config.env)
    env = make_env(config.env, tasks, config.env.split)
    first = split_tasks(config.env, tasks, config.env.split)[0]
    _, info = env.reset(options={"task_id": first})
    print(f"{tasks.source}; the first task: {info['goal']}")

    # A policy: any causal model of transformers with its tokenizer, such as `load_policy` of
    # `trainer.models.tiny` reads. Here a tiny one is made and learns from demonstrations first.
    model, tokenizer, report = warm_policy(config, tasks)
    print(f"{report['parameters']:,} parameters, warm start's last loss {report['last_loss']:.3f}")

    folder = RunFolder(out)
    save_policy(folder.initial, model, tokenizer, with_manifest=True)
    trainer = Trainer(config, folder, model, tokenizer, task_set=tasks)
    made_with = {"manifest_hash": tasks.manifest_hash, "prompt_hash": trainer.student.template.hash}
    write_json(folder.info, run_info(resolve(config), provenance=info["provenance"], **made_with))
    metrics, log = [], MetricsLog(folder.metrics)
    for iteration in range(config.run.iterations):
        metrics.append(trainer.iterate(iteration))
        log.write(metrics[-1])
        print(f"iteration {iteration}: success rate {metrics[-1]['success_rate']:.3f}")
    for split, result in trainer.evaluate(config.run.iterations).items():
        print(f"{split}: {result['wins']} of {result['n']}")
    print(f"checkpoint: {trainer.save(config.run.iterations)}")
    return metrics


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/from_python"))
