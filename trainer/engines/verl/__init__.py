"""Our objectives inside verl: advantage estimators, a policy loss, and a trainer with SERO.

`VERL_USE_EXTERNAL_MODULES=trainer.engines.verl.plugin` makes verl import the first two in every
process. `main` trains one of our configs through `sero_trainer.SeroTrainer`. Only `plugin`,
`sero_trainer` and functions of `main` import verl; the rest is pure and works without it.
Written for verl 0.9 (`versions`).
"""
